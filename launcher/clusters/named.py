"""The user's clusters file: names for places where runs go, each with how to get there.

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
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.errors import BadInput
from launcher.spec import overrides as command_line
from launcher.spec.cluster_fields import SLURM, SSH, SSH_OPTIONS
from launcher.spec.kinds.groups import TableOf
from launcher.spec.kinds.leaf import Json, Kind, Leaf, Unfit
from launcher.spec.kinds.names import JOB_NAME
from launcher.spec.kinds.sections import Field, Section
from launcher.spec.kinds.text import Choice, Text
from launcher.spec.model import Ssh
from launcher.spec.problems import Problem, Wrong, got, lines_of, printable, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Unusable
from launcher.spec.yaml_reader import read_tree
from launcher.spec.yaml_text import read_text

LOCAL, SLURM_HERE, SSH_HOSTS = "local", "slurm", "ssh"
_MOST_NAMED = 12
# A user and host, or an alias of the SSH configuration; never an option of ssh.
_LOGIN = r"(?:[A-Za-z_][A-Za-z0-9._-]{0,63}@)?[A-Za-z0-9._:][A-Za-z0-9._:-]{0,252}"
_FAR_PATH = r"~(?:/.*)?|[^~-].*"
_PLAIN = re.compile(r"[A-Za-z0-9_./~-]*")  # written without quotes it stays what it is: a number, true, a word


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """One place where runs go."""

    kind: str
    name: str = ""
    login: str | None = None  # where the programs of the cluster are, for ssh; None: here
    launch: str = "launch"  # the launch program there
    folder: str = "~/launch"  # where code and runs are kept there
    cluster: str | None = None  # what the cluster is called there; None: as its kind
    defaults: tuple[tuple[str, str], ...] = ()  # options of the spec and their YAML text


def clusters_file(named: Path | None = None) -> Path | None:
    """The file that is named, by $LAUNCH_CLUSTERS too, else the user's own; None where there is none."""
    if named is None and (variable := os.environ.get("LAUNCH_CLUSTERS")):
        named = Path(variable)
    if named is not None:
        return named
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = Path(home) / "launch" / "clusters.yaml"
    return own if own.exists() else None


def named_clusters(file: Path | None = None) -> dict[str, ClusterEntry]:
    """Every cluster that a run can go to from here. Raises BadInput with every problem of the clusters file."""
    path = clusters_file(file)
    found = {LOCAL: ClusterEntry("local", LOCAL)}
    if shutil.which("sbatch") is not None:
        found[SLURM_HERE] = ClusterEntry("slurm", SLURM_HERE)
    return found | (_read(path) if path is not None else {})


def entry(name: str, file: Path | None = None) -> ClusterEntry:
    """The cluster of this name. Raises BadInput naming those that exist."""
    if name == LOCAL:
        return ClusterEntry("local", LOCAL)  # whatever state the file is in
    known = named_clusters(file)
    if name == SLURM_HERE and name not in known:
        hint = "hint: submit on a login node of the cluster, or name one in the clusters file"
        raise BadInput("--on slurm: there is no `sbatch` on PATH", hint)
    if name == SSH_HOSTS and name not in known:
        return ClusterEntry("ssh", SSH_HOSTS)  # the hosts that the spec names
    if name not in known:
        raise BadInput(f"--on {printable(name[:100])}: no such cluster", f"hint: {_near(name, list(known))}")
    return known[name]


def ssh_of(place: ClusterEntry) -> Ssh:
    """The hosts of a pool, as a spec has them that says nothing of its own."""
    text = "".join(f"{path.partition('.')[2]}: {value}\n" for path, value in place.defaults)
    root = read_tree(text).root
    made: Ssh = SSH.parse(root) if root is not None else Ssh()
    return made


def with_defaults(defaults: Sequence[tuple[str, str]], spec: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides, and after them a cluster's defaults for what neither they nor the spec say."""
    if not defaults:
        return tuple(overrides)
    try:
        read = read_tree(read_text(spec, printable(str(spec))))
    except Wrong:
        return tuple(overrides)  # reading the spec tells what is wrong with it
    root = read.root if isinstance(read.root, Mapping) else None
    if root is None or command_line.apply(root, overrides):
        return tuple(overrides)
    missing = (f"{path}={text}" for path, text in defaults if not _says(root, path))
    return (*overrides, *missing)


def _says(root: Mapping, path: str) -> bool:
    section, option, *below = path.split(".", 2)
    return root.find(section, option, *below) is not None


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:100], known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    more = ", ..." if len(known) > _MOST_NAMED else ""
    return f"there is {', '.join(known[:_MOST_NAMED])}{more}; the clusters file names others"


def _read(path: Path) -> dict[str, ClusterEntry]:
    shown = printable(str(path))
    _refuse_strangers(path, shown)
    problems: list[Problem] = []
    found: dict[str, ClusterEntry] = {}
    try:
        read = read_tree(read_text(path, shown))
        problems += read.problems
        if read.root is not None:
            found = CLUSTERS.parse(read.root)
    except Wrong as error:
        problems += error.problems
    if problems:
        raise BadInput(*lines_of([_keyed(problem) for problem in problems], shown, lambda _: ""))
    return {name: replace(place, name=name) for name, place in found.items()}


def _keyed(problem: Problem) -> Problem:
    return problem if problem.key else replace(problem, key=("clusters",))


def _refuse_strangers(path: Path, shown: str) -> None:
    """The file names programs that will be run: nobody else may be able to write it."""
    try:
        status = path.stat()
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise BadInput(f"{shown}: {reason[:1].lower()}{reason[1:]}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"{shown}: is another user's, and names programs that would run as you", "hint: use a copy")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        hint = f"hint: chmod go-w {shown}"
        raise BadInput(f"{shown}: others can write it, and it names programs that would run as you", hint)


@dataclass(frozen=True, slots=True)
class _ClusterName(Leaf):
    def words(self) -> str:
        return "a name of a-z, 0-9, _ and -, at most 63 long"

    def convert(self, scalar: Scalar) -> str:
        name = str(Text(self.words(), JOB_NAME).convert(scalar))
        if name == LOCAL:
            raise Unfit("give it another name", "local is always this machine")
        return name

    def schema(self) -> Json:
        return {"type": "string", "pattern": f"^(?!{LOCAL}$){JOB_NAME}$"}


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Options of one section of the spec, checked as there and kept as overrides."""

    section: Section
    key: str

    def words(self) -> str:
        return f"a mapping of options as in {self.key} of a spec"

    def parse(self, node: Node) -> tuple[tuple[str, str], ...]:
        self.section.parse(node)
        return tuple(self._written(self.key, node)) if isinstance(node, Mapping) else ()

    def _written(self, path: str, node: Mapping) -> Iterator[tuple[str, str]]:
        for item in node:
            below = f"{path}.{item.key.text}"
            if isinstance(item.value, Mapping):
                yield from self._written(below, item.value)
            else:
                yield below, _as_yaml(item.value)

    def schema(self) -> Json:
        return self.section.schema()

    def show(self, value: Any) -> Any:
        return dict(value)


@dataclass(frozen=True, slots=True)
class _Pool(Ssh):
    kind: str = "ssh"


@dataclass(frozen=True, slots=True)
class _SshPool:
    """A pool of hosts: what a spec may say under `ssh`, kept as overrides of it."""

    section: Section

    def words(self) -> str:
        return self.section.words()

    def parse(self, node: Node) -> ClusterEntry:
        pool: _Pool = self.section.parse(node)
        if not pool.hosts:
            raise Wrong(Problem(node.mark, "missing", "name the hosts of the pool", ("hosts",)))
        options = [item for item in node if item.key.text != "kind"] if isinstance(node, Mapping) else []
        return ClusterEntry("ssh", defaults=tuple((f"ssh.{item.key.text}", _as_yaml(item.value)) for item in options))

    def schema(self) -> Json:
        return self.section.schema()

    def show(self, value: Any) -> Any:
        return self.section.show(value)


@dataclass(frozen=True, slots=True)
class _ByKind:
    """A mapping whose `kind` says which options it has."""

    kinds: dict[str, Kind]

    def words(self) -> str:
        return "a mapping with kind"

    def parse(self, node: Node) -> ClusterEntry:
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping):
            raise wrong(node, f"expected {self.words()}, got {got(node)}", f"write kind: {next(iter(self.kinds))}")
        kind = node.entries.get("kind")
        if kind is None:
            hint = f"write kind: {' or '.join(self.kinds)}"
            raise Wrong(Problem(node.mark, "missing", hint, ("kind",)))
        try:
            section = self.kinds[Choice(tuple(self.kinds)).parse(kind.value)]
        except Wrong as error:
            raise Wrong(*(replace(problem, key=("kind",)) for problem in error.problems)) from None
        made: ClusterEntry = section.parse(node)
        return made

    def schema(self) -> Json:
        return {"oneOf": [section.schema() for section in self.kinds.values()]}

    def show(self, value: Any) -> Any:
        raise NotImplementedError("a cluster is shown option by option")


def _as_yaml(node: Node) -> str:
    """A value as one line of YAML that is read as the same value."""
    if isinstance(node, Scalar):
        bare = node.plain and _PLAIN.fullmatch(node.text) is not None
        return node.text if bare else json.dumps(node.text, ensure_ascii=False)
    if isinstance(node, Unusable):
        raise TypeError("what could not be read is not written")
    if isinstance(node, Mapping):
        return f"{{{', '.join(f'{item.key.text}: {_as_yaml(item.value)}' for item in node)}}}"
    return f"[{', '.join(_as_yaml(item) for item in node.items)}]"


_OF_A_LOGIN = (
    Field("login", Text("user@host or an alias of the SSH configuration", _LOGIN),
          "Login node, reached by ssh; without it the programs are here", example="me@login.example.org"),
    Field("launch", Text("the path of the launch program there", _FAR_PATH), "Launch program on the login node",
          example="~/venv/bin/launch"),
    Field("folder", Text("the path of a folder there", _FAR_PATH), "Where code and runs are kept on the login node",
          example="~/launch"),
    Field("cluster", Text("the name of a cluster there", JOB_NAME), "What the cluster is called on the login node"),
)  # fmt: skip

_SLURM = Section(
    ClusterEntry,
    (
        Field("kind", Choice(("slurm",)), "What kind of cluster it is"),
        *_OF_A_LOGIN,
        Field("defaults", _Defaults(SLURM, "slurm"), "Options of slurm in the spec that hold unless it says otherwise",
              example="{partition: gpu}"),
    ),
    required=True,
)  # fmt: skip

_SSH = _SshPool(
    Section(_Pool, (Field("kind", Choice(("ssh",)), "What kind of cluster it is"), *SSH_OPTIONS), required=True)
)

# Another kind of cluster: its section here, with `kind` among its options.
CLUSTERS = TableOf(_ClusterName(), _ByKind({"slurm": _SLURM, "ssh": _SSH}))
