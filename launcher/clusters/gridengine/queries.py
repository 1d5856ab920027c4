"""Asking Grid Engine's clients, and reading what they answer."""

import calendar
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

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
JOB_ID = re.compile(r"[0-9]{1,10}")
_TIME_LIMIT = "37"  # `failed` of qacct
_ZONES_S = 26 * 3600.0  # between the first place on earth where a day begins and the last
ask = Programs(CALLED, "qmaster", _NO_ANSWER).ask


def phase_of(state: str) -> Phase:
    """Of qstat's letters: qw, hqw, Eqw, t, r, Rr, S, dr, …"""
    if not state or not set(state) <= set("dEhqrRsStTw"):
        return Phase.UNKNOWN
    if "d" in state:
        return Phase.ENDING
    return Phase.QUEUED if "q" in state else Phase.RUNNING


def read_jobs(listed: str, detailed: str) -> list[QueuedJob]:
    """The jobs of `qstat -g t -u`, with what `qstat -j` says of them. Raises Unreachable where an answer is damaged: a
    job that is left out would seem gone. One that ended between the two questions is left out: without its ticket it
    would pass for anybody's."""
    root = _parse(detailed) if detailed.strip() else ET.Element("nothing")
    details = {_text(job, "JB_job_number"): job for job in root.iterfind("djob_info/element")}
    ended = {name for part in root.iter("unknown_jobs") for name in _all(part, "ST_name")}
    told: dict[str, list[str]] = {}
    for one in root.iterfind(".//SME_message_list/element"):
        for name in _all(one, "ULNG_value"):
            told.setdefault(name, []).append(_text(one, "MES_message"))
    rows: dict[str, list[ET.Element]] = {}  # one for each queue that has given a job slots
    for row in _parse(listed).iter("job_list"):
        name = _text(row, "JB_job_number")
        if JOB_ID.fullmatch(name) is None:
            raise Unreachable(f"an answer of Grid Engine is damaged: expected the number of a job, got {name[:100]!r}")
        rows.setdefault(name, []).append(row)
    known = {name: job for name, job in rows.items() if name not in ended and (not details or name in details)}
    return [_job(name, job, details.get(name, ET.Element("gone")), told.get(name, [])) for name, job in known.items()]


def _job(name: str, rows: Sequence[ET.Element], details: ET.Element, messages: Sequence[str]) -> QueuedJob:
    masters_first = sorted(rows, key=lambda row: _text(row, "master") != "MASTER")
    names = (_text(row, "queue_name").rpartition("@")[2] for row in masters_first)
    hosts = ",".join(dict.fromkeys(filter(None, names)))
    state = _text(masters_first[0], "state")
    phase = phase_of(state)
    context = {_text(one, "VA_variable"): _text(one, "VA_value") for one in details.iterfind("JB_context/*")}
    limits = {_text(one, "CE_name"): _text(one, "CE_doubleval") for one in details.iter("qstat_l_requests")}
    started = next((at for one in _all(details, "JAT_start_time") if (at := _number(one))), None)
    return QueuedJob(
        id=name,
        name=_text(rows[0], "JB_name"),
        phase=phase,
        word=state,
        text=plain(state, _all(details, "QIM_message"), messages) if phase is Phase.QUEUED else f"on {hosts}",
        hosts=hosts,
        suspended=phase is Phase.RUNNING and bool(set(state) & set("sST")),
        tickets=frozenset({context.get(TICKET, "")} - {""}),
        ends_at=started + limit if started and (limit := _number(limits.get("h_rt", ""))) is not None else None,
    )


def read_account(text: str, since: float = 0.0) -> QueuedJob | None:
    """The newest record of `qacct -j` that is no older than that: ids go round after ten million jobs. Our process
    writes its own last word: where that is missing, only a limit that Grid Engine has enforced tells why."""
    records = [read_settings(part) for part in re.split(r"^=+$", text, flags=re.MULTILINE)]
    known = (record for record in reversed(records) if JOB_ID.fullmatch(record.get("jobnumber", "")))
    newest = next((record for record in known if _is_of(record, since)), None)
    if newest is None:
        return None
    failed, _, words = (part.strip() for part in newest.get("failed", "").partition(":"))
    ended_as, cause = (State.FAILED, Cause.TIME_LIMIT) if failed == _TIME_LIMIT else (State.LOST, None)
    code = next(map(int, re.findall(r"^[0-9]{1,3}", newest.get("exit_status", ""))), None)
    name, host = newest["jobnumber"], newest.get("hostname", "")
    return QueuedJob(name, Phase.ENDED, words or "ended", "", host, ended_as=ended_as, cause=cause, exit_code=code)


def _is_of(record: Mapping[str, str], since: float) -> bool:
    """Whether the job of this record ended after that. Its times have no zone, and of some jobs it has none."""
    try:
        ended_at = calendar.timegm(time.strptime(record.get("end_time", "")))
    except ValueError:
        return True
    return ended_at > since - _ZONES_S


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
    return [_host(host) for host in _parse(text).iter("host") if host.get("name") != "global"]


def hosts_of(queue: str | None, resource: str) -> list[ExecHost]:
    """Those that answer, of one of these queues, or of any."""
    return [host for host in all_hosts_of(queue, resource) if host.up]


def all_hosts_of(queue: str | None, resource: str) -> list[ExecHost]:
    """Those that do not answer too."""
    known = read_hosts(ask(["qhost", "-q", "-F", resource, "-xml"]).out)
    named = {one.partition("@")[0] for one in queue.split(",")} if queue else None
    return [host for host in known if (host.queues if named is None else named & host.queues)]


def _host(host: ET.Element) -> ExecHost:
    values = {one.get("name"): one.text or "" for one in host.iter("hostvalue")}
    free = {one.get("name") or "": _number(one.text or "") or 0.0 for one in host.iter("resourcevalue")}
    cpus, up = _number(values.get("num_proc", "-")) or 0.0, values.get("load_avg", "-") != "-"
    queues = frozenset(one.get("name") or "" for one in host.iter("queue"))
    used = sum(_number(one.text or "") or 0 for one in host.iter("queuevalue") if one.get("name") == "slots_used")
    return ExecHost(host.get("name") or "", int(cpus), up, queues, free, int(used))


def read_settings(text: str) -> dict[str, str]:
    """What `qconf -s…` shows: a name and its value on a line, which a backslash carries on."""
    rows = (line.split(None, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip())
    return {row[0]: row[1].strip() if len(row) > 1 else "" for row in rows}


def _parse(text: str) -> ET.Element:
    try:
        return ET.fromstring(text[max(0, text.find("<?xml")) :])  # noqa: S314 # nosec B314 - the user's own qmaster
    except ET.ParseError as error:
        raise Unreachable(f"an answer of Grid Engine is damaged: {error}") from error


def _number(text: str) -> float | None:
    """What is no plain number is not known."""
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,15})?", text.strip()) else None


def _text(node: ET.Element, name: str) -> str:
    return (node.findtext(name) or "").strip()


def _all(node: ET.Element, name: str) -> list[str]:
    return [one.text for one in node.iter(name) if one.text]
