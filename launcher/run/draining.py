"""Requests to move ranks off nodes of an attempt: written here, read and answered by its coordinator."""

from collections.abc import Mapping

import msgspec

from launcher.run.durable import read_lines, readable, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import MOVED, NOT_MOVED, DrainRequest, Event, MoveRequest


class MoveAnswer:
    """A reader of the answer to a request to move ranks; it is made before the request, so that earlier answers do not
    count.
    """

    def __init__(self, run: RunDir, node: int) -> None:
        self.node = node
        self._run = run
        self._before = len(self._answers())

    def answer(self) -> Event | None:
        """Return the event that ranks were moved off the node or were not, the first since this was made, or None."""
        return next(iter(self._answers()[self._before :]), None)

    def _answers(self) -> list[Event]:
        """Return all answers about the node of the request."""
        events = read_lines(self._run.events, Event)
        return [event for event in events if event.kind in (MOVED, NOT_MOVED) and event.node == self.node]


def ask_to_drain(attempt: AttemptDir, nodes: Mapping[int, str]) -> None:
    """Record nodes to drain for the rest of the attempt, each with the reason, which is "" if a user asked."""
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        why = {node: words for node, words in nodes.items() if words}
        asked = tuple(sorted({*before.nodes, *nodes}))
        write_record(attempt.drain, msgspec.structs.replace(before, nodes=asked, why=before.why | why))


def ask_to_move(attempt: AttemptDir, request: MoveRequest) -> None:
    """Add a request to move ranks to those recorded earlier."""
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        write_record(attempt.drain, msgspec.structs.replace(before, moves=(*before.moves, request)))
