"""Ask a host for its report on a run, compare it with others', and keep its records here.

Where the run is, its plan and its name are our own records and stay as they are. For an attempt that hosts opened
themselves, their report says which of its hosts run it, and in which order.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from launcher.copies.mirror import tails
from launcher.copies.mirror.records import keep_end, keep_state, renew
from launcher.copies.mirror.roles import keep_roles
from launcher.errors import LaunchError
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import MOST_OF_A_REPORT, AskReport, OpenedByHosts, RunReport
from launcher.places.ssh.run_hosts import places_of
from launcher.plan.on_hosts import with_hosts
from launcher.run.attempts import newest, read_plan
from launcher.run.durable import make_dir, write_bytes, write_record
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Exclusion, Handle, Intent, StopRequest
from launcher.states import State

_LOG = re.compile(r"exits\.jsonl|(node-\d{2,6}/)?[a-z][a-z-]{0,40}\.log", re.ASCII)
_OVERLAP = 4096  # bytes of the events that are asked for again: do they continue ours, or are they others?


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host's report on a run, with the new parts of its files."""

    host: str
    head: RunReport  # the report itself
    files: Sequence[tails.Tail]  # what this machine lacks of the events, and logs of the attempt

    @property
    def lives(self) -> bool:
        """Return whether the run goes on as far as this host knows: it waits to begin, starts or runs. A run whose
        attempt has ended so that another may follow does not count.
        """
        waits = self.head.state is State.QUEUED and self.head.end is None
        return waits or self.head.state in (State.STARTING, State.RUNNING, State.REGROUPING)

    @property
    def has_ended(self) -> bool:
        """Return whether the report says that the run has ended, by a decision of its leader or of more than half of
        its hosts; the end that a host wrote while cut off from the others does not count.
        """
        state, end = self.head.state, self.head.end
        return state in (State.SUCCEEDED, State.FAILED, State.CANCELLED) and not (end is not None and end.alone)

    @property
    def leader(self) -> str:
        """Return the name of the host that leads the reported attempt, or "" if it is unknown."""
        return self.head.begun.hosts[0] if self.head.begun is not None and self.head.begun.hosts else ""

    def is_of(self, attempt: AttemptDir) -> bool:
        """Return whether the report is about the attempt or a later one."""
        return self.head.attempt >= attempt.number

    def has_begun(self, attempt: AttemptDir) -> bool:
        """Return whether the host's supervisor has received the message to begin the attempt, or a later one."""
        return self.is_of(attempt) and self.head.began


def with_the_run(said: Mapping[str, HostReport | LaunchError]) -> list[HostReport]:
    """Return the reports of hosts that have the run. `said` has by host its report, or the error if it did not answer;
    errors are left out, and reports of hosts without the run, since such a host may have a new disk.
    """
    return [one for one in said.values() if isinstance(one, HostReport) and one.head.state is not None]


def best_of(heard: Sequence[HostReport], *, apart: bool = True) -> HostReport | None:
    """Return the report that knows most among those of the newest attempt, or None if `heard` is empty.

    An end counts most, then a run that goes on, then the more certain state; of equal reports the first is returned.
    `apart` says that hosts share no disk: then a host that reports the run as lost is less certain than one that
    reports it as unknown, else the other way round.
    """
    # On a shared disk only the leader's host can tell whether its supervisor lives; else each host knows its own.
    order = (State.LOST, State.UNKNOWN) if apart else (State.UNKNOWN, State.LOST)

    def worth(one: HostReport) -> tuple[int, bool, bool, int]:
        """Return a sort key that is larger the more the report knows."""
        doubt = order.index(one.head.state) if one.head.state in order else len(order)
        return one.head.attempt, one.has_ended, one.lives, doubt

    return max(heard, key=worth, default=None)


def ask_reports(run: RunDir, places: Sequence[Place]) -> dict[str, HostReport | LaunchError]:
    """Ask all hosts at the same time, and return each host's report by the host's name, or the error for a host that
    did not give one; nothing is written here.
    """
    return ask_all(places, lambda client: ask_report(run, client))


def ask_report(run: RunDir, client: HostClient) -> HostReport:
    """Ask one host for its report and the new parts of its files, and return them; nothing is written here. Raise
    LaunchError if the host does not answer, or sends a file that is no record of the run.

    The host is asked only for events after those on this machine. If its events differ from these, it is asked again
    for all of them.
    """
    known, tail = _end_of_events(run)
    head, events, logs = _asked(run, client, known - len(tail))
    if head.state is not None and not events.content.startswith(tail):
        head, events, logs = _asked(run, client, 0)
    elif tail:
        events = tails.Tail(events.name, known, events.content[len(tail) :])
    return HostReport(client.place.host.name, head, [events, *logs])


def _asked(run: RunDir, client: HostClient, events_from: int) -> tuple[RunReport, tails.Tail, list[tails.Tail]]:
    """Ask a host about the run; return (its report, its events from byte `events_from` on, the ends of its logs).

    The logs are those of the run's newest attempt there. Raise LaunchError if the host sends a file that is neither
    the events nor a log, or if it does not answer.
    """
    question = AskReport(run.id, client.place.workdir, events_from)
    head, told = client.ask_with_files(
        question, RunReport, lambda one: one.files, MOST_OF_A_REPORT, client.limits.soon_s
    )
    files = {one.name: one for one in told}
    events = files.pop(run.events.name, tails.Tail(run.events.name, events_from, b""))
    if strangers := [name for name in files if not _LOG.fullmatch(name)]:
        raise client.confused(f"{strangers[0][:100]!r} is no record of a run that a host may write")
    return head, events._replace(at=events_from), [*files.values()]


def _end_of_events(run: RunDir) -> tuple[int, bytes]:
    """Return (the size of the history on this machine, its last 4096 bytes or fewer), by which a host's history is
    recognised as a continuation of this one.
    """
    try:
        with run.events.open("rb") as events:
            size = events.seek(0, 2)
            events.seek(max(0, size - _OVERLAP))
            return size, events.read(_OVERLAP)
    except FileNotFoundError:
        return 0, b""


def begin(run: RunDir, told: HostReport) -> AttemptDir:
    """Return the reported attempt of the run. If this machine has no such attempt, record that it began, but not how it
    ended; raise LaunchError if the report names hosts that the run was not handed to.
    """
    attempt = run.attempt(told.head.attempt)
    if not attempt.intent.exists():
        _keep_beginning(run, attempt, told)
    return attempt


def keep(run: RunDir, told: HostReport) -> None:
    """Write the records in the report `told` to the run's folder on this machine. Ignore a report of an attempt older
    than the newest known one.

    The record of how the attempt ended is written last, because a run that has ended is not asked about any more, and
    all its events must be here by then. If the report says that the attempt goes on, such a record is deleted.
    """
    mine, head = newest(run), told.head
    if mine is not None and mine.number > head.attempt:
        return
    attempt = begin(run, told)
    for file in told.files:
        if file.name == run.events.name and file.at:
            tails.put(run.path, (file.name,), file)
        else:
            path = run.events if file.name == run.events.name else attempt.path / file.name
            if file.content != (path.read_bytes() if path.exists() else b""):
                make_dir(path.parent)
                write_bytes(path, file.content)
    renew(run.avoided, head.avoided, tuple[Exclusion, ...])
    if not head.more:
        renew(attempt.stop, head.stop, StopRequest)
    if head.last is not None and not (head.more and head.last.state.ended):
        last = msgspec.structs.replace(head.last, attempt=min(head.last.attempt, head.attempt))
        keep_state(run, attempt, last)
    keep_roles(run, attempt, head.roles, "ssh")
    if told.lives:
        attempt.end.unlink(missing_ok=True)  # an end by a host that did not know better
    elif not head.more:
        keep_end(attempt, head.end)


def _keep_beginning(run: RunDir, attempt: AttemptDir, told: HostReport) -> None:
    """Record on this machine that the hosts opened an attempt by themselves, as after the loss of one: write its
    folder, with this machine's plan of the run, in which only the hosts that run the attempt are left.

    If the run was submitted on another machine, hosts that this machine's pool lacks may run it too; the plan is
    without them. Raise LaunchError if another run continues on a host to which it was not handed, or if the report
    names a host twice or none that is known here.
    """
    begun, plan = told.head.begun or OpenedByHosts((), None, time.time()), read_plan(run, attempt.number)
    addresses = {place.host.name: place.address for place in places_of(run)}
    strangers = [name for name in begun.hosts if name not in addresses]
    ours = [name for name in begun.hosts if name in addresses]
    if (strangers and plan.project) or not ours or len(set(begun.hosts)) < len(begun.hosts):
        whom = repr(strangers[0][:100]) if strangers else "no host, or one twice"
        raise LaunchError(f"{told.host}: reports that {run.id} continues on {whom}: it was handed to {[*addresses]}")
    plan = with_hosts(plan, [(name, addresses[name]) for name in ours])
    make_dir(attempt.path)
    write_record(attempt.plan, plan)
    write_record(attempt.handle, Handle("ssh"))
    reason = "submit" if attempt.number == 1 else "requeue"
    me = this_process()
    intent = Intent(attempt.number, "", plan.cluster, reason, begun.cause, begun.created_at, me, "ssh")
    write_record(attempt.intent, intent)  # last: with it there is such an attempt
