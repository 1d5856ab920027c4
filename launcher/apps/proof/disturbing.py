"""Disturb a run: make each kill at its step, and resume the run if nothing else does."""

import contextlib
import time
from collections.abc import Sequence

from launcher.api import WATCH_S, Run
from launcher.apps.proof.findings import Kill
from launcher.apps.proof.schedule import Mode, PlannedKill
from launcher.apps.repeated_runs import Tell
from launcher.errors import LaunchError
from launcher.node.inside.visit import Visit
from launcher.node.inside.visit_messages import KillHere
from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.states import State
from launcher.status.derive import RunStatus
from launcher.status.series import newest_reported

_LOOK_S = 0.02
_GONE = "it had ended"
_OVER = "the training was over first"


class DisturbedRun:
    """One run, its kills, and its end."""

    def __init__(self, run: Run, mode: Mode, tell: Tell, *, saves: bool) -> None:
        """Prepare to disturb a run; with `saves` the training reports its checkpoints, and one must exist before a
        kill.
        """
        self._run, self._mode, self._tell, self._saves = run, mode, tell, saves
        self._struck = (0, 0)  # attempt and generation that were hit last
        self._dark = False  # all of it was killed on a node, and it has not been resumed since

    def strike(self, kills: Sequence[PlannedKill]) -> list[Kill]:
        """Make all kills in order and return them; those that come after the training's end are marked as missed."""
        return [self._strike(one) for one in kills]

    def finish(self) -> RunStatus:
        """Wait until the run has ended, and return its status."""
        while not (status := self._look()).state.ended:
            time.sleep(_LOOK_S)
        return status

    def _strike(self, kill: PlannedKill) -> Kill:
        """Make one kill, not before its step and not before this generation has made a step, because it would
        otherwise hit a start.
        """
        with contextlib.ExitStack() as stack:
            visit: Visit | None = None
            rank = node = 0
            while not (status := self._look()).state.ended:
                if self._trains(status):
                    if visit is None:  # before its step, for it takes a while to get there
                        nodes = self._run.nodes_of_ranks()
                        rank = sorted(nodes)[kill.among(len(nodes))]
                        node = nodes[rank]
                        visit = stack.enter_context(self._run.visit(node))
                    step = max(status.step or 0, newest_reported(RunDir(self._run.path), status.attempt))
                    if step >= kill.step and (status.checkpoint is not None or not self._saves):
                        return self._hit(kill, status, step, visit, rank, node)
                time.sleep(_LOOK_S)
        return Kill(kill.step, _OVER)

    def _hit(self, kill: PlannedKill, status: RunStatus, step: int, visit: Visit, rank: int, node: int) -> Kill:
        """Kill the chosen rank or its whole node, and return the kill."""
        whole = self._mode.whole_node
        at = time.time()
        try:
            hit = visit.kill(KillHere(None if whole else rank))
        except LaunchError as error:
            return Kill(kill.step, str(error).partition("\n")[0])
        if not hit:
            return Kill(kill.step, _GONE)
        step = max(step, newest_reported(RunDir(self._run.path), status.attempt))  # it may have gone on meanwhile
        self._struck, self._dark = (status.attempt, status.generation), whole
        done = Kill(
            kill.step, "", None if whole else rank, node, status.attempt, status.generation, at, step,
            status.checkpoint,
        )  # fmt: skip
        self._tell(f"{struck_words(done)} was killed at step {step}")
        return done

    def _trains(self, status: RunStatus) -> bool:
        """Return whether the newest start has trained a step since the last kill."""
        now = (status.attempt, status.generation)
        if status.state is not State.RUNNING or now <= self._struck:
            return False
        history = read_lines(RunDir(self._run.path).events, Event)
        return any(one.kind == "training" and (one.attempt, one.generation) == now for one in history)

    def _look(self) -> RunStatus:
        """Return the status of the run, after resuming it if a power cut has left nothing that could continue by
        itself.
        """
        status = self._run.status(WATCH_S)
        if not self._dark or (status.attempt, status.generation) > self._struck:
            self._dark = False
        elif status.state.ended and status.state is not State.SUCCEEDED:
            self._dark = False
            self._run.resume()
            return self._run.status()
        return status


def struck_words(kill: Kill) -> str:
    """Return what the kill hit, as text."""
    return f"all of node {kill.node}" if kill.rank is None else f"rank {kill.rank}"
