"""Measure how the time of commands that find or delete runs, and of `launch board`, grows with the number of runs.

uv run python tests/benchmarks/many_runs.py [--runs 10 100 1000 10000] [--write]
"""

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from math import log
from pathlib import Path
from urllib.request import Request, urlopen

from cli import LAUNCH, finished_runs
from results import benchmark_parser, publish

FIRST, BOARD = "board's first table: the newest runs", "board's first table: all runs (CPU since its start)"
MEMORY = "board's memory after it, MB"

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


def board_costs(env):
    """Return seconds from the first request to an answer with rows and to the one with all, CPU seconds from the
    board's start to then, and its MB.
    """
    command = [LAUNCH, "board", "--no-open", "--port", "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address, _, words = process.stdout.readline().strip().partition("/?token=")
            asked = Request(f"{address}/api/runs", headers={"Authorization": f"Bearer {words.partition('#')[0]}"})
            began = time.monotonic()
            first = None
            while not (table := json.loads(urlopen(asked).read()))["complete"]:
                first = first or (time.monotonic() - began if table["runs"] else None)
                time.sleep(0.05)
            took = time.monotonic() - began
            status = Path(f"/proc/{process.pid}/status").read_text()
            cpu = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            return (
                first or took,
                took,
                cpu / os.sysconf("SC_CLK_TCK"),
                int(status.partition("VmHWM:")[2].split()[0]) / 1024,
            )
        finally:
            process.terminate()


def measured(env, repeats):
    """Return rows of milliseconds, in all and of CPU, by command; and of the board."""
    rows = {}
    for words in COMMANDS:
        taken = [costs([LAUNCH, *words], env) for _ in range(repeats + 1)][1:]  # the first fills caches
        rows[f"`launch {' '.join(words)}`"] = [1000 * statistics.median(each) for each in zip(*taken, strict=True)]
    found = [board_costs(env) for _ in range(repeats)]
    first, all_s, cpu, mb = (statistics.median(each[place] for each in found) for place in range(4))
    return rows | {FIRST: [1000 * first], BOARD: [1000 * all_s, 1000 * cpu], MEMORY: [mb]}


def exponent(sizes, values):
    """Return the power of the number of runs with which what is beyond the smallest number's share grows at last."""
    before, last = (value - values[0] for value in values[-2:])
    grown = before, last
    return f"{log(grown[1] / grown[0]) / log(sizes[-1] / sizes[-2]):.2f}" if min(grown) > 0 else ""


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    by_size = []
    for count in args.runs:
        with tempfile.TemporaryDirectory() as folder:
            by_size.append(measured(finished_runs(Path(folder), count), args.repeats))
    head = ["whole process, ms (of CPU)", *(f"{count} runs" for count in args.runs), "grows as n to the power"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in by_size[0]:
        each = [" (".join(f"{value:.0f}" for value in one[name]) + ")" * (len(one[name]) - 1) for one in by_size]
        power = exponent(args.runs, [one[name][-1] for one in by_size]) if len(args.runs) > 2 else ""
        table.append(f"| {' | '.join([name, *each, power])} |")
    notes = (
        "A cell has the milliseconds of the whole command and, in parentheses, its CPU time in ms. The columns are "
        "the numbers of runs that have ended. `launch board` is the page in the browser; its rows have the time from "
        "the first request until the table has its first rows and until it has all, and the board's memory after "
        "that. The last column is an exponent: a value k means that the figure in parentheses, or the only figure, "
        f"grows as the number of runs to the power k between the last two columns, after the value for {args.runs[0]} "
        "runs is subtracted."
    )
    publish("many_runs", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
