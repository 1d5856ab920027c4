"""Measure the CPU time and the memory of launch's own processes while the ranks of a run only wait.

uv run python tests/benchmarks/idle.py [--write]
"""

import os
import time
from pathlib import Path

from race import LAUNCH, Race
from results import benchmark_parser, publish

BOUND_S = 180
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = {"launcher.node": "agent", "launcher.supervisor": "supervisor", "zygote.py": "zygote"}


def kind(pid):
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return next((name for word, name in _KINDS.items() if word in command), command)


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid):
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Rss"].split()[0]) / 1024, int(lines["Pss"].split()[0]) / 1024


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    with Race(LAUNCH, args.ranks, "--hold") as race:
        if not race.wait(race.firsts, BOUND_S):
            raise SystemExit(f"launch did not come up in {BOUND_S} s:\n{race.said()}")
        time.sleep(2)  # `launch submit` leaves
        pids = sorted(set(race.processes()) - set(race.pids()))
        before = {pid: cpu_s(pid) for pid in pids}
        time.sleep(args.seconds)
        table = ["| | share of a core | RSS, MB | PSS, MB |", "|---|---|---|---|"]
        for pid in pids:
            share = (cpu_s(pid) - before[pid]) / args.seconds
            rss, pss = memory_mb(pid)
            table.append(f"| {kind(pid)} | {share:.2%} | {rss:.0f} | {pss:.0f} |")
    notes = (
        f"The CPU time was measured over {args.seconds:g} s, while {args.ranks} ranks on one node waited. RSS counts "
        "shared memory pages in full; PSS divides them among the processes that share them. The row `agent` includes "
        "the run's coordinator."
    )
    publish("idle", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
