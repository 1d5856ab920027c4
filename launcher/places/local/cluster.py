"""This machine as a place where runs go: one supervisor process per run and one agent process per node, on loopback
addresses.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.copies.memory_tier import close_tier
from launcher.errors import LaunchError
from launcher.node.machine import this_machine
from launcher.places.local.shared_zygote import expect, supervisor_of, warm_up
from launcher.places.place import CancelReport, HostNow, Place
from launcher.plan.facts import Machine, Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.run.durable import create_record, readable
from launcher.run.identity import alive, host, process_id, this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import descendants, end_all, open_process, signal_process, tagged_of_run
from launcher.run.records import AgentRecord, ClusterAnswer, Handle, ProcessId, RunState
from launcher.spec.model import JobSpec
from launcher.supervisor.attempt_end import CANCEL_SURE_S, ask_to_stop, grace_s_of, has_ended, write_cancelled
from launcher.supervisor.slots.table import CPU, GPU, occupancy
from launcher.supervisor.standby import StandbySupervisor

if TYPE_CHECKING:
    from launcher.remote.running import Running


class LocalCluster(Place):
    """This machine as a cluster, with as many nodes as the spec asks for."""

    kind = "local"
    doctor = "launcher.places.local.doctor"  # module with its checks
    most_files_at_once = 2_000  # code files that a submit copies itself, in a tenth of a second
    most_in_order = 10_000  # runs of one submit that can start in order, for `max_parallel`
    supports_reach = True  # `reach` can start a program beside the ranks of a node
    takes_roles = True  # a run may consist of several programs

    def machine(self, _spec: JobSpec) -> Machine:
        """Return the cores and GPUs of this machine."""
        return this_machine(os.environ)

    def queue_problems(self, spec: JobSpec, _awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Return a problem if the spec's `queue.slots` asks for more cores than this machine has, else an empty list.

        Awaited runs are no problem, wherever they are: here a run's own supervisor waits for them.
        """
        cpus, queue = this_machine(os.environ).cpus, spec.queue
        if queue.slots <= cpus:
            return []
        return [Misfit("queue.slots", f"asks for {queue.slots} cores, but this machine has {cpus}")]

    def hosts_now(self, _spec: JobSpec) -> list[HostNow]:
        """Return a list with this machine alone, with the runs that hold its GPUs or cores. A run without GPUs holds
        cores only if its spec sets `queue.slots`.
        """
        gpus, seen = this_machine(os.environ).gpus, occupancy()
        taken = [holder for holder in seen.taken(GPU) if holder.number in gpus]
        cores = seen.taken(CPU)
        runs = tuple(dict.fromkeys(holder.run for holder in (*taken, *cores) if holder.run))
        free = len(gpus) - len({holder.number for holder in taken})
        parts = [f"{sum(int(one.number) for one in cores)} cores taken"] if cores else []
        parts += [f"{len(seen.waiting)} waiting"] if seen.waiting else []
        return [HostNow(host(), "taken" if taken or cores else "free", len(gpus), free, runs, text=", ".join(parts))]

    def release(self, _run: RunDir, attempt: AttemptDir) -> None:
        """Record that the run, which was submitted to be held, may start."""
        with contextlib.suppress(FileExistsError):
            create_record(attempt.released, this_process())

    def preview(self, _plan: Plan) -> None:
        """Return None: there is no job script to preview, because a local run starts without a batch system."""

    def warm_up(self, plan: Plan, folder: Path) -> bool:
        """Start a zygote, unless one is running, for the runs that this process submits, such as a sweep's trials, to
        share: a process that imports torch and what else they need, and is then forked. `folder` has their `code/`.

        Return False while its imports are under way; return True once they are done, or if no zygote is used.
        """
        return warm_up(plan, folder)

    def expect(self, run_dir: Path) -> None:
        """Start a supervisor and an agent in advance for the next run, whose folder will be `run_dir`.

        `prepare` takes them if that run comes next, and lets them exit if another one does.
        """
        expect(run_dir)

    def prepare(self, plan: Plan) -> StandbySupervisor:
        """Start a supervisor process for the run, unless one was started in advance, and return it; it waits until it
        receives the attempt's number.
        """
        return supervisor_of(Path(plan.run_dir))

    def start(self, plan: Plan, attempt: int) -> None:
        """Start the supervisor of the attempt."""
        self.prepare(plan).start(attempt)

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return None for each attempt, because the run's folder and processes on this machine show everything."""
        return [None for _ in attempts]  # the caller looks at this machine's processes itself

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """End or continue each lost run, whose supervisor and agents were killed: write its end if that follows
        from its records; else start a supervisor that continues it, unless the machine was rebooted since.
        """
        from launcher.places.local.carrying_on import carry_on  # late: a run is rarely lost

        for run, attempt in attempts:
            carry_on(run, attempt)

    def finish_lost(self, run: RunDir, attempt: AttemptDir) -> None:
        """Write the end of a lost attempt (all its processes were killed) if its ranks had finished or it was asked to
        end; else do nothing.
        """
        from launcher.places.local.carrying_on import finish  # late: likewise

        finish(run, attempt)

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start a process on this machine that inspects the ranks of node `node` for commands such as `launch stacks`,
        and return the connection to its stdin and stdout.
        """
        from launcher.node.inside.visit import host_here  # late: only who looks inside needs it

        return host_here(run, attempt, node, os.environ)

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> CancelReport:
        """End the attempt on this machine: ask its supervisors first, then kill what remains after the ranks' grace
        period; return the report.

        `plan` is None if it cannot be read; then the default grace period applies. Raise LaunchError if a process
        survives SIGKILL.
        """
        return end_here(run, attempt, plan)


def end_here(
    run: RunDir, attempt: AttemptDir, plan: Plan | None, *, last_word: bool = True, alone: bool = False
) -> CancelReport:
    """Ask the run's supervisors on this machine to stop, wait for the grace period, then kill every process that is
    provably of this run; return the report. Raise LaunchError if one survives that.

    `plan` is None if it cannot be read. With `last_word`, write the end record "cancelled" if the attempt has none;
    with `alone`, that record says that it comes from a machine that did not lead the attempt.
    """
    before = _processes_of(run, attempt)
    names = _process_names(run, attempt)
    if not before and has_ended(run, attempt):
        close_tier(run.path, attempt.number)  # no other process may be left to do it
        return CancelReport((), already=True)
    ask_to_stop(attempt, "cancel")
    _stop(_supervisors(attempt) or _topmost(before), grace_s_of(plan) + CANCEL_SURE_S)
    _, stubborn = end_all(lambda: _processes_of(run, attempt))
    if stubborn:
        pids = ", ".join(str(one.pid) for one in stubborn)
        raise LaunchError(f"process {pids} of {run.path.name} does not end, not even by SIGKILL")
    close_tier(run.path, attempt.number)
    if last_word:
        write_cancelled(run, attempt, plan, alone=alone)
    return CancelReport(tuple(f"{names.get(pid, 'process')} {pid}" for pid in before), already=False)


def _stop(supervisors: Sequence[ProcessId], timeout_s: float) -> None:
    """Send SIGTERM to the supervisors on this machine. Wait until all have exited, which they do after the grace period
    of their ranks, but no longer than `timeout_s`.
    """
    asked = [supervisor for supervisor in supervisors if signal_process(supervisor, signal.SIGTERM)]
    deadline = time.monotonic() + timeout_s
    for supervisor in asked:
        _wait_until_gone(supervisor, max(0.0, deadline - time.monotonic()))


def _processes_of(run: RunDir, attempt: AttemptDir) -> list[int]:
    """Return the pids of all processes that are provably this run's: below its supervisor or agents, or with its folder
    in their environment.
    """
    found: dict[int, None] = {}
    for root in _roots(attempt):
        if alive(root):
            found.update(dict.fromkeys([root.pid, *descendants(root.pid)]))
    found.update(dict.fromkeys(tagged_of_run(run.path, os.getuid())))
    return list(found)


def _process_names(run: RunDir, attempt: AttemptDir) -> dict[int, str]:
    """Return a name for each of the run's processes, such as "agent of node 1", by pid, for messages."""
    names = {}
    state = readable(run.state, RunState)
    if state is not None and state.attempt == attempt.number:
        names = {rank.pid: f"rank {rank.rank}, process" for rank in state.ranks if rank.pid is not None}
    for record in _agents(attempt):  # where several hosts share a disk, of another host's a pid means nothing here
        if alive(record.process):
            names[record.process.pid] = f"agent of node {record.node}, process"
    return names | {supervisor.pid: "supervisor, process" for supervisor in _supervisors(attempt) if alive(supervisor)}


def _agents(attempt: AttemptDir) -> list[AgentRecord]:
    """Return the records of the attempt's agents, one for each node that has one, whether or not the agent still runs;
    unreadable records are left out.
    """
    records = (readable(path, AgentRecord) for path in sorted(attempt.path.glob("node-*/agent.json")))
    return [record for record in records if record is not None]


def _roots(attempt: AttemptDir) -> list[ProcessId]:
    """Return the processes of the attempt's supervisors and agents by its records, whether or not they still run."""
    return _supervisors(attempt) + [record.process for record in _agents(attempt)]


def _supervisors(attempt: AttemptDir) -> list[ProcessId]:
    """Return the processes that are recorded as the attempt's leading supervisor and, in a pool on a shared disk, as
    the supervisors of its other hosts. They may have exited since.
    """
    handle = readable(attempt.handle, Handle)
    leads = handle.supervisor if handle is not None else readable(attempt.started, ProcessId)
    others = (readable(path, ProcessId) for path in sorted(attempt.path.glob("node-*/started")))
    return [one for one in dict.fromkeys([leads, *others]) if one is not None]


def _topmost(pids: Sequence[int]) -> list[ProcessId]:
    """Return the processes among these pids that descend from none of the others."""
    below = {child for pid in pids for child in descendants(pid)}
    found = (process_id(pid) for pid in pids if pid not in below)
    return [one for one in found if one is not None]


def _wait_until_gone(process: ProcessId, timeout_s: float) -> None:
    """Wait until the process has ended, but no longer than `timeout_s`."""
    handle = open_process(process.pid)
    if handle is None:
        return
    try:
        if alive(process):
            select.select([handle], [], [], timeout_s)
    finally:
        os.close(handle)
