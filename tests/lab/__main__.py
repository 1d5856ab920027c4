"""`python -m tests.lab up [--accounting] [--nodes N] [--at DIR]` and `python -m tests.lab down [--at DIR]`, by hand."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.lab.claims import take_down
from tests.lab.requirements import what_is_missing
from tests.lab.slurm import SlurmLab


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="A Slurm cluster inside this machine.")
    verbs = parser.add_subparsers(required=True)
    for name, verb, meaning in (("up", up, "bring one up; it stays"), ("down", down, "take down what stayed up")):
        words = verbs.add_parser(name, help=meaning)
        words.set_defaults(verb=verb)
        words.add_argument("--at", type=Path, metavar="DIR", help="the lab's folder")
        if verb is up:
            words.add_argument("--accounting", action="store_true", help="with slurmdbd")
            words.add_argument("--nodes", type=int, default=4, metavar="N")
    if (reason := what_is_missing()) is not None:
        print(reason, file=sys.stderr)
        return 1
    chosen = parser.parse_args(argv)
    code: int = chosen.verb(chosen)
    return code


def up(chosen: argparse.Namespace) -> int:
    folder: Path = chosen.at or Path(tempfile.gettempdir()) / "launch-lab"
    if folder.exists() and any(folder.iterdir()) and not (folder / "slurm.conf").exists():
        print(f"{folder}: expected a new folder or a lab's, as `down` clears it", file=sys.stderr)
        return 1
    lab = SlurmLab(folder, chosen.nodes, accounting=chosen.accounting, stays=True)
    lab.up()
    print(f"export SLURM_CONF={lab.slurm_conf}")
    return 0


def down(chosen: argparse.Namespace) -> int:
    """All of them, where no folder is named."""
    for folder in take_down(chosen.at and chosen.at.absolute()):
        print(f"down: {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
