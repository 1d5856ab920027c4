"""Read a spec from its file, apply the overrides of the command line, and report all problems at once."""

from collections.abc import Sequence
from pathlib import Path

from launcher.errors import BadInput
from launcher.spec import overrides as command_line
from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Section
from launcher.spec.model import JobSpec
from launcher.spec.problems import Problem, Wrong, lines_of, printable
from launcher.spec.roles import has_roles, parse_roles
from launcher.spec.tree import Mapping, Mark, Node, Scalar
from launcher.spec.yaml_reader import read_tree
from launcher.spec.yaml_text import read_text


def read_spec(path: Path, overrides: Sequence[str] = (), job: Section = JOB) -> JobSpec:
    """Return the spec in the file with the overrides applied; raise BadInput with every problem.

    `overrides` are texts such as `resources.nodes=2`, and `job` is the table of options.
    """
    file = printable(str(path))
    try:
        text = read_text(path, file)
    except Wrong as error:
        raise BadInput(*lines_of(error.problems, file, elsewhere_of)) from None
    return parse_spec(text, file, overrides, job)


def parse_spec(text: str, file: str, overrides: Sequence[str] = (), job: Section = JOB) -> JobSpec:
    """Return the spec in the text with the overrides applied; raise BadInput with every problem.

    `file` is the name that messages give the text, and `job` the table of options.
    """
    read = read_tree(text)
    problems = list(read.problems)
    root = read.root if isinstance(read.root, Mapping) else Mapping({}, Mark(1, 1))
    problems += command_line.apply(root, overrides, job)
    if steps_of(root) is not None:
        hint = "`launch submit` starts them, and `launch spec validate` looks at them"
        mark = root.entries["steps"].key.mark
        said = Problem(mark, "several jobs, where a single one is expected", hint, ("steps",))
        raise BadInput(*lines_of([said], printable(file), elsewhere_of))
    try:
        if read.root is not None:
            whole = root if isinstance(read.root, Mapping) else read.root
            spec: JobSpec = parse_roles(root, job) if has_roles(whole) else job.parse(whole)
        elif not problems:
            hint = "`launch spec init` writes one to start from"
            problems.append(Problem(Mark(1, 1), "the file is empty", hint, ("yaml",)))
    except Wrong as error:
        problems += error.problems
    problems += command_line.problems_of_space(root, job)
    if problems:
        raise BadInput(*lines_of(problems, printable(file), elsewhere_of))
    return spec


def steps_of(root: Node | None) -> Node | None:
    """Return the value of `steps` in the tree, or None for the spec of a single job."""
    entry = root.entries.get("steps") if isinstance(root, Mapping) else None
    return None if entry is None or (isinstance(entry.value, Scalar) and entry.value.is_null) else entry.value


def position(text: str, key: str) -> tuple[int, int]:
    """Return (line, column), both from 1, of the option at a key path such as run.script in the spec's `text`.

    If it is not written, the position is that of the innermost section which would contain it.
    """
    node = read_tree(text).root
    line, column = 1, 1
    for name in key.split("."):
        entry = node.entries.get(name) if isinstance(node, Mapping) else None
        if entry is None:
            break
        node = entry.value
        mark = node.mark if isinstance(node, Scalar) else entry.key.mark
        line, column = mark.line, mark.column
    return line, column


def written_at(text: str, overrides: Sequence[str], key: str) -> Scalar | None:
    """Return the scalar that is written at a key such as run.args.model, in the file or an override.

    Return None if it is not written, or is no scalar. The spec must be readable.
    """
    root = read_tree(text).root
    if not isinstance(root, Mapping):
        return None
    command_line.apply(root, overrides)
    entry = root.find(*command_line.keys_of(key))
    return entry.value if entry is not None and isinstance(entry.value, Scalar) else None


# What the same thing is called by other launchers.
_KNOWN_AS = {
    "nnodes": "resources.nodes", "num_nodes": "resources.nodes", "nproc_per_node": "resources.ranks_per_node",
    "ntasks_per_node": "resources.ranks_per_node", "gpus": "resources.gpus_per_node", "gpu": "resources.gpus_per_node",
    "cpus": "resources.cpus_per_rank", "cpus_per_task": "resources.cpus_per_rank", "mem": "resources.memory_gb",
    "memory": "resources.memory_gb", "timeout": "resources.time", "timeout_min": "resources.time",
    "walltime": "resources.time", "max_restarts": "recovery.killed", "max_retries": "recovery.killed",
    "environment": "env", "envs": "env", "cmd": "run.command", "entrypoint": "run.command", "cwd": "run.workdir",
    "working_dir": "run.workdir", "arguments": "run.args", "venv": "run.python",
}  # fmt: skip


def elsewhere_of(word: str) -> str:
    """Return a hint about `word`, a key that was written where it is not known: where it belongs, if it is a key of a
    section or of the top level, or the option that another launcher calls so. Return "" if it is neither.
    """
    if word in _KNOWN_AS:
        return f"did you mean {_KNOWN_AS[word]}?"
    for field in JOB.options:
        if isinstance(field.kind, Section) and word in field.kind.by_key:
            return f"did you mean {field.key}.{word}?"
    return f"{word} belongs at the top level" if word in JOB.by_key else ""
