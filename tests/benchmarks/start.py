"""Measure the time from the command to the first optimizer step of every rank, with launch and with torchrun.

    uv run python tests/benchmarks/start.py [--write]

2 and 4 ranks, one thread each, gloo. The sides take turns; each side's first start, which fills the page cache, does
not count. What launch is timed for begins with `launch submit` being executed.
"""

import statistics

from race import LAUNCH, LEGEND, PEERS, Race
from results import benchmark_parser, publish

BOUND_S = 180


def first_step_s(peer, ranks):
    """Seconds until the slowest rank has made its first step."""
    with Race(peer, ranks, "--steps", 1) as race:
        if not race.wait(race.firsts, BOUND_S):
            raise SystemExit(f"{peer} did not make a step in {BOUND_S} s:\n{race.said()}")
        return max(race.firsts()) - race.began


def rows(ranks, peers, pairs):
    taken = {peer: [] for peer in peers}
    for turn in range(pairs + 1):
        for peer in peers:
            seconds = first_step_s(peer, ranks)
            if turn:
                taken[peer].append(seconds)
    ours = statistics.median(taken[LAUNCH])
    for peer, seconds in taken.items():
        middle = statistics.median(seconds)
        yield f"| {ranks} | {peer} | {middle:.2f} | {min(seconds):.2f}-{max(seconds):.2f} | {ours / middle:.2f} |"


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    args = parser.parse_args()
    table = ["| ranks | | start to first step, s | range | launch / this |", "|---|---|---|---|---|"]
    for ranks in args.ranks:
        table += rows(ranks, args.peers, args.pairs)
    notes = (
        "`start to first step` is the time from the command (`launch submit` or `torchrun`) until the slowest rank "
        "has made a step. `launch / this` divides the time of the row `launch` with as many ranks by that of the "
        f"row. {LEGEND}"
    )
    publish("start", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
