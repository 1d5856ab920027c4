"""One node's agent: prepares the node, keeps the link to the coordinator, and carries out Start and Stop.

prepare ─ setup, zygote ─┐
link ── Join, Ready ─────┼─► Start ─► RankGroup ─► Started, Exited, Pulse
                         └─► Stop  ─► Stopped
lease: no answer to a pulse for that long → every rank is ended, and the agent leaves
"""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agent import messages
from launcher.agent.messages import ToCoordinator
from launcher.agent.processes import descendants, end_all
from launcher.agent.ranks.group import Home, RankGroup
from launcher.agent.ranks.ports import HeldPort
from launcher.agent.ranks.prepare import Preparation, SetupFailed
from launcher.agent.reaper import Reaper
from launcher.agent.wire import AgentWire, WireError, connect
from launcher.errors import Exit
from launcher.rundir.durable import read_record
from launcher.rundir.identity import this_process
from launcher.rundir.records import Endpoint, ProcessId, StopRequest

if TYPE_CHECKING:
    from launcher.agent.replication.replication import Replication

PULSE_S = 1.0
NEWS_S = 0.1
_RETRY_S = 0.05
_PATIENCE_S = 10.0  # beyond the lease: a member that is lost ends the generation before a fetch from it is given up
# A batch system may send any of these to every process of a job, some time before it takes the nodes back.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


_Weighty = (
    messages.Leads | messages.Started | messages.Exited | messages.Stopped
    | messages.NotFetched | messages.Settled | messages.Fault
)  # fmt: skip


class NodeAgent:
    """See the module. `run` returns when the coordinator said End, or the lease ran out."""

    def __init__(self, home: Home, token: str, reaper: Reaper, buried: ProcessId | None = None) -> None:
        self._home = home
        self._buried = buried
        self._token = token
        self._reaper = reaper
        self._preparation = Preparation(home, reaper)
        self._wire: AgentWire | None = None
        self._group: RankGroup | None = None
        self._starting: asyncio.Task[None] | None = None
        self._opens = 0  # the generation of which no rank runs here yet
        self._led = 0  # the newest generation that has its rank 0
        self._leader = asyncio.Event()
        self._replication: Replication | None = None  # only where each node has a disk of its own
        self._work: set[asyncio.Task[None]] = set()
        self._port = HeldPort(home.node.address)
        self._old_ports: list[HeldPort] = []
        self._told: list[ToCoordinator] = []
        self._sequence = 0
        self._joined_at = 0.0
        self._sent_at: dict[int, float] = {}
        self._lease_s = home.plan.spec.recovery.lease_s
        self._leased_at = time.monotonic() + home.plan.spec.recovery.wait_s
        self._fresh = asyncio.Event()
        self.goes_on = False  # the attempt has ended, and another one follows
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def run(self) -> Exit:
        """The agent's whole life."""
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
        if self._home.plan.disks_apart:
            self._replication = await self._open_replication()
        for life in (self._prepare(), self._keep_link(), self._keep_pulse(), self._watch_lease()):
            self._go(life)
        code = await self._over
        for task in self._work:
            task.cancel()
        if self._replication is not None:
            await self._replication.close()
        await self._preparation.close()
        await asyncio.to_thread(end_all, lambda: descendants(os.getpid()))
        if self._wire is not None:
            self._wire.close()
        return code

    async def _open_replication(self) -> "Replication":
        from launcher.agent.replication.replication import Replication  # late: 20 ms that a shared disk spares

        plan, node = self._home.plan, self._home.node
        folder = Path(plan.run_dir, plan.spec.checkpoint.dir)
        patience_s = plan.spec.recovery.lease_s + _PATIENCE_S
        limit = plan.spec.checkpoint.copy_limit_bytes
        replication = Replication(node.index, node.address, self._token, folder, self._say, patience_s, limit)
        await replication.open()
        return replication

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    def leave(self, code: Exit) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _say(self, message: ToCoordinator) -> None:
        if self._wire is not None:
            self._wire.send(message)

    def _tell(self, message: _Weighty) -> None:
        """Say what must not be lost: it is said again after each new Join, and hearing it twice does no harm."""
        self._told.append(message)
        self._say(message)

    # -- the node itself

    async def _prepare(self) -> None:
        try:
            await self._preparation.run()
        except SetupFailed as failure:
            self._say_fault(failure)
            return
        self._say(messages.Ready(self._home.node.index))

    def _say_fault(self, failure: SetupFailed) -> None:
        self._say(messages.Fault(self._home.node.index, True, str(failure), failure.log))

    def _asked_to_stop(self) -> None:
        request = read_record(self._home.attempt.stop, StopRequest)
        kind = "preempt" if request is None else request.kind
        if self._wire is None:
            self.leave(Exit.CANCELLED if kind == "cancel" else Exit.PREEMPTED)
        self._say(messages.StopAsked(self._home.node.index, kind))

    # -- the link

    async def _keep_link(self) -> None:
        while True:
            wire = await self._reach()
            if wire is None:
                await asyncio.sleep(_RETRY_S)
                continue
            self._wire = wire
            self._introduce()
            try:
                while (message := await wire.receive()) is not None:
                    self._obey(message)
            except WireError:
                wire.close()
            self._wire = None

    async def _reach(self) -> AgentWire | None:
        """A proved connection to whoever the run directory names as coordinator now; None: not yet."""
        endpoint = read_record(self._home.attempt.endpoint, Endpoint)
        if endpoint is None:
            return None
        try:
            return await connect(endpoint.address, endpoint.port, self._home.node.address, self._token)
        except (OSError, WireError):
            return None  # the lease decides how long this may go on

    def _introduce(self) -> None:
        node = self._home.node
        self._joined_at = time.monotonic()
        me, port = this_process(), self._port.number
        port_of_replicas = self._replication.port if self._replication is not None else 0
        self._say(messages.Join(node.index, node.address, me, port, self._generation, self._buried, port_of_replicas))
        for message in self._told:
            self._say(message)
        if self._preparation.failure is not None:
            self._say_fault(self._preparation.failure)
        elif self._preparation.done:
            self._say(messages.Ready(node.index))

    def _obey(self, message: messages.ToAgent) -> None:
        match message:
            case messages.Welcome(lease_s=lease_s):
                self._lease_s = lease_s
                self._leased_at = self._joined_at  # when it was sent: the coordinator heard it later
            case messages.PulseAck(seq=seq):
                self._leased_at = max(self._leased_at, self._sent_at.pop(seq, self._leased_at))
            case messages.Start():
                self._starting = self._go(self._start(message))
            case messages.Follow(generation=generation):
                self._led = generation
                self._leader.set()
            case messages.Stop():
                self._go(self._stop(message))
            case messages.End(goes_on=goes_on):
                self.goes_on = goes_on
                self.leave(Exit.OK)

    # -- ranks

    async def _start(self, start: messages.Start) -> None:
        self._told.clear()  # of the generation before, which the coordinator has closed
        self._opens = start.generation  # until it is stopped, if it comes no further
        await self._preparation.wait()
        await self._preparation.renew()
        if self._replication is not None and not await self._bring(self._replication, start):
            return
        if start.group_rank:
            await self._rank_zero(start.generation)
        group = RankGroup(self._home, start, self._preparation.starter, self)
        self._group, self._opens = group, 0
        pids = await group.begin()
        self._old_ports.append(self._port)
        self._port = HeldPort(self._home.node.address)
        self._tell(messages.Started(self._home.node.index, start.generation, pids, self._port.number))
        self._fresh.set()

    async def _bring(self, replication: "Replication", start: messages.Start) -> bool:
        """Have here what the ranks are to load; False where that cannot be, and was said."""
        from launcher.agent.replication.client import DiskFailed  # late: 20 ms that a shared disk spares
        from launcher.agent.replication.replication import NotBrought  # late: 20 ms that a shared disk spares

        try:
            await replication.bring(start)
        except NotBrought as error:
            self._tell(messages.NotFetched(self._home.node.index, start.generation, str(error)))
            return False
        except DiskFailed as error:
            self._tell(messages.Fault(self._home.node.index, False, f"its disk: {error}"))
            return False
        return True

    async def _rank_zero(self, generation: int) -> None:
        """Returns once it is there."""
        while self._led < generation:
            self._leader.clear()
            await self._leader.wait()

    @property
    def _generation(self) -> int:
        """That of the ranks that run here, or are about to; 0: none."""
        return self._group.generation if self._group is not None else self._opens

    async def _stop(self, stop: messages.Stop) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
            await self._preparation.settle()  # else a fork that comes late would outlive its generation
        if self._opens <= stop.generation:
            self._opens = 0
        group = self._group
        if group is not None and group.generation <= stop.generation:
            self._say_pulse()
            await group.stop(stop.grace_s, stop.hung, self._preparation.own_pids)
            if self._group is not group:
                return  # another stop was quicker, and has said so
            group.close()
            self._group = None
            while self._old_ports:
                self._old_ports.pop().release()
        self._tell(messages.Stopped(self._home.node.index, stop.generation))
        await self._preparation.renew()

    def begun(self, rank: int) -> None:
        if rank == 0:
            self._tell(messages.Leads(self._home.node.index, self._generation))

    def news(self) -> None:
        if self._replication is not None and self._group is not None and self._group.checkpoint is not None:
            self._replication.note(self._group.checkpoint)
        self._fresh.set()

    def last_news(self) -> None:
        self._say_pulse()

    def ended(self, exited: messages.Exited) -> None:
        self._tell(exited)
        if self._replication is not None and self._group is not None and self._group.over:
            self.news()  # of a commit just before the end
            self._go(self._settle(self._replication, self._group.generation))

    async def _settle(self, replication: "Replication", generation: int) -> None:
        problem = await replication.settle()
        self._tell(messages.Settled(self._home.node.index, generation, problem))

    # -- pulse and lease

    async def _keep_pulse(self) -> None:
        while True:
            self._say_pulse()
            self._fresh.clear()
            try:
                async with asyncio.timeout(PULSE_S):
                    await self._fresh.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(NEWS_S)  # so that many reports make one pulse

    def _say_pulse(self) -> None:
        group = self._group
        ranks = group.pulses() if group is not None else ()
        if self._wire is None:
            return
        self._sequence += 1
        self._sent_at[self._sequence] = time.monotonic()
        fetched = self._replication.fetched if self._replication is not None else None
        self._say(messages.Pulse(self._home.node.index, self._sequence, self._generation, ranks, fetched))

    async def _watch_lease(self) -> None:
        while (left_s := self._leased_at + self._lease_s - time.monotonic()) > 0:  # noqa: ASYNC110 - the clock it is
            await asyncio.sleep(min(left_s, PULSE_S))  # a Welcome ends the long first wait
        self.leave(Exit.LOST)
