"""Find a graph, the runs of one file with `steps:`, by the word that a user typed, and the position of each of its runs
in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher import api
from launcher.apps.graph import Graph, StepStatus, state_of
from launcher.cli.graphs.tree import branches
from launcher.errors import Refused
from launcher.run.durable import readable
from launcher.run.graphs import GraphRecord, find_graph, known_graphs
from launcher.states import State
from launcher.status.derive import RunStatus


def graph_called(ref: str | None) -> Graph | None:
    """Return the graph whose id is `ref`, or the only one whose id begins with it; return None if there is none, if a
    run outside the graph begins with it too, or if `ref` is None.
    """
    found = find_graph(ref) if ref is not None else None
    return Graph(found.id, found.path) if found is not None else None


def runs_called(ref: str) -> list[api.Run]:
    """Return the run that `ref` names or, if it names a graph, the runs of its steps in order; raise NoSuchRun if it
    names neither.
    """
    graph = graph_called(ref)
    return [api.run(ref)] if graph is None else graph.runs()


def refuse_missing(graph: Graph) -> None:
    """Raise Refused if a step of the graph has no run yet, because a command that waits for all of its runs might never
    end.
    """
    missing = [step.name for step in graph.steps(api.WATCH_S) if step.status is None]
    if missing:
        text = f"{graph.id}: there is no run of {', '.join(missing)}"
        raise Refused(text, f"hint: launch resume {graph.id}, if nobody is about to start it")


@dataclass(frozen=True, slots=True)
class GraphMember:
    """The position of a step in its graph: `state` is that of the whole graph, `branch` what is drawn before the step's
    name in the tree, and `place` its line in the tree.
    """

    graph: str  # its id
    state: State  # of the whole graph
    step: str  # its name
    needs: tuple[str, ...]  # names of steps
    branch: str  # strokes to draw before the step's name
    place: int  # the step's line in the tree


def members(statuses: Sequence[RunStatus]) -> dict[str, GraphMember]:
    """Return {run id: its position in a graph} for every run that is a step of a graph of this user. The graphs' states
    are computed from `statuses`; a run without a status there counts as not started.
    """
    graphs = [record for one in known_graphs() if (record := readable(one.record, GraphRecord)) is not None]
    found = {status.run: status for status in statuses} if graphs else {}
    return {run: member for record in graphs for run, member in _members_of(record, found)}


def _members_of(record: GraphRecord, found: Mapping[str, RunStatus]) -> Iterator[tuple[str, GraphMember]]:
    """Yield (run id, position) for each step of one graph. `found` has the status of each run by id; a step whose run
    is not in it counts as not started.
    """
    steps = {one.name: StepStatus(one.name, one.needs, one.run, found.get(one.run)) for one in record.steps}
    state = state_of([*steps.values()])
    for place, (name, branch) in enumerate(branches({one.name: one.needs for one in record.steps}).items()):
        yield steps[name].run, GraphMember(record.id, state, name, steps[name].needs, branch, place)
