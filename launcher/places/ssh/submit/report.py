"""What a host says of a run, and its records: asked for, weighed against what others say, and kept here.

Where the run is, its plan and its name are our own and stay as they are; of an attempt that hosts have opened
themselves their word tells who carries it out, of those that it was handed to, and in which order.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from launcher.copies.mirror import tails
from launcher.copies.mirror.records import keep_end, keep_state, renew
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
from launcher.run.records import Blame, Handle, Intent, StopRequest
from launcher.states import State

_LOG = re.compile(r"exits\.jsonl|(node-\d{2,6}/)?[a-z][a-z-]{0,40}\.log", re.ASCII)
_OVERLAP = 4096  # bytes of the events that are asked for again: do they continue ours, or are they others?


@dataclass(frozen=True, slots=True)
class HostReport:
    """What one host says of a run, and what is new of its files."""

    host: str
    head: RunReport
    files: Sequence[tails.Tail]

    @property
    def lives(self) -> bool:
        """It goes on, as far as this host is concerned. Where its attempt is over the next may be somebody else's."""
        waits = self.head.state is State.QUEUED and self.head.end is None
        return waits or self.head.state in (State.STARTING, State.RUNNING, State.REGROUPING)

    @property
    def has_ended(self) -> bool:
        """As its leader said, or more than half of its hosts; a host that was cut off may say so alone."""
        state, end = self.head.state, self.head.end
        return state in (State.SUCCEEDED, State.FAILED, State.CANCELLED) and not (end is not None and end.alone)

    @property
    def leader(self) -> str:
        """Of the attempt that it tells of."""
        return self.head.begun.hosts[0] if self.head.begun is not None and self.head.begun.hosts else ""

    def is_of(self, attempt: AttemptDir) -> bool:
        """Of this attempt, or of one after it."""
        return self.head.attempt >= attempt.number

    def has_begun(self, attempt: AttemptDir) -> bool:
        """The host was told to carry it out."""
        return self.is_of(attempt) and self.head.began


def knowing(said: Mapping[str, HostReport | LaunchError]) -> list[HostReport]:
    """Those that know the run; who does not may have a new disk."""
    return [one for one in said.values() if isinstance(one, HostReport) and one.head.state is not None]


def best_of(heard: Sequence[HostReport], *, apart: bool = True) -> HostReport | None:
    """The one of the newest attempt that knows most, the first of equals."""
    # On a disk that all share nobody but the leader's host can tell whether its keeper lives; else each knows its own.
    order = (State.LOST, State.UNKNOWN) if apart else (State.UNKNOWN, State.LOST)

    def worth(one: HostReport) -> tuple[int, bool, bool, int]:
        doubt = order.index(one.head.state) if one.head.state in order else len(order)
        return one.head.attempt, one.has_ended, one.lives, doubt

    return max(heard, key=worth, default=None)


def ask_reports(run: RunDir, places: Sequence[Place]) -> dict[str, HostReport | LaunchError]:
    """Of each of these hosts; nothing is kept yet."""
    return ask_all(places, lambda client: ask_report(run, client))


def ask_report(run: RunDir, client: HostClient) -> HostReport:
    """Ask one host; nothing is kept yet. Where its events do not continue those that are here, all of them come."""
    known, tail = _end_of_events(run)
    head, events, logs = _asked(run, client, known - len(tail))
    if head.state is not None and not events.content.startswith(tail):
        head, events, logs = _asked(run, client, 0)
    elif tail:
        events = tails.Tail(events.name, known, events.content[len(tail) :])
    return HostReport(client.place.host.name, head, [events, *logs])


def _asked(run: RunDir, client: HostClient, events_from: int) -> tuple[RunReport, tails.Tail, list[tails.Tail]]:
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
    """How many bytes there are here, and the last of them."""
    try:
        with run.events.open("rb") as events:
            size = events.seek(0, 2)
            events.seek(max(0, size - _OVERLAP))
            return size, events.read(_OVERLAP)
    except FileNotFoundError:
        return 0, b""


def begin(run: RunDir, told: HostReport) -> AttemptDir:
    """Have the attempt here that the host tells of: that there is one, and nothing of what has become of it."""
    attempt = run.attempt(told.head.attempt)
    if not attempt.intent.exists():
        _keep_beginning(run, attempt, told)
    return attempt


def keep(run: RunDir, told: HostReport) -> None:
    """Those of an attempt before the newest that is known here are nobody's news. The end comes last.

    Of what has ended nothing is asked any more: until all events are here, it has not.
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
    renew(run.avoided, head.avoided, tuple[Blame, ...])
    if not head.more:
        renew(attempt.stop, head.stop, StopRequest)
    if head.last is not None and not (head.more and head.last.state.ended):
        last = msgspec.structs.replace(head.last, attempt=min(head.last.attempt, head.attempt))
        keep_state(run, attempt, last)
    if told.lives:
        attempt.end.unlink(missing_ok=True)  # somebody who could not know better was believed
    elif not head.more:
        keep_end(attempt, head.end)


def _keep_beginning(run: RunDir, attempt: AttemptDir, told: HostReport) -> None:
    """Of an attempt that was opened there: our own plan, on those of its hosts that carry it out.

    A run from another machine may be on hosts that our own pool has not: of those nothing is asked.
    """
    begun, plan = told.head.begun or OpenedByHosts((), None, time.time()), read_plan(run, attempt.number)
    addresses = {place.host.name: place.address for place in places_of(run)}
    strangers = [name for name in begun.hosts if name not in addresses]
    ours = [name for name in begun.hosts if name in addresses]
    if (strangers and plan.project) or not ours or len(set(begun.hosts)) < len(begun.hosts):
        whom = repr(strangers[0][:100]) if strangers else "nobody, or somebody twice"
        raise LaunchError(f"{told.host}: says of {run.id} that it goes on with {whom}: it was handed to {[*addresses]}")
    plan = with_hosts(plan, [(name, addresses[name]) for name in ours])
    make_dir(attempt.path)
    write_record(attempt.plan, plan)
    write_record(attempt.handle, Handle("ssh"))
    reason = "submit" if attempt.number == 1 else "requeue"
    me = this_process()
    intent = Intent(attempt.number, "", plan.cluster, reason, begun.cause, begun.created_at, me, "ssh")
    write_record(attempt.intent, intent)  # last: with it there is such an attempt
