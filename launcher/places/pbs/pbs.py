"""OpenPBS and PBS Professional as a place where runs go, from any machine that has their commands: command lines, the
parsing of their output, states and reasons.

Written from its manuals and sources, and not tested on a real PBS.
"""

import math
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import Unreachable
from launcher.places.batch import environment
from launcher.places.batch.answers import read_json, read_settings
from launcher.places.batch.batch import (
    LIMIT_S,
    BatchSystem,
    ExecHost,
    JobStart,
    Phase,
    QueuedJob,
    SubmitToken,
    directives,
    in_plain_words,
    job_name,
    meanings,
    output_file,
    script_of,
)
from launcher.places.batch.client import Programs
from launcher.places.batch.cluster import BatchCluster
from launcher.places.batch.dependencies import jobs_to_follow
from launcher.plan.model import Plan
from launcher.states import Cause, State

CALLED = "PBS"
MARK = "JOB_LAUNCH_TICKET"  # the variable of a job that has the submit token: its account is the site's to charge
_NO_ANSWER = (
    "cannot connect to server", "connection refused", "connection timed out", "no route to host", "pbs_iff",
    "server shutting down", "unable to obtain", "errno=15010", "errno=111",
)  # fmt: skip
ask = Programs(CALLED, "server", _NO_ANSWER).ask
_NOT_THERE = ("unknown job", "has finished", "job history")  # the last where a server keeps none
_JOB_ID = re.compile(r"[0-9]{1,12}(\[[0-9]{0,9}\])?(\.[A-Za-z0-9.-]{1,200})?")
_KILLED_FOR_TIME = -29  # JOB_EXEC_KILL_WALLTIME
_SIGNALLED = 256  # a job that a signal ended has this and the signal as its exit status
_ENDED = ("F", "X")
_WAITS = ("Q", "H", "W", "T")
_RUNS = ("R", "S", "U", "B")
_STANDS_STILL = ("S", "U")
_PUT_BACK = range(60, 64)  # JOB_SUBSTATE_RERUN and what follows it: it runs, and its end puts it back


class PbsCluster(BatchCluster):
    """PBS as a cluster to which runs are submitted. `takes` are the supported options of the spec's `queue`."""

    doctor = "launcher.places.pbs.doctor"  # module with its checks
    takes = ("priority", "after", "hold", "at")

    def __init__(self) -> None:
        super().__init__(PbsSystem())


class PbsSystem(BatchSystem):
    """PBS as a batch system: its command lines, and the parsing of their output."""

    kind, called, ask = "pbs", CALLED, staticmethod(ask)  # its name in a spec, and for users; runs a command
    submits = ("qsub",)  # submits the script, its last argument
    sees, ends, releases = "qstat -x -f", "qdel", "qrls"  # by which a user shows, ends, releases a job
    starts = ("pbs_tmrsh",)  # starts a program on another host of the job
    id_variable, hosts_variable = "PBS_JOBID", "PBS_NODEFILE"  # in the job: its id; a file with its hosts
    gpu_resource = "ngpus"  # the resource name for GPUs
    most_in_array = 1000  # runs in one job array

    def site(self) -> str:
        """Return the name of the server that PBS's commands ask: PBS_SERVER in the environment, else in the file
        /etc/pbs.conf (or $PBS_CONF_FILE), else "".
        """
        file = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"))
        known = read_settings(file.read_text(), "=") if file.is_file() else {}
        return os.environ.get("PBS_SERVER") or known.get("PBS_SERVER", "")

    def script(self, plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:  # noqa: ARG002 - PBS places jobs by what a host has, never by what it is not
        """Return the whole batch script for qsub, with the submit token. What the batch process prints before it has a
        log goes to a file in `where`, the folder of the run or of an array. PBS cannot avoid hosts, so that `avoid` is
        not used.
        """
        lines = options(plan, submit_token, where, [job for _, job in jobs_to_follow(plan.awaited)])
        return script_of(self.kind, lines, where, plan.spec.resources.time_s, self.warn_before_s(plan))

    def submitted(self, text: str) -> str | None:
        """Return the id of the accepted job from qsub's output, or None if the output has none."""
        found = [line.strip() for line in text.splitlines() if _JOB_ID.fullmatch(line.strip())]
        return found[0] if len(found) == 1 else None

    def name_of(self, job: str, element: int) -> str:
        """Return the id of element `element` (from 0) of an array."""
        return job.replace("[]", f"[{element}]", 1)

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return the jobs with these ids, those of the run named `called`, or all of this user, by qstat. Raise
        Unreachable if there is no answer within `limit_s`.
        """
        user = pwd.getpwuid(os.geteuid()).pw_name
        if not ids and (listed := ask(["qselect", "-u", user], limit_s=limit_s)).code:
            raise Unreachable(f"qselect cannot tell: {listed.refusal}")
        wanted = ids or listed.out.split()
        named = job_name(called) if called else ""
        return [job for job in self._shown(wanted, limit_s=limit_s) if named in ("", job.name)]

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:  # noqa: ARG002 - ids are not given twice
        """Return those of the jobs `ids` that have ended; PBS knows them only if the server keeps a history of jobs
        (job_history_enable). Raise Unreachable if it does not answer. `since` is not used, as PBS gives no id twice.
        """
        return [job for job in self._shown(ids, "-x") if job.phase is Phase.ENDED]

    def _shown(self, ids: Sequence[str], *more: str, limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return those of the jobs `ids` that PBS shows, by qstat with the options `more`. A job that has just ended
        makes qstat fail, but is only left out of the result; raise Unreachable if it fails for another reason, or takes
        longer than `limit_s`.
        """
        if not ids:
            return []
        answer = ask(["qstat", *more, "-t", "-f", "-F", "json", *ids], limit_s=limit_s)
        if answer.code and not answer.out.strip():
            if any(sign in answer.err.lower() for sign in _NOT_THERE):
                return []
            raise Unreachable(f"qstat cannot tell: {answer.refusal}")
        return read_jobs(answer.out)

    def requeue(self, job: str) -> str:
        """Requeue the job; return why PBS refuses, or "".

        Most sites let only operators requeue jobs; the caller then submits a new job.
        """
        return ask(["qrerun", job]).refusal

    def this_start(self) -> JobStart:
        """Return the id of the job in which this process runs and, if the job is an array's element, the number of its
        run in the array.
        """
        index = os.environ.get("PBS_ARRAY_INDEX")
        return JobStart(os.environ[self.id_variable], int(index) if index else None)

    def exec_hosts(self, queue: str | None, gpu: str, *, limit_s: float = LIMIT_S) -> list[ExecHost]:
        """Return the hosts that take jobs of the queue, or all hosts if it is None, by pbsnodes. `gpu` is PBS's
        resource name for GPUs. Raise Unreachable if there is no answer within `limit_s` seconds.
        """
        known = read_hosts(ask(["pbsnodes", "-a", "-F", "json"], limit_s=limit_s).out, gpu)
        return [host for host in known if queue is None or not host.queues or queue in host.queues]


# -- the script


def options(plan: Plan, submit_token: SubmitToken, where: Path, follows: Sequence[str] = ()) -> list[str]:
    """Return the directives of a batch script that carries the submit token, for one run or an array of runs; `where`
    is the folder of the run, or of the array, for its output. `follows` are jobs of other runs to wait for, however
    they end.

    Once it has started, the job itself checks how those runs ended. PBS accepts no range of nodes, so the largest
    number that the run may use is requested.
    """
    own, queue, resources, at = plan.spec.pbs, plan.spec.queue, plan.spec.resources, plan.starts_at
    chunk = {
        "ncpus": str(plan.ranks_per_node * plan.cpus_per_rank),
        own.gpu_resource: str(plan.gpus_per_node) if plan.gpus_per_node else None,
        "mem": f"{math.ceil(resources.memory_gb * 1024)}mb" if resources.memory_gb else None,
    }
    parts = [f"{name}={value}" for name, value in chunk.items() if value]
    nodes = plan.nodes_max + plan.spec.recovery.spares
    chosen = {
        "N": job_name(plan.run_id),
        "S": "/bin/sh",
        "j": "oe",
        "o": output_file(where, ""),  # a folder: the file has the job's id as its name
        "r": "y",
        "v": f"{MARK}={submit_token.text},{environment.FILE}",
        "J": f"0-{submit_token.array - 1}" if submit_token.array else None,
        "q": own.queue,
        "P": own.project,
        "A": own.account,
        "p": str(queue.priority) if queue.priority else None,
        "h": "" if queue.hold else None,
        "a": None if at is None else time.strftime("%Y%m%d%H%M.%S", time.localtime(at)),
        **{name: value or "" for name, value in own.extra.items() if name not in ("l", "W")},
    }
    limit = None if resources.time_s is None else f"walltime={math.ceil(resources.time_s)}"
    asked = [":".join([f"select={nodes}", *parts, *own.select]), f"place={own.place}", limit, own.extra.get("l")]
    more = ["umask=077", f"depend=afterany:{':'.join(follows)}" if follows else None, own.extra.get("W")]
    lines = directives("#PBS", chosen)
    lines += [f"#PBS -l {one}" for one in asked if one]
    return lines + [f"#PBS -W {one}" for one in more if one]


# -- answers


def read_jobs(text: str) -> list[QueuedJob]:
    """Return the jobs in the output of `qstat -t -f -F json`; the record of a whole array is left out.

    Raise Unreachable if the output is damaged, because a job left out would seem to have ended.
    """
    told = read_json(CALLED, text).get("Jobs", {})
    if not isinstance(told, dict):
        raise Unreachable(f"an answer of {CALLED} is damaged: expected jobs, got {str(told)[:100]!r}")
    for name, one in told.items():
        if _JOB_ID.fullmatch(name) is None or not isinstance(one, dict):
            raise Unreachable(f"an answer of {CALLED} is damaged: expected the id of a job, got {name[:100]!r}")
    return [_job(name, one) for name, one in told.items() if "[]" not in name]


def _job(name: str, one: Mapping[str, Any]) -> QueuedJob:
    """Return the job in a record of qstat; `name` is its id."""
    word, comment, code = _text(one, "job_state"), _text(one, "comment"), _number(one.get("Exit_status"))
    ended_by_hand = "terminated" in comment  # "... and terminated by me@login"; it still runs for a moment
    phase = phase_of(word, ended_by_hand=ended_by_hand)
    if phase is Phase.RUNNING and _number(one.get("substate")) in _PUT_BACK:
        phase = Phase.QUEUED
    hosts = ",".join(dict.fromkeys(part.partition("/")[0] for part in _text(one, "exec_host").split("+") if part))
    started, limit = read_time(_text(one, "stime")), read_duration(_text(_inner(one, "Resource_List"), "walltime"))
    array, index, rest = re.fullmatch(r"([0-9]+)(?:\[([0-9]*)\])?(.*)", name).groups()  # type: ignore[union-attr]
    timed_out = code == _KILLED_FOR_TIME
    ended_as = State.CANCELLED if ended_by_hand else State.FAILED if timed_out else State.LOST
    return QueuedJob(
        id=name,
        name=_text(one, "Job_Name"),
        phase=phase,
        word=word,
        text=reason_of(word, comment) if phase is Phase.QUEUED else f"on {hosts}" if hosts else "",
        hosts=hosts,
        suspended=word in _STANDS_STILL,
        submit_tokens=frozenset({_text(_inner(one, "Variable_List"), MARK)} - {""}),
        element=(f"{array}[]{rest}", int(index)) if index else None,
        starts_at=read_time(_text(_inner(one, "estimated"), "start_time")) if phase is Phase.QUEUED else None,
        ends_at=None if started is None or limit is None else started + limit,
        ended_as=ended_as if phase is Phase.ENDED else None,
        cause=Cause.TIME_LIMIT if phase is Phase.ENDED and timed_out else None,
        exit_code=_exit_code(code),
    )


def phase_of(state: str, *, ended_by_hand: bool = False) -> Phase:
    """Return the phase for qstat's state letter `state`; a running job that a user has ended (`ended_by_hand`) is
    ending.
    """
    if state in _ENDED:
        return Phase.ENDED
    if state == "E" or (state in _RUNS and ended_by_hand):
        return Phase.ENDING
    return Phase.QUEUED if state in _WAITS else Phase.RUNNING if state in _RUNS else Phase.UNKNOWN


def read_hosts(text: str, gpu: str = "ngpus") -> list[ExecHost]:
    """Return the hosts in the output of `pbsnodes -a -F json`. The virtual nodes of one host are returned as one host
    with the sums of their resources; `gpu` is PBS's resource name for GPUs.
    """
    told, found = read_json(CALLED, text).get("nodes", {}), dict[str, list[Mapping[str, Any]]]()
    for name, one in (told if isinstance(told, dict) else {}).items():
        if isinstance(one, dict):
            found.setdefault(_text(_inner(one, "resources_available"), "host") or name, []).append(one)
    return [_host(name, nodes, gpu) for name, nodes in found.items()]


def _host(name: str, nodes: Sequence[Mapping[str, Any]], gpu: str) -> ExecHost:
    """Return the host `name`, whose resources are the sums over its virtual nodes; `gpu` is PBS's resource name for
    GPUs.
    """
    there = [_inner(one, "resources_available") for one in nodes]
    taken = [_inner(one, "resources_assigned") for one in nodes]
    states = {word.strip() for one in nodes for word in _text(one, "state").split(",")}
    gpus = sum(_number(one.get(gpu)) or 0 for one in there)
    queues = {word for one in (*nodes, *there) for key in ("queue", "Qlist") for word in _text(one, key).split(",")}
    comments = dict.fromkeys(filter(None, (_text(one, "comment") for one in nodes)))
    return ExecHost(
        name=name,
        cpus=sum(_number(one.get("ncpus")) or 0 for one in there),
        gpus=gpus,
        free_gpus=max(0, gpus - sum(_number(one.get(gpu)) or 0 for one in taken)),
        used=any(_number(one.get("ncpus")) or 0 for one in taken),
        up=not states & {"down", "state-unknown", "unresolvable"},
        drains="offline" in states,
        queues=frozenset(queues - {""}),
        text=": ".join([",".join(sorted(states)), *comments]),
    )


def _inner(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the field `name` of a record, which is an object, or an empty mapping if it is not one."""
    found = one.get(name)
    return found if isinstance(found, dict) else {}


def _text(one: Mapping[str, Any], name: str) -> str:
    """Return the field `name` of a record as text, or "" if the record lacks it. PBS writes text that looks like a
    number as a JSON number.
    """
    found = one.get(name)
    return str(found)[:10_000] if isinstance(found, str | int | float) else ""


def _number(value: object) -> int | None:
    """Return an integer, or a text of digits, as a number; None for any other value."""
    return int(value) if isinstance(value, int | str) and re.fullmatch(r"-?[0-9]{1,12}", str(value)) else None


def _exit_code(status: int | None) -> int | None:
    """Return a job's exit code as a shell gives it, 128 + n for signal n, from PBS's exit status, which is 256 + n
    then. Return None if the status is unknown, or negative because the job did not start.
    """
    if status is None or status < 0:
        return None
    return status if status < _SIGNALLED else 128 + status - _SIGNALLED


def read_time(text: str) -> float | None:
    """Return the Unix time of qstat's date, in this machine's time zone, or None if the text is no date."""
    try:
        return time.mktime(time.strptime(text))
    except (ValueError, OverflowError):
        return None


def read_duration(text: str) -> float | None:
    """Return the seconds of [[HOURS:]MINUTES:]SECONDS, or None if the text has another form."""
    parts = text.split(":")
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        return None
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))


# -- reasons

_HELD = "it is held, by its owner or an administrator: qrls lets it go"
_MEANS = meanings({
    r"Insufficient amount of (?:server |queue )?resource: (\w+)(?: \(R: (\S+) A: (\S+) T: (\S+)\))":
        r"hosts have too little \1 free: it asks for \2, and \3 of \4 is free",
    r"Insufficient amount of (?:server |queue )?resource: (\w+)": r"hosts have too little \1 free",
    r"Not enough free nodes available|No available resources on nodes": "too few hosts are free",
    r"Not enough total nodes available|can never run|Can Never Run":
        "no host, or too few, have what it asks for at all",
    r"job limit|[Ll]imit (?:has been )?reached|would exceed": "a limit for you, your project or the queue is reached",
    r"[Qq]ueue not started|[Qq]ueue is not (?:started|enabled)": "its queue is stopped",
    r"dependency|depend": "another job that it depends on has not ended",
    r"[Dd]edicated time|[Pp]rime": "its queue does not run jobs at this time",
    r"conflict with reservation|top job": "the hosts are kept for jobs before it",
    r"held": _HELD,
})  # fmt: skip


def reason_of(state: str, comment: str) -> str:
    """Return why a job in the state `state` waits, given PBS's `comment`."""
    if state == "W":
        return "it asked not to start before a later time"
    told = in_plain_words(re.sub(r"^Not Running: ", "", comment), _MEANS, CALLED)
    return told or (_HELD if state == "H" else f"{CALLED} gives no reason yet")
