"""Hosts whose ranks run as long as leases last: clocks tick, messages come at any later moment, hosts crash and return.

Histories are all alike here (records_world.py has those), so that what is explored is time. Clocks run equally fast; a
host that stands still is one that sends and receives nothing for a while. Of a host's heartbeats the newest is on its
way, and of the answers to it, each for as long as it takes: an older one says nothing that lasts longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from launcher.places.ssh.quorum.core import (
    Host,
    Open,
    Opening,
    Records,
    RequestVote,
    Settle,
    Voter,
    may_start_from,
    may_vote_from,
)

LEASE = 2


class Stands(NamedTuple):
    granted: frozenset[Host]


class Opens(NamedTuple):
    accepted: frozenset[Host]
    opened_at: float


class Leads(NamedTuple):
    confirmed_at: tuple[float, ...]  # by host: when it sent the newest answer that the host is known to have
    starts_from: float


class Node(NamedTuple):
    voter: Voter
    memory: Stands | Opens | Leads | None = None
    heard_at: float = 0
    seen: float = 0  # when the newest answer was sent that it has received in this attempt
    ranks: tuple[int, float] = (1, LEASE)  # of which attempt, and until when


class Granted(NamedTuple):
    voter: Host
    attempt: int
    candidate: Host


class Accepted(NamedTuple):
    voter: Host
    attempt: int


class Heartbeat(NamedTuple):
    host: Host
    attempt: int
    asked_at: float
    seen: float
    counts: bool


class Answer(NamedTuple):
    host: Host
    attempt: int
    asked_at: float
    sent_at: float
    runs: bool  # the leader leads, and its ranks have started


class State(NamedTuple):
    now: float
    nodes: tuple[Node, ...]
    sent: frozenset[RequestVote | Granted | Open | Accepted | Heartbeat | Answer]
    crashes: int
    heartbeats: int = 0


@dataclass(frozen=True)
class LeaseWorld:
    hosts: int
    attempts: int
    ticks: int
    heartbeats: int  # of all hosts together
    crashes: int = 0
    voter: type[Voter] = field(default=Voter, repr=False)
    counts_from_receipt: bool = field(default=False, repr=False)
    waits_for_the_silent: bool = field(default=True, repr=False)

    @property
    def first(self) -> State:
        everybody = frozenset(range(self.hosts))
        nodes = [Node(self.voter(host, (1, 0), (Opening(1, 0, everybody),))) for host in range(self.hosts)]
        nodes[0] = nodes[0]._replace(memory=Leads((0,) * self.hosts, 0), ranks=(0, 0))
        return State(0, tuple(nodes), frozenset(), 0)

    # -- what may happen

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < self.ticks:
            now = state.now + 1
            nodes = tuple(_without_what_is_over(node, now) for node in state.nodes)
            yield "a second passes", State(now, nodes, _that_matter(nodes, state.sent), state.crashes, state.heartbeats)
        for node in state.nodes:
            yield from self._own_steps(state, node)
        for message in state.sent:
            match message:
                case Granted():
                    yield from self._counted_vote(state, state.nodes[message.candidate], message)
                case Accepted():
                    yield from self._counted(state, message)
                case Heartbeat():
                    yield from self._answered(state, message)
                case Answer():
                    yield from self._heard(state, state.nodes[message.host], message)
                case RequestVote() | Open():
                    for node in state.nodes:
                        yield from self._received(state, node, message)

    def _own_steps(self, state: State, node: Node) -> Iterator[tuple[str, State]]:
        now, voter, memory, me = state.now, node.voter, node.memory, node.voter.me
        leads = isinstance(memory, Leads)
        if voter.next_number <= self.attempts and voter.has_vote and (leads or not _hears(node, now)):
            number = voter.next_number
            new = node._replace(voter=voter.stand(number), memory=Stands(frozenset()), ranks=(0, 0))
            asked = RequestVote(number, me, _records_of(voter))
            yield f"host {me} stands for attempt {number}", _after(state, new, asked)
        match memory:
            case Stands(granted=granted) if voter.carries(granted):
                for voters in {granted | {me}, frozenset(range(self.hosts))}:
                    opened = voter.open(voter.voted[0], voters)
                    new = node._replace(voter=opened, memory=Opens(frozenset(), now))
                    said = Open(opened.openings, _records_of(opened))
                    text = f"host {me} opens attempt {opened.newest.attempt} on {sorted(voters)}"
                    yield text, _after(state, new, said)
            case Opens(accepted=accepted, opened_at=opened_at) if voter.carries(accepted):
                leaders = {opening.leader for opening in voter.openings}
                all_ended = len(accepted | leaders) == self.hosts or not self.waits_for_the_silent
                confirmed = tuple(opened_at if host in accepted else -inf for host in range(self.hosts))
                starts = may_start_from(opened_at, LEASE, all_ended=all_ended)
                settled = voter.settle(Settle(voter.newest.attempt, me))
                new = node._replace(voter=settled, memory=Leads(confirmed, max(now, starts)))
                yield f"host {me} leads attempt {voter.newest.attempt}", _after(state, new)
        if memory is None and state.heartbeats < self.heartbeats:
            heartbeat = Heartbeat(me, voter.newest.attempt, now, node.seen, voter.counts)
            if heartbeat not in state.sent:
                yield (
                    f"host {me} sends a heartbeat",
                    _after(state, node, heartbeat)._replace(heartbeats=state.heartbeats + 1),
                )
        if state.crashes < self.crashes:
            new = node._replace(memory=None, heard_at=now, seen=-inf, ranks=(0, 0))
            yield f"host {me} crashes and returns", _after(state, new)._replace(crashes=state.crashes + 1)

    def _received(self, state: State, node: Node, message: RequestVote | Open) -> Iterator[tuple[str, State]]:
        voter, me = node.voter, node.voter.me
        match message:
            case RequestVote(attempt=attempt, candidate=candidate):
                hears = _hears(node, state.now)
                if candidate != me and not voter.against_vote(message, _records_of(voter), hears_leader=hears):
                    new = node._replace(voter=voter.vote(message), memory=None, ranks=(0, 0))
                    answer = Granted(me, attempt, candidate)
                    yield f"host {me} votes for host {candidate} in attempt {attempt}", _after(state, new, answer)
            case Open(newest=newest, records=records):
                if newest.leader != me and newest != voter.newest and not voter.against_open(message, records):
                    new = Node(voter.accept(message), None, state.now, -inf, (0, 0))
                    after = _after(state, new, Accepted(me, newest.attempt))
                    yield f"host {me} accepts attempt {newest.attempt}", after

    def _counted_vote(self, state: State, node: Node, message: Granted) -> Iterator[tuple[str, State]]:
        match node.memory:
            case Stands(granted=granted) if message.voter not in granted:
                new = node._replace(memory=node.memory._replace(granted=granted | {message.voter}))
                yield f"host {message.candidate} has the vote of host {message.voter}", _after(state, new)

    def _counted(self, state: State, message: Accepted) -> Iterator[tuple[str, State]]:
        for node in state.nodes:
            match node.memory:
                case Opens(accepted=accepted) if message.attempt == node.voter.newest.attempt:
                    new = node._replace(memory=node.memory._replace(accepted=accepted | {message.voter}))
                    yield f"host {node.voter.me} counts host {message.voter}", _after(state, new)

    def _answered(self, state: State, heartbeat: Heartbeat) -> Iterator[tuple[str, State]]:
        for node in state.nodes:
            match node.memory:
                case Leads(confirmed_at=confirmed, starts_from=starts) if (
                    heartbeat.attempt == node.voter.newest.attempt
                ):
                    if heartbeat.counts:
                        at = state.now if self.counts_from_receipt else heartbeat.seen
                        before = confirmed[heartbeat.host]
                        confirmed = (*confirmed[: heartbeat.host], max(at, before), *confirmed[heartbeat.host + 1 :])
                    new = node._replace(memory=Leads(confirmed, starts))
                    runs = starts <= state.now < _leads_until(new)
                    answer = Answer(heartbeat.host, heartbeat.attempt, heartbeat.asked_at, state.now, runs)
                    asked = f"host {heartbeat.host}'s heartbeat of second {heartbeat.asked_at:g}"
                    text = f"host {node.voter.me} answers {asked}"
                    yield text, _after(state, new, answer)

    def _heard(self, state: State, node: Node, answer: Answer) -> Iterator[tuple[str, State]]:
        voter = node.voter
        if answer.attempt != voter.newest.attempt or node.memory is not None:
            return
        until = max(answer.asked_at + (LEASE if answer.runs else 0), node.ranks[1])
        settled = voter.settle(Settle(answer.attempt, voter.newest.leader))
        seen = max(answer.sent_at, node.seen)
        new = node._replace(voter=settled, heard_at=state.now, seen=seen, ranks=(answer.attempt, until))
        yield (
            f"host {answer.host} hears what host {voter.newest.leader} said in second {answer.sent_at:g}",
            _after(state, new),
        )

    # -- what must hold

    def problem_of(self, state: State) -> str:
        running = {node.ranks[0]: node.voter.me for node in state.nodes if node.ranks[1] > state.now}
        for node in state.nodes:
            if isinstance(node.memory, Leads) and node.memory.starts_from <= state.now < _leads_until(node):
                running[node.voter.newest.attempt] = node.voter.me
        if len(running) < 2:
            return ""
        told = " and ".join(f"those of attempt {attempt} on host {host}" for attempt, host in sorted(running.items()))
        return f"ranks run at once in second {state.now:g}: {told}"


def _without_what_is_over(node: Node, now: float) -> Node:
    """The same node, as far as anything can follow from it."""
    heard_at = node.heard_at if _hears(node, now) else -inf
    ranks = node.ranks if node.ranks[1] > now else (0, 0)
    memory = node.memory
    if isinstance(memory, Leads):
        confirmed = tuple(at if at + LEASE > now else -inf for at in memory.confirmed_at)
        memory = Leads(confirmed, memory.starts_from if memory.starts_from > now else 0)
    seen = node.seen if node.seen + LEASE > now else -inf
    return Node(node.voter, memory, heard_at, seen, ranks)


def _leads_until(node: Node) -> float:
    """Return until when the coordinator of this node starts ranks: half of the voters, with it, are its followers."""
    if not isinstance(node.memory, Leads):
        return -inf
    voters = node.voter.newest.voters
    at = sorted((node.memory.confirmed_at[one] for one in voters - {node.voter.me}), reverse=True)
    others = (len(voters) + 1) // 2 - 1
    return at[others - 1] + LEASE if others else inf


def _hears(node: Node, now: float) -> bool:
    return now < may_vote_from(node.heard_at, LEASE)


def _records_of(voter: Voter) -> Records:
    return Records(voter.newest.attempt, 0, "")


def _after(state: State, node: Node, *sent: RequestVote | Granted | Open | Accepted | Heartbeat | Answer) -> State:
    me = node.voter.me
    nodes = (*state.nodes[:me], _without_what_is_over(node, state.now), *state.nodes[me + 1 :])
    on_the_way = state.sent
    for new in sent:
        if isinstance(new, Heartbeat | Answer):
            on_the_way = frozenset(one for one in on_the_way if type(one) is not type(new) or one[0] != new[0])
        on_the_way |= {new}
    return state._replace(nodes=nodes, sent=_that_matter(nodes, on_the_way))


def _that_matter(
    nodes: tuple[Node, ...], sent: frozenset[RequestVote | Granted | Open | Accepted | Heartbeat | Answer]
) -> frozenset[RequestVote | Granted | Open | Accepted | Heartbeat | Answer]:
    """Return the messages without those that no node would accept any more."""
    return frozenset(one for one in sent if _matters(nodes, one))


def _matters(nodes: tuple[Node, ...], message: RequestVote | Granted | Open | Accepted | Heartbeat | Answer) -> bool:
    match message:
        case RequestVote(attempt=attempt, candidate=candidate):
            node = nodes[candidate]
            stands = isinstance(node.memory, Stands) and node.voter.voted == (attempt, candidate)
            return stands and any(node.voter.voted[0] < attempt for node in nodes)
        case Granted(voter=voter, attempt=attempt, candidate=candidate):
            node = nodes[candidate]
            return (
                isinstance(node.memory, Stands)
                and node.voter.voted == (attempt, candidate)
                and voter not in node.memory.granted
            )
        case Open(newest=newest):
            leader = nodes[newest.leader]
            leads = leader.memory is not None and leader.voter.newest == newest
            return leads and any(node.voter.newest.attempt < newest.attempt for node in nodes)
        case Accepted(attempt=attempt, voter=voter):
            return any(
                isinstance(node.memory, Opens)
                and node.voter.newest.attempt == attempt
                and voter not in node.memory.accepted
                for node in nodes
            )
        case Heartbeat(host=host, attempt=attempt):
            leads = any(isinstance(node.memory, Leads) and node.voter.newest.attempt == attempt for node in nodes)
            return leads and nodes[host].voter.newest.attempt == attempt
        case Answer(host=host, attempt=attempt):
            return nodes[host].voter.newest.attempt == attempt and nodes[host].memory is None
