"""Measure how much longer a recovery from kill -9 of a rank takes with `recovery: {health: true}`, which checks the
nodes first.

    uv run python tests/benchmarks/health.py [--pairs 10] [--ranks 2] [--write]

The same script and kills as recover.py; the two take turns, a kill each in a run of its own. What the checks take by
themselves is told by the run's events.
"""

import json
import random
import re
import statistics

from race import LAUNCH, Race
from recover import kills
from results import benchmark_parser, publish

WITHOUT, WITH = "false", "true"


def checks_s(race):
    """Return the seconds that each check of that run took."""
    lines = [line for path in race.folder.glob("runs/*/events.jsonl") for line in path.read_text().splitlines()]
    fit = [event["text"] for event in map(json.loads, lines) if event["kind"] == "node_fit"]
    return [float(re.search(r"; ([\d.]+) s$", text)[1]) for text in fit]


def main():
    parser = benchmark_parser(__doc__, pairs=10, seed=True)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    chance, taken, checks = random.Random(args.seed), {WITHOUT: [], WITH: []}, []
    for _ in range(args.pairs):
        for health in (WITHOUT, WITH):

            def start(health=health):
                return Race(LAUNCH, args.ranks, "--step-s", 0.01, recovery=f"  health: {health}\n")

            def ended(race):
                checks.extend(checks_s(race))

            taken[health] += kills(start, 1, chance, 60, ended=ended)
    base = statistics.median(one for one in taken[WITHOUT] if one is not None)
    table = ["| health | recovered | kill to next step of all, s | range | this / false |", "|---|---|---|---|---|"]
    for health, every in taken.items():
        good = sorted(one for one in every if one is not None)
        middle = statistics.median(good)
        spread = f"{good[0]:.2f}-{good[-1]:.2f}"
        table.append(f"| {health} | {len(good)} of {len(every)} | {middle:.2f} | {spread} | {middle / base:.2f} |")
    told = f"{statistics.median(checks):.2f} s (median; {min(checks):.2f}-{max(checks):.2f})"
    notes = (
        "With `health: true` launch tests the cores, memory, GPUs and links of the nodes before ranks start "
        f"again; with `false` (the rows' first column) it does not. The job had {args.ranks} ranks on one "
        f"node without a GPU, so only cores and memory were tested. One check took {told}. `this / false` "
        f"divides the time of a row by that of the row `false`. The seed {args.seed} drew the times and "
        "ranks of the kills."
    )
    publish("health", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
