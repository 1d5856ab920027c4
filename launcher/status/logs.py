"""The merged log of a run: every rank's lines, by time and then by rank, streamed in bounded memory.

    logs/a0001.g0002/rank-00003.log ─ RankLog ─┐
    logs/a0001.g0002/rank-00004.log ─ RankLog ─┴─ merged by time ─► LogLine, with the node that the rank ran on

Generations follow one another: the ranks of one are gone before the next one's start.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from launcher.rundir.layout import RunDir, parse_log_file, parse_log_folder
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.status.placement import Placement
from launcher.status.rank_log import RankLog, StampedLine

_POLL_S = 0.1
_PATIENCE = 10  # reads that a new generation's lines may wait until it is known where its ranks run


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a rank, or a node's setup, has written. `text` keeps colours and no other control."""

    at: float | None  # Unix time; None: nobody noted it
    attempt: int
    generation: int  # 0: setup
    node: int | None
    rank: int | None  # None: setup
    text: str


def merged_logs(
    run: RunDir,
    *,
    ranks: Collection[int] | None = None,
    follow: bool = False,
    renew: Callable[[], bool] | None = None,
) -> Iterator[LogLine]:
    """The merged log as it is now; with `follow`, as it grows, until the run has ended and all is read.

    `renew` asks whoever knows whether the run has ended, and then brings what its ranks do not write into the run's
    folder themselves. Without it the folder alone is asked.
    """
    reader = LogReader(run, ranks)
    ask = renew or (lambda: derive(read_facts(run.path)).state.ended)
    # Asked before each read, so that the read after the last answer misses nothing.
    while not ask() and follow:
        yield from reader.read(final=False)
        time.sleep(_POLL_S)
    yield from reader.read(final=True)


class LogReader:
    """Reads on from where it stopped. `clock` stamps what nobody else has stamped yet."""

    def __init__(
        self, run: RunDir, ranks: Collection[int] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._run = run
        self._ranks = frozenset(ranks) if ranks is not None else None
        self._clock = clock
        self._placement = Placement(run)
        self._open: dict[tuple[int, int], dict[int, RankLog]] = {}
        self._newest = (0, 0)
        self._waited: Counter[tuple[int, int]] = Counter()
        self._began = False

    def read(self, *, final: bool) -> Iterator[LogLine]:
        """All lines that are new; `final`: nothing will be added any more."""
        self._discover()
        self._placement.renew()
        seen_at = self._clock() if self._began else None  # what was there before we came has no time of ours
        self._began = True
        for key in sorted(self._open):
            last = final or key < self._newest
            if not last and self._is_early(key):
                continue
            yield from self._lines(key, last, seen_at)
            if last:
                del self._open[key]

    def _is_early(self, key: tuple[int, int]) -> bool:
        """True for a moment after a generation was opened: its ranks write sooner than the coordinator's record."""
        if key[1] == 0 or self._waited[key] >= _PATIENCE or self._placement.knows(*key):
            return False
        self._waited[key] += 1
        return True

    def _lines(self, key: tuple[int, int], final: bool, seen_at: float | None) -> Iterator[LogLine]:
        logs = [log.lines(final=final, seen_at=seen_at) for log in self._open[key].values()]
        attempt, generation = key
        for line in heapq.merge(*logs, key=_order):
            if generation:
                node = self._placement.node(attempt, generation, line.rank)
                yield LogLine(line.at, attempt, generation, node, line.rank, line.text)
            else:
                yield LogLine(line.at, attempt, 0, line.rank, None, line.text)

    def _discover(self) -> None:
        """Folders and files that are new; an older generation's is read to its end once and then let go."""
        for folder in _entries(self._run.logs):
            key = parse_log_folder(folder.name)
            if key is None or (key < self._newest and key not in self._open):
                continue
            found = self._open.setdefault(key, {})
            for file in _entries(folder):
                number = parse_log_file(file.name)
                if number is not None and number not in found and self._wanted(key, number):
                    found[number] = RankLog(file, number)
        self._newest = max(self._open, default=self._newest)

    def _wanted(self, key: tuple[int, int], number: int) -> bool:
        return self._ranks is None or (key[1] > 0 and number in self._ranks)


def _order(line: StampedLine) -> tuple[float, int]:
    return (inf if line.at is None else line.at, line.rank)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
