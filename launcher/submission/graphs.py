"""Start a run for each step of a file with `steps:`, a graph. All steps are checked; a request is the checked spec of
one step with its cluster and code. Then the graph's folder is created by one rename; then each step's run is created,
which waits for those that the step needs. A run's id follows from its step's name, so that after a kill any process can
start the missing runs, once each. An override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.errors import BadInput, LaunchError, some_exist
from launcher.ids import RunId, new_run_id
from launcher.places.clusters_file import entry, merged, plugin_sections
from launcher.places.kinds import of_kind
from launcher.plan.facts import Misfit
from launcher.plan.model import Plan
from launcher.run import drafts, registry
from launcher.run.code.freezing import freeze
from launcher.run.code.listing import CodeList, list_frozen
from launcher.run.durable import make_dir, sync_dir, sync_trees, write_bytes, write_record
from launcher.run.graphs import (
    GraphDir,
    GraphRecord,
    GraphStep,
    forget_graph,
    graph_record,
    known_graphs,
    register_graph,
    remove_empty_graph,
    step_run,
)
from launcher.run.layout import GRAPHS, STORE
from launcher.run.locks import locked
from launcher.spec.fields import JOB, with_plugins
from launcher.spec.graph.reading import BEST, GraphSpec, StepSpec, place_of, read_graph
from launcher.spec.graph.references import StepOutputs
from launcher.spec.order import needed_by
from launcher.submission.opening import Opened, counted, open_named
from launcher.submission.project import ProjectCode, project_of
from launcher.submission.requests import (
    Request,
    all_or_none,
    check_on_cluster,
    plan_of,
    problem_lines,
    read_request,
    taken,
    validate,
)

_NO_FILE = "run"  # its id is known everywhere
_DISKS_HINT = "`shared: true` is of a pool whose hosts see one disk"


def refuse_unreadable_outputs(graph: GraphSpec, wishes: Mapping[str, Request]) -> None:
    """Raise BadInput with all references to other steps' outputs that the referring step could not read where it runs:
    it may run on a host that does not see the disk to which the output is written or brought.

    `wishes` has the request of each step.
    """
    needs, lines = {step.name: step.needs for step in graph.steps}, list[str]()
    for step in graph.steps:
        for other, word in sorted(step.given):
            if word == _NO_FILE:
                continue
            found = _problems(step.name, other, word, needs, wishes)
            misfits = [Misfit("run", f"${{steps.{other}.{word}}}: {why}", hint) for why, hint in found]
            lines += problem_lines(wishes[step.name].file, misfits)
    if lines:
        raise BadInput(*lines)


def steps_to_fetch(step: StepSpec, wishes: Mapping[str, Request]) -> list[str]:
    """Return the names of the steps whose checkpoints must be fetched to this machine before `step` starts, because
    those steps run on another cluster, which writes to disks of its own.

    `wishes` has the request of each step.
    """
    others = sorted({other for other, word in step.given if word != _NO_FILE})
    return [one for one in others if wishes[one].on != wishes[step.name].on and _writes_elsewhere(wishes[one])]


def _problems(
    step: str, other: str, word: str, needs: Mapping[str, tuple[str, ...]], wishes: Mapping[str, Request]
) -> Iterator[tuple[str, str]]:
    """Yield (reason, hint) if `step` could not read the files of the step `other` because they may be on disks that its
    machine does not see. `word` is the output that `step` uses: `checkpoints`, `best_checkpoint`, or `run_dir` for the
    whole folder.

    `needs` has the steps that each step needs directly, and `wishes` the request of each step.
    """
    mine, theirs = wishes[step], wishes[other]
    if mine.on == theirs.on:
        yield from _disk_problems(step, needs, wishes)
    elif mine.cluster.remote:
        hint = f"run {step} where this machine's disk is seen, or {other} on {mine.on} too"
        yield f"{mine.on} does not see this machine's disk, to which files of {theirs.on} are brought", hint
    elif word == "run_dir" and _writes_elsewhere(theirs):
        yield (
            f"of a run on {theirs.on} only checkpoints are brought here",
            f"${{steps.{other}.checkpoints}} can be given",
        )


def _disk_problems(
    step: str, needs: Mapping[str, tuple[str, ...]], wishes: Mapping[str, Request]
) -> Iterator[tuple[str, str]]:
    """Yield (reason, hint) if a step may run on another host than the one with the files that it needs, on a cluster
    whose hosts have a disk each.

    A step and the steps before it on its cluster are certain to run on one host only if each of them, the step
    included, has one node and no spares, and if just one of them needs no other step. `needs` has the steps that each
    step needs directly, and `wishes` the request of each step.
    """
    if not wishes[step].cluster.machine(wishes[step].spec).disks_apart:
        return
    there = [one for one in (step, *needed_by(step, needs)) if wishes[one].on == wishes[step].on]
    for one in there:
        spec = wishes[one].spec
        if spec.resources.nodes.max > 1 or spec.recovery.spares > 0:
            yield (
                f"hosts of {wishes[one].on} have a disk each, and {one} may be on several",
                f"give it one node and no spares, or: {_DISKS_HINT}",
            )
            return
    first = [one for one in there if not needs[one]]
    if len(first) > 1:
        yield f"{' and '.join(sorted(first))} may be on different hosts, which have a disk each", _DISKS_HINT


def _writes_elsewhere(wish: Request) -> bool:
    """Return whether ranks of the run write to the disks of other machines, because its cluster is `remote`."""
    return wish.cluster.remote


@dataclass(frozen=True, slots=True)
class _Checked:
    """A graph whose steps were all checked and can run. `id` is a free id for it, `on` the cluster of steps that name
    none, `runs` the folder of runs, and `wishes` the request of each step.
    """

    graph: GraphSpec
    id: RunId
    on: str  # the cluster of steps that name none
    runs: Path
    wishes: Mapping[str, Request]  # by step; their specs do not wait for each other yet


def graph_in(file: Path, overrides: Sequence[str]) -> GraphSpec:
    """Return the graph in a file, with `overrides`; raise BadInput with all problems.

    Plug-ins, which may define sections of a spec, are loaded only if the file cannot be read without them.
    """
    try:
        return read_graph(file, overrides)
    except BadInput:
        job = with_plugins(plugin_sections())
        if job == JOB:
            raise
        return read_graph(file, overrides, job)


def open_graph(file: Path, *, on: str, overrides: tuple[str, ...], root: Path | None = None) -> GraphDir:
    """Start a run of each step, and return the graph's folder; raise BadInput with all problems before anything is
    started.

    Steps that name no cluster run on `on`. The project is `root`, or by default that of the file.
    """
    with _checked(file, on, overrides, root) as checked:
        graph = _write(file, checked)
    try:
        start_missing(graph)
    except BaseException:
        remove_empty_graph(graph)
        raise
    return graph


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan and the code of a step, whose run starts once the steps that it `needs` have succeeded."""

    name: str
    needs: tuple[str, ...]  # names of other steps
    plan: Plan
    code: CodeList  # the files that are frozen for its run


def prepare_steps(file: Path, *, on: str, overrides: tuple[str, ...]) -> list[StepPlan]:
    """Return the plan of each step, in order; nothing is started or written.

    Steps that name no cluster are planned for `on`.
    """
    with _checked(file, on, overrides, None) as checked:
        return [_step_plan(checked, step) for step in checked.graph.steps]


def _step_plan(checked: _Checked, step: StepSpec) -> StepPlan:
    """Return the plan and code of a checked step."""
    run, wish = step_run(checked.id, step.name), checked.wishes[step.name]
    return StepPlan(step.name, step.needs, plan_of(wish, run, checked.runs / run, time.time()), wish.code)


def validate_steps(file: Path, overrides: tuple[str, ...]) -> None:
    """Check everything in a file of steps that does not depend on a cluster; raise BadInput with all problems."""
    root, problems = project_of(file), list[str]()
    with _step_files(graph_in(file, overrides), file, root, None) as (_, files):
        for one in files.values():
            try:
                validate(one, (), root)
            except BadInput as error:
                problems += error.lines
        if problems:
            raise BadInput(*problems)


def start_missing(graph: GraphDir) -> list[RunId]:
    """Start a run of each step that has none, and return the ids of all steps' runs, also of those that were started
    before. After an error it can be called again.

    If an earlier call was completed, nothing is left to start: do nothing, and return an empty list.
    """
    record, started = graph_record(graph), list[tuple[RunId, Path]]()
    with locked(graph.lock, wait=True):
        if graph.complete.exists():
            return []
        code = ProjectCode(list_frozen(graph.code), record.own_folders, ())
        for step in record.steps:
            path = graph.runs / step.run
            if not path.is_dir():
                _start(graph, record, step, code, started)
            started.append((step.run, path))
        write_bytes(graph.complete, b"")
    return [run for run, _ in started]


def _start(graph: GraphDir, record: GraphRecord, step: GraphStep, code: ProjectCode, before: Opened) -> None:
    """Start the run of a step, with the graph's frozen `code`. Raise Refused if its id is in use, and the error that
    prevents the start otherwise.

    `before` are runs of the graph that were started before it: if there are any, the error names them and how to go on.
    """
    file, root = graph.step_spec(step.name), Path(record.project)
    try:
        wish = read_request(file, on=step.on or record.on, overrides=(), root=root, frozen=code)
        open_named(step.run, check_on_cluster(replace(wish, deferred=bool(step.brings))))
    except (LaunchError, OSError) as error:
        told = some_exist(error, tuple((run, str(path)) for run, path in before), len(record.steps))
        if not told.runs:
            raise
        more = f"hint: launch resume {graph.id} starts the others, launch cancel {graph.id} ends what there is"
        told.lines = (f"{step.name}: {told.lines[0]}", *told.lines[1:], more)
        raise told from error


@contextmanager
def _checked(file: Path, on: str, overrides: tuple[str, ...], root: Path | None) -> Iterator[_Checked]:
    """Yield the graph in `file` with a checked request for each step; the requests' temporary files are deleted on
    exit.

    Steps that name no cluster run on `on`. The project is `root`, or by default that of the file. Raise BadInput with
    all problems.
    """
    graph = graph_in(file, overrides)
    root = project_of(file) if root is None else root
    with _step_files(graph, file, root, on) as (graph_id, files):
        places = {step.name: step.on or on for step in graph.steps}
        seen = [read_request(one, on=places[name], overrides=(), root=root) for name, one in files.items()]
        wishes = all_or_none([partial(replace, one) for one in seen])
        named = dict(zip(files, wishes, strict=True))
        refuse_unreadable_outputs(graph, named)
        yield _Checked(graph, graph_id, on, registry.runs_root(root), named)


@contextmanager
def _step_files(graph: GraphSpec, file: Path, root: Path, on: str | None) -> Iterator[tuple[RunId, dict[str, Path]]]:
    """Write each step's spec to a temporary file, and yield (an id for the graph that no graph or run has yet, {step:
    its file}); delete the files at the end of the context.

    If a BadInput about these files is raised in the context, its line numbers are changed to those in `file`, the
    graph's, and it passes on. `root` is the project, and `on` the cluster of steps that name none, or None if it is not
    known.
    """
    runs = registry.runs_root(root)
    graph_id = new_run_id(graph.name, partial(_is_taken, graph, runs))
    places = _places(graph, on, runs)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        files = {step.name: Path(folder, f"{step.name}.yaml") for step in graph.steps}
        for step in graph.steps:
            files[step.name].write_text(graph.text_of(step, places.outputs(graph, graph_id, step), ()))
        try:
            yield graph_id, files
        except BadInput as error:
            error.lines = tuple(dict.fromkeys(_in_whole_file(file, files, line) for line in error.lines))
            raise


def _is_taken(graph: GraphSpec, runs: Path, one: RunId) -> bool:
    """Return whether `one`, an id for the graph, or the id that one of its steps' runs would then have, is in use."""
    names = [one, *(step_run(one, step.name) for step in graph.steps)]
    return any(known.id == one for known in known_graphs()) or any(map(taken(runs), names))


@dataclass(frozen=True, slots=True)
class _Places:
    """The places where the runs of a graph's steps are stored: `here` is the folder of runs on this machine, `on` the
    cluster of each step (None: not known), and `far` the folder of runs on each cluster that stores them on its own
    disks.
    """

    here: Path
    on: Mapping[str, str | None]  # the cluster of each step; None: not known
    far: Mapping[str, str]  # by cluster, for those that store runs on their own disks

    def outputs(self, graph: GraphSpec, graph_id: RunId, given_to: StepSpec) -> dict[str, StepOutputs]:
        """Return {step: its outputs}, the run's id and the paths of its folder and checkpoints, as the step `given_to`
        sees them.

        The paths of steps on the cluster of `given_to` are those on that cluster, the paths of all others those on this
        machine.
        """
        found, on = {}, self.on[given_to.name]
        for step in graph.steps:
            run = step_run(graph_id, step.name)
            there = self.far.get(on or "") if self.on[step.name] == on else None
            folder = f"{there or self.here}/{run}"
            checkpoints = f"{folder}/{step.spec.checkpoint.dir}"
            found[step.name] = StepOutputs(run, folder, checkpoints, f"{checkpoints}/{BEST}")
        return found


def _places(graph: GraphSpec, on: str | None, here: Path) -> _Places:
    """Return where the runs of the graph's steps are stored: in `here`, the folder of runs on this machine, or on their
    cluster if it stores runs on its own disks.

    `on` is the cluster of steps that name none. If it is None, such a step has no known cluster, and its run counts as
    stored in `here`. A cluster is queried only if a step on it uses another step's outputs.
    """
    named, far = {step.name: step.on or on for step in graph.steps}, dict[str, str]()
    for step in graph.steps:
        name = named[step.name]
        if name is None or name in far or not step.given:
            continue
        place = entry(name)
        cluster = of_kind(place.kind)
        if cluster.remote:
            far[name] = cluster.runs_folder(merged(place, step.spec))
    return _Places(here, named, far)


def _in_whole_file(file: Path, steps: Mapping[str, Path], line: str) -> str:
    """Return the error message `line` with the user's file, `file`, in place of the temporary file that has one step.

    `steps` has these temporary files by step. If the message names a line and column, they become those in `file`.
    """
    for name, path in steps.items():
        if found := re.match(rf"{re.escape(str(path))}:\d+:\d+: ([\w.-]+): ", line):
            row, column, key = place_of(file.read_text(), name, found[1])
            return f"{file}:{row}:{column}: {key}: {line[found.end() :]}"
        line = line.replace(str(path), f"{file}: {name}")
    return line


def _step_of(checked: _Checked, step: StepSpec, graph_id: RunId) -> GraphStep:
    """Return what the record of the graph with the id `graph_id` has about a step: its run's id, the steps that it
    needs, its cluster, and the runs whose checkpoints are copied to it.
    """
    brings = tuple(step_run(graph_id, other) for other in steps_to_fetch(step, checked.wishes))
    return GraphStep(step.name, step.needs, step_run(graph_id, step.name), step.on, brings)


def _write(file: Path, checked: _Checked) -> GraphDir:
    """Write the folder of the graph that was read from `file`, with the frozen code and each step's spec: under a
    temporary name, then rename and return it. After an error nothing is left of it.
    """
    graph, first = checked.graph, next(iter(checked.wishes.values()))
    runs = registry.runs_root(Path(first.project.path), create=True)
    folder = runs / GRAPHS
    make_dir(folder)
    drafts.remove_orphans(folder)
    made, draft = GraphDir(folder / checked.id), GraphDir(drafts.new_draft(folder))
    steps = tuple(_step_of(checked, step, made.id) for step in graph.steps)
    record = GraphRecord(made.id, first.project.path, checked.on, first.project.own_folders, steps, time.time())
    try:
        make_dir(draft.path)
        make_dir(draft.step_spec("").parent)
        freeze(first.code, runs / STORE, draft.code, fsync=False, watch=counted)
        write_bytes(draft.spec, file.read_bytes(), fsync=False)
        places = _places(graph, checked.on, runs)
        for step in graph.steps:
            outputs = places.outputs(graph, made.id, step)
            text = graph.text_of(step, outputs, [step_run(made.id, one) for one in step.needs])
            write_bytes(draft.step_spec(step.name), text.encode(), fsync=False)
        write_record(draft.record, record, fsync=False)
        sync_trees(folder, [draft.path])
        register_graph(made)
        os.rename(draft.path, made.path)
        sync_dir(folder)
    except BaseException:
        if not made.path.exists():
            forget_graph(made)
        drafts.remove(draft.path)
        raise
    return made
