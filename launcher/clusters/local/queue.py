"""A run of this machine before it starts: held, too early, behind another run, or without room.

What it waits for its own keeper looks at twice a second, so that nothing else has to be there for it to start. Places
in the queue and slots are sockets of that process and of the run's agents: of whoever is killed nothing is left.
"""

import time
from collections.abc import Callable, Mapping

from launcher.agent.machine import this_machine
from launcher.clusters.keeping.attempt_end import cancelled, cut_short, write_end
from launcher.clusters.keeping.before_start import BeforeStart
from launcher.clusters.keeping.others import OtherRuns
from launcher.clusters.keeping.queued import say_queued, say_starting
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.slots.take import Demand, Slots
from launcher.errors import Exit, LaunchError
from launcher.plan.model import Plan
from launcher.plan.queueing import devices_of, with_devices
from launcher.rundir.attempts import read_intent
from launcher.rundir.durable import write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd
from launcher.words import Cause, State

_TURN_S = 0.5


class TurnHere:
    """The wait of one run for its turn, and the slots that it got with it."""

    def __init__(
        self, run: RunDir, attempt: AttemptDir, plan: Plan, wakeup: Wakeup, environ: Mapping[str, str]
    ) -> None:
        self._run, self._attempt, self._plan, self._wakeup = run, attempt, plan, wakeup
        self._machine = this_machine(environ)
        self._queue = plan.spec.queue
        self._waits = BeforeStart(run, attempt, plan, OtherRuns().look)
        self._slots: Slots | None = None
        self._held_back = False  # by anything but the slots

    @property
    def fds(self) -> tuple[int, ...]:
        """What holds its slots, as long as any process has it."""
        return self._slots.fds if self._slots is not None else ()

    def come(self, waits: Callable[[], None] | None = None) -> Plan | None:
        """Returns when it may start, with the plan to follow; None: it has ended here, and its last word is written.

        `waits` is called once, where it may not start at once.
        """
        try:
            found = self._waited(waits)
        except LaunchError as error:
            found = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), str(error))
        if isinstance(found, Plan):
            return found
        write_end(self._run, self._attempt, found, self._plan)
        return None

    def _waited(self, waits: Callable[[], None] | None) -> Plan | AttemptEnd:
        said = False
        while not self._wakeup.stop_asked:
            hopeless, reasons = self._waits.look()
            if hopeless:
                return cancelled(hopeless)
            self._held_back = self._held_back or bool(reasons)
            if not reasons and (devices := self._take()) is not None:
                if said:
                    say_starting(self._run, self._attempt)
                return self._with(devices)
            say_queued(self._run, self._attempt, "; ".join(reasons) or self._ahead())
            if waits is not None and not said:
                waits()
            said = True
            self._wakeup.sleep(_TURN_S)
        return cut_short(self._attempt, "it waited for its turn", time.time())

    def _take(self) -> tuple[str, ...] | None:
        """The GPUs that it got, none where it needs none; None: there is no room."""
        devices = devices_of(self._plan)
        if self._queue.now or not (devices or self._queue.slots):
            return ()
        if self._slots is None:
            came_at = time.time() if self._held_back else read_intent(self._attempt).created_at
            demand = Demand(devices, self._queue.slots)
            self._slots = Slots(
                self._run.id,
                int(came_at * 1000),
                demand,
                self._machine.gpus,
                self._machine.cpus,
                priority=self._queue.priority,
            )
            self._slots.enqueue()
        return self._slots.try_take()

    def _ahead(self) -> str:
        return self._slots.ahead() if self._slots is not None else ""

    def _with(self, devices: tuple[str, ...]) -> Plan:
        """Where these are not the GPUs that the plan had in mind, this attempt and those after it follow another."""
        if not devices or (devices == self._machine.gpus and all(node.gpus is None for node in self._plan.nodes)):
            return self._plan
        plan = with_devices(self._plan, devices)
        if plan != self._plan:
            write_record(self._attempt.plan, plan)
        return plan
