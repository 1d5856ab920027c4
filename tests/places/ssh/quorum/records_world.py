"""Hosts that elect leaders and keep their history, without time: any message may come at any moment, and any host may
take its leader for lost. What holds here needs no clock.

A message that was sent stays deliverable for ever, so that it may also be late, doubled, or never come: all cuts of
every shape are in it. A crash takes what is in memory. A crash before a write is a message that was not delivered; one
after the write and before the answer is an answer that was not delivered; one between two writes is a step of its own,
and so is one while a vote is written: it leaves a torn draft, which nobody reads, beside the vote before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from launcher.places.ssh.quorum.core import Append, Host, Open, Opening, Records, RequestVote, Settle, Voter

Log = tuple[int, ...]  # each entry by the attempt that wrote it


class Stands(NamedTuple):
    granted: frozenset[Host]


class Opens(NamedTuple):
    accepted: frozenset[Host]


class Leads(NamedTuple):
    holders: frozenset[Host]  # who has all of its history


class Ends(NamedTuple):
    holders: frozenset[Host]  # who has the end that this candidate has written without opening an attempt


class Node(NamedTuple):
    voter: Voter
    log: Log
    memory: Stands | Opens | Leads | Ends | None
    last_vote: tuple[int, Host]  # that it ever gave, whatever its disk says
    torn: tuple[int, Host] | None = None  # the vote that it was writing when it crashed, until it writes the next


class Granted(NamedTuple):
    voter: Host
    attempt: int
    candidate: Host


class OpenWithLog(NamedTuple):
    said: Open
    log: Log
    leader: Host


class Accepted(NamedTuple):
    voter: Host
    attempt: int


class AppendWithLog(NamedTuple):
    said: Append
    log: Log
    ends: int = 0  # the attempt before, whose end a candidate has written as its last entry; only where that is a rule


class Kept(NamedTuple):
    voter: Host
    attempt: int
    length: int


Message = RequestVote | Granted | OpenWithLog | Accepted | Settle | AppendWithLog | Kept


class State(NamedTuple):
    nodes: tuple[Node, ...]
    sent: frozenset[Message]
    acknowledged: frozenset[tuple[int, Log]]  # by the leader of which attempt, and all of its history then
    settled: frozenset[tuple[int, Host]]
    crashes: int
    entries: int
    problem: str = ""


def records_of(node: Node) -> Records:
    return Records(node.voter.newest.attempt, len(node.log), ".".join(map(str, node.log)))


@dataclass(frozen=True)
class RecordsWorld:
    hosts: int
    attempts: int  # the highest number that is stood for
    crashes: int
    entries: int = 0  # written by leaders beside the opening of each attempt
    voter: type[Voter] = field(default=Voter, repr=False)
    syncs_votes: bool = field(default=True, repr=False)
    drafts_votes: bool = field(default=True, repr=False)  # else a crash leaves no whole vote, which is read as none
    opens_to_end: bool = field(default=True, repr=False)  # else a candidate's end is an entry of the attempt before

    @property
    def first(self) -> State:
        everybody = frozenset(range(self.hosts))
        nodes = [Node(self._new_voter(host), (1,), None, (1, 0)) for host in range(self.hosts)]
        nodes[0] = nodes[0]._replace(memory=Leads(everybody))
        return State(tuple(nodes), frozenset(), frozenset({(1, (1,))}), frozenset({(1, 0)}), 0, 0)

    def _new_voter(self, host: Host) -> Voter:
        return self.voter(host, (1, 0), (Opening(1, 0, frozenset(range(self.hosts))),))

    # -- what may happen

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        for host, node in enumerate(state.nodes):
            yield from self._own_steps(state, host, node)
        for message in state.sent:
            match message:
                case Granted(candidate=host):
                    yield from self._counted_vote(state, state.nodes[host], message)
                case Accepted() | Kept():
                    for node in state.nodes:
                        yield from self._counted(state, node, message)
                case _:
                    for node in state.nodes:
                        yield from self._received(state, node, message)

    def _own_steps(self, state: State, host: Host, node: Node) -> Iterator[tuple[str, State]]:
        voter, memory = node.voter, node.memory
        if voter.next_number <= self.attempts and voter.has_vote:
            number = voter.next_number
            standing = voter.stand(number)
            ask = RequestVote(number, host, records_of(node))
            new = node._replace(voter=standing, memory=Stands(frozenset()), torn=None)
            yield f"host {host} stands for attempt {number}", _voted(state, new, ask)
            yield from self._torn(state, node, standing.voted)
        match memory:
            case Stands(granted=granted) if voter.carries(granted):
                for voters in self._choices(host, granted):
                    yield self._opened(state, node, voters)
                if not self.opens_to_end:
                    before = node.log[-1]
                    new = node._replace(log=(*node.log, before), memory=Ends(frozenset()))
                    said = AppendWithLog(Append(voter.voted[0], host), new.log, before)
                    yield f"host {host} ends attempt {before}", _after(state, new, said)
            case Opens(accepted=accepted) if voter.carries(accepted):
                yield self._settled(state, node, accepted)
            case Leads() if voter.leads and state.entries < self.entries:
                log = (*node.log, voter.newest.attempt)
                new = node._replace(log=log, memory=Leads(frozenset()))
                said = AppendWithLog(Append(voter.newest.attempt, host), log)
                yield f"host {host} writes an entry", _after(state, new, said)._replace(entries=state.entries + 1)
        if memory is not None and state.crashes < self.crashes:
            yield f"host {host} crashes", self._crashed(state, node)

    def _choices(self, host: Host, granted: frozenset[Host]) -> set[frozenset[Host]]:
        """Return the sets of hosts to try: those that voted, these and one that has come back, or all."""
        voted = granted | {host}
        others = frozenset(range(self.hosts)) - voted
        return {voted | set(more) for size in (0, 1, len(others)) for more in combinations(others, size)}

    def _opened(self, state: State, node: Node, voters: frozenset[Host]) -> tuple[str, State]:
        voter = node.voter.open(node.voter.voted[0], voters)
        number, host = voter.newest.attempt, voter.me
        new = node._replace(voter=voter, log=(*node.log, number), memory=Opens(frozenset()))
        said = OpenWithLog(Open(voter.openings, records_of(new)), new.log, host)
        return f"host {host} opens attempt {number} on {sorted(voters)}", _after(state, new, said)

    def _settled(self, state: State, node: Node, accepted: frozenset[Host]) -> tuple[str, State]:
        attempt, host = node.voter.newest.attempt, node.voter.me
        said = Settle(attempt, host)
        new = node._replace(voter=node.voter.settle(said), memory=Leads(accepted))
        after = _after(state, new, said)
        settled, known = after.settled | {(attempt, host)}, after.acknowledged | {(attempt, node.log)}
        return f"host {host} leads attempt {attempt}", after._replace(settled=settled, acknowledged=known)

    def _crashed(self, state: State, node: Node) -> State:
        voter = node.voter
        if not self.syncs_votes and voter.voted[0] > voter.newest.attempt:
            voter = replace(voter, voted=(voter.newest.attempt, voter.newest.leader))
        return _after(state, node._replace(voter=voter, memory=None))._replace(crashes=state.crashes + 1)

    def _torn(self, state: State, node: Node, vote: tuple[int, Host]) -> Iterator[tuple[str, State]]:
        """A crash while this vote is written."""
        if state.crashes < self.crashes:
            me = node.voter.me
            voter = node.voter if self.drafts_votes else self._new_voter(me)
            after = _after(state, node._replace(voter=voter, memory=None, torn=vote))
            yield (
                f"host {me} crashes while it writes its vote for attempt {vote[0]}",
                after._replace(crashes=state.crashes + 1),
            )

    def _received(
        self, state: State, node: Node, message: RequestVote | OpenWithLog | AppendWithLog | Settle
    ) -> Iterator[tuple[str, State]]:
        voter, me = node.voter, node.voter.me
        match message:
            case RequestVote(attempt=attempt, candidate=candidate):
                mine = records_of(node)
                if candidate != me and not voter.against_vote(message, mine, hears_leader=False):
                    new = node._replace(voter=voter.vote(message), memory=None, torn=None)
                    answer = Granted(me, attempt, candidate)
                    yield f"host {me} votes for host {candidate} in attempt {attempt}", _voted(state, new, answer)
                    yield from self._torn(state, node, new.voter.voted)
            case OpenWithLog(said=said, log=log, leader=leader):
                attempt = said.newest.attempt
                if leader == me or voter.against_append(Append(attempt, leader)) or said.newest == voter.newest:
                    return
                copied = node._replace(log=log, memory=None)
                if copied != node and state.crashes < self.crashes:
                    after = _after(state, copied)._replace(crashes=state.crashes + 1)
                    yield f"host {me} crashes with the history of attempt {attempt} only", after
                if not voter.against_open(said, records_of(copied)):
                    new = copied._replace(voter=voter.accept(said), last_vote=max(node.last_vote, (attempt, leader)))
                    yield f"host {me} accepts attempt {attempt}", _after(state, new, Accepted(me, attempt))
            case AppendWithLog(said=said, log=log):
                follows = said.leader != me and not voter.against_append(said) and len(log) > len(node.log)
                if follows and (said.attempt == voter.newest.attempt or message.ends):
                    new, kept = node._replace(log=log), Kept(me, said.attempt, len(log))
                    yield f"host {me} keeps entry {len(log)}", _after(state, new, kept)
            case Settle():
                if (settled := voter.settle(message)) != voter and message.leader != me:
                    new = node._replace(voter=settled)
                    yield f"host {me} hears that attempt {message.attempt} is settled", _after(state, new)

    def _counted_vote(self, state: State, node: Node, message: Granted) -> Iterator[tuple[str, State]]:
        match node.memory:
            case Stands(granted=granted) if node.voter.voted == message[1:] and message.voter != message.candidate:
                if message.voter not in granted:
                    new = node._replace(memory=Stands(granted | {message.voter}))
                    yield f"host {message.candidate} has the vote of host {message.voter}", _after(state, new)

    def _counted(self, state: State, node: Node, message: Accepted | Kept) -> Iterator[tuple[str, State]]:
        voter = node.voter
        newest = voter.newest
        match node.memory, message:
            case Ends(holders=holders), Kept(voter=other) if voter.voted[0] == message.attempt:
                new = node._replace(memory=Ends(holders | {other}))
                after = _after(state, new)
                if voter.carries(holders | {other}):
                    after = after._replace(acknowledged=after.acknowledged | {(node.log[-1], node.log)})
                yield f"host {voter.me} counts the end as kept by host {other}", after
        if newest.leader != voter.me or newest.attempt != message.attempt or message.voter == voter.me:
            return
        match node.memory, message:
            case Opens(accepted=accepted), Accepted(voter=other) if other not in accepted:
                new = node._replace(memory=Opens(accepted | {other}))
                yield f"host {voter.me} counts host {other} for attempt {newest.attempt}", _after(state, new)
            case Leads(holders=holders), Kept(voter=other, length=length) if other not in holders and length == len(
                node.log
            ):
                new = node._replace(memory=Leads(holders | {other}))
                after = _after(state, new)
                if voter.carries(holders | {other}):
                    after = after._replace(acknowledged=after.acknowledged | {(newest.attempt, node.log)})
                yield f"host {voter.me} counts entry {length} as kept by host {other}", after

    # -- what must hold

    def problem_of(self, state: State) -> str:
        if state.problem:
            return state.problem
        leaders = dict[int, Host]()
        for attempt, host in state.settled:
            if leaders.setdefault(attempt, host) != host:
                return f"attempt {attempt} has two leaders"
        for node in state.nodes:
            if isinstance(node.memory, Opens | Leads):
                for attempt, log in state.acknowledged:
                    if attempt < node.voter.newest.attempt and node.log[: len(log)] != log:
                        lost = ".".join(map(str, log))
                        return f"host {node.voter.me} leads without what attempt {attempt} had acknowledged: {lost}"
        return ""


def _after(state: State, node: Node, *sent: Message) -> State:
    """Return the world with this node changed, and without messages that no node would accept any more."""
    me = node.voter.me
    nodes = (*state.nodes[:me], node, *state.nodes[me + 1 :])
    return state._replace(nodes=nodes, sent=frozenset(one for one in (*state.sent, *sent) if _matters(nodes, one)))


def _voted(state: State, node: Node, sent: Message) -> State:
    vote, before, me = node.voter.voted, node.last_vote, node.voter.me
    after = _after(state, node._replace(last_vote=max(vote, before)), sent)
    return (
        after
        if vote[0] > before[0] or vote == before
        else after._replace(problem=f"host {me} has voted twice in attempt {vote[0]}")
    )


def _matters(nodes: tuple[Node, ...], message: Message) -> bool:
    match message:
        case RequestVote(attempt=attempt, candidate=candidate):
            node = nodes[candidate]
            stands = isinstance(node.memory, Stands) and node.voter.voted == (attempt, candidate)
            return stands and any(node.voter.voted[0] < attempt for node in nodes)
        case Granted(voter=voter, attempt=attempt, candidate=candidate):
            node = nodes[candidate]
            counts = isinstance(node.memory, Stands) and node.voter.voted == (attempt, candidate)
            return counts and isinstance(node.memory, Stands) and voter not in node.memory.granted
        case OpenWithLog(said=said):
            newest = said.newest
            return any(
                node.voter.newest.attempt < newest.attempt and node.voter.voted[0] <= newest.attempt for node in nodes
            )
        case Accepted(attempt=attempt) | Kept(attempt=attempt):
            return any(
                (node.voter.newest.attempt == attempt and node.memory is not None)
                or (isinstance(node.memory, Ends) and node.voter.voted[0] == attempt)
                for node in nodes
            )
        case Settle(attempt=attempt):
            return any(node.voter.newest.attempt <= attempt and not node.voter.settled for node in nodes)
        case AppendWithLog(said=said):
            return any(
                node.voter.newest.attempt <= said.attempt and node.voter.voted[0] <= said.attempt for node in nodes
            )
