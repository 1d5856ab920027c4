"""Grid Engine as a batch scheduler: each verb is a command line and the reading of its answer."""

import contextlib
import os
import pwd
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from launcher.clusters.batch.answers import read_settings, read_submitted
from launcher.clusters.batch.client import Answer
from launcher.clusters.batch.dependencies import jobs_to_follow
from launcher.clusters.batch.job import environment
from launcher.clusters.batch.job.nodes import resolved
from launcher.clusters.batch.queue import (
    LIMIT_S,
    SUBMIT_S,
    JobStart,
    NodeWord,
    Queue,
    QueuedJob,
    Ticket,
    node_command,
)
from launcher.clusters.gridengine import queries, script
from launcher.clusters.gridengine.queries import CALLED, NO_SUBMIT_HOST, ask
from launcher.errors import LaunchError, NotStarted, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.layout import AttemptDir
from launcher.supervisor.agent_processes import AgentProcess, agent_process, starter_process

_WARNINGS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)  # our own clock's, and Grid Engine's


class GridEngineQueue(Queue):
    """What `batch` asks of Grid Engine."""

    kind = "gridengine"
    called = CALLED
    sees, ends = "qstat -j", "qdel"
    leaves_with: int | None = 99

    def __init__(self) -> None:
        # They come on every host of the job at once: the batch process alone acts on them.
        self.warnings: tuple[int, ...] = () if environment.HOST in os.environ else _WARNINGS
        self._others: list[AgentProcess] = []  # what the batch process has started on other hosts

    def site(self) -> str:
        """As the cell's administrator has called it; not the host of its qmaster, which may be another one tomorrow."""
        named = os.environ.get("SGE_CLUSTER_NAME", "")
        root, cell = os.environ.get("SGE_ROOT", ""), os.environ.get("SGE_CELL", "default")
        with contextlib.suppress(OSError):
            named = named or Path(root, cell, "common", "cluster_name").read_text().strip()
        return named

    def script(self, plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str]) -> str:
        return script.script_of(
            plan, ticket, where, avoid, rule_of(plan.spec.gridengine.pe), jobs_to_follow(plan.awaited)
        )

    def submit(self, script: Path, environ: Mapping[str, str], lock: int) -> str:
        argv, given = ["qsub", "-terse", "-v", environment.FILE, str(script)], environment.beside(script, environ)
        answer = ask(argv, limit_s=SUBMIT_S, environ=given, pass_fds=[lock])
        if answer.code != 0:
            raise NotStarted(f"{CALLED} refuses the job: {_last_word(answer)}")
        if (job := read_submitted(answer.out)) is None:  # it may have taken the job, so the run is kept
            raise LaunchError(f"qsub -terse: expected the number of a job, got {answer.out.strip()[:200]!r}")
        return job

    def may_submit(self) -> bool:
        try:
            ask(["qsub", "-w", "v", "-b", "y", "true"])
        except Unreachable as error:
            if NO_SUBMIT_HOST not in str(error).lower():
                raise
            return False
        return True

    def try_out(self, script: str) -> str:
        answer = ask(["qsub", "-w", "v"], stdin=script)
        return f"{CALLED} says: {_last_word(answer).removeprefix('verification: ')}"

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        user = pwd.getpwuid(os.geteuid()).pw_name
        listed = ask(["qstat", "-xml", "-g", "t", "-u", user], limit_s=limit_s).out  # -g t: with all its hosts
        named = script.job_name(called) if called else ""
        wanted = [
            one.id for one in queries.read_jobs(listed, "") if (not ids or one.id in ids) and named in ("", one.name)
        ]
        if not wanted:
            return []
        details = ask(["qstat", "-xml", "-j", ",".join(wanted)], limit_s=limit_s).out
        return [job for job in queries.read_jobs(listed, details) if job.id in wanted]

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:
        found = (queries.read_account(ask(["qacct", "-j", name]).out, since) for name in ids)
        return [job for job in found if job is not None]

    def warn(self, job: str) -> None:
        """A signal cannot be sent; the batch process looks for the wish in its folder every two seconds."""

    def cancel(self, job: str) -> None:
        ask(["qdel", job])

    def requeue(self, job: str) -> str:
        """Leaving with its exit code does it. A job that was on several hosts is better followed by a new one: Grid
        Engine keeps the old one off the other hosts it has had, and while something of it is left there takes the end
        of the batch process for the end of the job."""
        if any(one.last is None or not os.WIFEXITED(one.last) for one in self._others):
            return f"what job {job} started on other hosts had to be killed"
        with contextlib.suppress(Unreachable):  # then it is put back, for which nobody has to answer
            return "it would not get its hosts again" if self._others and self.may_submit() else ""
        return ""

    def start_again(self, plan: Plan, job: str, avoid: Sequence[str], delay_s: float | None = None) -> None:
        """It keeps the hosts that it was submitted with, and starts as soon as there is room."""

    @staticmethod
    def follow(job: str, others: Sequence[str]) -> bool:
        """The hold goes with what is put back; hosts that are no submit hosts may not change it."""
        return bool(others) and ask(["qalter", "-hold_jid", ",".join(others), job]).code == 0

    def release(self, job: str) -> str:
        return ask(["qrls", job]).refusal

    def this_start(self) -> JobStart:
        return JobStart(os.environ["JOB_ID"], None)

    def this_host(self) -> str:
        return os.environ.get(environment.HOST) or os.uname().nodename

    def hosts(self) -> dict[str, str]:
        file = Path(os.environ.get("PE_HOSTFILE") or "/nonexistent")  # or one that another job has left behind
        names = [line.split()[0] for line in file.read_text().splitlines()] if file.is_file() else [self.this_host()]
        return {name: resolved(name, "hint: the hosts of a job have to know each other by name") for name in names}

    def processes(self, plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
        """Node 0's agent here, and on each other host, by a qrsh, the keeper of the agent there."""
        file, command = os.environ[environment.FILE], node_command(self.kind, plan, attempt)
        hosts = [node.host for node in plan.nodes[1:]]
        argvs = [("qrsh", "-inherit", "-nostdin", host, *environment.packed(file, host, command)) for host in hosts]
        self._others = [starter_process(argv, plan, attempt) for argv in argvs]
        return [agent_process(plan, attempt, 0), *self._others]

    def nodes(self, hosts: Sequence[str], *, limit_s: float = LIMIT_S) -> dict[str, NodeWord]:
        known = queries.read_hosts(ask(["qhost", "-q", "-xml"], limit_s=limit_s).out)
        return {
            one.name: NodeWord(not one.up, "up" if one.up else "not heard by the qmaster")
            for one in known
            if one.name in hosts
        }

    def warn_before_s(self, plan: Plan) -> float:
        return script.warn_before_s(plan)


@cache
def rule_of(pe: str | None) -> str | None:
    """How a parallel environment gives out slots; None where there is none of that name."""
    return None if pe is None else read_settings(ask(["qconf", "-sp", pe]).out).get("allocation_rule")


def _last_word(answer: Answer) -> str:
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip() not in ("", "Exiting.")]
    return lines[-1].removeprefix("Unable to run job: ") if lines else "it does not say why"
