"""Who counts, who has this keeper's vote and whom it follows. Pure: what is on disk and on the way is said to it.

A question that begins with `against` is answered with the reason for a refusal, "" for none. README.md says why two
parts of a cut network never both go on; tests/clusters/ssh/host/test_election.py looks whether they could.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from launcher.clusters.ssh.host.keeper_messages import KeeperStatus, Members, Propose, Replica
from launcher.plan.on_hosts import may_take_over, quorum


class Votes(msgspec.Struct, frozen=True):
    """What a keeper has given its word on: kept on its disk, it binds the one that is started after it, too."""

    begun: int
    promised: tuple[int, int] | None
    rolls: tuple[tuple[int, ...], ...]
    rolls_version: tuple[int, int]


class Election:
    """As one keeper knows it. Keepers go by their numbers, their nodes in the plan that they were started with."""

    def __init__(self, me: int, hosts: Sequence[str], attempt: int, leader: str) -> None:
        self.me = me
        self.hosts = tuple(hosts)
        self.attempt, self.leader = attempt, leader  # at hand
        self.leaderless = False  # the leader was not heard for a whole lease
        self.proposal: Propose | None = None  # of the next attempt, taken up
        self.outrun_by = 0  # the newest attempt of which somebody has records for us
        self.promised: tuple[int, int] | None = None  # our vote: for which attempt, and whose
        # Who counts; several rolls only while the leader changes it.
        self.rolls: tuple[frozenset[int], ...] = (frozenset(range(len(hosts))),)
        self._rolls_version = (0, 0)  # of which attempt's leader, and which of its words

    def move(self, attempt: int, leader: str) -> None:
        """On to this attempt, under this host's lead."""
        self.attempt, self.leader = attempt, leader
        self.leaderless, self.proposal = False, None

    # -- who counts

    @property
    def members(self) -> frozenset[int]:
        """Those who count whatever becomes of a change that the leader has begun."""
        return frozenset.intersection(*self.rolls)

    @property
    def counted(self) -> frozenset[int]:
        """Those who count by any roll: each may have to agree."""
        return frozenset.union(*self.rolls)

    def decides(self, others: Collection[int], *, leads: bool) -> bool:
        """Whether we and these others are so many that no part of the hosts without us could go on as well."""
        together = {*others, self.me}
        counts = [(len(roll & together), len(roll)) for roll in self.rolls]
        return all(there >= quorum(size) if leads else may_take_over(there, size) for there, size in counts)

    def roll_of(self, heard: frozenset[int], fewest: int) -> frozenset[int]:
        """Who is to count from now on. `fewest`: with so many hosts the run goes on.

        Nobody is counted out in vain: where that many of the roll decide anyway, the others gain nothing by it, and who
        is silent may yet be needed to replace the leader.
        """
        roll, *more = self.rolls
        decide_anyway = not more and may_take_over(fewest, len(roll))
        return roll if decide_anyway and heard < roll else heard

    def is_next_in_line(self, leaderless: Mapping[int, KeeperStatus]) -> bool:
        """Of those that hear no leader nobody comes before us. Who missed the newest attempt comes last: others refuse
        it what they have promised since, and it has none of its records."""
        others = self.members.intersection(leaderless)
        return not any((-leaderless[number].attempt, number) < (-self.attempt, self.me) for number in others)

    def without_dead_leaders(self, heard: Mapping[int, KeeperStatus], patience_s: float) -> dict[int, KeeperStatus]:
        """A keeper that answers for a coordinator which says nothing does not lead, whatever it takes itself for."""
        return {
            number: one
            for number, one in heard.items()
            if not (one.leads and one.attempt == self.attempt and one.silent_s > patience_s)
        }

    def count(self, word: Members) -> str:
        """As the leader says, unless somebody has our vote: it may have been elected by those who counted then."""
        if why := self.against_leader_of(word.attempt):
            return why
        version, rolls = (word.attempt, word.version), tuple(map(frozenset, word.rolls))
        if (version, rolls) == (self._rolls_version, self.rolls):
            return ""  # asked again: the answer came too late the first time
        if version <= self._rolls_version or not word.rolls:
            return "a newer word of the leader is known here"
        if not all(roll and {*roll} <= {*range(len(self.hosts))} for roll in word.rolls):
            return "it counts hosts that are not of this run"
        self.rolls, self._rolls_version = rolls, version
        return ""

    # -- whose word is taken

    def is_promised(self, above: int, to: int | None = None) -> bool:
        """A newer attempt than that is, to anybody or to this one."""
        return self.promised is not None and self.promised[0] > above and to in (None, self.promised[1])

    def against_leader_of(self, attempt: int) -> str:
        if attempt != self.attempt or self.is_promised(above=attempt):
            return f"attempt {self.attempt} is the newest here, or a newer one is promised"
        return ""

    def against_record(self, replica: Replica) -> str:
        """It is taken of whoever leads the attempt, or of a candidate that had our vote and says how it ended."""
        if not 0 <= replica.node < len(self.hosts) or replica.attempt < self.attempt:
            return f"attempt {self.attempt} is the newest here"
        if self._leads(replica) or self.is_promised(above=replica.attempt - 1, to=replica.node):
            return ""
        return f"{self.hosts[replica.node]} does not lead attempt {replica.attempt}"

    def against_vote(self, attempt: int, node: int, fence: int) -> str:
        """One vote an attempt, and none against a leader that we hear, nor for somebody who does not count any more."""
        if node not in self.members:
            return "it does not count any more"
        if self.promised == (attempt, node):
            return ""
        if not self.leaderless:
            return "it hears its leader"
        if fence >= attempt:
            return f"attempt {fence} is the newest here"
        return f"attempt {attempt} is promised to another" if self.is_promised(above=attempt - 1) else ""

    def against_proposal(self, proposal: Propose) -> str:
        """It is taken up of the leader whom we follow, or of the candidate that has our vote."""
        number, hosts, (newest, leader) = proposal.attempt, proposal.hosts, self._newest()
        named = (*hosts, *proposal.away)
        if number <= newest or self.is_promised(above=number):
            return f"attempt {newest} is the newest here, or a newer one is promised"
        if not hosts or len({*named}) < len(named) or not {*named} <= {*self.hosts}:
            return "it is not on hosts of this run"
        return "" if hosts[0] in self._may_lead(number, newest, leader) else f"{hosts[0]} has not our vote"

    def goes_on_with(self, leader: int, said: Propose) -> bool:
        """Whether what a leader tells us, who were lost, is an attempt of its own in which we have a place."""
        named = (*said.hosts, *said.away)
        sound = len({*named}) == len(named) and {*named} <= {*self.hosts} and said.attempt >= self.attempt
        return sound and said.hosts[:1] == (self.hosts[leader],) and self.hosts[self.me] in named[1:]

    # -- what a keeper that is started again has to know

    def votes(self, begun: int) -> Votes:
        """`begun`: the attempt that keepers were started with."""
        return Votes(begun, self.promised, tuple(tuple(sorted(roll)) for roll in self.rolls), self._rolls_version)

    def recall(self, votes: Votes) -> None:
        self.promised, self.rolls = votes.promised, tuple(map(frozenset, votes.rolls))
        self._rolls_version = votes.rolls_version

    def _newest(self) -> tuple[int, str]:
        """The attempt that was proposed to us, or that we are in, and the host that leads it."""
        if self.proposal is not None:
            return self.proposal.attempt, self.proposal.hosts[0]
        return self.attempt, self.leader

    def _leads(self, replica: Replica) -> bool:
        known, leader = self._newest()
        deposed = self.leaderless and self.is_promised(above=replica.attempt)  # else the vote came to nothing
        return leader == self.hosts[replica.node] and replica.attempt >= known and not deposed

    def _may_lead(self, number: int, newest: int, leader: str) -> set[str]:
        """A candidate that had our vote and came to nothing does not bind us for ever."""
        follows = set() if self.is_promised(above=number - 1) else {leader}
        voted = self.promised is not None and self.promised[0] > newest
        return follows | ({self.hosts[self.promised[1]]} if voted and self.promised else set())
