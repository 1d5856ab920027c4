"""Measure how long one of two ranks makes no step when the node of the other rank is lost, and when this node returns.

    uv run python tests/benchmarks/joins.py [--job image] [--pairs 5] [--lease-s 5] [--write]

`nodes: 1..2` of this machine, a rank each, ddp. The power of a node is cut: its agent, and all that runs below it, are
killed at once. The rank that is left goes on alone; with warm that is a new process, which begins with the newest
checkpoint. Then the node comes back, as its supervisor starts its agent again. With hot its rank joins while the other
one trains; with warm it waits for the next failure. How long the other one stands still for it is told from its steps:
the longest time between two new ones from when that rank is started until it has been there for a while, less what a
step takes that nothing disturbs. Every loss has a run of its own, and the modes take turns.
"""

import itertools
import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "local")]
from lab import whole_lines
from race import HOT, LAUNCH, Race
from recover import START_S
from results import benchmark_parser, publish
from resume_step import JOBS, PRELOAD
from spare import HIT, PAUSE_S, POWER_CUT, lose, processes_of, run_dir, steps_lost, tell

AFTER_S = 3.0  # in which steps are looked at after a rank has joined


@dataclass(frozen=True)
class Return:
    """NaN: none joined."""

    alone_s: float  # from the power cut to the next step of the rank that is left
    step_s: float  # of the one that is alone
    longest_s: float  # from one step to the next, while another rank joined
    joined_s: float  # from when that one was started until it had made a step
    steps_lost: int

    @property
    def still_s(self):
        return self.longest_s - self.step_s


def lost_and_back(peer, args, chance):
    how = {"nodes": 2, "least": 1, "recovery": f"  lease: {args.lease_s:g}s\n"}
    with Race(peer, 2, *JOBS[args.job], script="trained_steps.py", preload=PRELOAD, **how) as race:
        if not race.wait(race.firsts, START_S):
            raise SystemExit(f"{peer} did not train in {START_S} s:\n{race.said()}")
        time.sleep(chance.uniform(*PAUSE_S))
        path = run_dir(race)
        pids = processes_of(path, HIT)
        race.wait(lambda: True, 1)
        at, strangers = time.monotonic(), race.all_pids()
        lose(POWER_CUT, pids)

        def goes_on():
            """In a new process; or in the same one, past the step that it has ended once more: one that was all but
            done as the node was lost is none."""
            if peer == LAUNCH:
                return [now for now, pid, _ in race.notes[0] if pid not in strangers]
            ends = [(now, int(what)) for now, _, what in race.notes[0]]
            again = next((now for (_, one), (now, other) in itertools.pairwise(ends) if one == other), math.inf)
            return [now for now, _ in ends if now > again]

        if not race.wait(goes_on, args.patience_s):
            raise SystemExit(f"{peer} did not go on in {args.patience_s} s:\n{race.said()}")
        alone_s = goes_on()[0] - at
        if peer == LAUNCH:
            race.wait(lambda: len(goes_on()) > 1, args.patience_s)
            return Return(alone_s, race.step_s(), math.nan, math.nan, steps_lost(race.notes[0]))
        if not race.wait(lambda: race.notes[1][-1][0] > at, args.patience_s):
            raise SystemExit(f"{peer}: the node did not join again in {args.patience_s} s:\n{race.said()}")
        race.wait(lambda: False, AFTER_S)
        events = [json.loads(line) for line in whole_lines(path / "events.jsonl")]
        if args.events:
            tell("joins", peer, events, 0.0)
        begun = max(event["at"] for event in events if event["kind"] == "joining") + time.monotonic() - time.time()
        joined = next(now for now, _, _ in race.notes[1] if now > at)
        # A node that is back at once leaves no time for steps without it: then those of all are the measure.
        step_s = statistics.median(between(race.notes[0], goes_on()[0], begun) or [race.step_s()])
        longest_s = max(between(race.notes[0], begun, joined + AFTER_S))
        return Return(alone_s, step_s, longest_s, joined - begun, steps_lost(race.notes[0]))


def between(notes, since, until):
    """The times from one step to the next that had not been made before, of those that ended in that time."""
    made = []
    for at, _, what in notes:
        if not made or int(what) > made[-1][1]:
            made.append((at, int(what)))
    return [now - before for (before, _), (now, _) in itertools.pairwise(made) if since < now <= until]


def row(peer, found, warm_s):
    alone = sorted(one.alone_s for one in found)
    lost = sorted(one.steps_lost for one in found)
    cells = [
        peer,
        len(found),
        f"{statistics.median(alone):.2f}",
        f"{alone[0]:.2f}-{alone[-1]:.2f}",
        f"{statistics.median(alone) / warm_s:.2f}",
        f"{lost[0]}-{lost[-1]}",
        f"{statistics.median(one.step_s for one in found):.3f}",
        *(joined(found) if peer == HOT else ["-"] * 4),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def joined(found):
    still = sorted(one.still_s for one in found)
    yield f"{statistics.median(still):.2f}"
    yield f"{still[0]:.2f}-{still[-1]:.2f}"
    yield f"{statistics.median(one.still_s / one.step_s for one in found):.2f}"
    yield f"{statistics.median(one.joined_s for one in found):.1f}"


def main():
    parser = benchmark_parser(__doc__, pairs=5, seed=True)
    parser.add_argument("--job", choices=JOBS, default="image")
    parser.add_argument("--lease-s", type=float, default=5.0)
    parser.add_argument("--patience-s", type=float, default=90.0)
    parser.add_argument("--events", action="store_true", help="tell what the run noted")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    taken = {LAUNCH: [], HOT: []}
    for _ in range(args.pairs):
        for peer, found in taken.items():
            found.append(lost_and_back(peer, args, chance))
            print(peer, found[-1], file=sys.stderr, flush=True)
    what = "| | n | cut to next step, s | range | of warm | steps lost | a step alone, s "
    what += "| stands still for one that joins, s | range | in steps | its start to its first step, s |"
    table = [what, "|---" * 11 + "|"]
    warm_s = statistics.median(one.alone_s for one in taken[LAUNCH])
    table += [row(peer, found, warm_s) for peer, found in taken.items()]
    notes = (
        f"The run was the job `{args.job}` (`image` trains a ResNet-18, `mlp` a tiny MLP) with DDP, on one "
        f"or two nodes (`nodes: 1..2`) with one rank each (seed {args.seed}). A node without contact counts "
        f"as lost after {args.lease_s:g} s. Every process of one node was killed at once, the cut. The rank of "
        "the other node continued alone: `cut to next step` is the time from the cut to its next step. Then the "
        "lost node returned. In the row `launch` (`recovery: {mode: "
        "warm}`) the remaining rank starts again from a checkpoint, and the returned node waits for the "
        "next failure. In the row `launch, hot` (`mode: hot`) the remaining rank keeps its process, and the "
        "rank of the returned node joins while it trains. For this the remaining rank `stands still`: this "
        "is its longest time without a new step, less `a step alone`, the usual time of a step. `in steps` "
        "is this time divided by that of a step. `of warm` divides `cut to next step` by that of the row "
        "`launch`."
    )
    publish("joins", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
