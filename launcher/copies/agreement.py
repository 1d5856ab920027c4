"""Give all members of a generation one choice of checkpoint, at the first member, and let them start together.

If each chose for itself, two that see different nodes might choose two checkpoints, and their ranks would have none in
common.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from launcher.copies.protocol import LoadDecision
from launcher.wire.frames import WireError

MOST_SESSIONS = 64


@dataclass(slots=True, eq=False)
class _Session:
    """The decision of one generation, and which members have not arrived yet."""

    decision: "asyncio.Future[LoadDecision]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    complete: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    awaited: set[int] = field(default_factory=set)


class Agreement:
    """The decisions of this node, as first member, by generation."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}

    def decide(self, generation: int, decision: LoadDecision, members: Collection[int]) -> None:
        """Give the decision to all present and later callers; older generations are over."""
        for number in [number for number in self._sessions if number < generation]:
            session = self._sessions.pop(number)
            session.decision.cancel()
            session.complete.cancel()
        session = self._sessions.setdefault(generation, _Session())
        session.awaited = set(members)
        session.decision.set_result(decision)

    async def decision(self, generation: int) -> LoadDecision:
        """Wait for the decision and return it; raise CancelledError if a newer generation replaces this one."""
        return await asyncio.shield(self._session(generation).decision)

    async def arrive(self, generation: int, node: int) -> None:
        """Record that one member has all files, and return once all members have."""
        session = self._session(generation)
        session.awaited.discard(node)
        if not session.awaited and session.decision.done() and not session.complete.done():
            session.complete.set_result(None)
        await asyncio.shield(session.complete)

    def _session(self, generation: int) -> _Session:
        """Return the session of a generation; raise WireError if a peer asks for one too far ahead."""
        if generation not in self._sessions and len(self._sessions) >= MOST_SESSIONS:
            raise WireError(f"it asks of generation {generation}, and others of {MOST_SESSIONS} more")
        return self._sessions.setdefault(generation, _Session())
