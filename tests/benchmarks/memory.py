"""Measure the memory of ranks after init_process_group, before they make a model, with launch and with torchrun.

    uv run python tests/benchmarks/memory.py [--write]

PSS: a page that n processes share counts 1/n for each, so sums are honest. Shown for the ranks, and for what
supervises them: launch's supervisor, agent and zygote; torchrun's agent.
"""

import re
import statistics
import time
from pathlib import Path

from race import LAUNCH, PEERS, TORCHRUN, Race
from results import benchmark_parser, publish

BOUND_S = 180


def pss_mb(pids):
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[1]) for text in texts) / 1024


def measure(peer, ranks):
    """PSS of the ranks, and of all other processes of the race."""
    with Race(peer, ranks, "--hold") as race:
        if not race.wait(race.firsts, BOUND_S):
            raise SystemExit(f"{peer} did not come up in {BOUND_S} s:\n{race.said()}")
        time.sleep(1)  # `launch submit` leaves, and allocators settle
        own = set(race.pids())
        others = set(race.processes()) - own
        return pss_mb(own), pss_mb(others)


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[LAUNCH, TORCHRUN])
    args = parser.parse_args()
    found = {peer: [] for peer in args.peers}
    for _ in range(args.pairs):
        for peer in args.peers:
            found[peer].append(measure(peer, args.ranks))
    middles = {peer: tuple(map(statistics.median, zip(*pairs, strict=True))) for peer, pairs in found.items()}
    our_ranks, our_others = middles[LAUNCH]
    table = ["| | ranks, MB | supervisors, MB | all, MB | launch / this: ranks | all |", "|---|---|---|---|---|---|"]
    for peer, (own, others) in middles.items():
        ratios = f"{our_ranks / own:.2f} | {(our_ranks + our_others) / (own + others):.2f}"
        table.append(f"| {peer} | {own:.0f} | {others:.0f} | {own + others:.0f} | {ratios} |")
    notes = (
        f"The job has {args.ranks} ranks. Memory is PSS: a page that n processes share counts 1/n for each. "
        "`supervisors, MB` is the memory of launch's supervisor, agent and zygote, or of torchrun's agent; `all, MB` "
        "adds the ranks to it. The last two columns divide the memory of `launch` by that of the row: first for the "
        "ranks, then for all these processes."
    )
    publish("memory", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
