"""Read the coordinator's answers to requests to move the ranks of a node."""

from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import MOVED, NOT_MOVED, Event


class MoveAnswer:
    """A reader of the answer to a request to move ranks; it is made before the request, so that earlier answers do not
    count.
    """

    def __init__(self, run: RunDir, node: int) -> None:
        self.node = node
        self._run = run
        self._before = len(self._answers())

    def answer(self) -> Event | None:
        """Return the first answer, or None if none has come yet."""
        return next(iter(self._answers()[self._before :]), None)

    def _answers(self) -> list[Event]:
        """Return all answers about the node of the request."""
        events = read_lines(self._run.events, Event)
        return [event for event in events if event.kind in (MOVED, NOT_MOVED) and event.node == self.node]
