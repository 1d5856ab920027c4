"""Keep this host's part in the quorum on its disk, with hosts by name; `quorum/core.py` has the rules. An attempt is
settled once it is known that enough voters (at least half, its leader included) have accepted it."""

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from launcher.decoding import decoder_of
from launcher.places.ssh.host.supervisor_messages import (
    OpenAttempt,
    OpeningSaid,
    Replica,
    Settled,
    SupervisorStatus,
    Vote,
)
from launcher.places.ssh.quorum.core import Append, Open, Opening, Records, RequestVote, Settle, Voter
from launcher.run.durable import NOT_JSON, read_sealed, write_sealed
from launcher.run.layout import RunDir
from launcher.run.records import Event


class Ballot:
    """The votes of this host and the attempts that it has accepted; each change is on disk before it takes effect."""

    def __init__(self, run: RunDir, me: int, hosts: Sequence[str], begun: int, *, on_disk: bool = True) -> None:
        """Read the votes of this host since attempt `begun`, in whose plan the hosts have their numbers.

        With `on_disk=False` all hosts share one disk, whose fence decides instead of votes. Raise Damaged: a host that
        cannot read how it voted might vote twice.
        """
        self.me, self.hosts, self.path, self.begun = me, tuple(hosts), run.attempt(begun).voter, begun
        self._run, self._on_disk = run, on_disk
        kept = read_sealed(self.path, Voter) if on_disk else None
        self.voter = kept or Voter(me, (begun, 0), (Opening(begun, 0, frozenset(range(len(hosts)))),))
        self.leaderless = False  # the leader was silent for a whole lease
        self.accepted: OpenAttempt | None = None  # the next attempt, which this host has not gone on to yet
        self.outrun_by = 0  # the newest attempt of which a host sent us records
        self._measured: tuple[tuple[int, int, int] | None, int, str] = (None, 0, hashlib.sha256().hexdigest())
        self._joined: tuple[int, int] | None = None  # an attempt that this host came back to, and who leads it

    @property
    def voted(self) -> tuple[int, int]:
        """Return (attempt number, number of the candidate's host) of this host's newest vote. Before its first vote
        that is the attempt with which the supervisors started, and host 0.
        """
        return self.voter.voted

    def keep(self, voter: Voter) -> None:
        """Write `voter`, the changed votes and accepted attempts, to disk, and use it from then on."""
        if voter != self.voter and self._on_disk:
            write_sealed(self.path, voter)
        self.voter = voter

    def move(self) -> None:
        """Forget what this host knew for the change to another attempt, now that it has gone on to that: that the
        leader of the attempt before was silent, and which attempt the host had accepted next.
        """
        self.leaderless, self.accepted = False, None

    # -- how new the records are

    def records(self) -> Records:
        """Return how new the run's records on this disk are: the newest attempt, and the length and digest of the file
        of events. Damaged lines of the file do not count, so that this host ranks behind hosts with intact ones.
        """
        try:
            status = self._run.events.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._measured[0]:
            self._measured = (seen, *self._history_size())
        _, length, digest = self._measured
        return Records(self.voter.newest.attempt, length, digest)

    def _history_size(self) -> tuple[int, str]:
        """Return (length in bytes, SHA-256) of all intact records in the history, the run's events on this disk.

        The length is without line ends; a line that is no whole event is left out.
        """
        try:
            lines = [line for line in self._run.events.read_bytes().split(b"\n")[:-1] if _is_event(line)]
        except FileNotFoundError:
            lines = []
        return sum(map(len, lines)), hashlib.sha256(b"\n".join(lines)).hexdigest()

    # -- questions of others; each gives the reason for a refusal

    def against_vote(self, asked: Vote, leader: str) -> str:
        """Return why this host does not give its vote to the candidate in `asked`, or "" if it may.

        `leader` is the host that leads the present attempt, by name; this host may not have accepted that attempt yet.
        """
        hears = not self.leaderless and not (0 <= asked.node < len(self.hosts) and self.hosts[asked.node] == leader)
        return self.voter.against_vote(_request(asked), self.records(), hears_leader=hears)

    def has_voted_past(self, attempt: int) -> bool:
        """Return whether this host has voted for a newer attempt than `attempt`, so that the leader of `attempt` may
        not count it among the hosts that follow.
        """
        return self.voted[0] > attempt

    def vote(self, asked: Vote) -> None:
        """Record this host's vote for the candidate in `asked`, who asks to lead a new attempt; `against_vote` must
        have found no reason to refuse it.
        """
        self.keep(self.voter.vote(_request(asked)))
        if self.accepted is not None and self.accepted.attempt < asked.attempt:
            self.accepted = None  # its leader, or another host, opens a newer one

    def against_record(self, replica: Replica) -> str:
        """Return why this host does not store `replica`, a piece of a record that another host has sent, or "" if it
        does.

        A piece is accepted from the leader of the newest attempt, and from a candidate that has this host's vote.
        """
        known = self.voter.newest.attempt
        if not 0 <= replica.node < len(self.hosts):
            return f"there is no host {replica.node}"
        if self.comes_before(replica):
            return ""  # how its last attempt ended, which may be older than one that came to nothing
        if replica.attempt < known:
            return f"attempt {known} is the newest here"
        if (replica.attempt, replica.node) == self._joined and self.voted[0] <= replica.attempt:
            return ""
        return self.voter.against_append(Append(replica.attempt, replica.node))

    def elected(self, node: int) -> bool:
        """Return whether this host's newest vote is for host number `node`, and it has not accepted yet the attempt for
        which it voted.

        Until it has accepted that, the records that the elected host sends replace those of this host.
        """
        return self.voted[1] == node and self.voted[0] > self.voter.newest.attempt

    def comes_before(self, replica: Replica) -> bool:
        """Return whether `replica`, a piece of a record, comes from the host that got this host's newest vote, and
        belongs to an earlier attempt than the one voted for.

        The new leader sends such records, on how earlier attempts ended, before this host accepts its attempt. Return
        False once that attempt is accepted.
        """
        return self.elected(replica.node) and replica.attempt < self.voted[0]

    def keeps_for(self, replica: Replica) -> bool:
        """Return whether this host keeps the record `replica` although it has voted for a newer attempt: the sender
        leads the newest attempt that this host has accepted, and has not been silent for a whole lease.
        """
        newest = self.voter.newest
        follows = (replica.attempt, replica.node) == (newest.attempt, newest.leader)
        return follows and not self.leaderless

    def against_open(self, said: OpenAttempt) -> str:
        """Return why this host may not accept the attempt `said`, or "" if it may: the attempt must be on hosts of this
        run, and the rules of the quorum must allow it. With a shared disk these rules do not apply.
        """
        if not self._is_sound(said):
            return "it is not on hosts of this run"
        if not self._on_disk:
            return ""
        return self.voter.against_open(self._opened(said), self.records())

    def accept(self, said: OpenAttempt) -> None:
        """Record that this host accepts the attempt `said`; the caller has checked that it may, and has written the
        attempt's plan to disk. With a shared disk nothing is written.
        """
        if self._on_disk:
            self.keep(self.voter.accept(self._opened(said)))
        self.accepted = said

    def settle(self, said: Settled) -> None:
        """Drop the attempts before the newest if `said` reports, from the leader of the newest, that enough voters have
        accepted it; else change nothing.
        """
        self.keep(self.voter.settle(Settle(said.attempt, said.node)))

    def join(self, said: OpenAttempt) -> None:
        """Record that this host, which was lost and is back, takes part in the running attempt `said`.

        The host does not accept the attempt by that. It does so later, if it is one of the attempt's voters and has
        received the history of the run's events.
        """
        self._joined = (said.attempt, said.node)

    def _opened(self, said: OpenAttempt) -> Open:
        """Return the message in the form that `quorum/core.py` takes: the attempts in order, the new one last, with
        hosts as numbers.
        """
        newest = Opening(said.attempt, said.node, frozenset(map(self.hosts.index, said.hosts)))
        before = (Opening(one.attempt, one.leader, frozenset(one.voters)) for one in said.before)
        return Open((*before, newest), Records(*msgspec.structs.astuple(said.records)))

    # -- this host as a candidate

    def before(self) -> tuple[OpeningSaid, ...]:
        """Return the accepted attempts without the newest: the last settled one, then those that are not known to be
        settled; each as its number, leader and voters, for a message.
        """
        return tuple(
            OpeningSaid(one.attempt, one.leader, tuple(sorted(one.voters))) for one in self.voter.openings[:-1]
        )

    def is_next_in_line(self, own: SupervisorStatus, leaderless: Mapping[int, SupervisorStatus]) -> bool:
        """Return whether this host is next to take over.

        It is unless another host without a leader has accepted a newer attempt, or has more of that attempt's history,
        or is equal in both and has a lower number. On a shared disk, where records are equal, the lower number alone
        decides. `leaderless` has the status of each such host by its number. `own` is this host's status from before it
        asked the others: later it may have records of an attempt that another host opened meanwhile.
        """
        if not self._on_disk:
            return all(self.me < number for number in leaderless)
        mine = (-own.accepted, -own.history, self.me)
        return not any((-one.accepted, -one.history, number) < mine for number, one in leaderless.items())

    def without_dead_leaders(
        self, heard: Mapping[int, SupervisorStatus], attempt: int, patience_s: float
    ) -> dict[int, SupervisorStatus]:
        """Return the supervisors' answers in `heard`, by the number of the host, without some that claim to lead
        `attempt`: those whose coordinator has been silent for longer than `patience_s`, so that another may be elected.
        """
        return {
            number: one
            for number, one in heard.items()
            if not (one.leads and one.attempt == attempt and one.silent_s > patience_s)
        }

    def is_attempt_of(self, leader: int, said: OpenAttempt, attempt: int) -> bool:
        """Return whether this host may rejoin the run by the message `said`.

        It may if the message is from host number `leader`, names only hosts of the run and each once, has this host
        among them but not as leader, and is about attempt number `attempt` or a later one.
        """
        named = (*said.hosts, *said.away)
        return (
            self._is_sound(said)
            and said.node == leader
            and said.attempt >= attempt
            and self.hosts[self.me] in named[1:]
        )

    def _is_sound(self, said: OpenAttempt) -> bool:
        """Return whether the attempt that another host announces names only hosts of this run, each once, its leader
        first, and lists as `before`, the earlier attempts, only ones with lower numbers, each led by one of its voters.
        """
        names, all_ = (*said.hosts, *said.away), range(len(self.hosts))
        openings = all({one.leader} <= {*one.voters} <= {*all_} and one.attempt < said.attempt for one in said.before)
        known = len({*names}) == len(names) and {*names} <= {*self.hosts} and said.node in all_
        return known and openings and said.hosts[:1] == (self.hosts[said.node],)

    def carries(self, others: Collection[int], *, leads: bool) -> bool:
        """Return whether this host and the hosts with numbers `others` are a quorum.

        If each host has its own disk, they have to be enough voters in each attempt that this host keeps
        (`Voter.carries`). On a shared disk a host that `leads` always is a quorum, and any other needs more than half
        of the hosts.
        """
        if self._on_disk:
            return self.voter.carries(others)
        there, size = len({*others, self.me}), len(self.hosts)
        return leads or 2 * there > size


def _request(asked: Vote) -> RequestVote:
    """Return another host's request for this host's vote in the form that `quorum/core.py` takes."""
    return RequestVote(asked.attempt, asked.node, Records(*msgspec.structs.astuple(asked.records)))


def _is_event(line: bytes) -> bool:
    """Return whether a line of the run's events file decodes as an Event; one that a power cut damaged does not."""
    try:
        decoder_of(Event).decode(line)
    except NOT_JSON:
        return False
    return True
