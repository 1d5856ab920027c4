"""Apply `--set a.b=value` to a spec's tree before it is read, so that a value means the same in the file and on the
command line. `run.args.lr=0.1` adds an argument, `run.args+=x` appends one, and `null` removes an option from the file.
`root` is the spec's tree, `job` the table of its options. A step is (key, kind of the value), one for each key of an
option's path.

`run.args.lr=0.1` adds one more key if args is a mapping, and `--lr 0.1` at the end if it is a list. The value of
`run.args+=` may be a list of several items. An option that `null` removes has its default.
"""

from collections.abc import Sequence as Texts

from msgspec.structs import replace

from launcher.spec.fields import JOB, role_section, step_section
from launcher.spec.kinds.groups import ArgsTable, ByShape, ListOf, TableOf, option_words
from launcher.spec.kinds.leaf import Kind
from launcher.spec.kinds.roles import RolesTable
from launcher.spec.kinds.sections import Section, Shorthand
from launcher.spec.kinds.steps import StepsTable
from launcher.spec.problems import Gather, Problem, Wrong, shown, wrong
from launcher.spec.tree import FROM_COMMAND_LINE, Entry, Mapping, Node, Scalar, Sequence
from launcher.spec.yaml_reader import read_tree

Step = tuple[str, Kind | None]  # a key, and the kind of what stands there; None where the keys are the user's


def apply(root: Mapping, overrides: Texts[str], job: Section = JOB) -> list[Problem]:
    """Change the tree by every override, in place, and return a problem for each that cannot be applied."""
    gather = Gather()
    for text in overrides:
        try:
            _apply(root, text, job)
        except Wrong as error:
            gather.blame(error)
    return gather.problems


def keys_of(path: str) -> list[str]:
    """Return the keys from the root to the option at `path`, a path as `--set` takes it; raise Wrong if there is no
    such option.
    """
    return [key for key, _ in _steps(path, JOB)]


def problems_of_space(root: Mapping, job: Section) -> list[Problem]:
    """Return a problem for each key in `sweep.space` that `--set` would refuse."""
    gather = Gather()
    space = root.find("sweep", "space")
    for entry in space.value if space is not None and isinstance(space.value, Mapping) else ():
        try:
            _steps(entry.key.text, job)
        except Wrong as error:
            named = ("sweep", "space", entry.key.text)
            gather.problems += [replace(one, mark=entry.key.mark, key=named) for one in error.problems]
    return gather.problems


def _apply(root: Mapping, text: str, job: Section) -> None:
    """Apply one override, such as `resources.nodes=2`, to the tree; raise Wrong if that is impossible."""
    path, equals, value = text.partition("=")
    adds, path = path.endswith("+"), path.removesuffix("+")
    if not equals or not path:
        reason = f"expected KEY=VALUE, got {shown(text)}"
        key = tuple(path.split(".")) if path else ()
        raise Wrong(Problem(FROM_COMMAND_LINE, reason, "for example resources.nodes=2", key))
    steps = _steps(path, job)
    try:
        _write(root, steps, _value(value), adds=adds)
    except Wrong as error:
        keys = tuple(key for key, _ in steps)
        raise Wrong(*(replace(problem, key=keys) for problem in error.problems)) from None


def _value(text: str) -> Node:
    """Return the node for a value given to `--set`; raise Wrong if it is not valid YAML."""
    read = read_tree(text, at=FROM_COMMAND_LINE)
    if read.problems:
        raise Wrong(*read.problems)
    return read.root or Scalar("", True, FROM_COMMAND_LINE)


def _steps(path: str, job: Section) -> list[Step]:
    """Return (key, the kind of its value) for each key of the path; raise Wrong for one that is not in the table of
    options.

    Below a key that users choose, as in env, the rest of the path is one key with the kind None.
    """
    steps: list[Step] = []
    kind: Kind = job
    rest = path
    while rest:
        section = kind.section if isinstance(kind, Shorthand) else kind
        if isinstance(section, StepsTable | RolesTable):
            name, _, rest = rest.partition(".")
            kind = step_section(job) if isinstance(section, StepsTable) else role_section(job)
            steps.append((name, kind))
            continue
        if not isinstance(section, Section):
            if isinstance(kind, TableOf) or (isinstance(kind, ByShape) and isinstance(kind.mapping, ArgsTable)):
                return [*steps, (rest, None)]
            raise Wrong(Problem(FROM_COMMAND_LINE, f"{steps[-1][0]} has no options of its own", key=_keys(steps, rest)))
        key, _, below = rest.partition(".")
        field = section.by_key.get(key)
        if field is None:
            problem = section.unknown(Scalar(key, True, FROM_COMMAND_LINE))
            raise Wrong(replace(problem, key=_keys(steps, rest)))
        rest = below
        kind = field.kind
        steps.append((key, kind))
    return steps


def _keys(steps: list[Step], last: str) -> tuple[str, ...]:
    """Return the path of keys for a problem: the keys of `steps`, then the parts of `last` between its dots."""
    return (*(key for key, _ in steps), *last.split("."))


def _write(root: Mapping, steps: list[Step], value: Node, *, adds: bool) -> None:
    """Set the option at `steps` to a value or, with `adds`, add the value to the present one; raise Wrong if it does
    not fit. Do nothing if a key above the option has a value of another shape, because reading the spec reports that.
    """
    node = root
    for key, kind in steps[:-1]:
        below = _below(node, key, kind)
        if isinstance(below, Sequence):
            return _append(below, _key(steps[-1][0]), value)
        if below is None:
            return None  # what is in the file there is a problem of its own
        node = below
    key, kind = steps[-1]
    if adds:
        value = _with_added(node.entries.get(key), kind, value)
    if isinstance(value, Scalar) and value.plain and value.text == "null":
        node.entries.pop(key, None)
    else:
        node.entries[key] = Entry(_key(key), value)
    return None


def _below(node: Mapping, key: str, kind: Kind | None) -> Mapping | Sequence | None:
    """Return the mapping or list at `key` of `node`, into which an option is to be written. If nothing is there, create
    a mapping; a section that was abbreviated as a scalar becomes one. `kind` is the kind of the value at `key`.

    Return None if the value at `key` has another shape.
    """
    entry = node.entries.get(key)
    found = entry.value if entry is not None else None
    if found is None or (isinstance(found, Scalar) and found.is_null):
        made = Mapping({}, FROM_COMMAND_LINE)
    elif isinstance(found, Scalar) and isinstance(kind, Shorthand):
        made = kind.opened(found)
    elif isinstance(found, Mapping) or (isinstance(found, Sequence) and isinstance(kind, ByShape)):
        return found
    else:
        return None
    node.entries[key] = Entry(entry.key if entry is not None else _key(key), made)
    return made


def _with_added(entry: Entry | None, kind: Kind | None, value: Node) -> Node:
    """Return the value of `entry` (None: not set) with `value` added: an item, the items of a list, or more keys of a
    mapping. `kind` is the kind of the option's value; an unset option that may be a list gets one.

    Raise Wrong for any other option that is no list or mapping.
    """
    there = None if entry is None else entry.value
    more: list[Node] = [*value.items] if isinstance(value, Sequence) else [value]
    if isinstance(there, Mapping):
        if isinstance(value, Mapping):
            return Mapping({**there.entries, **value.entries}, there.mark)
        raise wrong(value, "is a mapping here, and has no end to add to", "KEY.NAME=VALUE adds to it")
    if isinstance(there, Sequence):
        return Sequence([*there.items, *more], there.mark)
    blank = there is None or (isinstance(there, Scalar) and there.is_null)
    if blank and (isinstance(kind, ListOf) or (isinstance(kind, ByShape) and kind.sequence is not None)):
        return Sequence(more, FROM_COMMAND_LINE)
    if isinstance(there, Scalar) and isinstance(kind, ListOf) and kind.single:
        return Sequence([there, *more], there.mark)
    raise wrong(value, "is no list, and += adds to one", "KEY=VALUE sets it")


def _append(args: Sequence, key: Scalar, value: Node) -> None:
    """Append the option `--KEY value` to a list of arguments. Raise Wrong if the value is `false` or `null`, because no
    argument can be taken out of a list.
    """
    if isinstance(value, Scalar) and value.plain and value.text in ("false", "null"):
        raise wrong(value, "args is a list here, and nothing can be taken out of it", "set run.args as a whole")
    args.items.extend(option_words(key, value))


def _key(text: str) -> Scalar:
    """Return `text` as a key of the tree, with the command line as its position."""
    return Scalar(text, False, FROM_COMMAND_LINE)
