"""Measure the CPU time of the agent's thread that samples a node's load, on a machine with many processes.

uv run python tests/benchmarks/load.py [--write]
"""

import contextlib
import os
import statistics
import subprocess
import time

from results import benchmark_parser, publish

from launcher.node.load.gpus import Gpus
from launcher.node.load.sampler import EVERY_S, Sampler
from launcher.plan.model import NodePlan

RANK = "for _ in $(seq {children}); do sleep {seconds} & done; echo up; wait"


@contextlib.contextmanager
def ranks(count, children, seconds=600):
    """The pids of so many, each with so many children."""
    shell = ["sh", "-c", RANK.format(children=children, seconds=seconds)]
    begun = [subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) for _ in range(count)]
    try:
        for rank in begun:
            rank.stdout.readline()
        yield dict(enumerate(rank.pid for rank in begun))
    finally:
        for rank in begun:
            os.killpg(rank.pid, 9)
            rank.wait()


def cost_s(pids, samples):
    """CPU of each sample after the first, which looks at everybody."""
    sampler, gpus = Sampler(NodePlan(0, "127.0.0.1", spare=False, gpus=None), lambda: pids), Gpus(None)
    sampler.sample(gpus)
    costs = []
    for _ in range(samples):
        began = time.thread_time()
        sampler.sample(gpus)
        costs.append(time.thread_time() - began)
    return costs


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--children", type=int, default=8, help="data workers of each rank")
    parser.add_argument("--others", type=int, default=2000, help="processes of the machine that are none of ours")
    parser.add_argument("--samples", type=int, default=60)
    args = parser.parse_args()
    head = (
        "ranks, each with its workers",
        "processes on the machine",
        "ms a sample, mean",
        "highest",
        "share of a core",
    )
    table = [f"| {' | '.join(head)} |", "|---|---|---|---|---|"]
    with ranks(1, args.others):
        for count in args.ranks:
            with ranks(count, args.children) as pids:
                there = sum(name.isdigit() for name in os.listdir("/proc"))
                costs = cost_s(pids, args.samples)
            mean = statistics.mean(costs)
            table.append(
                f"| {count} x {1 + args.children} | {there} | {mean * 1000:.2f} | {max(costs) * 1000:.2f} "
                f"| {mean / EVERY_S:.3%} |"
            )
    notes = (
        f"The thread takes a sample every {EVERY_S:g} s. `1 x {1 + args.children}` means one rank of "
        f"{1 + args.children} processes: itself and {args.children} data workers. `share of a core` is the mean CPU "
        f"time of a sample divided by {EVERY_S:g} s. Every twelfth sample also searches all processes of the machine "
        "for new ones; `mean` and `highest` include these samples."
    )
    publish("load", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
