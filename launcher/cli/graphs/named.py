"""Find what a word on the command line names: one run, or all runs of a file with `steps:`."""

from launcher import api
from launcher.apps.graph import Graph
from launcher.errors import Refused
from launcher.run.graphs import find_graph


def graph_called(ref: str | None) -> Graph | None:
    """Return the graph of this name, or None if the word names a run or nothing."""
    found = find_graph(ref) if ref is not None else None
    return Graph(found.id, found.path) if found is not None else None


def runs_called(ref: str) -> list[api.Run]:
    """Return the run of this name, or the runs of all steps of a graph in order."""
    graph = graph_called(ref)
    return [api.run(ref)] if graph is None else graph.runs()


def refuse_missing(graph: Graph) -> None:
    """Raise Refused if a step has no run, because a wait for all of them could not end."""
    missing = [step.name for step in graph.steps(api.WATCH_S) if step.status is None]
    if missing:
        text = f"{graph.id}: there is no run of {', '.join(missing)}"
        raise Refused(text, f"hint: launch resume {graph.id}, if nobody is about to start it")
