"""The agent's connection to the coordinator: it sends messages, repeats those that a network cut may have lost, and
renews the lease under which the node's ranks may run. A generation is one set of ranks that train together.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from launcher.clock import boottime, heartbeat_every_s, heartbeat_turn_s, lease_of_ranks
from launcher.node.ranks.group import Home
from launcher.node.ranks.lease import AfterSuspend, Lease, LeaseWatch, after_suspend
from launcher.plan.model import Plan
from launcher.run.durable import Damaged, read_record, readable
from launcher.run.records import Endpoint
from launcher.wire import messages
from launcher.wire.frames import NoAnswer, Wire, WireError, complain, dial, wire_key
from launcher.wire.messages import ToAgent, ToCoordinator

_RETRY_S = 0.05
_LOOK_S = 1.0
_SAME_S = 0.1  # a rank that was active this much later has done something
_MOST_PATIENCE = 16  # times as long as usual
_MOST_GENERATIONS = 1 << 31
_Weighty = (
    messages.Leads | messages.Started | messages.Exited | messages.Stopped
    | messages.NotFetched | messages.NothingWhole | messages.Settled | messages.Fault
)  # fmt: skip


class RankNews(NamedTuple):
    """The ranks of one heartbeat, in a form in which two heartbeats can be compared. If nothing has changed, the later
    heartbeat leaves its ranks out.
    """

    generation: int  # of the ranks
    ranks: tuple[messages.RankHeartbeat, ...]  # with `idle_s` set to 0, as `active_at` has the times
    active_at: tuple[float, ...]  # when each rank last reported or printed something, by `boottime`

    @classmethod
    def of(cls, heartbeat: messages.Heartbeat, at: float) -> "RankNews":
        """Return the ranks of `heartbeat`, which is sent at `at` by `boottime`; the times of their last activity are
        computed from `at`.
        """
        ranks = tuple(msgspec.structs.replace(one, idle_s=0.0) for one in heartbeat.ranks)
        return cls(heartbeat.generation, ranks, tuple(at - one.idle_s for one in heartbeat.ranks))

    def repeats(self, before: "RankNews | None") -> bool:
        """Return whether the ranks and their states are those in `before`, and no rank has reported or printed anything
        since. Return False if `before` is None or there are no ranks.

        A rank that waits in a breakpoint never counts as unchanged: the coordinator has to learn at once that the other
        ranks wait for it and do not hang.
        """
        if before is None or not self.ranks or any(one.breakpoint for one in self.ranks):
            return False
        if (self.generation, self.ranks) != (before.generation, before.ranks):
            return False
        return all(now - then < _SAME_S for now, then in zip(self.active_at, before.active_at, strict=True))


class Lifeline:
    """The agent's connection to the coordinator. It reconnects after a cut, and each answered heartbeat renews the
    lease.
    """

    def __init__(self, home: Home, token: str, lease: Lease) -> None:
        self._home = home
        self._lease = lease
        self._key = wire_key(token, messages.WIRE, home.plan.run_id, home.attempt.number)
        self._wire: Wire[ToAgent, ToCoordinator] | None = None
        self._refusal, self._patience = "", 1
        self._told: list[ToCoordinator] = []
        self._unsaid: list[messages.Noted] = []
        self._sequence = 0
        self._sent_at: dict[int, float] = {}
        self._answered, self._took_s = 0, 0.0
        self._joined_at = 0.0
        self._news: RankNews | None = None  # of the last heartbeat on this connection that told of the ranks
        self._brief = False
        self._lease_s = lease_of_ranks(home.plan.spec.recovery.lease_s)
        self._expires_for_good = after_suspend(home.plan, home.node.index) is AfterSuspend.COUNTS
        self._leased_from(boottime() + home.plan.spec.recovery.wait_s)

    @property
    def is_up(self) -> bool:
        """Return whether there is a connection now."""
        return self._wire is not None

    @property
    def heartbeat_s(self) -> float:
        """Return the longest time in seconds between two heartbeats, which passes while ranks report nothing new. It is
        a fraction of the lease, so that several can be lost before the lease expires.
        """
        return heartbeat_every_s(self._lease_s, len(self._home.plan.nodes))

    @property
    def heartbeat_turn_s(self) -> float:
        """Return the shortest time in seconds between two heartbeats, which applies if ranks report something new; else
        the next one is sent after `heartbeat_s`.
        """
        return heartbeat_turn_s(self._lease_s, len(self._home.plan.nodes))

    def send(self, message: ToCoordinator) -> None:
        """Send a message if the connection is up; else drop the message. Only what `send_reliably` gets is repeated."""
        if self._wire is not None:
            self._wire.send(message)

    def send_reliably(self, message: _Weighty) -> None:
        """Send a message that must not be lost. It is sent again after each reconnection until `forget` drops it, so
        the coordinator may receive it several times.
        """
        self._told.append(message)
        self.send(message)

    def send_once(self, message: messages.Noted) -> None:
        """Send a message now, or else as soon as the connection is up. Unlike one of `send_reliably`, it is not
        repeated if a cut loses it.
        """
        if self.is_up:
            self.send(message)
        else:
            self._unsaid.append(message)

    def forget(self) -> None:
        """Drop all messages of `send_reliably`, so that none is sent again after a reconnection: the coordinator has
        closed the generation that they are about.
        """
        self._told.clear()

    def join(self, message: messages.Join) -> None:
        """Send Join on a new connection, then again all messages of `send_reliably`, which a cut may have lost, and
        those that `send_once` has not sent yet.
        """
        self._joined_at = boottime()
        self._news, self._brief = None, False
        for one in (message, *self._told, *self._unsaid):
            self.send(one)
        self._unsaid.clear()

    def heartbeat(self, heartbeat: messages.Heartbeat) -> None:
        """Send the heartbeat with a new sequence number and record when it was sent, or drop it without a connection.

        Its part about the ranks is left out if nothing in it has changed since the last heartbeat, provided that the
        coordinator's Welcome permits that.
        """
        if self._wire is None:
            return
        self._sequence += 1
        self._sent_at[self._sequence] = at = boottime()
        news = RankNews.of(heartbeat, at)
        same = self._brief and news.repeats(self._news)
        self._news = self._news if same else news
        if same:
            heartbeat = msgspec.structs.replace(heartbeat, ranks=(), same=True)
        self.send(msgspec.structs.replace(heartbeat, seq=self._sequence, answered=self._answered, took_s=self._took_s))

    def welcomed(self, lease_s: float, *, brief: bool = False) -> None:
        """Take over the lease's length in seconds from a Welcome, and renew the lease from the time at which this agent
        asked to join. With `brief` a heartbeat may leave out ranks that have not changed since the last one.

        A Welcome does not renew an expired lease, because a coordinator that has given up this node's ranks sends one
        too; only an answered heartbeat does.
        """
        self._brief = brief
        self._lease_s = lease_of_ranks(min(lease_s, self._home.plan.spec.recovery.lease_s))
        if self._lease.until > boottime():
            self._leased_from(self._joined_at)  # when it was sent, which is earlier than it was received

    def answered(self, sequence: int) -> None:
        """Renew the lease, counted from the time at which heartbeat `sequence`, now answered, was sent. Do nothing if
        the lease counts from a later time already, or has expired where another host may lead since then.
        """
        sent_at = self._sent_at.pop(sequence, None)
        is_over = self._expires_for_good and self._lease.until <= boottime()
        if sent_at is not None and sent_at >= self._leased_at and not is_over:
            self._answered, self._took_s = sequence, max(0.0, boottime() - sent_at)
            self._leased_from(sent_at)

    def _leased_from(self, moment: float) -> None:
        """Set the lease to expire its full length after `moment`, a time by `boottime`."""
        self._leased_at = moment
        self._lease.until = moment + self._lease_s

    async def keep(self, introduce: Callable[[], None], obey: Callable[[messages.ToAgent], None]) -> None:
        """Stay connected for ever: call `introduce` on each new connection and `obey` with each message received. Close
        a connection over which a message comes that is malformed or does not fit the plan.
        """
        while True:
            wire = await self._reach()
            if wire is None:
                await asyncio.sleep(_RETRY_S)
                continue
            self._wire = wire
            introduce()
            try:
                while (message := await wire.receive()) is not None:
                    if isinstance(message, messages.Start):
                        check_start(message, self._home.plan)
                    elif isinstance(message, messages.ContinueInPlace):
                        check_start(message.start, self._home.plan)
                    elif isinstance(message, messages.CheckLink):
                        check_peer(message.peer, self._home.plan)
                    obey(message)
            except WireError as error:
                wire.complain(error)
            wire.close()
            self._wire = None
            await asyncio.sleep(_RETRY_S)  # a coordinator that accepts and then drops us is not called at full speed

    async def wait_until_expired(self, watch: LeaseWatch) -> None:
        """Wait until the lease has expired or the watchdog has ended the ranks. `watch` decides how much of the lease
        is left, because time for which the node was suspended may not count.
        """
        while not self._lease.broken and (left_s := watch.left_s(self._lease.until)) > 0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(min(left_s, _LOOK_S))  # a Welcome ends the long first wait

    async def wait_until_leased(self) -> None:
        """Return once the lease is valid. Until then no rank may start, not even by a message that arrived before this
        node was suspended.
        """
        while self._lease.until <= boottime():  # noqa: ASYNC110 - the watchdog's clock decides
            await asyncio.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connection to the coordinator."""
        if self._wire is not None:
            self._wire.close()

    async def _reach(self) -> Wire[ToAgent, ToCoordinator] | None:
        """Try once to connect to the coordinator that the run directory names now. Return an authenticated connection,
        or None if there is none yet; a new reason is written to the agent's log.

        After each try to which the coordinator does not answer in time, the next one allows it twice as long, up to a
        limit.
        """
        try:
            endpoint = read_record(self._home.attempt.endpoint, Endpoint)
            if endpoint is None:
                return None
            wire = await self._dial(endpoint)
            self._patience = 1
            return wire
        except (WireError, Damaged) as error:  # the lease decides how long this may go on
            if isinstance(error, NoAnswer):
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            if str(error) != self._refusal:
                self._refusal = str(error)
                complain(f"no line to the coordinator: {error}")
            return None

    async def _dial(self, endpoint: Endpoint) -> Wire[ToAgent, ToCoordinator] | None:
        """Return a connection to the coordinator at the address `endpoint`, or None once the run directory names
        another address. Raise WireError if it cannot be made.
        """
        own, peers = self._home.node.address, self._home.plan.nodes_max
        place, at = (endpoint.address, endpoint.port), self._home.attempt.endpoint
        dialling = asyncio.create_task(
            dial(*place, own, self._key, messages.TO_AGENT, peers=peers, patience=self._patience)
        )
        try:
            while not (await asyncio.wait([dialling], timeout=_LOOK_S))[0]:
                if readable(at, Endpoint) not in (endpoint, None):
                    return None
            return await dialling
        finally:
            dialling.cancel()


def check_start(start: messages.Start, plan: Plan) -> None:
    """Raise WireError unless a Start fits the plan: only the choice of the nodes that have ranks is the coordinator's;
    numbers of ranks, addresses and the like must be those of the plan.
    """
    each, places = plan.ranks_per_node, range(min(start.group_world_size, plan.nodes_max))
    known = {node.index: node.address for node in plan.nodes}
    good = (
        1 <= start.generation <= _MOST_GENERATIONS
        and start.group_rank in places
        and start.group_world_size == len(places)
        and start.first_rank == start.group_rank * each
        and (start.local_world_size, start.world_size) == (each, len(places) * each)
        and (start.master_addr in known.values() or "" in known.values())
        and 1 <= start.master_port <= 65535
        and start.restarts >= 0
        and all(_has_known_address(replica, known) for replica in start.replicas)
    )
    if not good:
        raise WireError("it wants ranks to be started that are not of this plan")


def check_peer(peer: messages.ReplicaAddress, plan: Plan) -> None:
    """Raise WireError unless the plan names the peer's node and address, so that no copy is sent to another machine."""
    if not _has_known_address(peer, {node.index: node.address for node in plan.nodes}):
        raise WireError("it wants a link to be measured that is not of this plan")


def _has_known_address(peer: messages.ReplicaAddress, known: Mapping[int, str]) -> bool:
    """Return whether the address of `peer` is that of its node in `known` (addresses by node index), or that node has
    no fixed address.
    """
    return known.get(peer.node) in (peer.address, "")
