"""Read a file with `steps:`, several jobs of which some need others, as one spec for each step. All problems are
reported at once. A step's spec is the options common to all, overridden by its own. `root` is the tree of the whole
file, `own` the options that a step sets itself, `job` the table of a spec's options, and `overrides` are texts such as
`resources.nodes=2`.
"""

import json
import re
from collections.abc import Iterator
from collections.abc import Mapping as Values
from collections.abc import Sequence as Texts
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from launcher.errors import BadInput
from launcher.spec import overrides as command_line
from launcher.spec.fields import JOB, step_section
from launcher.spec.graph.references import StepOutputs, check_reference, filled_in
from launcher.spec.kinds.sections import Section
from launcher.spec.kinds.steps import NEEDS_KEY, ON, ON_KEY
from launcher.spec.merging import merged
from launcher.spec.model import JobSpec
from launcher.spec.order import circle, in_order, needed_by
from launcher.spec.problems import Gather, Problem, Wrong, lines_of, printable, shown
from launcher.spec.read import elsewhere_of, position, steps_of
from launcher.spec.tree import FROM_COMMAND_LINE, Entry, Mapping, Mark, Node, Scalar, Sequence
from launcher.spec.yaml_reader import read_tree
from launcher.spec.yaml_text import read_text

_KEY = re.compile(r"(?i)(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z_][a-z0-9_-]*")
_INDENT = "  "

BEST = "best"  # in a folder of checkpoints: the name that the trainer takes for the best one
_JOB_NAME = 63
_STAND_IN = "/of-another-step"  # for what is known once there are runs


class StepSpec(Struct, frozen=True):
    """A step as it is written. `tree` still has its references to other steps, `spec` has placeholders for them;
    `needs` are the steps that must have succeeded, `on` is its own cluster or None, and `given` has (step, output) for
    each reference.
    """

    name: str
    needs: tuple[str, ...]
    tree: Mapping
    spec: JobSpec  # with placeholders for references
    on: str | None = None  # its own cluster, or None
    given: frozenset[tuple[str, str]] = frozenset()  # (step, output) of each reference


class GraphSpec(Struct, frozen=True):
    """Several jobs as steps, each of which runs after the steps that it needs."""

    name: str
    steps: tuple[StepSpec, ...]

    def text_of(self, step: StepSpec, outputs: Values[str, StepOutputs], after: Texts[str]) -> str:
        """Return the YAML spec of this step's run. References in the spec are filled in from `outputs`, the outputs of
        other steps by their names, and the run waits for the runs whose ids are in `after`.
        """
        tree = filled_in(step.tree, lambda reference, _: _output(outputs, reference))
        return block_text(_with_awaited_runs(tree, after))


def is_graph(path: Path) -> bool:
    """Return whether the file has steps.

    Return False for a file that cannot be read: the reader of a single job then reports the error.
    """
    try:
        return steps_of(read_tree(read_text(path, str(path))).root) is not None
    except (BadInput, Wrong):
        return False


def read_graph(path: Path, overrides: Texts[str] = (), job: Section = JOB) -> GraphSpec:
    """Return the graph of steps in the file, with the overrides applied; raise BadInput with all problems."""
    file = printable(str(path))
    try:
        return _parsed(read_text(path, file), overrides, job)
    except Wrong as error:
        raise BadInput(*lines_of(dict.fromkeys(error.problems), file, elsewhere_of)) from None


def place_of(text: str, step: str, key: str) -> tuple[int, int, str]:
    """Return (line, column, full key) at which the option `key` of a step, such as run.script, is written in `text`,
    the whole file: in the step, else beside `steps`.

    For `queue.after`, if it is not written, the position is that of the step's `needs`.
    """
    root = read_tree(text).root
    whole = root if isinstance(root, Mapping) else Mapping({}, Mark(1, 1))
    own = _own(whole, step)
    said = any(tree.find("queue", "after") is not None for tree in (whole, own))
    if key.startswith("queue.after") and NEEDS_KEY in own.entries and not said:
        key = NEEDS_KEY
    names = key.split(".")
    if names[0] in own.entries and (own.find(*names) is not None or whole.find(*names) is None):
        key = f"steps.{step}.{key}"
    return *position(text, key), key


def _parsed(text: str, overrides: Texts[str], job: Section) -> GraphSpec:
    """Return the graph of steps in the text, with the overrides applied; raise Wrong with all problems."""
    read = read_tree(text)
    root = read.root if isinstance(read.root, Mapping) else Mapping({}, Mark(1, 1))
    problems = [*read.problems, *command_line.apply(root, overrides, job)]
    if problems or "steps" not in root.entries:
        raise Wrong(*problems)
    gather = Gather()
    name = gather.take("name", job.by_key["name"].kind.parse, _name_of(root))
    steps = gather.take("steps", job.by_key["steps"].kind.parse, root.entries["steps"].value)
    gather.close()
    if name is None or steps is None:
        raise Wrong(*gather.problems)
    _check_needs(gather, root, steps)
    gather.close()
    found = {one: gather.take(one, partial(_step, root, job, steps, one), root) for one in steps}
    if gather.problems:
        raise Wrong(*(_with_full_key(root, problem) for problem in gather.problems))
    return GraphSpec(name, tuple(step for one in in_order(steps) if (step := found[one]) is not None))


def _name_of(root: Mapping) -> Node:
    """Return the node with the graph's name, or an empty scalar, which is then reported, if there is none."""
    entry = root.entries.get("name")
    return entry.value if entry is not None else Scalar("", True, root.mark)


def _check_needs(gather: Gather, root: Mapping, steps: Values[str, tuple[str, ...]]) -> None:
    """Add a problem for each needed step that does not exist, and for steps that need each other in a cycle; `steps`
    has what each step needs.
    """
    for name, needs in steps.items():
        for other in needs:
            if other not in steps:
                key = ("steps", name, NEEDS_KEY)
                said = f"no step {shown(other)}"
                gather.add(Problem(_mark(root, *key), said, key=key, word=other, options=tuple(steps)))
    if around := circle(steps):
        told = ", ".join(f"{one} needs {other}" for one, other in zip(around, [*around[1:], around[0]], strict=True))
        key = ("steps", around[0], NEEDS_KEY)
        gather.add(Problem(_mark(root, *key), f"none of these could ever start: {told}", key=key))


def _step(root: Mapping, job: Section, steps: Values[str, tuple[str, ...]], name: str, _: Node) -> StepSpec:
    """Return the step `name`. Raise Wrong with its problems, whose keys begin within the step, such as run.script
    instead of steps.NAME.run.script.

    `steps` has for each step the names of the steps that it needs. The last argument is not used.
    """
    needed, given = needed_by(name, steps), set[tuple[str, str]]()
    gather = Gather()
    own = _own(root, name)
    gather.take("", partial(_refuse_foreign_options, job), own)
    on: str | None = gather.take(ON_KEY, ON.parse, own.entries[ON_KEY].value) if ON_KEY in own.entries else None

    def give(reference: str, mark: Mark) -> str:
        """Return a placeholder for the reference after checking it, and record that the step uses it."""
        check_reference(reference, mark, name, steps, needed)
        other, _, word = reference.partition(".")
        given.add((other, word))
        return _STAND_IN

    tree = _merged_options(root, name)
    filled = gather.take("", partial(filled_in, give=give), tree)
    if filled is None or gather.problems:
        raise Wrong(*(replace(problem, key=problem.key[1:]) for problem in gather.problems))
    spec: JobSpec = job.parse(filled)
    for key, said in (
        (("sweep",), spec.sweep),
        (("roles",), spec.roles or None),
        (("queue", "max_parallel"), spec.queue.max_parallel),
    ):
        if said is not None:
            raise Wrong(Problem(_mark(tree, *key), "does not go with steps", "`needs` is what orders them", key))
    return StepSpec(name, steps[name], tree, spec, on, frozenset(given))


def _refuse_foreign_options(job: Section, own: Mapping) -> None:
    """Raise Wrong for keys of a step's options `own` that a step cannot have: options that belong beside `steps`, and
    unknown ones.
    """
    allowed, gather = step_section(job), Gather()
    for key in (entry.key for entry in own if entry.key.text not in allowed.by_key):
        above = Problem(key.mark, "is of all steps", f"write {key.text} beside `steps`", (key.text,))
        gather.add(above if key.text in job.by_key else allowed.unknown(key))
    gather.close()


def _merged_options(root: Mapping, name: str) -> Mapping:
    """Return the options of the run of the step `name`: those beside `steps`, overridden by the step's own. The run's
    name is the graph's name and the step's, joined by `-`.
    """
    called = root.entries["name"]
    text = called.value.text if isinstance(called.value, Scalar) else ""
    common = {key: entry for key, entry in root.entries.items() if key != "steps"}
    common["name"] = Entry(called.key, Scalar(f"{text}-{name}"[:_JOB_NAME], False, called.value.mark))
    own = {key: entry for key, entry in _own(root, name).entries.items() if key not in (NEEDS_KEY, ON_KEY)}
    return merged(Mapping(common, root.mark), Mapping(own, _own(root, name).mark))


def _own(root: Mapping, name: str) -> Mapping:
    """Return the options that are written in the step `name`, without those beside `steps`."""
    entry = root.find("steps", name)
    return entry.value if entry is not None and isinstance(entry.value, Mapping) else Mapping({}, root.mark)


def _with_full_key(root: Mapping, problem: Problem) -> Problem:
    """Return the problem with its key as the user wrote it. `train.run.script` becomes `steps.train.run.script`, or
    `run.script` if the option is beside `steps` and not in the step.
    """
    name, *key = problem.key
    above = bool(key) and str(key[0]) in root.entries and str(key[0]) not in _own(root, str(name)).entries
    return replace(problem, key=tuple(key) if above else ("steps", name, *key))


def _mark(root: Mapping, *key: str) -> Mark:
    """Return the position of the value at these keys, or of the whole file if there is none."""
    entry = root.find(*key)
    return entry.value.mark if entry is not None else root.mark


def _output(outputs: Values[str, StepOutputs], reference: str) -> str:
    """Return the output that a reference such as `train.run_dir` names, here the path of the folder of step `train`'s
    run. `outputs` has the outputs of each step by the step's name.
    """
    step, _, word = reference.partition(".")
    return str(getattr(outputs[step], word))


def _with_awaited_runs(tree: Mapping, after: Texts[str]) -> Mapping:
    """Return the spec with the run ids `after` appended to its queue.after."""
    if not after:
        return tree
    queue = tree.entries.get("queue")
    said = queue.value if queue is not None and isinstance(queue.value, Mapping) else Mapping({}, FROM_COMMAND_LINE)
    there = said.entries.get("after")
    before = [] if there is None else there.value.items if isinstance(there.value, Sequence) else [there.value]
    runs = [Scalar(run, False, FROM_COMMAND_LINE) for run in after]
    waits = Sequence(
        [*(one for one in before if not (isinstance(one, Scalar) and one.is_null)), *runs], FROM_COMMAND_LINE
    )
    more = Mapping({**said.entries, "after": Entry(_key("after"), waits)}, said.mark)
    return Mapping({**tree.entries, "queue": Entry(_key("queue"), more)}, tree.mark)


def _key(text: str) -> Scalar:
    """Return `text` as the key of a mapping that the launcher builds itself; it has no position in the file."""
    return Scalar(text, True, FROM_COMMAND_LINE)


def block_text(tree: Mapping) -> str:
    """Return the tree as YAML text in block style."""
    return "".join(f"{line}\n" for line in _lines(tree))


def _lines(node: Node) -> Iterator[str]:
    """Yield the lines of YAML for a mapping or a sequence of the tree, without indentation."""
    if isinstance(node, Mapping):
        for entry in node:
            yield from _lines_after(f"{_key_text(entry.key.text)}:", entry.value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _lines_after("-", item)


def _lines_after(head: str, node: Node) -> Iterator[str]:
    """Yield the lines of YAML for a node; the first begins with `head`, a key or a dash."""
    if isinstance(node, Scalar):
        yield f"{head} {_scalar(node)}".rstrip()
    elif isinstance(node, Sequence) and not node.items:
        yield f"{head} []"
    elif isinstance(node, Mapping) and not node.entries:
        yield f"{head} {{}}"
    else:
        yield head
        yield from (f"{_INDENT}{line}" for line in _lines(node))


def _scalar(node: Scalar) -> str:
    """Return a value as YAML. A value that was quoted in the file is quoted again, because the quotes distinguish text
    from numbers.
    """
    return node.text if node.plain and "\n" not in node.text else json.dumps(node.text, ensure_ascii=False)


def _key_text(text: str) -> str:
    """Return a key as YAML, quoted unless it is a plain name."""
    return text if _KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
