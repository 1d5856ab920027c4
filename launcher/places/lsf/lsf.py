"""IBM Spectrum LSF as a place where runs go, from any machine that has its commands: their command lines, the parsing
of their output, states and reasons.

Written from its manuals, and not tested on a real LSF.
"""

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import Unreachable
from launcher.places.batch import environment
from launcher.places.batch.answers import number, read_json
from launcher.places.batch.batch import (
    LIMIT_S,
    BatchSystem,
    ExecHost,
    Fate,
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
    submit_tokens_in,
)
from launcher.places.batch.client import Programs
from launcher.places.batch.cluster import BatchCluster
from launcher.places.batch.dependencies import jobs_to_follow
from launcher.plan.model import Plan
from launcher.states import Cause, State

CALLED = "LSF"
_NO_ANSWER = (
    "lsf is down", "cannot connect to lsf", "lim is down", "lim not responding", "batch daemon not responding",
    "mbatchd", "failed in an lsf library call", "please wait", "communication time out",
)  # fmt: skip
ask = Programs(CALLED, "master", _NO_ANSWER).ask
_AGAIN = 99  # a job that leaves with it is put back: bsub -Q
_JOB_ID = re.compile(r"([0-9]{1,12})(?:\[([0-9]{1,9})\])?")
_SUBMITTED = re.compile(r"^Job <([0-9]{1,12})> is submitted to ", re.MULTILINE)
_FIELDS = (
    "jobid jobindex stat job_name job_description exec_host pend_reason exit_code exit_reason run_time runtimelimit"
)
_HOST_FIELDS = ("host_name status max run ngpus ngpus_alloc", "host_name status max run")  # older ones know no GPUs
_PHASES = {
    **dict.fromkeys(("PEND", "PSUSP", "PROV", "WAIT", "FWD_PEND"), Phase.QUEUED),
    **dict.fromkeys(("RUN", "USUSP", "SSUSP"), Phase.RUNNING),
    **dict.fromkeys(("DONE", "EXIT", "POST_DONE", "POST_ERR"), Phase.ENDED),
    "ZOMBI": Phase.ENDING,  # it was given up, and its host has not confirmed its end
}
_SIGNALS = {"REQUEUE_PEND": Fate.QUEUED_AGAIN, "KILL": Fate.CANCELLED, "TERM": Fate.CANCELLED}


class LsfCluster(BatchCluster):
    """LSF as a cluster to which runs are submitted. `takes` are the supported options of the spec's `queue`."""

    doctor = "launcher.places.lsf.doctor"  # module with its checks
    takes = ("after", "hold", "at")

    def __init__(self) -> None:
        super().__init__(LsfSystem())


class LsfSystem(BatchSystem):
    """LSF as a batch system: its command lines, and the parsing of their output."""

    kind, called, ask = "lsf", CALLED, staticmethod(ask)
    submits, reads_stdin = ("bsub", "-env", environment.FILE), True  # submits the script, which it reads from stdin
    sees, ends, releases = "bjobs -l", "bkill", "bresume"  # by which a user shows, ends, releases a job
    starts = ("blaunch", "-n")  # starts a program on another host of the job
    id_variable, hosts_variable = "LSB_JOBID", "LSB_DJOB_HOSTFILE"  # in the job: its id; a file with its hosts
    leaves_with: int | None = _AGAIN  # the exit code by which a job is requeued
    most_in_array = 1000  # LSF's default of MAX_JOB_ARRAY_SIZE

    def site(self) -> str:
        """Return the name of the LSF cluster, or "" if lsid does not show it."""
        found = re.search(r"^My cluster name is (\S+)", ask(["lsid"]).out, re.MULTILINE)
        return found[1] if found else ""

    def script(self, plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:
        """Return the whole batch script for bsub, which writes the submit token into a field of the job and excludes
        the hosts in `avoid`.

        The job's own output goes to a file in `where`, the folder of the run or of an array.
        """
        follows = [job for _, job in jobs_to_follow(plan.awaited)]
        lines = directives("#BSUB", options(plan, submit_token, where, avoid, follows))
        return script_of(self.kind, lines, where, plan.spec.resources.time_s, self.warn_before_s(plan))

    def submitted(self, text: str) -> str | None:
        """Return the id of the accepted job from bsub's output, or None if the output names no job or several."""
        found = set(_SUBMITTED.findall(text))
        return found.pop() if len(found) == 1 else None

    def name_of(self, job: str, element: int) -> str:
        """Return the id of the array's element number `element` (from 0), which LSF counts from 1."""
        return f"{job}[{element + 1}]"

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return the jobs with these ids, those of the run named `called`, or all of this user, by bjobs. Ended jobs
        are shown for CLEAN_PERIOD, an hour by default. Raise Unreachable if there is no answer within `limit_s`.
        """
        answer = ask(["bjobs", "-a", "-json", "-o", _FIELDS, *ids], limit_s=limit_s)
        if "{" not in answer.out and "job found" in f"{answer.out}{answer.err}".lower():
            return []
        named = job_name(called) if called else ""
        return [job for job in read_jobs(answer.out, time.time()) if named in ("", job.name)]

    def fate(self, job: str) -> Fate:
        """Return whether LSF queues the job again or cancels it, by the last signal in its history (bhist).

        The history comes first, because bjobs shows a job that is being ended as running. If its last signal is another
        or it has none, return what bjobs shows.
        """
        return fate_of(ask(["bhist", "-l", job]).out) or super().fate(job)

    def this_start(self) -> JobStart:
        """Return the job in which this process runs and, if the job is an element of an array, the number of the run
        that it starts, from 0, which is LSB_JOBINDEX less 1.
        """
        job, index = os.environ[self.id_variable], int(os.environ.get("LSB_JOBINDEX") or 0)
        return JobStart(self.name_of(job, index - 1), index - 1) if index else JobStart(job, None)

    def exec_hosts(self, queue: str | None, gpu: str, *, limit_s: float = LIMIT_S) -> list[ExecHost]:  # noqa: ARG002 - LSF has one name for GPUs, and a queue's hosts may be groups of groups
        """Return all hosts, by bhosts; raise Unreachable if there is no answer within `limit_s`. `queue` and `gpu` are
        not used, as a queue's hosts may be groups of groups, and LSF has one name for GPUs.
        """
        answers = (ask(["bhosts", "-o", fields, "-json"], limit_s=limit_s) for fields in _HOST_FIELDS)
        return read_hosts(next((answer.out for answer in answers if answer.code == 0), ""))


# -- the script


def options(
    plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str], follows: Sequence[str]
) -> dict[str, str | None]:
    """Return the options of bsub without their dash, None for one that is not set, for the run or the array in the
    folder `where`; hosts in `avoid` are excluded, and `follows` are jobs to wait for, however they end.

    The job itself checks afterwards how the runs ended. LSF fills a range of slots as it likes, so the largest number
    of nodes that the run may use is requested.
    """
    own, at, limit_s = plan.spec.lsf, plan.starts_at, plan.spec.resources.time_s
    slots = plan.ranks_per_node * plan.cpus_per_rank
    nodes = plan.nodes_max + plan.spec.recovery.spares
    away = [f"hname!='{host}'" for host in dict.fromkeys((*own.exclude, *avoid))]
    needs = [*([f"select[{' && '.join(away)}]"] if away else []), f"span[ptile={slots}]", own.extra.get("R")]
    gpus = [f"num={plan.gpus_per_node}", own.gpu]
    name = job_name(plan.run_id)
    chosen: dict[str, str | None] = {
        "J": _quoted(f"{name}[1-{submit_token.array}]") if submit_token.array else name,
        "Jd": submit_token.mark,
        "o": output_file(where, "lsf-%J-%I.out" if submit_token.array else "lsf-%J.out"),
        "r": "",
        "Q": str(_AGAIN),
        "q": own.queue,
        "P": own.project,
        "G": own.user_group,
        "app": own.app,
        "n": str(nodes * slots),
        "R": _quoted(" ".join(filter(None, needs))),
        "gpu": _quoted(":".join(filter(None, gpus))) if plan.gpus_per_node else None,
        "W": None if limit_s is None else str(math.ceil(limit_s / 60)),
        "H": "" if plan.spec.queue.hold else None,
        "b": None if at is None else time.strftime("%Y:%m:%d:%H:%M", time.localtime(math.ceil(at / 60) * 60)),
        "w": _quoted(" && ".join(f"ended({job})" for job in follows)) if follows else None,
    }
    return chosen | {name: _quoted(value) if value else "" for name, value in own.extra.items() if name != "R"}


def _quoted(text: str) -> str:
    """Return the text in quotes for bsub's own parser; no value of a spec contains such quotes."""
    return f'"{text}"'


# -- answers


def read_jobs(text: str, now: float) -> list[QueuedJob]:
    """Return the jobs in the output of `bjobs -json`, without those that LSF does not know; `now` is the current time.

    Raise Unreachable if it is damaged, because a job left out would seem to have ended.
    """
    return [_job(one, now) for one in _records(text) if not _text(one, "ERROR")]


def _records(text: str) -> list[Mapping[str, Any]]:
    """Return the list of records in the JSON output of an LSF command; raise Unreachable if it is damaged."""
    told = read_json(CALLED, text).get("RECORDS")
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        raise Unreachable(f"an answer of {CALLED} is damaged: expected records, got {str(told)[:100]!r}")
    return told


def _job(one: Mapping[str, Any], now: float) -> QueuedJob:
    """Return the job in a record of bjobs; `now` is the current time, to which the time left of its limit is added.
    Raise Unreachable if the record has no job id.
    """
    found = _JOB_ID.fullmatch(_text(one, "JOBID"))
    if found is None:
        raise Unreachable(
            f"an answer of {CALLED} is damaged: expected the id of a job, got {_text(one, 'JOBID')[:100]!r}"
        )
    index = int(found[2] or number(_text(one, "JOBINDEX")) or 0)
    word, why = _text(one, "STAT"), _text(one, "EXIT_REASON")
    phase = _PHASES.get(word, Phase.UNKNOWN)
    hosts = ",".join(dict.fromkeys(part.rpartition("*")[2] for part in _text(one, "EXEC_HOST").split(":") if part))
    ran, limit = read_duration(_text(one, "RUN_TIME"), 1), read_duration(_text(one, "RUNTIMELIMIT"), 60)
    timed_out, code = why.startswith("TERM_RUNLIMIT"), number(_text(one, "EXIT_CODE"))
    by_hand = re.match(r"TERM_(?:FORCE_)?(?:OWNER|ADMIN)", why) is not None
    text = reason_of(word, _text(one, "PEND_REASON")) if phase is Phase.QUEUED else f"on {hosts}" if hosts else ""
    return QueuedJob(
        id=f"{found[1]}[{index}]" if index else found[1],
        name=_text(one, "JOB_NAME").partition("[")[0],
        phase=phase,
        word=word,
        text=why or text if phase is Phase.ENDED else text,
        hosts=hosts,
        suspended=word in ("USUSP", "SSUSP"),
        submit_tokens=submit_tokens_in(_text(one, "JOB_DESCRIPTION")),
        element=(found[1], index - 1) if index else None,
        ends_at=now + limit - ran if phase is Phase.RUNNING and limit is not None and ran is not None else None,
        ended_as=_ended_as(timed_out=timed_out, by_hand=by_hand) if phase is Phase.ENDED else None,
        cause=Cause.TIME_LIMIT if phase is Phase.ENDED and timed_out else None,
        exit_code=int(code) if code is not None else 0 if word == "DONE" else None,
    )


def _ended_as(*, timed_out: bool, by_hand: bool) -> State:
    """Return the state of a job that ended without a record: failed if it `timed_out`, cancelled if a user ended it
    (`by_hand`), else lost.
    """
    return State.FAILED if timed_out else State.CANCELLED if by_hand else State.LOST


def fate_of(history: str) -> Fate | None:
    """Return what LSF does with the newest start of a job, by the last signal that was requested for it: it is queued
    again after REQUEUE_PEND, and cancelled after KILL or TERM. Return None after another signal or none.

    `history` is the output of `bhist -l`, whose lines may be broken anywhere.
    """
    newest = re.sub(r"\s+", "", history).rpartition("Starting(Pid")[2]
    asked = re.findall(r"Signal<(\w{1,40})>requested", newest)
    return _SIGNALS.get(asked[-1]) if asked else None


def read_hosts(text: str) -> list[ExecHost]:
    """Return the hosts in the output of `bhosts -json`; raise Unreachable if it is damaged."""
    return [_host(one) for one in _records(text) if _text(one, "HOST_NAME")]


def _host(one: Mapping[str, Any]) -> ExecHost:
    """Return the host in a record of bhosts."""
    status = _text(one, "STATUS")
    gpus, taken = (number(_text(one, name)) for name in ("NGPUS", "NGPUS_ALLOC"))
    return ExecHost(
        name=_text(one, "HOST_NAME"),
        cpus=int(number(_text(one, "MAX")) or 1),  # -: as many jobs as there are
        gpus=int(gpus or 0),
        free_gpus=max(0, int((gpus or 0) - (taken or 0))),
        used=(number(_text(one, "RUN")) or 0) > 0,
        up=status not in ("unavail", "unreach", "unlicensed"),
        drains=status == "closed_Adm",
        text=status,
    )


def _text(one: Mapping[str, Any], name: str) -> str:
    """Return the text of the field `name`, cut to 10,000 characters, or "" if the record `one` has no text there."""
    found = one.get(name)
    return found.strip()[:10_000] if isinstance(found, str) else ""


def read_duration(text: str, unit_s: float) -> float | None:
    """Return the seconds of a duration that LSF has printed; None for a text that is none.

    A single number, such as `1440.0` or `16038 second(s)`, counts units of `unit_s` seconds, as the caller knows which
    unit this field has; HOURS:MINUTES:SECONDS does without.
    """
    parts = text.removesuffix("second(s)").strip().split(":")
    known = [value for part in parts if (value := number(part)) is not None]
    if len(known) < len(parts):
        return None
    return known[0] * unit_s if len(known) == 1 else sum(value * 60**place for place, value in enumerate(known[::-1]))


# -- reasons

_HELD = "it is held, by its owner or an administrator: bresume lets it go"
_MEANS = meanings({
    r"^(?:New|Requeued) job is waiting for |^Scheduling of the job is delayed": "",
    r"[Jj]ob was suspended by": _HELD,
    r"[Dd]ependency condition (?:is )?(?:not satisfied|has not been satisfied)|waiting for its dependency":
        "another job that it depends on has not ended",
    r"[Dd]ependency condition (?:is )?invalid": "what it depends on can never happen any more: launch cancel ends it",
    r"specified start time|held until its": "it asked not to start before a later time",
    r"limit has been reached|job limit|slot limit|[Rr]esource .* limit":
        "a limit for you, your project or the queue is reached",
    r"[Nn]ot enough (?:slots|processors|job slots|hosts|GPUs|resource)|[Rr]esource requirements? .*not satisfied":
        "too few hosts have what it asks for",
    r"[Cc]losed by LSF administrator": "hosts that it may use are closed",
    r"[Ll]oad information unavailable|[Uu]nable to reach": "hosts that it may use do not answer",
    r"[Qq]ueue.*(?:closed|inactive|inactivated)": "its queue is closed, or starts no jobs",
    r"dispatch window|run windows? .*closed": "its queue starts jobs at other times",
})  # fmt: skip


def reason_of(state: str, reasons: str) -> str:
    """Return in plain words why a job in the state `state` waits; `reasons` are LSF's, separated by semicolons, or ""
    if it gives none.
    """
    told = (in_plain_words(one, _MEANS, CALLED) for one in reasons.split(";"))
    found = "; ".join(dict.fromkeys(filter(None, told)))
    return found or (_HELD if state == "PSUSP" else f"{CALLED} gives no reason yet")
