"""Asking Grid Engine's clients, and reading what they answer."""

import calendar
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from launcher.clusters.batch.answers import JOB_ID, number, read_settings, read_xml, word_in, words_in
from launcher.clusters.batch.client import Programs
from launcher.clusters.batch.queue import Phase, QueuedJob
from launcher.clusters.gridengine.reasons import plain
from launcher.errors import Unreachable
from launcher.words import Cause, State

CALLED = "Grid Engine"
TICKET = "launch"  # the variable in a job's context that has the ticket
NO_SUBMIT_HOST = "denied: host"
_NO_ANSWER = (
    "commlib error", "to contact qmaster", "to qmaster using", "cannot connect to qmaster", "failed receiving gdi",
    "receive timeout", "got no response", NO_SUBMIT_HOST, "sge_root",
)  # fmt: skip
_TIME_LIMIT = "37"  # `failed` of qacct
_ZONES_S = 26 * 3600.0  # between the first place on earth where a day begins and the last
ask = Programs(CALLED, "qmaster", _NO_ANSWER).ask


def phase_of(state: str) -> Phase:
    """Of qstat's letters: qw, hqw, Eqw, t, r, Rr, S, dr, …"""
    if not state or not set(state) <= set("dEhqrRsStTw"):
        return Phase.UNKNOWN
    return Phase.ENDING if "d" in state else Phase.QUEUED if "q" in state else Phase.RUNNING


def read_jobs(listed: str, detailed: str) -> list[QueuedJob]:
    """The jobs of `qstat -g t -u`, with what `qstat -j` says of them. Raises Unreachable where an answer is damaged: a
    job that is left out would seem gone. One that ended between the two questions is left out: without its ticket it
    would pass for anybody's."""
    rows: dict[str, list[ET.Element]] = {}  # one for each queue that has given a job slots
    for row in read_xml(CALLED, listed).iter("job_list"):
        name = word_in(row, "JB_job_number")
        if JOB_ID.fullmatch(name) is None:
            raise Unreachable(f"an answer of {CALLED} is damaged: expected the number of a job, got {name[:100]!r}")
        rows.setdefault(name, []).append(row)
    root = read_xml(CALLED, detailed) if detailed.strip() else ET.Element("nothing")
    details = {word_in(job, "JB_job_number"): job for job in root.iterfind("djob_info/element")}
    ended = {name for part in root.iter("unknown_jobs") for name in words_in(part, "ST_name")}
    told: dict[str, list[str]] = {}
    for one in root.iterfind(".//SME_message_list/element"):
        for name in words_in(one, "ULNG_value"):
            told.setdefault(name, []).append(word_in(one, "MES_message"))
    known = {name: job for name, job in rows.items() if name not in ended and (not details or name in details)}
    return [_job(name, job, details.get(name, ET.Element("gone")), told.get(name, [])) for name, job in known.items()]


def _job(name: str, rows: Sequence[ET.Element], details: ET.Element, messages: Sequence[str]) -> QueuedJob:
    masters_first = sorted(rows, key=lambda row: word_in(row, "master") != "MASTER")
    names = (word_in(row, "queue_name").rpartition("@")[2] for row in masters_first)
    hosts, state = ",".join(dict.fromkeys(filter(None, names))), word_in(masters_first[0], "state")
    phase = phase_of(state)
    context = {word_in(one, "VA_variable"): word_in(one, "VA_value") for one in details.iterfind("JB_context/*")}
    limits = {word_in(one, "CE_name"): number(word_in(one, "CE_doubleval")) for one in details.iter("qstat_l_requests")}
    started, limit = next(filter(None, map(number, words_in(details, "JAT_start_time"))), None), limits.get("h_rt")
    return QueuedJob(
        id=name,
        name=word_in(rows[0], "JB_name"),
        phase=phase,
        word=state,
        text=plain(state, words_in(details, "QIM_message"), messages) if phase is Phase.QUEUED else f"on {hosts}",
        hosts=hosts,
        suspended=phase is Phase.RUNNING and bool(set(state) & set("sST")),
        tickets=frozenset({context.get(TICKET, "")} - {""}),
        ends_at=None if started is None or limit is None else started + limit,
    )


def read_account(text: str, since: float = 0.0) -> QueuedJob | None:
    """The newest record of `qacct -j` that is no older than that: ids go round after ten million jobs. Our process
    writes its own last word: where that is missing, only a limit that Grid Engine has enforced tells why."""
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
    """To within the zones of the earth: the time in a record has none. Of some jobs there is no time."""
    try:
        return calendar.timegm(time.strptime(record.get("end_time", "")))
    except ValueError:
        return math.inf


@dataclass(frozen=True, slots=True)
class ExecHost:
    """An execution host: what is free on it, and which queues it has."""

    name: str
    cpus: int
    up: bool
    queues: frozenset[str]
    free: Mapping[str, float]
    used: int = 0  # slots, of whomever


def read_hosts(text: str) -> list[ExecHost]:
    """Those of `qhost -q -F RESOURCE -xml`."""
    return [_host(host) for host in read_xml(CALLED, text).iter("host") if host.get("name") != "global"]


def _host(host: ET.Element) -> ExecHost:
    values = {one.get("name"): one.text or "" for one in host.iter("hostvalue")}
    free = {one.get("name") or "": number(one.text or "") or 0.0 for one in host.iter("resourcevalue")}
    queues, cpus = frozenset(one.get("name") or "" for one in host.iter("queue")), number(values.get("num_proc", "-"))
    used = sum(number(one.text or "") or 0 for one in host.iter("queuevalue") if one.get("name") == "slots_used")
    up = values.get("load_avg", "-") != "-"
    return ExecHost(host.get("name") or "", int(cpus or 0), up, queues, free, int(used))


def hosts_of(queue: str | None, resource: str) -> list[ExecHost]:
    """Those that answer, of one of these queues, or of any."""
    return [host for host in all_hosts_of(queue, resource) if host.up]


def all_hosts_of(queue: str | None, resource: str) -> list[ExecHost]:
    """Those that do not answer too."""
    known = read_hosts(ask(["qhost", "-q", "-F", resource, "-xml"]).out)
    named = {one.partition("@")[0] for one in queue.split(",")} if queue else None
    return [host for host in known if (host.queues if named is None else named & host.queues)]
