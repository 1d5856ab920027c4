"""Apply the rules of a pool's quorum on one host: pure, with time as a value. README.md numbers the rules. The quorum
decides which host leads a run; a voter is a host that has a vote in the present attempt.

It is Raft with attempts in the place of terms: `Voter` is what a host has on its disk, the messages are what hosts
exchange, and every method says what follows. Whoever calls them writes a changed `Voter` to disk, fsynced, before it
sends the answer. A method that begins with `against` returns the reason for a refusal, "" if there is none.

    candidate                          voter
    stand(2)       ─ RequestVote ────► against_vote, vote           one vote per attempt number, on disk
    carries(...)   ◄──── granted ─────
    open(2, ...)   ─ Open ───────────► against_open, accept         after the history was copied there
    carries(...)   ◄──── accepted ────
    settle(2)      ─ Settle ─────────► settle                       ranks may start
                   ◄─ heartbeat ─────► may_vote_from                as long as it leads
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

Host = int


@dataclass(frozen=True, slots=True)
class Records:
    """How new a host's records are: its newest attempt, and the length and digest of its history."""

    attempt: int
    length: int  # in bytes
    digest: str

    def as_new_as(self, other: "Records") -> bool:
        """Return whether these records contain everything in those that `other` describes.

        Histories of the same attempt have one writer, so the longer one contains the shorter one. Two of one length
        that differ are damaged, and neither replaces the other.
        """
        mine, theirs = (self.attempt, self.length), (other.attempt, other.length)
        return mine > theirs or self == other


@dataclass(frozen=True, slots=True)
class Opening:
    """The entry by which an attempt begins, as a leader's first entry begins a term in Raft: its leader, and the hosts
    that vote until the next attempt is opened.
    """

    attempt: int
    leader: Host
    voters: frozenset[Host]

    def carried_by(self, together: Collection[Host], candidate: Host) -> bool:
        """Return whether the hosts `together` include enough voters for `candidate`.

        That is at least half of the voters if the candidate is the attempt's leader, else more than half.
        """
        there = len(self.voters.intersection(together))
        return 2 * there > len(self.voters) or (candidate == self.leader and 2 * there == len(self.voters))


@dataclass(frozen=True, slots=True)
class RequestVote:
    """A request of the host `candidate` for another host's vote, so that it may open attempt number `attempt` and lead
    it.
    """

    attempt: int
    candidate: Host
    records: Records  # how new the candidate's records are


@dataclass(frozen=True, slots=True)
class Open:
    """The request of an elected candidate to open an attempt.

    `openings` begins with the newest attempt that is known to be settled, which means accepted by enough voters; then
    come those that are not known to be, and last the one to be opened.
    """

    openings: tuple[Opening, ...]  # the oldest first; the last is the one to be opened
    records: Records  # the candidate's records, which a host copies before it accepts

    @property
    def newest(self) -> Opening:
        """Return the log entry (number, leader and voters) of the attempt that is to be opened."""
        return self.openings[-1]


@dataclass(frozen=True, slots=True)
class Settle:
    """The message that at least half of the voters, the leader included, have accepted an attempt, so that earlier ones
    are over.
    """

    attempt: int  # its number
    leader: Host  # of that attempt


@dataclass(frozen=True, slots=True)
class Append:
    """The message with which an attempt's leader sends more of the history. The rules need only its attempt and sender,
    so the entries themselves are left out.
    """

    attempt: int
    leader: Host


@dataclass(frozen=True, slots=True)
class Voter:
    """A host's vote, and the attempts that it has accepted, as on its disk.

    `openings` begins with the newest attempt that the host knows to be settled, which means accepted by enough voters;
    later ones that it has accepted itself follow.
    """

    me: Host  # this host's number
    voted: tuple[int, Host]  # the newest attempt number for which it voted, and the candidate that got the vote
    openings: tuple[Opening, ...]

    @property
    def newest(self) -> Opening:
        """Return the newest attempt that this host has accepted."""
        return self.openings[-1]

    @property
    def settled(self) -> bool:
        """Return whether the newest attempt that this host has accepted is known to be accepted by enough voters."""
        return len(self.openings) == 1

    @property
    def leads(self) -> bool:
        """Return whether this host leads: the newest attempt that it has accepted names it as leader and is known to be
        accepted by enough voters, and this host has voted for no newer one.
        """
        return self.settled and self.newest.leader == self.me and self.voted[0] == self.newest.attempt

    @property
    def has_vote(self) -> bool:
        """Return whether this host is a voter in the newest attempt that it has accepted; one that came back later
        works and does not vote.
        """
        return self.me in self.newest.voters

    @property
    def counts(self) -> bool:
        """Return whether the leader of the newest attempt that this host has accepted may count the host among its
        followers: it is a voter in that attempt, and has voted for no newer one.
        """
        return self.has_vote and self.voted[0] == self.newest.attempt

    @property
    def next_number(self) -> int:
        """Return the lowest attempt number for which this host may vote: one above all for which it has voted or that
        it has accepted.
        """
        return 1 + max(self.voted[0], self.newest.attempt)

    # -- votes

    def stand(self, number: int) -> "Voter":
        """Return this voter with its vote for itself as the leader of attempt `number`; raise ValueError if it has
        voted for that attempt or a later one.
        """
        if number < self.next_number:
            raise ValueError(f"attempt {number} had the vote of host {self.me} already")
        return replace(self, voted=(number, self.me))

    def against_vote(self, asked: RequestVote, mine: Records, *, hears_leader: bool) -> str:
        """Return why the vote is refused, or "" if it is given.

        The candidate must ask to lead an attempt newer than those that this host knows, and its records of the run must
        be at least as new as `mine`, this host's. With `hears_leader`, the leader of this host's newest attempt is not
        silent, and only that leader gets the vote.
        """
        if (asked.attempt, asked.candidate) == self.voted:
            return ""  # the answer was lost, and is given again
        if asked.attempt < self.next_number:
            return f"attempt {asked.attempt} is not newer than attempt {self.next_number - 1}, which it knows"
        if hears_leader and asked.candidate != self.newest.leader:
            return "it hears its leader"
        if not self.is_as_new(asked.records, mine):
            return "the candidate's records are older than its own"
        return ""

    def vote(self, asked: RequestVote) -> "Voter":
        """Return this voter with its vote given to the candidate in `asked`; `against_vote` must have found nothing
        against it.
        """
        return replace(self, voted=(asked.attempt, asked.candidate))

    def is_as_new(self, records: Records, mine: Records) -> bool:
        """Return whether a candidate's records, described by `records` (newest attempt, length and digest of the
        history), contain everything in this host's, described by `mine`.
        """
        return records.as_new_as(mine)

    def carries(self, others: Collection[Host]) -> bool:
        """Return whether this host and `others`, which agree with it, are enough to be elected, open an attempt, or
        commit an entry: in each attempt that this host keeps, they must be enough of that attempt's voters.
        """
        together = {self.me, *others}
        return all(opening.carried_by(together, self.me) for opening in self.openings)

    def missing(self, others: Collection[Host]) -> frozenset[Host]:
        """Return which voters of the attempts that this host has accepted are neither this host nor in `others`."""
        return frozenset().union(*(opening.voters for opening in self.openings)) - {self.me, *others}

    # -- attempts

    def open(self, number: int, voters: Iterable[Host]) -> "Voter":
        """Return the voter with a new attempt that this host leads and in which the hosts `voters` have a vote. Raise
        ValueError if this host was not elected for that number, or is not in `voters`.
        """
        chosen = frozenset(voters)
        if self.voted != (number, self.me) or number <= self.newest.attempt or self.me not in chosen:
            raise ValueError(f"host {self.me} was not elected for attempt {number}")
        return replace(self, openings=(*self.openings, Opening(number, self.me, chosen)))

    def against_open(self, said: Open, mine: Records) -> str:
        """Return why this host refuses to accept the attempt that `said` asks it to open, or "" if it accepts.

        It refuses if it has voted in a newer attempt, or for another leader in this one, or has accepted another one of
        this number or a higher one. It also refuses if `mine`, its records after it copied the leader's history, still
        differ from the leader's. An attempt that it has accepted already is accepted again.
        """
        why = self._against_leader(said.newest.attempt, said.newest.leader)
        if why or said.newest == self.newest:
            return why
        if said.newest.attempt <= self.newest.attempt:
            return f"attempt {self.newest.attempt} is the newest here"
        return "" if mine.digest == said.records.digest else "it lacks some of the leader's history"

    def accept(self, said: Open) -> "Voter":
        """Return the voter as it is after it accepted the attempt that `said` opens: its vote is for the leader of that
        attempt, and its attempts are those that `said` lists. Return the same voter if that is its newest attempt.

        The caller has checked with `against_open` that nothing speaks against it.
        """
        if said.newest == self.newest:
            return self
        return replace(self, voted=(said.newest.attempt, said.newest.leader), openings=said.openings)

    def against_append(self, said: Append) -> str:
        """Return why the entry is refused, or "" if it is accepted.

        It is accepted from the leader of the newest attempt, and from a candidate that has this host's vote.
        """
        why = self._against_leader(said.attempt, said.leader)
        follows = said.attempt == self.newest.attempt and said.leader == self.newest.leader
        if why or follows or self.voted == (said.attempt, said.leader):
            return why
        return f"host {said.leader} does not lead attempt {said.attempt} for it"

    def settle(self, said: Settle) -> "Voter":
        """Return the voter with only its newest attempt if `said` settles that attempt under the same leader, else the
        voter unchanged.
        """
        if (said.attempt, said.leader) != (self.newest.attempt, self.newest.leader):
            return self
        return replace(self, openings=self.openings[-1:])

    def _against_leader(self, attempt: int, leader: Host) -> str:
        """Return why a message of `leader`, which leads attempt `attempt`, is refused, or "" if it is not. It is
        refused if this host has voted in a newer attempt, or for another host in this one.
        """
        if self.voted[0] > attempt:
            return f"attempt {self.voted[0]} has its vote"
        if self.voted[0] == attempt and self.voted[1] != leader:
            return f"attempt {attempt} has its vote for another"
        return ""


# -- time: seconds by the clock of one host, which runs as fast as the others' do


def may_vote_from(answered_at: float, lease_s: float) -> float:
    """Return the time from which a host counts as leaderless and may vote for a new leader: `lease_s` seconds after its
    leader last answered, at `answered_at` by any clock. A host that has just started passes the time of its start.
    """
    return answered_at + lease_s


def may_start_from(opened_at: float, lease_s: float, *, all_ended: bool) -> float:
    """Return the time at which ranks of an attempt that was opened at `opened_at` may start: at once if `all_ended`,
    else after `lease_s` seconds, when every lease under which ranks of the last attempt could run has expired.

    `all_ended` says that every host of the last attempt has ended its ranks; a replaced leader need not be among them,
    as its time was over before another could be elected.
    """
    return opened_at if all_ended else opened_at + lease_s
