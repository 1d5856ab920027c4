"""Read a run's restarts from its events, to show them between the lines of its log: where a generation, one start of
all ranks, ended, and why.
"""

from collections import deque
from collections.abc import Iterator
from math import inf

from launcher.run.durable import record_in
from launcher.run.layout import RunDir
from launcher.run.records import EXPLAINED, Event
from launcher.status.rank_log import GrowingFile
from launcher.status.text import plain

_NEVER = 1 << 62
_KINDS = frozenset({"regroup", "requeue", "resumed", EXPLAINED})


class RestartReader:
    """A reader of a run's restarts. It must be read before the log, so that no restart is shown after lines that
    followed it.
    """

    def __init__(self, run: RunDir, *, late: bool = False) -> None:
        """Start to read the events of restarts; with `late`, restarts before the first shown line are skipped."""
        self._tail = GrowingFile(run.events)
        self._rest = b""
        self._due: deque[Event] = deque()
        self._late = late

    def read(self) -> None:
        """Read the restarts that were recorded since this was last called; `before` and `all` yield them as text."""
        while data := self._tail.read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            events = (record_in(line, Event) for line in lines)  # the log is worth reading without what is torn
            self._due.extend(event for event in events if event is not None and event.kind in _KINDS)

    def before(self, attempt: int, generation: int) -> Iterator[str]:
        """Yield a text line for each restart that was read, came before this generation, and was not yielded yet.

        If the reader was made with `late`, for a log that is shown from a later line on, the first call drops these
        restarts instead.
        """
        told = not self._late
        while self._due and _ended_generation(self._due[0]) < (attempt, generation):
            event = self._due.popleft()
            if told:
                yield _line_of(event)
        self._late = False

    def all(self) -> Iterator[str]:
        """Yield a text line for each restart that was read and not yielded yet.

        Called when the whole log was shown: no rank has written a line after these restarts.
        """
        yield from self.before(_NEVER, 0)


def _ended_generation(event: Event) -> tuple[int, float]:
    """Return the (attempt, generation) that ended with the event, one of a restart.

    An event `regroup` has the generation's number. Other events are about the end of a whole attempt: their own or, for
    `resumed`, the one before; the generation is then infinity.
    """
    if event.kind == "resumed":
        return event.attempt - 1, inf
    return event.attempt, event.generation if event.kind == "regroup" else inf


def _line_of(event: Event) -> str:
    """Return the line that is shown for an event, a restart or a restart's cause that was found later."""
    brief = event.brief or event.text
    if event.kind == EXPLAINED:
        brief = f"{event.cause}: {event.text}"
    elif event.kind == "resumed":
        brief = f"attempt {event.attempt}: {event.text}"
    return f"── {plain(brief)} ──"
