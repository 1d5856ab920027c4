"""`launch doctor`: check a cluster, and report what prevents runs on it."""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.cli import figures
from launcher.cli.arguments import Arguments, seconds
from launcher.cli.places.collectives import MANY, declare_collectives, refuse_without_collectives, run_collectives
from launcher.cli.terminal import columns, is_terminal, paint, safe, size, tell
from launcher.errors import BadInput
from launcher.health.doctor_request import OF_THIS_MACHINE, DoctorRequest
from launcher.health.findings import Finding, Level, exit_code, ok
from launcher.health.last import keep
from launcher.places.clusters_file import ClusterEntry, entry, named_clusters
from launcher.places.kinds import kind_named, of_kind
from launcher.plan.interpreter import interpreter
from launcher.run.registry import runs_root
from launcher.spec.model import JobSpec, RunOptions
from launcher.states import LOCAL
from launcher.submission.project import project_of

if TYPE_CHECKING:
    from launcher.places.place import Doctor

EXAMPLES = """
  launch doctor                  this machine
  launch doctor --health         checks its cores, memory and GPUs by calculations with known results
  launch doctor slurm            the Slurm cluster whose programs are here; starts nothing
  launch doctor slurm --try      also a short job on two nodes: what do they see, do they reach each other?
  launch doctor slurm --try --nodes 1 --partition gpu --within 600
  launch doctor gridengine --try such a job on two hosts of Grid Engine
  launch doctor pbs --try        and on two of PBS
  launch doctor lsf --try        and on two of LSF
  launch doctor k8s              what the Kubernetes cluster offers; starts nothing
  launch doctor mypool           every host of a pool, and the links between them
  launch doctor mypool --try     and an all-reduce by torch over all of them
  launch doctor mypool --collectives --nodes 4 --ranks 4,8     each operation of torch.distributed, checked and timed
  launch doctor --collectives --sizes 1KB,64KB..4MB            on two ranks of this machine
"""
_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_LEVEL_WIDTH, _ABOUT_WIDTH = 9, 15
_LEAST_ROOM, _READABLE = 40, 120
_WITHIN_S = 60.0
_OF_A_JOB = ("partition", "account", "qos", "interface")
_WHOSE = {"try": "of Slurm clusters, other batch systems and pools", "health": OF_THIS_MACHINE}
_WHOSE |= dict.fromkeys(("nodes", "within"), "of Slurm clusters and other batch systems")
_WHOSE |= dict.fromkeys(_OF_A_JOB, "of Slurm clusters")


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch doctor`."""
    arguments.add_argument(
        "cluster",
        metavar="CLUSTER",
        nargs="?",
        default=LOCAL,
        help="local (default), slurm, or a name of the clusters file",
    )
    arguments.add_argument("--clusters", metavar="FILE", type=Path, help="the file that names clusters")
    arguments.add_argument("--try", action="store_true", help="also run a short trial job on nodes, or on all hosts")
    arguments.add_argument(
        "--nodes", metavar="N", type=MANY, help="number of nodes of the trial: 1 or 2 (default: 2 if there are)"
    )
    arguments.add_argument(
        "--within", metavar="SECONDS", type=seconds, help=f"so long it waits for nodes (default: {_WITHIN_S:g})"
    )
    arguments.add_argument("--partition", metavar="NAME", type=_word, help="the partition (default: Slurm's own)")
    arguments.add_argument("--account", metavar="NAME", type=_word, help="account that is charged")
    arguments.add_argument("--qos", metavar="NAME", type=_word, help="quality of service")
    arguments.add_argument("--interface", metavar="NAME", type=_word, help="network interface to try as well")
    arguments.add_argument(
        "--health", action="store_true", help="only check the devices of this machine, as recovery.health does"
    )
    declare_collectives(arguments)
    arguments.prints_json(_answers, "the list, as JSON")


def _answers() -> dict[str, object]:
    """Return the type of what `launch doctor --json` prints, by the option with which it is printed: "--collectives",
    or "" for none.
    """
    from launcher.apps.collectives.findings import CollectivesReport  # late: a check-up measures nothing

    return {"": list[Finding], "--collectives": CollectivesReport}


def run(options: argparse.Namespace) -> int:
    """Run `launch doctor` and return its exit code."""
    if options.collectives:
        return run_collectives(options)
    refuse_without_collectives(options)
    if options.nodes not in (None, 1, 2):
        raise BadInput(f"--nodes: expected 1 or 2, got {options.nodes}", "hint: --collectives takes more")
    place, found = _place(options.cluster, options.clusters), list[Finding]()
    for finding in _check_up(place, options):
        found.append(finding)
        if not options.json:
            print("\n".join(_lines(finding)), flush=True)
    if not options.health:
        keep(place.name, found, trial=vars(options)["try"])
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    elif said := _summary(found):
        print(said, file=sys.stderr)
    return exit_code(found)


def _place(name: str, file: Path | None) -> ClusterEntry:
    """Return the cluster called `name` in the clusters file `file` (None: the default one).

    The name of a kind, such as slurm, stands for a cluster of this kind without options, unless the file has a cluster
    of that name. Raise BadInput if the name is neither.
    """
    if name == LOCAL:
        return entry(name)  # whatever state the clusters file is in
    known = kind_named(name) is not None and name not in named_clusters(file)
    return ClusterEntry(name, name) if known else entry(name, file)


def _check_up(place: ClusterEntry, options: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings about a cluster, as each check is done; raise BadInput if its kind has no checks."""
    cluster = of_kind(place.kind)
    if not cluster.doctor:
        raise BadInput(f"{place.name}: nothing is known of how to look at {place.kind}")
    doctor = cast("Doctor", import_module(cluster.doctor))
    yield from doctor.check_up(_wish(place, options), tell)
    asked = [f"{key}: {text}" for key, text in place.defaults if key.startswith("notice.")]
    if asked and not options.health:
        yield ok("notice", f"each host tells when it is about to go ({', '.join(asked)})")


def _wish(place: ClusterEntry, options: argparse.Namespace) -> DoctorRequest:
    """Return the request that tells the checks what to do, from the options."""
    project = project_of(Path.cwd() / "job.yaml")
    said = {name: value for name, value in vars(options).items() if value}
    return DoctorRequest(
        runs_root(project),
        interpreter(JobSpec("doctor", RunOptions()), project, os.environ),
        place.name,
        place.defaults,
        "try" in said,
        options.health,
        options.nodes,
        _WITHIN_S if options.within is None else options.within,
        {name: said[name] for name in _OF_A_JOB if name in said},
        {name: whose for name, whose in _WHOSE.items() if name in said},
    )


def _lines(finding: Finding) -> list[str]:
    """Return a finding as lines of text, with its hint and its table."""
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
    """Return the text as lines that fit into the last column of the findings on the terminal; as one line without a
    terminal.
    """
    if not is_terminal(sys.stdout):
        return [text]
    room = max(_LEAST_ROOM, min(_READABLE, size(sys.stdout)[0]) - _LEVEL_WIDTH - _ABOUT_WIDTH)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _summary(found: Sequence[Finding]) -> str:
    """Return the number of problems and warnings as text, or "" if there are none."""
    counts = {level: sum(finding.level is level for finding in found) for level in (Level.PROBLEM, Level.WARNING)}
    return ", ".join(figures.count(number, level) for level, number in counts.items() if number)


def _word(text: str) -> str:
    """Return an option's text if it can be a name; raise ArgumentTypeError if it has spaces or begins with a dash."""
    if not text or text.startswith("-") or any(not sign.isprintable() or sign.isspace() for sign in text):
        raise argparse.ArgumentTypeError(f"expected a name, got {text!r}")
    return text
