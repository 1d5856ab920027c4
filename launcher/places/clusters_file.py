"""The user's clusters file: names of places where runs go, each with its kind, how to reach it, and defaults for the
spec.

hpc:
  kind: slurm
  login: me@login.example.org
  launch: ~/venv/bin/launch
  defaults: {partition: gpu, account: my_project}
lab:
  kind: ssh
  hosts: [gpu01, gpu02, gpu03]
  python: ~/venv/bin/python
"""

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from launcher.errors import BadInput
from launcher.places.hosts_command import HOSTS_COMMAND, HostsCommand, ask
from launcher.places.kinds import LOGIN_KIND, OURS, is_here, kind_named, made, of_kind, plugins
from launcher.places.place import HostNow
from launcher.run.ownership import refuse_strangers
from launcher.spec.cluster_fields import LOGIN, NOTICE, OPTIONS_OF, SSH
from launcher.spec.kinds.groups import TableOf
from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.kinds.names import JOB_NAME
from launcher.spec.kinds.sections import Field, Section
from launcher.spec.kinds.text import Choice, Text
from launcher.spec.model import JobSpec, Login, Ssh
from launcher.spec.problems import Gather, Problem, Wrong, got, lines_of, printable, wrong
from launcher.spec.tree import Entry, Mapping, Node, Scalar, Unusable
from launcher.spec.yaml_reader import read_tree
from launcher.spec.yaml_text import read_text
from launcher.states import LOCAL

_MOST_NAMED = 12
_HOSTS = "ssh.hosts"
_PLAIN = re.compile(r"[A-Za-z0-9_./~-]*")  # written without quotes it stays what it is: a number, true, a word


class ClusterEntry(Struct, frozen=True):
    """A cluster of the clusters file: its kind, and defaults for options of the spec (path and YAML text), which
    include how to reach it.

    `hosts` is the command that prints a pool's hosts, if the file does not list them.
    """

    kind: str
    name: str = ""  # as the user calls it
    defaults: tuple[tuple[str, str], ...] = ()  # paths of spec options, and their YAML text
    hosts: HostsCommand | None = None  # the command that prints a pool's hosts, if the file does not list them


def clusters_file(named: Path | None = None) -> Path | None:
    """Return the path of the clusters file: `named`, or else $LAUNCH_CLUSTERS, whether they exist or not, or else the
    user's own file, None if that does not exist.
    """
    if named is None and (variable := os.environ.get("LAUNCH_CLUSTERS")):
        named = Path(variable)
    if named is not None:
        return named
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = Path(home) / "launch" / "clusters.yaml"
    return own if own.exists() else None


def named_clusters(file: Path | None = None) -> dict[str, ClusterEntry]:
    """Return all clusters by name: `local`, the kinds of batch systems whose command is installed here, and those in
    the clusters file. Raise BadInput with every problem of the file.
    """
    path = clusters_file(file)
    # A kind without a program of its own has nowhere to go but what the file, or the spec, names.
    found = {name: ClusterEntry(name, name) for name, kind in OURS.items() if name == LOCAL or kind.program}
    here = {name: one for name, one in found.items() if is_here(name)}
    return here | (_read(path) if path is not None else {})


def entry(name: str, file: Path | None = None) -> ClusterEntry:
    """Return the cluster named `name`; if the file names a command that lists its hosts, with the hosts that it prints
    now. `file` is the clusters file, None for the one that `clusters_file` returns.

    Raise BadInput, with a list of the clusters, if none has this name, and LaunchError if the command fails.
    """
    if name == LOCAL:
        return ClusterEntry(LOCAL, LOCAL)  # whatever state the file is in
    known = named_clusters(file)
    if name in known:
        return with_hosts(known[name])
    kind = kind_named(name)
    if kind is None:
        raise BadInput(f"{printable(name[:100])}: no such cluster", f"hint: {_hint_for_unknown(name, list(known))}")
    if not is_here(name):
        hint = "hint: submit on a login node of the cluster, or name one in the clusters file"
        raise BadInput(f"{name}: there is no `{kind.program}` on PATH", hint)
    return ClusterEntry(name, name)  # all its options are in the spec


def section_of(name: str) -> Section:
    """Return the options that a spec has in the section `name`, which is the name of a kind of cluster; raise KeyError
    if no such kind is known.
    """
    return OPTIONS_OF.get(name) or plugin_sections()[name]


@cache
def plugin_sections() -> dict[str, Section]:
    """Return by kind the spec options of each kind of cluster that a plug-in adds, from its class's attribute
    `options`.
    """
    classes = {name: made(kind) for name, kind in plugins().items()}
    return {name: Section(dict, tuple(getattr(one, "options", ()))) for name, one in classes.items()}


def with_hosts(place: ClusterEntry) -> ClusterEntry:
    """Return the cluster with the hosts that its command prints now, or unchanged if it has no command; raise
    LaunchError if the command fails.
    """
    if place.hosts is None:
        return place
    kept = (one for one in place.defaults if one[0] != _HOSTS)
    return replace(place, defaults=(*kept, (_HOSTS, _as_yaml(ask(place.name, place.hosts)))))


def pool_of(place: ClusterEntry) -> Ssh:
    """Return a pool's hosts and options as a spec has them under `ssh`. If the entry names a command that prints the
    hosts, it is run; raise LaunchError if it fails.
    """
    pool: Ssh = _own_options(with_hosts(place), SSH)
    return pool


def is_pool(kind: str) -> bool:
    """Return whether clusters of this kind are pools of SSH hosts."""
    return OPTIONS_OF.get(kind) is SSH


def named_pools() -> dict[str, ClusterEntry]:
    """Return every pool that the clusters file names, by name; raise BadInput with every problem of the file."""
    return {name: place for name, place in named_clusters().items() if is_pool(place.kind)}


def login_of(place: ClusterEntry) -> Login:
    """Return how to reach the cluster's login node; its `node` is None if the cluster's commands are on this
    machine.
    """
    login: Login = _own_options(place, LOGIN) if place.kind == LOGIN_KIND else Login()
    return login


def hosts_of(place: ClusterEntry, spec: JobSpec) -> list[HostNow]:
    """Return the cluster's hosts, what is free on them, and which runs they have; an empty list if its kind cannot
    report that.

    Raise LaunchError if they cannot be asked.
    """
    return of_kind(place.kind).hosts_now(merged(place, spec))


def merged(place: ClusterEntry, spec: JobSpec) -> JobSpec:
    """Return the spec with its section for the kind of `place`, such as `slurm`, completed: options that have their
    default value in that section get the value from the entry `place`.
    """
    if (section := OPTIONS_OF.get(place.kind)) is None:
        return spec
    said, usual = getattr(spec, place.kind), section.model()
    silent = [name for name in said.__struct_fields__ if getattr(said, name) == getattr(usual, name)]
    own = _own_options(place, section)
    return replace(spec, **{place.kind: replace(said, **{name: getattr(own, name) for name in silent})})


def as_reached_now(place: ClusterEntry) -> ClusterEntry:
    """Return `place`, a cluster as it was at submit, except that its login node's address, or a pool's hosts, are those
    of the clusters file now.

    It is returned unchanged if the file is unreadable now or has no cluster of this name and kind. Raise LaunchError if
    the command that prints the hosts fails.
    """
    if place.kind != LOGIN_KIND and not is_pool(place.kind):
        return place
    try:
        found = named_clusters().get(place.name)
    except BadInput:
        return place  # what was good at submit is worth trying
    if found is None or found.kind != place.kind:
        return place
    if place.kind != LOGIN_KIND:
        return with_hosts(replace(place, hosts=found.hosts))
    way = f"{LOGIN_KIND}."
    kept = (one for one in place.defaults if not one[0].startswith(way))
    return replace(place, defaults=(*(one for one in found.defaults if one[0].startswith(way)), *kept))


def _own_options(place: ClusterEntry, section: Section) -> Any:
    """Return the entry's defaults for the section of its kind, such as `slurm.partition`, decoded by `section` as if a
    spec had them.
    """
    own = ((path.removeprefix(f"{place.kind}."), text) for path, text in place.defaults if path.startswith(place.kind))
    root = read_tree("".join(f"{option}: {text}\n" for option, text in own)).root
    return section.parse(root) if root is not None else section.model()


def with_defaults(
    defaults: Sequence[tuple[str, str]], spec: Path, overrides: Sequence[str], job: Section | None = None
) -> tuple[str, ...]:
    """Return the overrides, and after them, as KEY=VALUE, a cluster's defaults for all options that neither the
    overrides nor the file `spec` sets. `defaults` has pairs: an option such as `slurm.partition`, and its value as YAML
    text.

    If the spec cannot be read or the overrides are wrong, only the overrides are returned. `job` is the table of a
    spec's options; None: the one without plug-ins.
    """
    from launcher.spec import overrides as command_line  # late: who completes names of clusters does without
    from launcher.spec.fields import JOB  # late: likewise

    if not defaults:
        return tuple(overrides)
    try:
        read = read_tree(read_text(spec, printable(str(spec))))
    except Wrong:
        return tuple(overrides)  # reading the spec reports its problems
    root = read.root if isinstance(read.root, Mapping) else None
    if root is None or command_line.apply(root, overrides, JOB if job is None else job):
        return tuple(overrides)
    missing = (f"{path}={text}" for path, text in defaults if not _is_set(root, path))
    return (*overrides, *missing)


def _is_set(root: Mapping, path: str) -> bool:
    """Return whether the spec whose tree is `root` sets the option at `path`, such as `slurm.partition`."""
    section, option, *below = path.split(".", 2)
    return root.find(section, option, *below) is not None


def _hint_for_unknown(name: str, known: list[str]) -> str:
    """Return a hint for the unknown name: the one of the `known` names that is most similar, or all of them."""
    near = difflib.get_close_matches(name[:100], known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    more = ", ..." if len(known) > _MOST_NAMED else ""
    return f"there is {', '.join(known[:_MOST_NAMED])}{more}; the clusters file names others"


def _read(path: Path) -> dict[str, ClusterEntry]:
    """Return the clusters in the file by name; raise BadInput with every problem of it."""
    shown = printable(str(path))
    refuse_strangers(path, shown, "names programs that would run as you")
    try:
        found = clusters_of(read_text(path, shown), shown)
    except Wrong as error:
        raise BadInput(*_problem_lines(error.problems, shown)) from None
    folder = str(path.absolute().parent)
    return {
        name: one if one.hosts is None else replace(one, hosts=replace(one.hosts, folder=folder))
        for name, one in found.items()
    }


@lru_cache(maxsize=4)  # one question after the other asks for it
def clusters_of(text: str, shown: str) -> dict[str, ClusterEntry]:
    """Return the clusters in a file's text by name; raise BadInput with every problem.

    `shown` is the file's name in messages.
    """
    read = read_tree(text)
    problems = list(read.problems)
    try:
        found = CLUSTERS.parse(read.root) if read.root is not None else {}
    except Wrong as error:
        problems += error.problems
    if problems:
        raise BadInput(*_problem_lines(problems, shown))
    return {name: replace(place, name=name) for name, place in found.items()}


def _problem_lines(problems: Sequence[Problem], shown: str) -> list[str]:
    """Return the problems as lines of an error message, with `shown` as the file's name."""
    return lines_of([_keyed(problem) for problem in problems], shown, lambda _: "")


def _keyed(problem: Problem) -> Problem:
    """Return the problem; if it names no key, because it is about the whole file, with the key `clusters`, so that the
    message does not speak of a spec.
    """
    return problem if problem.key else replace(problem, key=("clusters",))


class _ClusterName(Leaf, frozen=True):
    """The name of a cluster in the file, which must not be `local`."""

    WORDS = "a name of a-z, 0-9, _ and -, at most 63 long"
    PATTERN = f"(?!{LOCAL}$){JOB_NAME}"

    def convert(self, scalar: Scalar) -> str:
        """Return the name; raise Unfit for `local`."""
        name = str(Text(self.words(), JOB_NAME).convert(scalar))
        if name == LOCAL:
            raise Unfit("give it another name", "local is always this machine")
        return name


class _Defaults(Struct, frozen=True):
    """The type of an entry's `defaults`: options of one section of the spec (`section`, under the name `key`), checked
    as in a spec. They are kept as overrides: pairs such as ("slurm.partition", "gpu").
    """

    section: Section
    key: str

    def words(self) -> str:
        """Return the expected form of the value, for messages."""
        return f"a mapping of options as in {self.key} of a spec"

    def parse(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Return the options as overrides of a spec, (path, YAML text) of each, or an empty tuple if the node is no
        mapping; raise Wrong with every problem.
        """
        self.section.parse(node)
        return tuple(_written(self.key, node)) if isinstance(node, Mapping) else ()

    def schema(self) -> Json:
        """Return the JSON schema of the section."""
        return self.section.schema()


class _QueueEntry(Struct, frozen=True):
    """The options of a batch cluster's entry: how to reach its login node, if it has one, and defaults for the spec."""

    login: str | None = None  # the login node, for ssh; None: the cluster's commands are on this machine
    launch: str = Login().launch  # the program on the login node
    folder: str = Login().folder  # where code and runs are kept on the login node
    cluster: str | None = None  # the cluster's name on the login node
    transport: str = Login().transport  # openssh or paramiko
    defaults: tuple[tuple[str, str], ...] = ()  # paths of spec options, and their YAML text


class _ByKind(Struct, frozen=True):
    """The type of a cluster's entry, whose options depend on its `kind`."""

    def words(self) -> str:
        """Return the expected form of the value, for messages."""
        return "a mapping with kind"

    def parse(self, node: Node) -> ClusterEntry:
        """Return the entry, parsed by the options of its kind; raise Wrong with every problem."""
        if isinstance(node, Unusable):
            raise Wrong
        ours = _ours_with_entries()
        if not isinstance(node, Mapping):
            raise wrong(node, f"expected {self.words()}, got {got(node)}", f"write kind: {ours[0]}")
        named = node.entries.get("kind")
        if named is None:
            raise Wrong(Problem(node.mark, "missing", f"write kind: {' or '.join(_kinds_with_entries())}", ("kind",)))
        is_ours = (
            isinstance(named.value, Scalar) and named.value.text in ours
        )  # then the installed plug-ins are not searched
        try:
            kind = Choice(tuple(ours if is_ours else _kinds_with_entries())).parse(named.value)
        except Wrong as error:
            raise Wrong(*(replace(problem, key=("kind",)) for problem in error.problems)) from None
        said = Mapping({key: one for key, one in node.entries.items() if key not in ("kind", "notice")}, node.mark)
        place = _pool(kind, said) if kind in OURS and OURS[kind].names else _queue(kind, said)
        if (notice := node.entries.get("notice")) is None:
            return place
        try:
            return replace(place, defaults=(*place.defaults, *_Defaults(NOTICE, "notice").parse(notice.value)))
        except Wrong as error:
            raise Wrong(*(replace(one, key=("notice", *one.key)) for one in error.problems)) from None

    def schema(self) -> Json:
        """Return the JSON schema: a mapping that must have a known `kind`."""
        return {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": _kinds_with_entries()}}}


def _kinds_with_entries() -> list[str]:
    """Return the kinds that an entry of the file may have as its `kind`: the built-in ones, then those of plug-ins."""
    return [*_ours_with_entries(), *plugins()]


def _ours_with_entries() -> list[str]:
    """Return the built-in kinds that an entry of the file may have as its `kind`. The kind of a login node is not among
    them, because an entry gets it by naming a login node.
    """
    return [kind for kind in OURS if kind in OPTIONS_OF and kind != LOGIN_KIND]


def _pool(kind: str, said: Mapping) -> ClusterEntry:
    """Return the entry of a pool of hosts of this kind, whose mapping in the file is `said`: its options are those of a
    spec under the kind's name. Raise Wrong with its problems.
    """
    if OPTIONS_OF[kind] is SSH and isinstance(hosts := said.find("hosts"), Entry) and isinstance(hosts.value, Mapping):
        return _pool_by_command(kind, said, hosts.value)
    value = OPTIONS_OF[kind].parse(said)
    for option in OURS[kind].names:
        if not getattr(value, option):
            raise Wrong(Problem(said.mark, "missing", f"name the {option} of the pool", (option,)))
    return ClusterEntry(kind, defaults=tuple(_written(kind, said)))


def _pool_by_command(kind: str, said: Mapping, hosts: Mapping) -> ClusterEntry:
    """Return the entry of a pool whose hosts a command prints; raise Wrong with every problem. `said` is the entry's
    mapping in the file, `hosts` the one within it that names the command.
    """
    gather = Gather()
    command = gather.take("hosts", HOSTS_COMMAND.parse, hosts)
    rest = Mapping({key: one for key, one in said.entries.items() if key != "hosts"}, said.mark)
    try:
        OPTIONS_OF[kind].parse(rest)
    except Wrong as error:
        gather.blame(error)
    gather.close()
    return ClusterEntry(kind, defaults=tuple(_written(kind, rest)), hosts=command)


def _queue(kind: str, said: Mapping) -> ClusterEntry:
    """Return the entry of a batch cluster, of which `said` is the mapping in the file; raise Wrong with every problem.
    With `login` the cluster is behind a login node, to which the defaults for the spec are then sent.
    """
    value: _QueueEntry = _queue_section(kind).parse(said)
    if value.login is None:
        return ClusterEntry(kind, defaults=value.defaults)
    way = {"node": value.login, "launch": value.launch, "folder": value.folder, "cluster": value.cluster or kind}
    if value.transport != Login().transport:
        way["transport"] = value.transport
    options = tuple((f"{LOGIN_KIND}.{key}", _quoted(text)) for key, text in way.items())
    return ClusterEntry(LOGIN_KIND, defaults=(*options, *value.defaults))


def _queue_section(kind: str) -> Section:
    """Return the options that the entry of a batch cluster of this kind may have: how to reach its login node, and
    `defaults` for the spec.
    """
    way = LOGIN.by_key
    return Section(
        _QueueEntry,
        (
            replace(way["node"], key=LOGIN_KIND, doc="Login node, reached by ssh; without it the programs are here"),
            way["launch"],
            way["folder"],
            way["cluster"],
            way["transport"],
            Field(
                "defaults",
                _Defaults(section_of(kind), kind),
                f"Default options of {kind} for specs that do not set them",
            ),
        ),
    )


def _written(path: str, node: Mapping) -> Iterator[tuple[str, str]]:
    """Yield (path, YAML text) for each option in the mapping `node`, as an override of the spec. Mappings inside it are
    descended into. `path` is the spec's path of `node`, such as `slurm`, with which the options' paths begin.
    """
    for item in node:
        below = f"{path}.{item.key.text}"
        if isinstance(item.value, Mapping):
            yield from _written(below, item.value)
        else:
            yield below, _as_yaml(item.value)


def _as_yaml(node: Node) -> str:
    """Return a value as one line of YAML that reads back as the same value. Raise TypeError for a node whose value was
    already found invalid when the YAML was read (Unusable).
    """
    if isinstance(node, Scalar):
        bare = node.plain and _PLAIN.fullmatch(node.text) is not None
        return node.text if bare else _quoted(node.text)
    if isinstance(node, Unusable):
        raise TypeError("what could not be read is not written")
    if isinstance(node, Mapping):
        return f"{{{', '.join(f'{item.key.text}: {_as_yaml(item.value)}' for item in node)}}}"
    return f"[{', '.join(_as_yaml(item) for item in node.items)}]"


def _quoted(text: str) -> str:
    """Return the text in quotes, as YAML reads it."""
    return json.dumps(text, ensure_ascii=False)


CLUSTERS = TableOf(_ClusterName(), _ByKind())
