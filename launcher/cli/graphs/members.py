"""Find the runs of one file with `steps:` by a word of the command line or in a table, and where each stands in it."""

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
    """Return the graph that the word names, or None if it names a run or nothing."""
    found = find_graph(ref) if ref is not None else None
    return Graph(found.id, found.path) if found is not None else None


def runs_called(ref: str) -> list[api.Run]:
    """Return the run that the word names, or the runs of all steps of a graph in order."""
    graph = graph_called(ref)
    return [api.run(ref)] if graph is None else graph.runs()


def refuse_missing(graph: Graph) -> None:
    """Raise Refused if a step has no run yet, because a wait for all runs could then not end."""
    missing = [step.name for step in graph.steps(api.WATCH_S) if step.status is None]
    if missing:
        text = f"{graph.id}: there is no run of {', '.join(missing)}"
        raise Refused(text, f"hint: launch resume {graph.id}, if nobody is about to start it")


@dataclass(frozen=True, slots=True)
class GraphMember:
    """The place of a step in its graph, and the state of the whole graph."""

    graph: str
    state: State  # of all its steps
    step: str
    needs: tuple[str, ...]
    branch: str  # what is drawn in front of it
    place: int  # in the tree


def members(statuses: Sequence[RunStatus]) -> dict[str, GraphMember]:
    """Return the place in its graph of each run that is a step, by the run's id."""
    graphs = [record for one in known_graphs() if (record := readable(one.record, GraphRecord)) is not None]
    found = {status.run: status for status in statuses} if graphs else {}
    return {run: member for record in graphs for run, member in _members_of(record, found)}


def _members_of(record: GraphRecord, found: Mapping[str, RunStatus]) -> Iterator[tuple[str, GraphMember]]:
    """Yield the place of each step of one graph, by its run's id."""
    steps = {one.name: StepStatus(one.name, one.needs, one.run, found.get(one.run)) for one in record.steps}
    state = state_of([*steps.values()])
    for place, (name, branch) in enumerate(branches({one.name: one.needs for one in record.steps}).items()):
        yield steps[name].run, GraphMember(record.id, state, name, steps[name].needs, branch, place)
