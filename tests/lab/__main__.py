"""A lab by hand, and the programs that tests need.

`python -m tests.lab install`,
`python -m tests.lab up [--kind slurm|gridengine|hosts] [--accounting] [--shared] [--jump] [--nodes N] [--at DIR]` and
`python -m tests.lab down [--at DIR]`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.lab.claims import take_down
from tests.lab.gridengine import GridEngineLab
from tests.lab.hosts import HostLab
from tests.lab.requirements import install, no_lab
from tests.lab.slurm import SlurmLab
from tests.lab.up_and_down import Lab

KINDS: dict[str, Callable[[Path, argparse.Namespace], Lab]] = {
    "slurm": lambda folder, chosen: SlurmLab(folder, chosen.nodes, accounting=chosen.accounting, stays=True),
    "gridengine": lambda folder, chosen: GridEngineLab(folder, chosen.nodes, stays=True),
    "hosts": lambda folder, chosen: HostLab(folder, chosen.nodes, shared=chosen.shared, jump=chosen.jump, stays=True),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Machines inside this machine.")
    verbs = parser.add_subparsers(required=True)
    for name, verb, meaning in (("up", up, "bring one up; it stays"), ("down", down, "take down what stayed up")):
        words = verbs.add_parser(name, help=meaning)
        words.set_defaults(verb=verb)
        words.add_argument("--at", type=Path, metavar="DIR", help="the lab's folder")
        if verb is up:
            words.add_argument("--kind", choices=list(KINDS), default="slurm", help="a cluster, or SSH hosts")
            words.add_argument("--accounting", action="store_true", help="slurm with slurmdbd")
            words.add_argument("--shared", action="store_true", help="hosts with one disk for all")
            words.add_argument("--jump", action="store_true", help="hosts behind a jump host")
            words.add_argument("--nodes", type=int, default=4, metavar="N")
    verbs.add_parser("install", help="install what tests need: packages of Debian, as root").set_defaults(verb=None)
    chosen = parser.parse_args(argv)
    if (reason := install() if chosen.verb is None else no_lab()) is not None:
        print(reason, file=sys.stderr)
        return 1
    code: int = chosen.verb(chosen) if chosen.verb else 0
    return code


def up(chosen: argparse.Namespace) -> int:
    folder: Path = chosen.at or Path(tempfile.gettempdir()) / "launch-lab"
    if folder.exists() and any(folder.iterdir()) and not (folder / "hosts").exists():
        print(f"{folder}: expected a new folder or a lab's, as `down` clears it", file=sys.stderr)
        return 1
    lab = KINDS[chosen.kind](folder, chosen)
    lab.up()
    for name, value in lab.env.items():
        print(f"export {name}={value}")
    return 0


def down(chosen: argparse.Namespace) -> int:
    """Stop the lab in this folder, or all labs."""
    for folder in take_down(chosen.at and chosen.at.absolute()):
        print(f"down: {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
