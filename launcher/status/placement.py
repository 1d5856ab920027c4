"""Find the node on which a rank ran, from the records."""

from launcher.errors import LaunchError
from launcher.run.attempts import read_plan
from launcher.run.durable import Damaged, read_lines, read_record
from launcher.run.layout import RunDir
from launcher.run.records import RankExit, RunState

_Key = tuple[int, int, int]  # attempt, generation, rank


class Placement:
    """Looks up the nodes of a run's ranks."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._known: dict[_Key, int] = {}
        self._only: dict[int, int | None] = {}
        self._asked: set[int] = set()  # attempts that were looked up since `renew`

    def renew(self) -> None:
        """Forget failed look-ups, because more may be known now."""
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
        """Return the node's index if the plan has only one node, else None."""
        if attempt not in self._only:
            self._only[attempt] = self._in_plan(attempt)
        return self._only[attempt]

    def _in_plan(self, attempt: int) -> int | None:
        """Return the index of the plan's only node, or None."""
        try:
            nodes = read_plan(self._run, attempt).nodes
        except LaunchError:
            return None  # a log can be read without its plan
        return nodes[0].index if len(nodes) == 1 else None

    def _look_up(self, attempt: int) -> None:
        """Read which nodes the ranks of an attempt's generations had."""
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
