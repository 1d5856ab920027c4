"""Grid Engine as a place where runs go, from any machine that has its commands: their command lines, the parsing of
their output, states and reasons.
"""

import calendar
import contextlib
import math
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

from launcher.errors import BadInput, Unreachable
from launcher.places.batch import batch, environment
from launcher.places.batch.answers import JOB_ID, child_text, child_texts, number, read_settings, read_xml
from launcher.places.batch.batch import (
    LIMIT_S,
    BatchSystem,
    ExecHost,
    Phase,
    QueuedJob,
    SubmitToken,
    directives,
    in_plain_words,
    job_name,
    meanings,
    nodes_asked,
    output_file,
)
from launcher.places.batch.client import Answer, Programs
from launcher.places.batch.cluster import BatchCluster
from launcher.places.batch.dependencies import jobs_to_follow
from launcher.plan.facts import Machine
from launcher.plan.model import AwaitedRun, Plan
from launcher.spec.model import JobSpec
from launcher.states import Cause, State

CALLED = "Grid Engine"
MARK = "launch"  # the variable in a job's context that has the submit token
NO_SUBMIT_HOST = "denied: host"
_NO_ANSWER = (
    "commlib error", "to contact qmaster", "to qmaster using", "cannot connect to qmaster", "failed receiving gdi",
    "receive timeout", "got no response", NO_SUBMIT_HOST, "sge_root",
)  # fmt: skip
_TIME_LIMIT = "37"  # `failed` of qacct
_ZONES_S = 26 * 3600.0  # between the first place on earth where a day begins and the last
ask = Programs(CALLED, "qmaster", _NO_ANSWER).ask


class GridEngineCluster(BatchCluster):
    """Grid Engine as a cluster to which runs are submitted. Its job arrays are not used. `takes` are the supported
    options of the spec's `queue`.
    """

    doctor = "launcher.places.gridengine.doctor"  # module with its checks
    takes = ("priority", "after", "hold", "at")

    def __init__(self) -> None:
        super().__init__(GridEngineSystem())

    def machine(self, spec: JobSpec) -> Machine:
        """Return what hosts of the spec's queue offer. Raise BadInput if the spec's parallel environment does not put a
        fixed number of slots on each host.
        """
        own = spec.gridengine
        check_rule(own.pe, rule_of(own.pe), spec.resources.nodes.max)
        return super().machine(spec)


class GridEngineSystem(BatchSystem):
    """Grid Engine as a batch system: its command lines, and the parsing of their output. A job is requeued by exit code
    99.
    """

    kind = "gridengine"
    called = CALLED  # the name for users
    ask = staticmethod(ask)  # runs one of its commands and returns the output
    submits = ("qsub", "-terse", "-v", environment.FILE)  # submits the script, its last argument
    sees, ends, releases = "qstat -j", "qdel", "qrls"  # by which a user shows, ends, releases a job
    starts = ("qrsh", "-inherit", "-nostdin")  # starts a program on another host of the job
    leaves_with: int | None = 99  # the exit code by which a job is requeued

    def site(self) -> str:
        """Return the cluster's name, from SGE_CLUSTER_NAME or the cell's file cluster_name, or "" if neither has one.
        The qmaster's host is not used, because it may change.
        """
        named = os.environ.get("SGE_CLUSTER_NAME", "")
        root, cell = os.environ.get("SGE_ROOT", ""), os.environ.get("SGE_CELL", "default")
        with contextlib.suppress(OSError):
            named = named or Path(root, cell, "common", "cluster_name").read_text().strip()
        return named

    def script(self, plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:
        """Return the whole batch script for qsub, with the submit token. `where` is the folder of the run, into which
        the job prints until it has a log; hosts in `avoid` are excluded.
        """
        rule, follows = rule_of(plan.spec.gridengine.pe), jobs_to_follow(plan.awaited)
        return script_of(plan, submit_token, where, avoid, rule, follows)

    def refusal(self, answer: Answer) -> str:
        """Return why qsub refused the job: the last line of its `answer`."""
        return _last_line(answer)

    def may_submit(self) -> bool:
        """Return whether this host is among Grid Engine's submit hosts."""
        try:
            ask(["qsub", "-w", "v", "-b", "y", "true"])
        except Unreachable as error:
            if NO_SUBMIT_HOST not in str(error).lower():
                raise
            return False
        return True

    def try_out(self, script: str) -> str:
        """Return Grid Engine's verdict on this script, as text for the user; `qsub -w v` submits no job."""
        answer = ask(["qsub", "-w", "v"], stdin=script)
        return f"{CALLED} says: {_last_line(answer).removeprefix('verification: ')}"

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return this user's jobs that qstat lists: with `ids` only those, with `called` only those of the run of this
        name. Raise Unreachable if there is no answer within `limit_s`.
        """
        user = pwd.getpwuid(os.geteuid()).pw_name
        listed = ask(["qstat", "-xml", "-g", "t", "-u", user], limit_s=limit_s).out  # -g t: with all its hosts
        named = job_name(called) if called else ""
        wanted = [one.id for one in read_jobs(listed, "") if (not ids or one.id in ids) and named in ("", one.name)]
        if not wanted:
            return []
        details = ask(["qstat", "-xml", "-j", ",".join(wanted)], limit_s=limit_s).out
        return [job for job in read_jobs(listed, details) if job.id in wanted]

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:
        """Return the accounting's records of those of the jobs `ids` that have ended, by qacct; records older than
        `since` (Unix time) are left out.
        """
        found = (read_account(ask(["qacct", "-j", name]).out, since) for name in ids)
        return [job for job in found if job is not None]

    def requeue(self, job: str) -> str:
        """Return why the caller should continue the run in a new job, or "" if this job may be requeued, for which its
        process then exits with the code 99. Nothing is requested of the scheduler.

        A job with processes on other hosts is not to be requeued if one of them had to be killed, or if this host may
        submit a new job: Grid Engine keeps a requeued job off the other hosts that it had, and does not see a process
        of it that is left on one of them.
        """
        if any(one.last is None or not os.WIFEXITED(one.last) for one in self.started):
            return f"what job {job} started on other hosts had to be killed"
        with contextlib.suppress(Unreachable):  # then it is put back, for which no answer is needed
            return "it would not get its hosts again" if self.started and self.may_submit() else ""
        return ""

    def follow(self, job: str, others: Sequence[str]) -> bool:
        """Make a job that is being requeued wait for the jobs `others`, because a requeue drops its dependencies.
        Return whether it waits now. It does not if `others` is empty, or if Grid Engine refuses, as it does on a host
        that may not submit.
        """
        return bool(others) and ask(["qalter", "-hold_jid", ",".join(others), job]).code == 0

    def exec_hosts(self, queue: str | None, gpu: str, *, limit_s: float = LIMIT_S) -> list[ExecHost]:
        """Return the hosts that are in one of the queues in `queue` (names separated by commas; None: in any queue), as
        qhost lists them; `gpu` is the name of the resource by which it counts GPUs.
        """
        known = read_hosts(ask(["qhost", "-q", "-F", gpu, "-xml"], limit_s=limit_s).out, gpu)
        named = {one.partition("@")[0] for one in queue.split(",")} if queue else None
        return [host for host in known if (host.queues if named is None else named & host.queues)]


@cache
def rule_of(pe: str | None) -> str | None:
    """Return the allocation rule of the parallel environment `pe`, by which slots are spread over hosts, or None if
    `pe` does not exist or is None.
    """
    return None if pe is None else read_settings(ask(["qconf", "-sp", pe]).out).get("allocation_rule")


def _last_line(answer: Answer) -> str:
    """Return the last line of a command's stderr, or of its stdout if stderr is empty, as the reason of a failure.

    Phrases that qsub adds to every error ("Unable to run job: ", "Exiting.") are removed. If nothing is left, return
    text that says so.
    """
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip() not in ("", "Exiting.")]
    return lines[-1].removeprefix("Unable to run job: ") if lines else "it does not say why"


# -- the script

_ONE_HOST = "$pe_slots"
_HINT = "hint: ask the site for one whose allocation_rule is 1; `launch doctor` lists what there is"
Follows = Sequence[tuple[AwaitedRun, str]]


def script_of(
    plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str], rule: str | None, follows: Follows = ()
) -> str:
    """Return the script for qsub, with the submit token, for the run in the folder `where`; hosts in `avoid` are
    excluded, `rule` is the parallel environment's allocation rule (None: none is requested, for a job on one host), and
    `follows` are (run, job id) pairs of jobs that must end first.
    """
    chosen = options(plan, submit_token, where, avoid, rule)
    if follows:
        chosen["hold_jid"] = ",".join(job for _, job in follows)
    # A timer in the job warns of its limit: after a requeue, s_rt ends the job.
    limit_s, before_s = plan.spec.resources.time_s, GridEngineSystem().warn_before_s(plan)
    return batch.script_of("gridengine", directives("#$", chosen), where, limit_s, before_s)


def options(
    plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str], rule: str | None
) -> dict[str, str | None]:
    """Return the options of qsub without their dash, None for one that is not set, for the run in the folder `where`.

    Hosts in `avoid` are excluded, and `rule` is the parallel environment's allocation rule; with None, for a job on one
    host, no environment is requested.
    """
    own, queue, at, limit_s = plan.spec.gridengine, plan.spec.queue, plan.starts_at, plan.spec.resources.time_s
    hosts = dict.fromkeys((*own.exclude, *avoid))
    resources = {
        "h_rt": None if limit_s is None else str(math.ceil(limit_s)),
        **_gpus(plan, rule),
        "hostname": f"!({'|'.join(hosts)})" if hosts else None,
    }
    listed = [*(f"{name}={value}" for name, value in resources.items() if value), own.extra.get("l")]
    return {
        **{name: value or "" for name, value in own.extra.items() if name != "l"},
        "h": "" if queue.hold else None,
        "a": None if at is None else time.strftime("%Y%m%d%H%M.%S", time.localtime(at)),
        "p": str(queue.priority) if queue.priority else None,
        "S": "/bin/sh",
        "N": job_name(plan.run_id),
        "j": "y",
        "o": output_file(where, "gridengine-$JOB_ID.out"),
        "r": "y",
        "notify": "",
        "ac": f"{MARK}={submit_token.text}",
        "pe": f"{own.pe} {nodes_asked(plan, _slots_of_a_host(plan, rule))}" if own.pe and rule is not None else None,
        "q": own.queue,
        "P": own.project,
        "l": ",".join(filter(None, listed)) or None,
    }


def _slots_of_a_host(plan: Plan, rule: str | None) -> int:
    """Return how many slots the job gets on each host. `rule` is the allocation rule of its parallel environment: a
    number of slots, or all slots on one host, in which case the job asks for one slot per core. Without a parallel
    environment `rule` is None, and the host gives one slot.
    """
    return plan.ranks_per_node * plan.cpus_per_rank if rule == _ONE_HOST else int(rule or 1)


def _gpus(plan: Plan, rule: str | None) -> Mapping[str, str]:
    """Return the request for GPUs as {resource name: number per slot}, an empty dict for a plan without GPUs.

    Grid Engine counts resources per slot, so the GPUs of a host are divided by the slots per host, which follow from
    `rule`, the allocation rule of the parallel environment. Raise BadInput if they cannot be divided evenly.
    """
    gpus, slots = plan.gpus_per_node, _slots_of_a_host(plan, rule)
    if gpus % slots:
        text = f"{gpus} GPUs on a host cannot be asked for in {slots} equal parts, one for each slot"
        raise BadInput(f"gridengine.pe: {text}", _HINT)
    return {plan.spec.gridengine.gpu_resource: str(gpus // slots)} if gpus else {}


def check_rule(pe: str | None, rule: str | None, nodes: int) -> None:
    """Raise BadInput if the parallel environment `pe` (None: none) cannot give a job exactly `nodes` hosts.

    Its allocation rule (None if there is no such environment) has to be a number of slots per host or, for one node,
    the one that puts all slots on one host. Without an environment a job has one host.
    """
    why = ""
    if pe is None:
        why = f"{nodes} nodes need a parallel environment" if nodes > 1 else ""
    elif rule is None:
        why = f"there is no parallel environment {pe}"
    elif rule == _ONE_HOST:
        why = f"{pe} gives a job slots on one host alone, and {nodes} are asked for" if nodes > 1 else ""
    elif not rule.isdigit():
        why = f"{pe} (allocation_rule {rule}) gives slots wherever some are free, on any number of hosts"
    if why:
        raise BadInput(f"gridengine.pe: {why}", _HINT)


# -- answers


def phase_of(state: str) -> Phase:
    """Return the phase for qstat's state letters, such as qw, hqw, Eqw, t, r, Rr, S or dr: ENDING with a d, else QUEUED
    with a q, else RUNNING. It is UNKNOWN if there is no letter or an unknown one.
    """
    if not state or not set(state) <= set("dEhqrRsStTw"):
        return Phase.UNKNOWN
    return Phase.ENDING if "d" in state else Phase.QUEUED if "q" in state else Phase.RUNNING


def read_jobs(listed: str, detailed: str) -> list[QueuedJob]:
    """Return the jobs in the output of `qstat -g t -u` (`listed`), with details from the output of `qstat -j`
    (`detailed`).

    Raise Unreachable if the output is damaged, because a job left out would seem to have ended. A job that ended
    between the two queries is left out, because without its token it could be taken for any run's.
    """
    rows: dict[str, list[ET.Element]] = {}  # one for each queue that has given a job slots
    for row in read_xml(CALLED, listed).iter("job_list"):
        name = child_text(row, "JB_job_number")
        if JOB_ID.fullmatch(name) is None:
            raise Unreachable(f"an answer of {CALLED} is damaged: expected the number of a job, got {name[:100]!r}")
        rows.setdefault(name, []).append(row)
    root = read_xml(CALLED, detailed) if detailed.strip() else ET.Element("nothing")
    details = {child_text(job, "JB_job_number"): job for job in root.iterfind("djob_info/element")}
    ended = {name for part in root.iter("unknown_jobs") for name in child_texts(part, "ST_name")}
    told: dict[str, list[str]] = {}
    for one in root.iterfind(".//SME_message_list/element"):
        for name in child_texts(one, "ULNG_value"):
            told.setdefault(name, []).append(child_text(one, "MES_message"))
    known = {name: job for name, job in rows.items() if name not in ended and (not details or name in details)}
    return [_job(name, job, details.get(name, ET.Element("gone")), told.get(name, [])) for name, job in known.items()]


def _job(name: str, rows: Sequence[ET.Element], details: ET.Element, messages: Sequence[str]) -> QueuedJob:
    """Return the job whose id is `name`, from its rows of `qstat -g t`, its details, and the scheduler's messages about
    it.
    """
    masters_first = sorted(rows, key=lambda row: child_text(row, "master") != "MASTER")
    names = (child_text(row, "queue_name").rpartition("@")[2] for row in masters_first)
    hosts, state = ",".join(dict.fromkeys(filter(None, names))), child_text(masters_first[0], "state")
    phase = phase_of(state)
    context = {child_text(one, "VA_variable"): child_text(one, "VA_value") for one in details.iterfind("JB_context/*")}
    limits = {
        child_text(one, "CE_name"): number(child_text(one, "CE_doubleval")) for one in details.iter("qstat_l_requests")
    }
    started, limit = next(filter(None, map(number, child_texts(details, "JAT_start_time"))), None), limits.get("h_rt")
    return QueuedJob(
        id=name,
        name=child_text(rows[0], "JB_name"),
        phase=phase,
        word=state,
        text=reason_of(state, child_texts(details, "QIM_message"), messages)
        if phase is Phase.QUEUED
        else f"on {hosts}",
        hosts=hosts,
        suspended=phase is Phase.RUNNING and bool(set(state) & set("sST")),
        submit_tokens=frozenset({context.get(MARK, "")} - {""}),
        ends_at=None if started is None or limit is None else started + limit,
    )


def read_account(text: str, since: float = 0.0) -> QueuedJob | None:
    """Return the job in the newest record of the output of `qacct -j`, or None if all records are of jobs that ended
    before `since` (Unix time); job ids repeat after ten million jobs, so older records can be of another job. The times
    in records have no time zone: a record is too old only if it is so in every time zone.

    The job's `ended_as` is FAILED if Grid Engine ended it at its time limit, else LOST; it is used only for a run that
    left no end record of its own.
    """
    records = map(read_settings, reversed(re.split(r"^=+$", text, flags=re.MULTILINE)))
    known = (record for record in records if JOB_ID.fullmatch(record.get("jobnumber", "")))
    newest = next((record for record in known if _ended_at(record) > since - _ZONES_S), None)
    if newest is None:
        return None
    failed, _, words = (part.strip() for part in newest.get("failed", "").partition(":"))
    ended_as, cause = (State.FAILED, Cause.TIME_LIMIT) if failed == _TIME_LIMIT else (State.LOST, None)
    code = next(map(int, re.findall(r"^[0-9]{1,3}", newest.get("exit_status", ""))), None)
    name, host = newest["jobnumber"], newest.get("hostname", "")
    return QueuedJob(name, Phase.ENDED, words or "ended", "", host, ended_as=ended_as, cause=cause, exit_code=code)


def _ended_at(record: Mapping[str, str]) -> float:
    """Return the time at which the job ended as Unix time, as if the record's time, which has no time zone, were in
    UTC; infinity if the record has no time.
    """
    try:
        return calendar.timegm(time.strptime(record.get("end_time", "")))
    except ValueError:
        return math.inf


def read_hosts(text: str, gpu: str = "gpu") -> list[ExecHost]:
    """Return the hosts in the output of `qhost -q -F GPU -xml`, which shows how many GPUs are free, not how many there
    are; `gpu` is the resource name for GPUs.
    """
    return [_host(host, gpu) for host in read_xml(CALLED, text).iter("host") if host.get("name") != "global"]


def _host(host: ET.Element, gpu: str) -> ExecHost:
    """Return a host from its XML element in the output of qhost; `gpu` is the name of the resource that counts GPUs. A
    host without a load is down: Grid Engine does not reach it.
    """
    values = {one.get("name"): one.text or "" for one in host.iter("hostvalue")}
    free = {one.get("name"): number(one.text or "") for one in host.iter("resourcevalue")}.get(gpu)
    queues, cpus = frozenset(one.get("name") or "" for one in host.iter("queue")), number(values.get("num_proc", "-"))
    used = sum(number(one.text or "") or 0 for one in host.iter("queuevalue") if one.get("name") == "slots_used")
    up = values.get("load_avg", "-") != "-"
    return ExecHost(
        name=host.get("name") or "",
        cpus=int(cpus or 0),
        free_gpus=None if free is None else int(free),
        used=used > 0,
        up=up,
        queues=queues,
        text=", ".join(sorted(queues)) if up else f"{CALLED} does not hear it",
    )


# -- reasons

_HELD = "it is held, by its owner or an administrator: qrls lets it go"
_MEANS = meanings({
    r"^Job is in hold state$": _HELD,
    r"^job dropped because of job dependencies$": "another job that it depends on has not ended",
    r"^execution time not reached$": "it asked not to start before a later time",
    r"^There are no messages available$|^Job is in error state$": "",
    r'cannot run in PE "(.*)" because it only offers (?:0|-[0-9]+) slots$':
        r"the parallel environment \1 has no host free for it",
    r'cannot run in PE "(.*)" because it only offers ([0-9]+) slots$':
        r"the parallel environment \1 has only \2 slots free for it",
    r"\(-l ([^)]*)\) cannot run .*because it offers only [a-z]{2}:([^=]+)=":
        r"hosts have too little \2 free (it asks for \1)",
    r"is alarmed": "the hosts that it may use are too loaded",
    r"is disabled": "queues that it may use are disabled",
    r"is full": "queues that it may use are full",
    r"unknown state": "hosts that it may use do not answer",
    r"not in pe list": "the queue that it asks for does not have its parallel environment",
    r"exceeds limit": "a limit for you or your project is reached",
    r"until clean up of": "hosts that it has had are kept from it until they have tidied up",
})  # fmt: skip


def reason_of(state: str, errors: Sequence[str], messages: Sequence[str]) -> str:
    """Return why a job waits, in words. `state` has its state letters, such as `hqw` or `Eqw`, `errors` say why earlier
    starts failed, and `messages` are the scheduler's notes about the job.
    """
    if "E" in state:
        why = f": {errors[-1]}" if errors else ""
        return f"it could not be started{why}; once that is mended, qmod -cj lets it try again"
    told = "; ".join(dict.fromkeys(filter(None, (in_plain_words(one, _MEANS, CALLED) for one in messages)))) or (
        _HELD if "h" in state else ""
    )
    return told or f"Grid Engine gives no reason yet{' to start it again' if 'R' in state else ''}"
