"""A graph: several runs of one spec file with `steps`, some of which need others. This module has the graph's folder,
its record, and how to find it.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.errors import NoSuchRun
from launcher.ids import RunId, is_run_id, parse_run_id
from launcher.run import drafts, registry
from launcher.run.durable import read_record, readable
from launcher.run.layout import NamedFile, RunDir

_GRAPHS = "graphs"  # the name of the user's list of them


@dataclass(frozen=True, slots=True)
class GraphDir:
    """The folder <runs>/.graphs/<id>/ of a graph, beside the runs that are its steps."""

    path: Path

    record = NamedFile("graph.json")
    spec = NamedFile("spec.yaml")  # as it was submitted
    code = NamedFile("code")  # the code as it was at submit, which all steps run
    lock = NamedFile(".lock")  # held by the process that starts missing steps
    complete = NamedFile("complete")  # exists once every step was started: a run that is missing after that was removed

    @property
    def id(self) -> RunId:
        """Return the graph's id, which is the folder's name."""
        return parse_run_id(self.path.name)

    @property
    def runs(self) -> Path:
        """Return the folder that contains the runs of the graph's steps."""
        return self.path.parent.parent

    def step_spec(self, name: str) -> Path:
        """Return the path of the spec file from which the run of step `name` is submitted."""
        return self.path / "steps" / f"{name}.yaml"


class GraphStep(msgspec.Struct, frozen=True):
    """A step of a graph: its name, the names of the steps that it needs, and the id of its run.

    `on` is its cluster, None for that of the graph; `brings` are runs whose checkpoints must be copied to it before it
    starts.
    """

    name: str
    needs: tuple[str, ...]
    run: RunId
    on: str | None = None  # its cluster; None: that of the graph
    brings: tuple[RunId, ...] = ()  # runs whose checkpoints have to be copied to its cluster before it starts


class GraphRecord(msgspec.Struct, frozen=True):
    """The settings of a graph, fixed when it was submitted; each step comes after those that it needs.

    `project` is the path of the project's folder, `on` the cluster; `own_folders` are the folders of the project's own
    packages.
    """

    id: RunId  # of the graph
    project: str
    on: str
    own_folders: tuple[str, ...]
    steps: tuple[GraphStep, ...]  # each comes after those that it needs
    submitted_at: float


def graph_record(graph: GraphDir) -> GraphRecord:
    """Return the graph's record; raise NoSuchRun if it is missing, and Damaged if it cannot be decoded."""
    record = read_record(graph.record, GraphRecord)
    if record is None:
        raise NoSuchRun(f"{graph.path}: no steps are there")
    return record


def step_run(graph: RunId, step: str) -> RunId:
    """Return the run id of a step, such as `train-then-predict-7k3f-train`."""
    return parse_run_id(f"{graph}-{step}")


def register_graph(graph: GraphDir) -> None:
    """Add the graph's id, with its folder, to the user's list of graphs. Raise FileExistsError if the id is taken."""
    registry.register(graph.id, graph.path, among=_GRAPHS)


def forget_graph(graph: GraphDir) -> None:
    """Remove the graph's id from the user's list."""
    (_links() / graph.id).unlink(missing_ok=True)


def known_graphs() -> list[GraphDir]:
    """Return all graphs of this user whose folder exists."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        links = [_links() / name for name in sorted(os.listdir(_links())) if is_run_id(name)]
        return [GraphDir(path) for link in links if (path := Path(os.readlink(link))).is_dir()]
    return []


def find_graph(ref: str) -> GraphDir | None:
    """Return the graph with this id or this beginning of an id, or None if there is none.

    A beginning counts only if one graph alone has it, and no run except steps of that graph.
    """
    known = known_graphs()
    found = [one for one in known if one.id == ref] or [one for one in known if ref and one.id.startswith(ref)]
    if len(found) != 1:
        return None
    others = (run for run, _ in registry.registered() if run.startswith(ref) and not is_step_of(run, found[0]))
    return found[0] if found[0].id == ref or not any(others) else None


def is_step_of(run: str, graph: GraphDir) -> bool:
    """Return whether the run's id is the graph's id followed by a hyphen and more, as the ids of its steps are."""
    return run.startswith(f"{graph.id}-")


def graph_of_run(run: str, path: Path, known: list[GraphDir]) -> tuple[GraphRecord, GraphStep] | None:
    """Return (the record of the graph to which the run with the id `run` belongs, the run's step in it), or None if it
    belongs to none of the graphs in `known`.

    `path` is the folder of the run.
    """
    for graph in known:
        if is_step_of(run, graph) and path.parent == graph.runs:
            record = readable(graph.record, GraphRecord)
            step = next((one for one in record.steps if one.run == run), None) if record is not None else None
            if record is not None and step is not None:
                return record, step
    return None


def graph_of_step(run: str, path: Path) -> str | None:
    """Return the id of the graph to which the run with the id `run` belongs, or None if it belongs to none.

    Only names are compared and no record is read; `path` is the folder of the run.
    """
    for end in (at for at, letter in enumerate(run) if letter == "-" and is_run_id(run[:at])):
        with contextlib.suppress(OSError):
            if GraphDir(Path(os.readlink(_links() / run[:end]))).runs == path.parent:
                return run[:end]
    return None


def checkpoint_sources(run: RunDir) -> tuple[RunId, ...]:
    """Return the ids of the runs whose checkpoints must be copied to the cluster of this run before it starts; none
    unless it is a step of a graph.
    """
    found = graph_of_run(run.id, run.path, known_graphs())
    return found[1].brings if found is not None else ()


def missing_of(graph: GraphDir) -> list[GraphStep]:
    """Return the steps that have no run yet, because their submit is still active or was interrupted. Return none if
    every step was submitted once, even if runs were removed since, or if the graph's record is unreadable.
    """
    record = None if graph.complete.exists() else readable(graph.record, GraphRecord)
    return [step for step in record.steps if not (graph.runs / step.run).exists()] if record is not None else []


def remove_finished_graphs() -> None:
    """Remove each graph of this user of which every step was submitted and no run is left, because all were removed."""
    for graph in known_graphs():
        if graph.complete.exists():
            remove_empty_graph(graph)


def remove_empty_graph(graph: GraphDir) -> None:
    """Remove the graph's id and folder, unless one of the runs in its record exists. A graph without a readable record
    is removed in any case.
    """
    record = readable(graph.record, GraphRecord)
    if record is None or not any((graph.runs / step.run).exists() for step in record.steps):
        forget_graph(graph)
        drafts.remove(graph.path)


def _links() -> Path:
    """Return the folder with the user's list of graphs."""
    return registry.state_folder() / _GRAPHS
