"""Compare two versions of launch by two times: to the first step, and from kill -9 of a rank to the next step of all.

    uv run python tests/benchmarks/versions.py --other FOLDER [--write]

FOLDER is a work tree of the other version with an environment of its own (`git worktree add`, `uv sync`). The two take
turns, and each goes first in half of the pairs; what counts is the median of the differences within pairs, as another
load at another moment is no difference between versions.
"""

import json
import random
import statistics
import subprocess
from pathlib import Path

from race import LAUNCH, Race
from recover import kills
from results import benchmark_parser, publish
from start import first_step_s

KILLS = 3  # in each race: their median counts
PATIENCE_S = 120

NOTES = (
    "`start` is the time from the command to the first step, `regroup` the time from kill -9 of a rank to "
    "the next step of all ranks; the ranges are in brackets. Other work on the machine may vary, so compare "
    "only the last column, the median of the differences within the pairs. If it is positive, `this "
    "version` is slower. `the other` is the version in FOLDER."
)


def measured(what, ranks):
    """Seconds, of the launch in the environment of this Python."""
    if what == "start":
        return first_step_s(LAUNCH, ranks)
    race = lambda: Race(LAUNCH, ranks, "--step-s", 0.01)  # noqa: E731
    return statistics.median(kills(race, KILLS, random.Random(), PATIENCE_S))


def ask(folder, what, ranks):
    """Seconds, of the launch in that folder's environment."""
    argv = [folder / ".venv" / "bin" / "python", __file__, "--one", what, "--ranks", str(ranks)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def row(what, ranks, pairs, sides):
    taken = {name: [] for name in sides}
    for turn in range(pairs + 1):
        for name in [*sides][:: 1 if turn % 2 else -1]:
            seconds = ask(sides[name], what, ranks)
            if turn:  # the first one fills the page cache
                taken[name].append(seconds)
    ours, theirs = taken.values()
    apart = statistics.median(one - other for one, other in zip(ours, theirs, strict=True))
    figures = " | ".join(f"{statistics.median(one):.3f} ({min(one):.3f}-{max(one):.3f})" for one in (ours, theirs))
    return f"| {what} | {ranks} | {pairs} | {figures} | {1e3 * apart:+.0f} ms |"


def main():
    parser = benchmark_parser(__doc__, pairs=7)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=["start", "regroup"], default=["start", "regroup"])
    parser.add_argument("--one", choices=["start", "regroup"], help="measure this here, and print it")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one, args.ranks)))
        return
    sides = {"this": Path(__file__).parents[2], "other": args.other.absolute()}
    table = ["| what | ranks | pairs | this version, s | the other, s | median difference within pairs |"]
    table += ["|---|---|---|---|---|---|"]
    table += [row(what, args.ranks, args.pairs, sides) for what in args.only]
    publish("versions", "\n".join([*table, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
