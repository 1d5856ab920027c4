"""Graphs from Python: several runs of one file, of which some need others. The command line is built on this module. An
override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.

import launcher

graph = launcher.submit_graph("jobs/train_then_predict.yaml")
print(graph.wait())
for step in graph.steps():
    print(step.name, step.needs, step.status.state if step.status else "not started")
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.api import WAIT_STEP_S, WATCH_S, Run, Spec, as_files, statuses
from launcher.errors import NoSuchRun, Refused
from launcher.ids import RunId
from launcher.run.graphs import GraphDir, GraphRecord, find_graph, graph_record
from launcher.states import LOCAL, State
from launcher.status.derive import RunStatus

if TYPE_CHECKING:
    from launcher.submission.graphs import StepPlan

_MOVING = (State.UNKNOWN, State.RUNNING, State.REGROUPING, State.STARTING, State.QUEUED)
_WORST = (State.FAILED, State.INTERRUPTED, State.LOST, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class StepStatus:
    """A step of a graph: the steps that it `needs`, and its run's id and status. `status` is None if the run was not
    started or was removed.
    """

    name: str
    needs: tuple[str, ...]
    run: RunId
    status: RunStatus | None  # None: its run was not started, or was removed


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph: the runs of one file with steps, each of which starts once the runs of the steps that it needs have
    succeeded. Asking for the state of its steps restarts a run whose supervisor, the process on this machine that
    carries the run on, has died.
    """

    id: RunId
    path: Path  # its folder

    @classmethod
    def get(cls, ref: str) -> "Graph":
        """Return the graph with this id or unique beginning of an id; raise NoSuchRun if there is none."""
        found = find_graph(ref)
        if found is None:
            raise NoSuchRun(f"{ref[:100]!r}: no runs of one file with steps are called so")
        return cls(found.id, found.path)

    def steps(self, fresh_s: float = 0.0) -> list[StepStatus]:
        """Return all steps with their status; each comes after the steps that it needs.

        A cluster's answer may be `fresh_s` seconds old.
        """
        return self._steps(fresh_s, restart_lost=True)

    def _steps(self, fresh_s: float, *, restart_lost: bool) -> list[StepStatus]:
        """Return all steps with their status; a cluster's answer may be `fresh_s` seconds old.

        If the supervisor of a run has died, the run is restarted with `restart_lost`, else its end is recorded.
        """
        steps = self._record().steps
        there = {run.id: run for run in self.runs()}
        found = dict(zip(there, statuses([*there.values()], fresh_s, restart_lost=restart_lost), strict=True))
        return [StepStatus(one.name, one.needs, one.run, found.get(one.run)) for one in steps]

    def runs(self) -> list[Run]:
        """Return the runs of the graph's steps that exist, in the order of the steps."""
        runs = self._folder.runs
        return [Run(one.run, runs / one.run) for one in self._record().steps if (runs / one.run).is_dir()]

    def state(self, fresh_s: float = WATCH_S) -> State:
        """Return the state of all steps together: the first of these that any step has, or `succeeded` if all have
        succeeded: unknown, running, regrouping, starting, queued, failed, interrupted, lost, cancelled.

        A step whose run is missing counts as lost. A cluster's answer may be `fresh_s` seconds old.
        """
        return state_of(self.steps(fresh_s))

    def wait(self, timeout_s: float | None = None) -> State:
        """Wait until no step's run is queued, starts, runs or has an unknown state, and return the graph's state; raise
        TimeoutError if that takes more than `timeout_s` seconds (None: no limit).
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (state := self.state()).ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still {state} after {timeout_s:g} s")
            time.sleep(WAIT_STEP_S)
        return state

    def cancel(self) -> None:
        """Cancel all runs of the graph, one after the other, as Run.cancel() does; a run is cancelled before those that
        it waits for.
        """
        for run in reversed(self.runs()):
            run.cancel()

    def resume(self, *, anew: bool = False, code: bool = False) -> list[Run]:
        """Resume a graph that ended without success, and return the runs that continue.

        Failed runs, and those cancelled because of them, are resumed; runs of steps that were never started, as the
        submit was interrupted, are started. With `anew`, runs may start from nothing if they have no checkpoint; with
        `code`, resumed runs get the project's present code. Raise Refused if there is nothing to resume or start, or if
        a step's run was removed.
        """
        from launcher.submission.graphs import start_missing  # late: it reads YAML, which `status` must not pay for

        record, before = self._record(), self._steps(0.0, restart_lost=False)
        if state_of(before) is State.SUCCEEDED:
            raise Refused(f"{self.id} has succeeded: there is nothing to resume", f"hint: launch status {self.id}")
        missing = [step for step in before if step.status is None]
        if missing and self._folder.complete.exists():
            raise Refused(f"{missing[0].run} was removed: {self.id} cannot go on without it", "hint: submit it anew")
        over = [step for step in before if _is_to_go_on(step)]
        if not over and not missing:
            raise Refused(
                f"{self.id} is {state_of(before)}: there is nothing to resume", f"hint: launch status {self.id}"
            )
        for step in over:
            self._resume(record, step, anew=anew, code=code)
        start_missing(self._folder)
        return [run for run in self.runs() if run.id in {step.run for step in (*over, *missing)}]

    def _resume(self, record: GraphRecord, step: StepStatus, *, anew: bool, code: bool) -> None:
        """Resume the run of `step`, a step of the graph with this record; the run then waits for the runs of the steps
        that the step needs. With `anew` it may start from nothing if it has no checkpoint; with `code` it gets the
        project's present code.
        """
        waits = ", ".join(one.run for one in record.steps if one.name in step.needs)
        overrides = [f"queue.after=[{waits}]", "queue.hold=null", "queue.at=null"] if waits else []
        Run(step.run, self._folder.runs / step.run).resume(overrides=overrides, anew=anew, code=code)

    def _record(self) -> GraphRecord:
        """Return the record of the graph from its folder; raise NoSuchRun if it is missing, Damaged if it cannot be
        decoded.
        """
        return graph_record(self._folder)

    @property
    def _folder(self) -> GraphDir:
        """Return the folder of the graph."""
        return GraphDir(self.path)


def state_of(steps: Sequence[StepStatus]) -> State:
    """Return the state of all steps together: the first of these that any step has, or succeeded if none has one of
    them.

    The order is unknown, running, regrouping, starting, queued, failed, interrupted, lost, cancelled. A step whose run
    is missing counts as lost.
    """
    states = {step.status.state if step.status is not None else State.LOST for step in steps}
    return next((state for state in (*_MOVING, *_WORST) if state in states), State.SUCCEEDED)


def _is_to_go_on(step: StepStatus) -> bool:
    """Return whether a step is resumed when its graph is: it has a run, and that has ended without success."""
    return step.status is not None and step.status.state.ended and step.status.state is not State.SUCCEEDED


def submit_graph(spec: Spec, *, on: str = LOCAL, overrides: Sequence[str] = ()) -> Graph:
    """Start a run for each of the spec's `steps`, and return the graph without waiting for any run.

    The spec is a path, or its content as for submit(). `on` is the cluster of steps that name none. Raise BadInput,
    with every problem, before any run is started.
    """
    from launcher.submission.graphs import open_graph  # late: it reads YAML

    with as_files([spec]) as ([file], roots):
        found = open_graph(file, on=on, overrides=tuple(overrides), root=roots.get(file))
    return Graph(found.id, found.path)


def prepare_graph(spec: str | Path, *, on: str = LOCAL, overrides: Sequence[str] = ()) -> "list[StepPlan]":
    """Return the plan of each step of the file `spec`, each after the steps that it needs; a step is one run of the
    graph. Nothing is started or written. Raise BadInput with every problem.

    `on` is the cluster of steps that name none; `overrides` change the file's options before it is divided into steps.
    """
    from launcher.submission.graphs import prepare_steps  # late: it reads YAML

    return prepare_steps(Path(spec), on=on, overrides=tuple(overrides))


def validate_graph(spec: str | Path, *, overrides: Sequence[str] = ()) -> None:
    """Raise BadInput with every problem of a file with `steps`, as far as it does not depend on where the steps will
    run.
    """
    from launcher.submission.graphs import validate_steps  # late: it reads YAML

    validate_steps(Path(spec), tuple(overrides))


def is_graph(spec: str | Path) -> bool:
    """Return whether a spec file has `steps`; False if it cannot be read."""
    from launcher.spec.graph.reading import is_graph as has_steps  # late: it reads YAML

    return has_steps(Path(spec))
