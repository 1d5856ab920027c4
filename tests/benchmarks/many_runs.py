"""Measure the time and the CPU time of commands that search or delete runs when there are many runs.

uv run python tests/benchmarks/many_runs.py [--write]
"""

import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from cli import LAUNCH, finished_runs
from results import benchmark_parser, publish

COMMANDS = (
    ("ls", "--all"),
    ("ls", "--state", "succeeded", "--name", "job*", "--columns", "checkpoint,commit", "--sort", "step"),
    ("prune", "--state", "ended", "--dry-run"),
    ("du",),
)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def costs(command, env):
    """Seconds by the clock, and of CPU."""
    began, before = time.monotonic(), cpu_s()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began, cpu_s() - before


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    table = [f"| whole process, {args.runs} runs | ms | range | ms of CPU |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        env = finished_runs(Path(folder), args.runs)
        for words in COMMANDS:
            taken = [costs([LAUNCH, *words], env) for _ in range(args.repeats + 1)][1:]  # the first fills caches
            clock, cpu = ([1000 * one for one in each] for each in zip(*taken, strict=True))
            times = f"{statistics.median(clock):.0f} | {min(clock):.0f}-{max(clock):.0f} | {statistics.median(cpu):.0f}"
            table.append(f"| `launch {' '.join(words)}` | {times} |")
    publish("many_runs", "\n".join(table), write=args.write)


if __name__ == "__main__":
    main()
