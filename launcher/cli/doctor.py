"""`launch doctor`: what a cluster is like, and what is in the way of runs there."""

import argparse
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.columns import columns
from launcher.cli.terminal import is_terminal, paint, safe, size
from launcher.clusters.clusters_file import ClusterEntry, entry, login_of, named_clusters, pool_of
from launcher.doctor.findings import Finding, Level, exit_code
from launcher.doctor.wish import DoctorWish
from launcher.errors import BadInput, Refused
from launcher.rundir.registry import runs_root
from launcher.spec.model import JobSpec, RunOptions
from launcher.spec.tree import Scalar
from launcher.spec.yaml_reader import read_tree
from launcher.submission import interpreter, project_of
from launcher.words import LOCAL

EXAMPLES = """
  launch doctor                  this machine
  launch doctor slurm            the Slurm cluster whose programs are here; starts nothing
  launch doctor slurm --try      and a short job on two nodes: what do they see, do they reach each other?
  launch doctor slurm --try --nodes 1 --partition gpu --within 600
  launch doctor mypool           every host of a pool, and the ways between them
  launch doctor mypool --try     and an all-reduce by torch over all of them
"""
_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_LEVEL_WIDTH, _ABOUT_WIDTH = 9, 15
_LEAST_ROOM, _READABLE = 40, 120
_WITHIN_S = 60.0
_OF_SLURM = ("partition", "account", "qos", "interface")


def declare(arguments: Arguments) -> None:
    arguments.add_argument(
        "cluster",
        metavar="CLUSTER",
        nargs="?",
        default=LOCAL,
        help="local (default), slurm, or a name of the clusters file",
    )
    arguments.add_argument("--clusters", metavar="FILE", type=Path, help="the file that names clusters")
    arguments.add_argument("--try", action="store_true", dest="trial", help="have nodes, or all hosts, try it out")
    arguments.add_argument("--nodes", type=int, choices=(1, 2), help="of so many nodes (default: 2 where there are)")
    arguments.add_argument(
        "--within", metavar="SECONDS", type=_seconds, help=f"so long it waits for nodes (default: {_WITHIN_S:g})"
    )
    arguments.add_argument("--partition", metavar="NAME", type=_word, help="another one than Slurm's default")
    arguments.add_argument("--account", metavar="NAME", type=_word, help="account that is charged")
    arguments.add_argument("--qos", metavar="NAME", type=_word, help="quality of service")
    arguments.add_argument("--interface", metavar="NAME", type=_word, help="network interface to try as well")
    arguments.add_argument("--json", action="store_true", help="the list, as JSON")


def run(options: argparse.Namespace) -> int:
    found = list[Finding]()
    for finding in _check_up(_place(options.cluster, options.clusters), options):
        found.append(finding)
        if not options.json:
            print("\n".join(_lines(finding)), flush=True)
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    elif said := _summary(found):
        print(said, file=sys.stderr)
    return exit_code(found)


def _place(name: str, file: Path | None) -> ClusterEntry:
    """`slurm` can be looked at even where there is none."""
    if name == "slurm" and name not in named_clusters(file):
        return ClusterEntry("slurm", "slurm")
    return entry(name, file)


def _check_up(place: ClusterEntry, options: argparse.Namespace) -> Iterator[Finding]:
    way = login_of(place)
    if way.node is not None:
        there = shlex.join([way.launch, "doctor", way.cluster or "local"])
        raise Refused(f"{place.name} is looked at from its login node, {way.node}", f"hint: ssh {way.node} {there}")
    if place.kind == "ssh":
        _refuse([name for name in ("nodes", "within", *_OF_SLURM) if getattr(options, name)])
        return _ssh(place, trial=options.trial)
    project = project_of(Path.cwd() / "job.yaml")
    python = interpreter(JobSpec("doctor", RunOptions()), project, os.environ)
    if place.kind == "slurm":
        return _slurm(place, options, runs_root(project), python)
    if place.kind != LOCAL:
        raise BadInput(f"{place.name}: nothing is known of how to look at {place.kind}")
    _refuse([name for name in ("trial", "nodes", "within", *_OF_SLURM) if getattr(options, name)])
    return _local(runs_root(project), python)


def _refuse(meant: Sequence[str]) -> None:
    """Options that were given and are of no use here."""
    if meant:
        flag = "try" if meant[0] == "trial" else meant[0]
        where = "of Slurm clusters and of pools" if flag == "try" else "of Slurm clusters"
        raise BadInput(f"--{flag} is {where}", f"hint: launch doctor slurm --{flag}")


def _local(root: Path, python: str) -> Iterator[Finding]:
    from launcher.clusters.local.doctor import check_up  # late: of two, only one is needed

    return check_up(DoctorWish(root, python), os.environ)


def _slurm(place: ClusterEntry, options: argparse.Namespace, root: Path, python: str) -> Iterator[Finding]:
    from launcher.clusters.slurm.doctor import check_up  # late: of two, only one is needed

    usual = _usual(place.defaults)
    chosen = {name: word for name in _OF_SLURM if (word := getattr(options, name) or usual.get(name))}
    wish = DoctorWish(root, python, options.trial, options.nodes, _or(options.within, _WITHIN_S), chosen)
    return check_up(wish, _tell)


def _ssh(place: ClusterEntry, *, trial: bool) -> Iterator[Finding]:
    pool = pool_of(place)
    if not pool.hosts:
        raise BadInput(f"{place.name}: no hosts are named", "hint: a pool of the clusters file, with `kind: ssh`")
    from launcher.clusters.ssh.doctor import check_up  # late: paramiko

    return check_up(pool, trial=trial, tell=_tell)


def _tell(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def _usual(defaults: Sequence[tuple[str, str]]) -> dict[str, str]:
    """What the clusters file says of this cluster's jobs."""
    values = {path.removeprefix("slurm."): read_tree(text).root for path, text in defaults}
    return {name: value.text for name, value in values.items() if isinstance(value, Scalar) and not value.is_null}


def _lines(finding: Finding) -> list[str]:
    level = paint(finding.level.ljust(_LEVEL_WIDTH), _COLOURS[finding.level])
    indent = " " * (_LEVEL_WIDTH + _ABOUT_WIDTH)
    first, *more = _folded(safe(finding.text))
    hint = _folded(f"hint: {safe(finding.hint)}") if finding.hint else []
    rows = [[safe(cell) for cell in row] for row in finding.rows]
    return [
        f"{level}{safe(finding.about).ljust(_ABOUT_WIDTH)}{first}",
        *(f"{indent}{line}" for line in (*more, *hint)),
        *(columns(rows, indent=" " * _LEVEL_WIDTH) if rows else []),
    ]


def _folded(text: str) -> list[str]:
    """As lines that a terminal has room for beside the first columns; for programs, one line."""
    if not is_terminal(sys.stdout):
        return [text]
    room = max(_LEAST_ROOM, min(_READABLE, size(sys.stdout)[0]) - _LEVEL_WIDTH - _ABOUT_WIDTH)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _summary(found: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in found) for level in (Level.PROBLEM, Level.WARNING)}
    return ", ".join(figures.count(number, level) for level, number in counts.items() if number)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _word(text: str) -> str:
    if not text or text.startswith("-") or any(not sign.isprintable() or sign.isspace() for sign in text):
        raise argparse.ArgumentTypeError(f"expected a name, got {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds such as 60, got {text!r}")
    return value
