"""A node's agent: it prepares the node, keeps the connection to the coordinator, and starts and stops ranks on the
coordinator's orders. A generation is one set of ranks that train together. A zygote is a process that has imported
torch and forks ranks; the watchdog is one that kills the ranks when the lease, which answered heartbeats renew,
expires. An attempt is one batch job, or one start on a pool's hosts.

prepare ─ setup, zygote ─┐
link ── Join, Ready ─────┼─► Start ─► RankGroup ─► Started, Exited, Heartbeat
                         └─► Stop  ─► Stopped
lease: no answer to a heartbeat for that long → every rank is ended, and the agent leaves; ranks/lease sees to it
"""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import Exit, said_by_the_system
from launcher.node.lifeline import Lifeline
from launcher.node.load.sampler import KEPT_SAMPLES, Sampler
from launcher.node.ranks.group import Home, Pids, RankGroup
from launcher.node.ranks.lease import AfterSuspend, LeaseWatch, Watchdog
from launcher.node.ranks.ports import HeldPort
from launcher.node.ranks.reaper import Death, Reaper
from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.node.readiness import Readiness
from launcher.run.durable import readable
from launcher.run.identity import this_process
from launcher.run.patience import DISK_ERRORS, say
from launcher.run.processes import descendants, end_all
from launcher.run.records import ProcessId, StopRequest
from launcher.wire import messages
from launcher.wire.frames import wire_key
from launcher.wire.messages import ToCoordinator

if TYPE_CHECKING:
    from launcher.copies.buddies import Buddies
    from launcher.copies.replication import Replication
    from launcher.copies.uploads import Uploads
    from launcher.health.probe import Prober
    from trainer.checkpoint_files.object_store import ObjectStore

NEWS_S = 0.1
_PATIENCE_S = 10.0  # beyond the lease: a member that is lost ends the generation before a fetch from it is given up
# A batch system may send any of these to every process of a job, some time before it takes the nodes back.
# No descriptor, no process, no memory was left for a rank: nothing that its script has done.
_USED_UP = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class NodeAgent:
    """The agent of a node; `run` returns once the coordinator has sent End or the lease has expired."""

    def __init__(
        self, home: Home, token: str, reaper: Reaper, watchdog: Watchdog, buried: ProcessId | None = None
    ) -> None:
        self._home = home
        self._watchdog = watchdog
        self._buried = buried
        self._token = token
        self._reaper = reaper
        self._line = Lifeline(home, token, watchdog.lease)
        self._readiness = Readiness(home, reaper, self._line, self._send_heartbeat)
        self._preparation = self._readiness.preparation
        self._group: RankGroup | None = None
        self._starting: asyncio.Task[None] | None = None
        self._opens = 0  # the generation of which no rank runs here yet
        self._led = 0  # the newest generation that has its rank 0
        self._leader = asyncio.Event()
        self._replication: Replication | None = None  # only where each node has a disk of its own
        self._buddies: Buddies | None = None  # only where what is in memory has copies on other nodes
        self._uploads: Uploads | None = None  # only where checkpoints have copies in a store
        self._prober: Prober | None = None  # only where links are measured
        self._work: set[asyncio.Task[None]] = set()
        self._port = HeldPort(home.node.address)
        self._old_ports: list[HeldPort] = []
        self._fresh = asyncio.Event()
        reaper.on_stop = self._fresh.set  # a rank that stands still is in the next heartbeat
        samples = home.run.system(home.attempt.number, home.node.index)
        kept = MetricsFile(samples, 0, kept_whole=KEPT_SAMPLES, spread=KEPT_SAMPLES)
        self._sampler = Sampler(home.node, self._rank_pids, kept=kept)
        self.goes_on = False  # the attempt has ended, and another one follows
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def run(self) -> Exit:
        """Run the agent until its attempt ends or its lease expires, and return its exit code."""
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._forward_stop_request)
        self._reaper.watch(self._watchdog.pid, self._watchdog_died)
        self._sampler.start()
        self._reaper.reap()  # it may have ended before SIGCHLD was handled
        if self._home.plan.disks_apart:
            self._replication = await _open_replication(self._home, self._token, self._line.send)
        elif self._home.plan.keeps_copies and self._home.snapshots is not None:
            self._buddies = await _open_buddies(self._home, self._home.snapshots, self._token, self._line.send)
        if self._home.plan.spec.checkpoint.copy_to is not None:
            self._uploads = _open_uploads(self._home, self._line.send)
        if self._home.plan.spec.recovery.health and len(self._home.plan.nodes) > 1:
            self._prober = await _open_prober(self._home, self._token)
        for life in (
            *self._readiness.tasks(),
            self._line.keep(self._introduce, self._obey),
            self._keep_heartbeat(),
            self._watch_lease(),
        ):
            self._start_task(life)
        code = await self._over
        for task in self._work:
            task.cancel()
        if self._replication is not None:
            await self._replication.close()
        if self._buddies is not None:
            await self._buddies.close()
        if self._uploads is not None:
            self._uploads.close()
        if self._prober is not None:
            await self._prober.close()
        await self._preparation.close()
        await asyncio.to_thread(self._sampler.close)
        spared = (self._watchdog.lease.standby,) if code is Exit.LOST or self.goes_on else ()
        await asyncio.to_thread(end_all, lambda: descendants(os.getpid(), keep=spared))
        self._line.close()
        return code

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the coroutine in the background and return its task; an error in it ends the agent."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._task_finished)
        return task

    def _task_finished(self, task: asyncio.Task[None]) -> None:
        """End the agent with the error of a background task, if the task failed."""
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    def leave(self, code: Exit) -> None:
        """End the agent with exit code `code`, unless it is already ending."""
        if not self._over.done():
            self._over.set_result(code)

    def _forward_stop_request(self) -> None:
        """Send the coordinator the request to stop this attempt that the supervisor has written; without a connection,
        end the agent at once.
        """
        request = readable(self._home.attempt.stop, StopRequest)
        kind = "preempt" if request is None else request.kind
        if not self._line.is_up:
            self.leave(Exit.CANCELLED if kind == "cancel" else Exit.PREEMPTED)
        self._line.send(messages.StopAsked(self._home.node.index, kind))

    # -- what the coordinator wants

    def _introduce(self) -> None:
        """Send Join on a new connection, and then the node's state: that it is Ready or cannot be prepared (neither
        while it still prepares), that a device fails, and that its host is about to go, as far as these apply.
        """
        node = self._home.node
        me, port = this_process(), self._port.number
        gives = self._replication or self._buddies
        port_of_replicas = gives.port if gives is not None else 0
        port_of_links = self._prober.port if self._prober is not None else 0
        ports = port_of_replicas, port_of_links
        self._line.join(messages.Join(node.index, node.address, me, port, self._generation, self._buried, *ports))
        self._readiness.report()

    def _obey(self, message: messages.ToAgent) -> None:
        """Carry out a message of the coordinator; what takes time, such as to start ranks, becomes a task."""
        match message:
            case messages.Welcome(lease_s=lease_s, brief=brief):
                self._line.welcomed(lease_s, brief=brief)
            case messages.HeartbeatAck(seq=seq):
                self._line.answered(seq)
            case messages.CheckLink():
                self._start_task(self._check_link(message))
            case messages.Look():
                self._start_task(self._look(message))
            case messages.Start():
                self._starting = self._start_task(self._start(message))
            case messages.ContinueInPlace():
                self._starting = self._start_task(self._continue_in_place(message))
            case messages.Follow(generation=generation):
                self._led = generation
                self._leader.set()
            case messages.Stop():
                self._start_task(self._stop(message))
            case messages.End(goes_on=goes_on):
                self.goes_on = goes_on
                self.leave(Exit.OK)

    async def _check_link(self, request: messages.CheckLink) -> None:
        """Measure the network link between this node and the one that `request` names, and send the result to the
        coordinator. Do nothing if links are not measured in this run.
        """
        if self._prober is not None:
            self._line.send(await self._prober.measure(request.number, request.peer))

    async def _look(self, request: messages.Look) -> None:
        """Inspect the ranks of the requested generation, and send what each is doing. With `request.times`, send only
        the times at which each entered its newest collectives. Do nothing if another generation runs here.
        """
        group = self._group
        if group is None or group.generation != request.generation:
            return
        node, asked_at = self._home.node.index, time.time()
        if request.times:
            for rank, times in (await group.entered()).items():
                self._line.send(messages.Entered(node, request.number, rank, times.groups, asked_at, time.time()))
            return
        for look in await group.look():
            self._line.send(messages.Looked(node, request.number, look))

    # -- ranks

    async def _start(self, start: messages.Start) -> None:
        """Start the ranks of a generation, once the node is prepared and its lease valid. Before that, if the nodes
        share no disk, fetch the checkpoint that the ranks will load.
        """
        node = self._home.node.index
        self._line.forget()
        self._opens = start.generation  # until it is stopped, if it comes no further
        await self._preparation.wait()
        await self._preparation.renew()
        if self._replication is not None and (problem := await _fetch_checkpoint(node, self._replication, start)):
            self._line.send_reliably(problem)
            return
        if self._uploads is not None:
            self._uploads.follow(start)
        if self._buddies is not None:
            await self._buddies.bring(start)
            await self._buddies.follow(start)
        if start.group_rank and not start.joins:  # ranks that meet in place look for rank 0 again at once
            await self._wait_for_rank_zero(start.generation)
        await self._line.wait_until_leased()
        group = RankGroup(self._home, start, self._preparation.starter, self)
        self._group, self._opens = group, 0
        await self._begin(start, group.begin())

    async def _continue_in_place(self, message: messages.ContinueInPlace) -> None:
        """Begin a new generation: this node's ranks that are among the message's `survivors` keep their processes, and
        its other ranks are started.

        No rank is started if the previous generation's ranks were stopped before the message came, or if a check finds
        a device of the failed ranks unfit, which is reported to the coordinator.
        """
        group = self._group
        if group is None or group.generation >= message.start.generation:
            return  # it was stopped meanwhile
        self._line.forget()
        if self._uploads is not None:
            self._uploads.follow(message.start)
        if self._buddies is not None:
            await self._buddies.follow(message.start)
        await self._preparation.renew()
        if not await self._readiness.is_still_fit(group.suspects):
            return  # this generation will be closed
        keep, waiting = self._other_processes
        await self._begin(message.start, group.continue_in_place(message, self._preparation.starter, keep, waiting))

    async def _begin(self, start: messages.Start, begins: Coroutine[Any, Any, tuple[int, ...]]) -> None:
        """Await `begins`, which starts the ranks and returns their pids, and send the coordinator the message Started.
        If the ranks cannot be started because the disk fails, or memory, processes or descriptors are used up, send it
        a Fault instead; raise any other OSError.
        """
        node = self._home.node.index
        try:
            pids = await begins
        except OSError as error:
            fault = fault_of_start(node, error)
            if fault is None:
                raise
            say(fault.text)
            self._line.send_reliably(fault)
            return
        self._old_ports.append(self._port)
        self._port = HeldPort(self._home.node.address)
        self._line.send_reliably(messages.Started(self._home.node.index, start.generation, pids, self._port.number))
        self._fresh.set()

    async def _wait_for_rank_zero(self, generation: int) -> None:
        """Return once the coordinator reports that rank 0 of the generation has been forked."""
        while self._led < generation:
            self._leader.clear()
            await self._leader.wait()

    @property
    def _other_processes(self) -> tuple[tuple[int, ...], Pids]:
        """Return the child processes that are no ranks, as (the pids of the zygote, its standby and the watchdog, a
        function that returns the present pids of reserve processes, which wait to replace a rank).
        """
        return (*self._preparation.own_pids, self._watchdog.pid), lambda: self._preparation.reserve.pids

    @property
    def _generation(self) -> int:
        """Return the generation of the ranks that run here or are about to start, or 0 if there are none."""
        return self._group.generation if self._group is not None else self._opens

    async def _stop(self, stop: messages.Stop) -> None:
        """End all ranks of a generation, including ranks that are being started, and send Stopped."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
            await self._preparation.settle()  # else a fork that comes late would outlive its generation
        if self._opens <= stop.generation:
            self._opens = 0
        group = self._group
        if group is not None and group.generation <= stop.generation:
            self._send_heartbeat()
            await group.stop(stop.grace_s, stop.hung, *self._other_processes)
            if not stop.grace_s:
                await self._readiness.is_still_fit(group.suspects)
            if self._group is not group:
                return  # another stop was quicker, and has sent Stopped
            group.close()
            self._group = None
            while self._old_ports:
                self._old_ports.pop().release()
        self._line.send_reliably(messages.Stopped(self._home.node.index, stop.generation))
        await self._preparation.renew()
        if self._preparation.done and self._preparation.failure is None:
            self._line.send(messages.Ready(self._home.node.index))  # it may have been given up while suspended

    def begun(self, rank: int) -> None:
        """Tell the coordinator that rank 0 runs on this node, if the rank that has just been forked (`rank`) is rank 0,
        because ranks of other nodes wait for it.
        """
        if rank == 0:
            self._line.send_reliably(messages.Leads(self._home.node.index, self._generation))

    def on_report(self) -> None:
        """Handle a report that a rank of this node has made: pass the step of its newest checkpoint, or of its newest
        state kept in memory, on to the parts of the agent that copy them to other machines; and have the next heartbeat
        sent without waiting for the interval to pass.

        Once the ranks have got past their first steps, also start missing processes of the reserve, which wait to
        become ranks.
        """
        if self._replication is not None and self._group is not None and self._group.checkpoint is not None:
            self._replication.note(self._group.checkpoint)
        if self._uploads is not None and self._group is not None and self._group.checkpoint is not None:
            self._uploads.note(self._group.checkpoint)
        if self._buddies is not None and self._group is not None and self._group.remembered is not None:
            self._buddies.note(self._group.remembered)
        if self._group is not None and self._group.is_steady and self._preparation.reserve.is_short(self._group.start):
            # Not before: it would only keep ranks from their first steps.
            self._start_task(self._preparation.fill_reserve(self._group.start))
        self._fresh.set()

    def on_last_report(self) -> None:
        """Send a heartbeat at once, because a rank has ended whose last report must reach the coordinator before its
        end does.
        """
        self._send_heartbeat()

    def ended(self, exited: messages.Exited) -> None:
        """Send the end of a rank to the coordinator.

        After the node's last rank, if the plan has the last checkpoint copied before the run ends, start a task that
        waits for these copies and then reports to the coordinator, with the message Settled, that they are done or
        given up.
        """
        self._line.send_reliably(exited)
        if self._home.plan.copies_last and self._group is not None and self._group.over:
            self.on_report()  # of a commit just before the end
            self._start_task(self._settle(self._group.generation))

    async def _settle(self, generation: int) -> None:
        """Wait until the last checkpoints of this node's ranks are copied to where the spec asks for copies, and send
        the coordinator Settled, with the reason if one could not be copied.
        """
        problems = [await one.settle() for one in (self._replication, self._uploads) if one is not None]
        problem = "; ".join(filter(None, problems))
        self._line.send_reliably(messages.Settled(self._home.node.index, generation, problem))

    # -- heartbeat and lease

    async def _keep_heartbeat(self) -> None:
        """Send heartbeats for ever: at the interval `Lifeline.heartbeat_s`, or sooner, `Lifeline.heartbeat_turn_s`
        after a rank has reported.
        """
        while True:
            self._send_heartbeat()
            if self._home.gate is not None:
                self._watchdog.lease.standby = self._preparation.standby_pid
            self._fresh.clear()
            try:
                async with asyncio.timeout(self._line.heartbeat_s):
                    await self._fresh.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(NEWS_S, self._line.heartbeat_turn_s))  # many reports make one heartbeat

    def _send_heartbeat(self) -> None:
        """Send the coordinator the node's state and the progress of its ranks."""
        group = self._group
        ranks = group.heartbeats() if group is not None else ()
        fetched = self._replication.fetched if self._replication is not None else None
        keeps = self._replication is not None and self._replication.keeps
        load = self._sampler.fresh() if self._line.is_up else None
        node = self._home.node.index
        self._line.heartbeat(
            messages.Heartbeat(node, 0, self._generation, ranks, fetched, keeps, self._readiness.doing, load)
        )

    def _rank_pids(self) -> dict[int, int]:
        """Return the pid of each live rank by rank number; called by the sampler's thread."""
        group = self._group
        return group.pids if group is not None else {}

    async def _watch_lease(self) -> None:
        """End the agent once the lease has expired. Return at once if no other node can replace this one
        (AfterSuspend.FORGIVEN): an expiry while the machine was suspended then does not count, and the expiries that do
        are left to the watchdog, which ends the agent.
        """
        if self._watchdog.slept is not AfterSuspend.FORGIVEN:
            await self._line.wait_until_expired(LeaseWatch(self._watchdog.slept))
            self.leave(Exit.LOST)

    def _watchdog_died(self, _: Death) -> None:
        """End the agent because its watchdog has died: without one, the ranks of a frozen agent would go on. The
        supervisor starts another agent.
        """
        if not self._over.done():  # else it ends with its agent
            say("the watchdog beside this agent was killed: the supervisor starts another agent")
        self.leave(Exit.LAUNCHER_FAULT)


async def _open_replication(home: Home, token: str, say: Callable[[ToCoordinator], None]) -> "Replication":
    """Return the store that copies checkpoints between the nodes' disks, for the run and node in `home`. It is
    authenticated by the attempt's `token` and sends its messages with `say`.
    """
    from launcher.copies.copier import Patience  # late: as the next one
    from launcher.copies.replication import Replication  # late: 20 ms that a shared disk spares

    plan, node = home.plan, home.node
    folder = Path(plan.run_dir, plan.spec.checkpoint.dir)
    patience = Patience(plan.spec.recovery.lease_s + _PATIENCE_S)
    limit = plan.spec.checkpoint.copy_limit_bytes
    key = wire_key(token, "replicas", plan.run_id, home.attempt.number)
    replication = Replication(node.index, node.address, key, folder, say, patience, limit)
    await replication.open()
    return replication


def _open_uploads(home: Home, say: Callable[[ToCoordinator], None]) -> "Uploads":
    """Return the uploader of checkpoints to the spec's object store, for the run and node in `home`; it sends its
    messages with `say`.
    """
    # late: 20 ms that runs without a store are spared
    from launcher.copies.stored import borrow_packages, open_store, variables_for_store  # late: see above
    from launcher.copies.uploads import UploadRules, Uploads  # late: see above

    plan, node, checkpoint = home.plan, home.node, home.plan.spec.checkpoint
    rules = UploadRules(
        checkpoint.copy_to_keep or checkpoint.keep, checkpoint.copy_to_every_steps, checkpoint.copy_to_every_s,
        checkpoint.copy_to_limit_bytes, plan.disks_apart,
    )  # fmt: skip
    secrets = {name: home.environment[name] for name in plan.secrets if name in home.environment}
    os.environ.update(variables_for_store(plan, secrets))

    def tell(kind: Literal["checkpoint_stored", "copy_failed"], text: str) -> None:
        """Send the coordinator an event about a copy."""
        say(messages.Noted(node.index, kind, text))

    def open_there() -> "ObjectStore":
        """Return the object store, opened with the packages of the user's interpreter."""
        borrow_packages(plan.entry.python)
        return open_store(plan)

    return Uploads(Path(plan.run_dir, checkpoint.dir), open_there, rules, tell)


async def _open_prober(home: Home, token: str) -> "Prober":
    """Return the prober that measures network links between nodes, for the run and node in `home`, authenticated by the
    attempt's `token`.
    """
    from launcher.health.probe import Prober  # late: 20 ms that runs without such checks are spared

    key = wire_key(token, "links", home.plan.run_id, home.attempt.number)
    prober = Prober(home.node.index, home.node.address, key)
    await prober.open()
    return prober


async def _open_buddies(home: Home, folder: Path, token: str, say: Callable[[ToCoordinator], None]) -> "Buddies":
    """Return the store that copies snapshots between the nodes' memories, for the run and node in `home`, with its own
    snapshots in `folder`. It is authenticated by the attempt's `token` and sends its messages with `say`.
    """
    # late: 20 ms that runs without such copies are spared
    from launcher.copies.buddies import Buddies  # late: see above
    from launcher.copies.node_memory import NodeMemory  # late: see above

    plan, node = home.plan, home.node
    key = wire_key(token, "replicas", plan.run_id, home.attempt.number)
    patience_s, limit = plan.spec.recovery.lease_s + _PATIENCE_S, plan.spec.checkpoint.copy_limit_bytes
    buddies = Buddies(node.index, node.address, key, NodeMemory(folder), say, patience_s, limit)
    await buddies.open()
    return buddies


async def _fetch_checkpoint(
    node: int, replication: "Replication", start: messages.Start
) -> messages.NotFetched | messages.NothingWhole | messages.Fault | None:
    """Fetch from other nodes the checkpoint that the ranks are to load, unless it is here.

    Return None if the ranks can start, else the message for the coordinator: it cannot be fetched, no checkpoint is
    complete on the nodes that answer, or this node's disk has failed.
    """
    # late: 20 ms that a shared disk spares
    from launcher.copies.client import DiskFailed  # late: see above
    from launcher.copies.replication import NotBrought, NothingToLoad  # late: see above

    try:
        await replication.bring(start)
    except NotBrought as error:
        return messages.NotFetched(node, start.generation, str(error))
    except NothingToLoad as error:
        return messages.NothingWhole(node, start.generation, str(error))
    except DiskFailed as error:
        return messages.Fault(node, False, f"node {node}: its disk: {error}", disk=True)
    return None


def fault_of_start(node: int, error: OSError) -> messages.Fault | None:
    """Return the fault to report for ranks that could not be started: of the disk if that failed, else of the launcher
    if descriptors, processes or memory are used up.

    Return None for any other error, which the caller has to raise.
    """
    if error.errno not in DISK_ERRORS | _USED_UP:
        return None
    text = f"node {node} could not start ranks: {said_by_the_system(error)}"
    return messages.Fault(node, False, text, disk=error.errno in DISK_ERRORS)
