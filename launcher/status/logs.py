"""The merged log of a run: the lines of all ranks by time and then by rank, read in bounded memory. A generation is one
start of all ranks within an attempt; setup is the shell code that runs before the first one on each node. Generations
follow one another, because all ranks of one have exited before those of the next start.

    logs/a0001.g0002/rank-00003.log ─ RankLog ─┐
    logs/a0001.g0002/rank-00004.log ─ RankLog ─┴─ merged by time ─► LogLine, with the node that the rank ran on
"""

import errno
import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from launcher.errors import LaunchError
from launcher.run.attempts import read_plan
from launcher.run.durable import Damaged, read_lines, read_record
from launcher.run.layout import RunDir, parse_log_file, parse_log_folder
from launcher.run.records import RankExit, RunState
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.status.log_choice import LogChoice, begin_at
from launcher.status.rank_log import RankLog, StampedLine

POLL_S = 0.1
_PATIENCE = 10  # reads that a new generation's lines may wait until it is known where its ranks run
_Key = tuple[int, int, int]  # attempt, generation, rank


class Placement:
    """A table of the node of each rank in each generation, read from the run's records when it is first needed."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._known: dict[_Key, int] = {}
        self._only: dict[int, int | None] = {}
        self._asked: set[int] = set()  # attempts that were looked up since `renew`

    def renew(self) -> None:
        """Allow ranks that were not found to be looked up again, because more may be recorded now."""
        self._asked.clear()

    def knows(self, attempt: int, generation: int) -> bool:
        """Return whether the nodes of this generation's ranks are recorded."""
        if self._only_node(attempt) is not None:
            return True
        self._look_up(attempt)
        return any((attempt, generation) == key[:2] for key in self._known)

    def node(self, attempt: int, generation: int, rank: int) -> int | None:
        """Return the index of the rank's node, or None if it is not recorded."""
        if (only := self._only_node(attempt)) is not None:
            return only
        key = (attempt, generation, rank)
        if key not in self._known:
            self._look_up(attempt)
        return self._known.get(key)

    def _only_node(self, attempt: int) -> int | None:
        """Return the node's index if the attempt's plan has only one node, else None; the answer is cached."""
        if attempt not in self._only:
            self._only[attempt] = self._in_plan(attempt)
        return self._only[attempt]

    def _in_plan(self, attempt: int) -> int | None:
        """Read the attempt's plan and return the index of its only node, where all ranks then are. Return None if the
        plan has several nodes or cannot be read.
        """
        try:
            nodes = read_plan(self._run, attempt).nodes
        except LaunchError:
            return None  # a log can be read without its plan
        return nodes[0].index if len(nodes) == 1 else None

    def _look_up(self, attempt: int) -> None:
        """Read from the attempt's records which node each rank of its generations had."""
        if attempt in self._asked:
            return
        self._asked.add(attempt)
        for exit_ in read_lines(self._run.attempt(attempt).exits, RankExit):
            self._known[attempt, exit_.generation, exit_.rank] = exit_.node
        try:
            state = read_record(self._run.state, RunState)
        except Damaged:
            return
        if state is not None:
            for rank in state.ranks:
                self._known[state.attempt, state.generation, rank.rank] = rank.node


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a rank or a node's setup has written. `at` is its Unix time or None; `generation` is 0 and `rank`
    None for setup; `text` has colours, but no other control characters.
    """

    at: float | None  # Unix time; None: not recorded
    attempt: int
    generation: int  # 0: setup
    node: int | None  # None: not recorded
    rank: int | None  # None: setup
    text: str


def merged_logs(
    run: RunDir,
    *,
    ranks: Collection[int] | None = None,
    follow: bool = False,
    renew: Callable[[], bool] | None = None,
    choice: LogChoice | None = None,
) -> Iterator[LogLine]:
    """Yield the merged log as it is now or, with `follow`, as it grows until the run has ended.

    `renew` fetches logs from other machines, and returns whether the run has ended; by default only the run's folder is
    read. Only lines that `choice` selects are yielded or, without it, those of `ranks` (None: all).
    """
    reader = LogReader(run, ranks, choice=choice)
    ask = renew or (lambda: derive(read_facts(run.path)).state.ended)
    # Asked before each read, so that the read after the last answer misses nothing.
    while not ask() and follow:
        yield from reader.read(final=False)
        time.sleep(POLL_S)
    yield from reader.read(final=True)


class LogReader:
    """A reader of a run's log that continues where the last call stopped. `clock` gives a time to lines that are new
    since the last call and for which none is recorded. Only lines that `choice` selects are read or, without it, those
    of `ranks` (None: all).
    """

    def __init__(
        self,
        run: RunDir,
        ranks: Collection[int] | None = None,
        clock: Callable[[], float] = time.time,
        choice: LogChoice | None = None,
    ) -> None:
        self._run = run
        self._choice = choice or LogChoice(frozenset(ranks) if ranks is not None else None)
        self._clock = clock
        self._placement = Placement(run)
        self._open: dict[tuple[int, int], dict[int, RankLog]] = {}
        self._newest = (0, 0)
        self._waited: Counter[tuple[int, int]] = Counter()
        self._began = False

    def read(self, *, final: bool) -> Iterator[LogLine]:
        """Yield all new lines that `choice` or `ranks` selects; with `final`, nothing more will be written, and
        unfinished lines are complete.
        """
        if self._began or self._choice.last is None:
            yield from filter(self._is_chosen, self._read(final=final))
        else:
            yield from deque(filter(self._is_chosen, self._read(final=final)), self._choice.last)

    def _read(self, *, final: bool) -> Iterator[LogLine]:
        """Yield all new lines of the log files that may have selected lines; the caller drops the other lines.

        With `final`, nothing more will be written to the files, and unfinished lines are yielded too.
        """
        if not self._began and self._choice.last is not None:
            self._begin_near_the_end(self._choice.last)
        self._discover()
        self._placement.renew()
        seen_at = self._clock() if self._began else None  # what was there before we came has no time of ours
        self._began = True
        for key in sorted(self._open):
            last = final or key < self._newest
            if not last and self._may_lack_nodes(key):
                continue
            yield from self._lines(key, last, seen_at)
            if last:
                del self._open[key]

    def _is_chosen(self, line: LogLine) -> bool:
        """Return whether the line is of a node, since the time, and with a match of the pattern that the user chose."""
        choice = self._choice
        if choice.nodes is not None and line.node not in choice.nodes:
            return False
        if choice.since is not None and line.at is None:
            return (line.attempt, line.generation) == self._newest  # what nobody has noted yet
        if choice.since is not None and line.at is not None and line.at < choice.since:
            return False
        return choice.matches(line.text)

    def _begin_near_the_end(self, last: int) -> None:
        """Open only the newest log folders, each file from near its end: as much as is needed for the last `last` lines
        that `choice` selects. Older lines are skipped.
        """
        found = 0
        for key, folder in sorted(self._folders(), reverse=True):
            if found >= last:
                break
            logs = self._open[key] = {}
            for number, file in self._files(key, folder):
                start, lines = begin_at(file, self._choice)
                logs[number] = RankLog(file, number, start)
                found += lines
        self._newest = max(self._open, default=self._newest)

    def _folders(self) -> Iterator[tuple[tuple[int, int], Path]]:
        """Yield ((attempt, generation), path) of each log folder of the run, the oldest first."""
        for folder in _entries(self._run.logs):
            if (key := parse_log_folder(folder.name)) is not None:
                yield key, folder

    def _files(self, key: tuple[int, int], folder: Path) -> Iterator[tuple[int, Path]]:
        """Yield (number, path) of each log file in `folder`, except of ranks and nodes that the user left out.

        The number is that of the rank or, for setup logs, of the node; `key` is the folder's (attempt, generation).
        """
        for file in _entries(folder):
            number = parse_log_file(file.name)
            if number is not None and self._wanted(key, number):
                yield number, file

    def moving(self) -> dict[int, str]:
        """Return {rank: text} of the progress bars that the newest generation is drawing."""
        logs = self._open.get(self._newest, {}) if self._newest[1] else {}
        return {rank: text for rank, log in sorted(logs.items()) if (text := log.moving)}

    def _may_lack_nodes(self, key: tuple[int, int]) -> bool:
        """Return whether a generation (`key`: attempt, generation) is so new that the nodes of its ranks may not be
        recorded yet.

        Each call is counted; after `_PATIENCE` calls for a generation it returns False.
        """
        if key[1] == 0 or self._waited[key] >= _PATIENCE or self._placement.knows(*key):
            return False
        self._waited[key] += 1
        return True

    def _lines(self, key: tuple[int, int], final: bool, seen_at: float | None) -> Iterator[LogLine]:
        """Yield the new lines of one generation (`key`: attempt, generation) by time and rank.

        With `final`, unfinished lines are yielded too; `seen_at` is the Unix time of lines for which none is recorded
        (None: they have none).
        """
        logs = [log.lines(final=final, seen_at=seen_at) for log in self._open[key].values()]
        attempt, generation = key
        for line in heapq.merge(*logs, key=_order):
            if generation:
                node = self._placement.node(attempt, generation, line.rank)
                yield LogLine(line.at, attempt, generation, node, line.rank, line.text)
            else:
                yield LogLine(line.at, attempt, 0, line.rank, None, line.text)

    def _discover(self) -> None:
        """Find new folders and files of logs, to be read from the start or from the time that `choice` gives.

        Logs of generations before the newest that was found are not opened any more: they have been read to their end.
        """
        for key, folder in self._folders():
            if key < self._newest and key not in self._open:
                continue
            found = self._open.setdefault(key, {})
            for number, file in self._files(key, folder):
                if number not in found:
                    start = 0 if self._choice.since is None else begin_at(file, LogChoice(since=self._choice.since))[0]
                    found[number] = RankLog(file, number, start)
        self._newest = max(self._open, default=self._newest)

    def _wanted(self, key: tuple[int, int], number: int) -> bool:
        """Return whether the file `number` in the log folder of `key`, (attempt, generation), may have lines of the
        ranks or nodes that the user chose. The number is that of a rank or, in the folder of setup logs (generation 0),
        of a node. Setup logs are not wanted if ranks were chosen.
        """
        ranks, nodes = self._choice.ranks, self._choice.nodes
        if nodes is not None:
            node = self._placement.node(*key, number) if key[1] else number
            if node is not None and node not in nodes:
                return False
        return ranks is None or (key[1] > 0 and number in ranks)


def _order(line: StampedLine) -> tuple[float, int]:
    """Return the sort key of a line: (time, rank); a line without a time comes last."""
    return (inf if line.at is None else line.at, line.rank)


def _entries(folder: Path) -> list[Path]:
    """Return the paths in a folder, or an empty list if it does not exist."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
