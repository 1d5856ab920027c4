"""Find which runs of a table are steps of one file, and where each stands in its tree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.apps.graph import StepStatus, state_of
from launcher.cli.graphs.tree import branches
from launcher.run.durable import readable
from launcher.run.graphs import GraphRecord, known_graphs
from launcher.states import State
from launcher.status.derive import RunStatus


@dataclass(frozen=True, slots=True)
class GraphMember:
    """A step's place in its graph, and the state of the whole graph."""

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
