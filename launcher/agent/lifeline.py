"""An agent's line to the coordinator: what is said, what is said again after a cut, and the lease that silence ends."""

import asyncio
import time
from collections.abc import Callable

from launcher.agent import messages
from launcher.agent.messages import RankPulse, ToCoordinator
from launcher.agent.ranks.group import Home
from launcher.agent.wire import AgentWire, WireError, connect
from launcher.rundir.durable import read_record
from launcher.rundir.records import Endpoint

_RETRY_S = 0.05
_LOOK_S = 1.0
_Weighty = (
    messages.Leads | messages.Started | messages.Exited | messages.Stopped
    | messages.NotFetched | messages.Settled | messages.Fault
)  # fmt: skip


class Lifeline:
    def __init__(self, home: Home, token: str) -> None:
        self._home = home
        self._token = token
        self._wire: AgentWire | None = None
        self._told: list[ToCoordinator] = []
        self._sequence = 0
        self._sent_at: dict[int, float] = {}
        self._joined_at = 0.0
        self._lease_s = home.plan.spec.recovery.lease_s
        self._leased_at = time.monotonic() + home.plan.spec.recovery.wait_s

    @property
    def is_up(self) -> bool:
        return self._wire is not None

    def say(self, message: ToCoordinator) -> None:
        if self._wire is not None:
            self._wire.send(message)

    def tell(self, message: _Weighty) -> None:
        """Say what must not be lost: it is said again after each new Join, and hearing it twice does no harm."""
        self._told.append(message)
        self.say(message)

    def forget(self) -> None:
        """What was told is of a generation that the coordinator has closed."""
        self._told.clear()

    def join(self, message: messages.Join) -> None:
        self._joined_at = time.monotonic()
        for one in (message, *self._told):
            self.say(one)

    def pulse(self, generation: int, ranks: tuple[RankPulse, ...], fetched: int | None) -> None:
        if self._wire is None:
            return
        self._sequence += 1
        self._sent_at[self._sequence] = time.monotonic()
        self.say(messages.Pulse(self._home.node.index, self._sequence, generation, ranks, fetched))

    def welcomed(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leased_at = self._joined_at  # when it was sent: the coordinator heard it later

    def answered(self, sequence: int) -> None:
        self._leased_at = max(self._leased_at, self._sent_at.pop(sequence, self._leased_at))

    async def keep(self, introduce: Callable[[], None], obey: Callable[[messages.ToAgent], None]) -> None:
        """Connect whenever there is no connection; hand over what is heard."""
        while True:
            wire = await self._reach()
            if wire is None:
                await asyncio.sleep(_RETRY_S)
                continue
            self._wire = wire
            introduce()
            try:
                while (message := await wire.receive()) is not None:
                    obey(message)
            except WireError:
                wire.close()
            self._wire = None

    async def run_out(self) -> None:
        """Returns when no pulse has been answered for as long as the lease is."""
        while (left_s := self._leased_at + self._lease_s - time.monotonic()) > 0:  # noqa: ASYNC110 - the clock it is
            await asyncio.sleep(min(left_s, _LOOK_S))  # a Welcome ends the long first wait

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    async def _reach(self) -> AgentWire | None:
        """A proved connection to whoever the run directory names as coordinator now; None: not yet."""
        endpoint = read_record(self._home.attempt.endpoint, Endpoint)
        if endpoint is None:
            return None
        try:
            return await connect(endpoint.address, endpoint.port, self._home.node.address, self._token)
        except (OSError, WireError):
            return None  # the lease decides how long this may go on
