"""Slurm as a batch system: each method is a command line and the parsing of its output."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path

from launcher.errors import LaunchError, Unreachable
from launcher.places.batch.batch import (
    LIMIT_S,
    SUBMIT_S,
    BatchSystem,
    Fate,
    JobStart,
    NodeAnswer,
    Phase,
    QueuedJob,
    SubmitToken,
    resolved,
)
from launcher.places.batch.client import ignoring_sigterm
from launcher.places.batch.dependencies import jobs_to_follow
from launcher.places.slurm import script, steps
from launcher.places.slurm.queries.jobs import (
    SlurmJob,
    cancel,
    fate_of,
    is_expedited,
    read_jobs,
    read_sacct,
    read_test_only,
    release,
    requeue,
    sacct_jobs,
    show_job,
    squeue_jobs,
    update,
)
from launcher.places.slurm.queries.nodes import (
    Node,
    hostlist,
    is_in_hostlist,
    partition_nodes,
    read_hostnames,
    read_nodes,
    read_partition_nodes,
    show_hostnames,
    show_nodes,
)
from launcher.places.slurm.queries.reasons import plain
from launcher.places.slurm.queries.refusals import refusal
from launcher.places.slurm.queries.site import Config, read_config, read_release, read_version, show_config
from launcher.places.slurm.queries.states import end_of
from launcher.places.slurm.reach import CALLED, ask, clean_environment
from launcher.plan.model import AwaitedRun, Plan
from launcher.run.layout import AttemptDir
from launcher.supervisor.agent_processes import AgentProcess

_WORDS = {"succeeded": "afterok", "ended": "afterany"}

_EXECUTOR = "launcher.places.slurm.executor"
_EXPEDITES_SINCE = (25, 11)
_SLURMD_TIMEOUT_S = 300.0  # Slurm's own default
_TO_PUT_BACK_S = 60.0
_DEPENDS = ("Dependency", "DependencyNeverSatisfied")


class SlurmSystem(BatchSystem):
    """Slurm as a batch system. It sends a job one of the signals in `warnings` when the job's time is nearly over, or
    before it is preempted.
    """

    kind = "slurm"
    called = CALLED  # its name for users
    sees, ends = "squeue -j", "scancel"  # by which a user shows, ends a job
    ask = staticmethod(ask)  # runs one of Slurm's commands and returns its output
    warnings: tuple[int, ...] = (signal.SIGUSR1, signal.SIGUSR2)

    @cached_property
    def config(self) -> Config:
        """Return the controller's configuration, which is queried only once."""
        return read_config(ask(show_config()).out)

    @cached_property
    def expedites(self) -> bool:
        """Return whether jobs may ask for Slurm's expedited requeue: the controller allows it and this sbatch has the
        option.

        On any other site Slurm would refuse a job with that option.
        """
        try:
            if not self.config.expedites:
                return False
            version = read_version(ask(["scontrol", "--version"]).out)
        except Unreachable:
            return False
        return (read_release(version) or (0, 0)) >= _EXPEDITES_SINCE

    def get_ready(self) -> None:
        """Start to import submitit, which takes 100 ms, and to query Slurm's configuration, in a thread; a submit needs
        both.
        """
        threading.Thread(target=self._get_ready).start()

    def _get_ready(self) -> None:
        """Query Slurm's configuration, which is kept in `config`, and import submitit, so that a submit finds both
        done; `get_ready` runs this in a thread. If Slurm does not answer, the next reader of `config` asks again.
        """
        with contextlib.suppress(Unreachable):  # the next caller that needs the answer asks again
            _ = self.config
        import_module(_EXECUTOR)

    def site(self) -> str:
        """Return the name of the Slurm cluster, by its configuration, or "" if that does not show it."""
        return self.config.cluster or ""

    def script(self, plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:
        """Return the whole batch script for sbatch, with the submit token. What the batch process prints before it has
        a log goes to a file in `where`, the folder of the run or of an array. Nodes in `avoid` are excluded, except
        those without which the job would not have as many nodes as it needs.
        """
        bearable, dependency = self._avoidable(plan, avoid), dependency_of(plan.awaited)
        return script.script_of(plan, submit_token, where, bearable, dependency, expedites=self.expedites)

    def submit(self, script: Path, environ: Mapping[str, str], lock: int) -> str:
        """Submit the script once and return the job's id; raise NotStarted if Slurm refuses it, and Unreachable or
        another LaunchError if it is not known whether there is a job. The job gets the variables `environ`.

        sbatch inherits `lock`, the descriptor of a lock file, so that the lock is held as long as sbatch runs.
        """
        from launcher.places.slurm.executor import SbatchExecutor  # late: submitit costs 130 ms, and only a submit

        return SbatchExecutor().hand_over(script, environ, lock, limit_s=SUBMIT_S)

    def try_out(self, script: str) -> str:
        """Return a line for the user, from `sbatch --test-only`: when and on which nodes Slurm could start this script,
        or why it would refuse it. Nothing is submitted.
        """
        answer = ask(["sbatch", "--test-only"], stdin=script)
        starts_at, nodes = read_test_only(answer.err)
        if starts_at is None:
            return f"Slurm would refuse it: {'; '.join(refusal(answer.err))}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
        return f"Slurm could start it at {when} on {nodes}"

    def name_of(self, job: str, element: int) -> str:
        """Return the id of element `element` (from 0) of an array, such as `12_3`."""
        return f"{job}_{element}"

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return the jobs with these ids, or without ids all of this user, as squeue lists them; jobs that Slurm no
        longer lists are left out. If `called` is given, only jobs with that name are returned. Raise Unreachable if
        there is no answer within `limit_s`.
        """
        return [_queued(job) for job in read_jobs(ask(squeue_jobs(ids, called), limit_s=limit_s).out)]

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:
        """Return what sacct, the accounting, has about the jobs `ids`, which squeue no longer shows; unknown jobs are
        left out, and so are records older than `since` (Unix time), which are of earlier jobs with the same ids.
        """
        answer = ask(sacct_jobs(ids, since))
        return [_queued(job) for job in read_sacct(answer.code, answer.out, answer.err) or ()]

    def warn(self, job: str) -> None:
        """Send SIGTERM to the job's batch script and not to its steps, so that the batch process can end the run in
        order.
        """
        ask(cancel(job, signal="TERM", batch=True))

    def cancel(self, job: str) -> None:
        """End the job, by scancel."""
        ask(cancel(job))

    def fate(self, job: str) -> Fate:
        """Return why Slurm asked this process to exit, by what scontrol shows of its job: it was requeued, preempted or
        cancelled, or its time is over, or Slurm is not ending it at all; UNKNOWN if scontrol does not show it.
        """
        return fate_of(ask(show_job(job), in_job=True).out, int(os.environ.get("SLURM_RESTART_COUNT") or 0))

    def puts_back_within_s(self, plan: Plan, job: str) -> float | None:
        """Return within how many seconds Slurm may itself requeue this job after it lost a node; None if Slurm does not
        do that, or does not answer.
        """
        if script.outlives_a_node(plan):
            return None
        try:
            if not is_expedited(ask(show_job(job), in_job=True).out):
                return None
            return (self.config.slurmd_timeout_s or _SLURMD_TIMEOUT_S) + _TO_PUT_BACK_S
        except Unreachable:
            return None

    def requeue(self, job: str) -> str:
        """Requeue the job; return why Slurm refuses, or ""."""
        return ask(requeue(job), in_job=True).refusal

    def release(self, job: str) -> str:
        """Release a held job; return why Slurm refuses, or ""."""
        return ask(release(job)).refusal

    def start_again(self, plan: Plan, job: str, avoid: Sequence[str], delay_s: float | None = None) -> None:
        """Exclude the nodes in `avoid` from a waiting job that will be started again, except those without which too
        few would be left for it.

        Give `delay_s` for a job that is being requeued at this moment: Slurm then starts it that many seconds later,
        but at least 3, instead of after two minutes. The call returns at once, and a process of its own changes the
        job.
        """
        left_out = script.left_out(plan, self._avoidable(plan, avoid))
        if delay_s is None:
            ask(update(job, ExcNodeList=hostlist(left_out)))
            return
        argv = [sys.executable, "-P", "-m", "launcher.programs", "nudge", job, str(delay_s), *left_out]
        nowhere, environ = subprocess.DEVNULL, clean_environment(os.environ)
        subprocess.Popen(
            ignoring_sigterm(argv), env=environ, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def _avoidable(self, plan: Plan, avoid: Sequence[str]) -> list[str]:
        """Return those of the nodes in `avoid` (the last lost is last) that the job may exclude and still has enough
        nodes in its partition: a job with too few never starts.

        If there are not enough without all of them, those lost last are excluded. Nodes that take no jobs of the
        partition anyway are in the result too. Return an empty list if Slurm does not show its nodes.
        """
        if not avoid:
            return []
        partition = plan.spec.slurm.partition
        try:
            nodes = read_partition_nodes(ask(partition_nodes(partition), in_job=True).out)
        except Unreachable:
            return []
        usable = {node.name for node in nodes if node.takes_jobs and (partition or node.default)}
        usable -= {name for name in usable if any(is_in_hostlist(name, text) for text in plan.spec.slurm.exclude)}
        spare = len(usable) - script.fewest_nodes(plan)
        lost_last = [host for host in reversed(avoid) if host in usable][: max(0, spare)]
        return [host for host in avoid if host in lost_last or host not in usable]

    def this_start(self) -> JobStart:
        """Return the job in which this process runs, whose id is `12`, or `12_3` for the element 3 of an array. For an
        element SLURM_JOB_ID may be another number, so the array's id and the index are used.
        """
        array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        if array and index:
            return JobStart(self.name_of(array, int(index)), int(index))
        return JobStart(os.environ["SLURM_JOB_ID"], None)

    def this_host(self) -> str:
        """Return Slurm's name for this node."""
        return os.environ.get("SLURMD_NODENAME") or os.uname().nodename

    def hosts(self) -> dict[str, str]:
        """Return the address of each host of the job by name, the batch process's own host first."""
        number = int(os.environ.get("SLURM_HET_SIZE") or 0)
        lists = [f"SLURM_JOB_NODELIST_HET_GROUP_{one}" for one in range(number)] or ["SLURM_JOB_NODELIST"]
        return addresses_of([host for name in lists for host in hosts_of(os.environ[name])])

    def processes(self, plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
        """Return the processes that the batch process starts: node 0's agent, and srun for the other nodes' agents."""
        return steps.processes(plan, attempt, self.this_start().job)

    def role_processes(self, whole: Plan, plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
        """Return the processes to start for one role of the run other than its main one: an srun for the agent of the
        role's node 0, then one for all its other agents, if there are any. `whole` is the plan of the run, and `plan`
        the part of it for this role.
        """
        return steps.role_processes(whole, plan, attempt, self.this_start().job)

    def nodes(self, hosts: Sequence[str], *, limit_s: float = LIMIT_S) -> dict[str, NodeAnswer]:
        """Return the state of these nodes by name, by scontrol; nodes that it does not show are left out."""
        known = read_nodes(ask(show_nodes(hosts), limit_s=limit_s, in_job=True).out)
        return {host: _node_answer(known[host]) for host in hosts if host in known}

    def warn_before_s(self, plan: Plan) -> float:
        """Return how many seconds before its time limit Slurm warns the run by a signal: `slurm.signal_before`, but at
        most half of the limit and at least ten seconds.
        """
        return script.signal_before_s(plan)


def _queued(job: SlurmJob) -> QueuedJob:
    """Return a row of squeue or sacct as a job of any batch system, with its state in plain words."""
    text = ""
    match job.state.phase:
        case Phase.QUEUED:
            text = plain(job.reason)
            if job.state.word == "EXPEDITING":
                text = f"put back before all other jobs after a lost node (expedited requeue): {text}"
        case Phase.RUNNING | Phase.ENDING:
            text = f"on {job.hosts}" if job.hosts else ""
        case Phase.ENDED | Phase.UNKNOWN:
            text = f"by user {job.state.by}" if job.state.by else _ended_waiting(job)
    ended_as, cause = end_of(job.state.word) if job.state.phase is Phase.ENDED else (None, None)
    return QueuedJob(
        id=job.id,
        phase=job.state.phase,
        word=job.state.word,
        text=text,
        hosts=job.hosts,
        submit_tokens=job.submit_tokens,
        element=job.array,
        starts_at=job.starts_at if job.state.phase is Phase.QUEUED else None,
        ends_at=job.ends_at,
        ended_as=ended_as,
        cause=cause,
        suspended=job.state.word in ("SUSPENDED", "STOPPED"),
    )


def _ended_waiting(job: SlurmJob) -> str:
    """Return a text on why a job probably ended before it started, or "" if Slurm's reason names no dependency.

    The cause is a job on which this one depended: it ended in another way than the dependency demands.
    """
    if job.reason not in _DEPENDS:
        return ""
    return "while it waited for a job that has ended otherwise than it demands, unless a user ended it"


def _node_answer(node: Node) -> NodeAnswer:
    """Return the state of a node of Slurm as a NodeAnswer, which is the same for all batch systems."""
    reason = f": {node.reason}" if node.reason else ""
    return NodeAnswer(node.is_down, f"{'+'.join(node.state).lower()}{reason}", node.booted_at, node.is_drained)


def dependency_of(awaited: Sequence[AwaitedRun]) -> str:
    """Return the value of sbatch's --dependency for the runs to wait for, such as `afterok:123,afterany:124`, or "" if
    there is nothing to wait for any more.
    """
    return ",".join(f"{_WORDS[one.until]}:{job}" for one, job in jobs_to_follow(awaited))


def hosts_of(nodelist: str) -> list[str]:
    """Return the names in a list such as `node[0-2,7]`, in its order, by scontrol; no controller is asked. Raise
    LaunchError if the list is damaged.
    """
    answer = ask(show_hostnames(nodelist))
    names = read_hostnames(answer.out) if answer.code == 0 else []
    if not names:
        raise LaunchError(f"scontrol show hostnames {nodelist}: expected names of hosts, got {answer.err.strip()!r}")
    return names


def addresses_of(hosts: Sequence[str]) -> dict[str, str]:
    """Return the IP address by which others reach each host: that of Slurm's NodeAddr or, if Slurm does not answer, of
    the host's own name. Raise LaunchError if it cannot be resolved.
    """
    try:
        known = {name: node.address for name, node in read_nodes(ask(show_nodes(hosts)).out).items()}
    except Unreachable:
        known = {}
    hint = "hint: slurm.interface names a network interface whose address is used instead"
    return {host: resolved(known.get(host) or host, hint) for host in hosts}
