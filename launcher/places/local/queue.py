"""Make a local run wait until it may start: for other runs, a time, or free GPUs and cores (slots). Its own supervisor
waits, and checks twice a second.

Positions in the queue and slots are sockets of that process and of the run's agents, so that a killed run leaves none
behind.
"""

import time
from collections.abc import Callable, Mapping

from launcher.node.machine import this_machine
from launcher.places.other_runs import OtherRuns
from launcher.plan.model import Plan
from launcher.plan.queueing import devices_of, with_devices
from launcher.run.attempts import read_intent
from launcher.run.durable import write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd
from launcher.supervisor.attempt_end import cut_short, write_end
from launcher.supervisor.slots.take import Demand, Slots
from launcher.supervisor.waiting import Turn, Waiter, record_starting
from launcher.supervisor.wakeup import Wakeup

_TURN_S = 0.5


class TurnHere:
    """The wait of one run until it may start on this machine, and the slots (GPUs or cores) that it takes then."""

    def __init__(
        self, run: RunDir, attempt: AttemptDir, plan: Plan, wakeup: Wakeup, environ: Mapping[str, str]
    ) -> None:
        self._run, self._attempt, self._plan, self._wakeup = run, attempt, plan, wakeup
        self._machine = this_machine(environ)
        self._waiter = Waiter(run, attempt, plan, OtherRuns().look)
        self._slots: Slots | None = None
        self._devices = tuple[str, ...]()

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that hold the run's slots, which stay taken as long as any process has one open."""
        return self._slots.fds if self._slots is not None else ()

    def wait(self, at_first: Callable[[], None] | None = None) -> Plan | AttemptEnd:
        """Wait until the run may start and return the plan to follow, with the GPUs that it got; or return how the
        attempt has ended meanwhile, such as by `launch cancel`, once that end is recorded.

        `at_first` is called once if the run has to wait at all.
        """
        turn = self._waiter.wait(self._wakeup, every_s=_TURN_S, place=self._take, at_first=at_first)
        if turn is Turn.STOPPED:
            turn = cut_short(self._attempt, "it waited for its turn", time.time())
            write_end(self._run, self._attempt, turn, self._plan)
        if isinstance(turn, AttemptEnd):
            return turn
        if self._waiter.waited:
            record_starting(self._run, self._attempt)
        return self._with(self._devices)

    def _take(self) -> str:
        """Take the GPUs or cores that the run needs and return "", or return what it waits for."""
        devices, queue = devices_of(self._plan), self._plan.spec.queue
        if queue.now or not (devices or queue.slots):
            return ""
        if self._slots is None:
            came_at = time.time() if self._waiter.held_back else read_intent(self._attempt).created_at
            demand, gpus, cpus = Demand(devices, queue.slots), self._machine.gpus, self._machine.cpus
            self._slots = Slots(self._run.id, int(came_at * 1000), demand, gpus, cpus, priority=queue.priority)
            self._slots.enqueue()
        taken = self._slots.try_take()
        if taken is None:
            return self._slots.ahead()
        self._devices = taken
        return ""

    def _with(self, devices: tuple[str, ...]) -> Plan:
        """Return the attempt's plan with the GPUs `devices`, named as in CUDA_VISIBLE_DEVICES. If it differs from the
        attempt's own plan, it is written for this and later attempts.

        Return the attempt's own plan if `devices` is empty or has all GPUs of this machine.
        """
        if not devices or (devices == self._machine.gpus and all(node.gpus is None for node in self._plan.nodes)):
            return self._plan
        plan = with_devices(self._plan, devices)
        if plan != self._plan:
            write_record(self._attempt.plan, plan)
        return plan
