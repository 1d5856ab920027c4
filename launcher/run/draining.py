"""Requests to move ranks off nodes of an attempt (the file drain.json): commands write them, and the attempt's
coordinator reads and answers them.
"""

from collections.abc import Mapping

import msgspec

from launcher.run.durable import read_lines, readable, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import MOVED, NOT_MOVED, DrainRequest, Event, MoveRequest


class MoveAnswer:
    """A reader of the coordinator's answer to a request to move ranks off `node`. Make it before the request: only
    later answers count.
    """

    def __init__(self, run: RunDir, node: int) -> None:
        self.node = node
        self._run = run
        self._before = len(self._answers())

    def answer(self) -> Event | None:
        """Return the first event since this reader was made that says whether the ranks were moved, or None if there is
        none yet.
        """
        return next(iter(self._answers()[self._before :]), None)

    def _answers(self) -> list[Event]:
        """Return all events so far that answer a request to move ranks off this node, those from before this reader
        included.
        """
        events = read_lines(self._run.events, Event)
        return [event for event in events if event.kind in (MOVED, NOT_MOVED) and event.node == self.node]


def ask_to_drain(attempt: AttemptDir, nodes: Mapping[int, str]) -> None:
    """Record that these nodes, by index, are to have no ranks for the rest of the attempt, in addition to those asked
    for before. Each has a reason, which is "" if a user asked.
    """
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        why = {node: words for node, words in nodes.items() if words}
        asked = tuple(sorted({*before.nodes, *nodes}))
        write_record(attempt.drain, msgspec.structs.replace(before, nodes=asked, why=before.why | why))


def ask_to_move(attempt: AttemptDir, request: MoveRequest) -> None:
    """Append `request`, to move ranks from one node to another, to the requests in the attempt's drain.json."""
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        write_record(attempt.drain, msgspec.structs.replace(before, moves=(*before.moves, request)))
