"""Measure how long frequent commands of launch take from start to end, beside an empty Python program.

uv run python tests/benchmarks/cli.py [--write]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from results import benchmark_parser, publish
from run_folder import RunFolder

from launcher.run import registry

LAUNCH = Path(sys.executable).parent / "launch"


def finished_runs(folder, count):
    """A user's environment that knows of so many runs that have ended."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"XDG_STATE_HOME": str(folder / "state")}
    os.environ["XDG_STATE_HOME"] = env["XDG_STATE_HOME"]
    for number in range(count):
        run_id = f"job-{number:04x}"
        RunFolder(folder / "runs" / run_id).succeeded()
        registry.register(run_id, folder / "runs" / run_id)
    return env


def seconds(command, env):
    began = time.monotonic()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[20, 1000])
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env = finished_runs(Path(folder) / "none", 0)
        commands = {"python -c pass": ([sys.executable, "-c", "pass"], env), "launch --help": ([LAUNCH, "--help"], env)}
        for count in args.runs:
            known = finished_runs(Path(folder) / str(count), count)
            commands[f"launch status, {count} runs"] = ([LAUNCH, "status"], known)
            commands[f"launch status --all, {count} runs"] = ([LAUNCH, "status", "--all"], known)
        taken = {name: [] for name in commands}
        for turn in range(args.repeats + 1):
            for name, (command, env) in commands.items():
                took = seconds(command, env)
                if turn:  # the first fills the page cache and the bytecode caches
                    taken[name].append(took)
    table = ["| whole process | ms | range |", "|---|---|---|"]
    for name, all_s in taken.items():
        table.append(
            f"| `{name}` | {statistics.median(all_s) * 1000:.0f} | {min(all_s) * 1000:.0f}-{max(all_s) * 1000:.0f} |"
        )
    sizes = " and ".join(f'"{count} runs"' for count in args.runs)
    notes = (
        f"A row is one command; `python -c pass` is the empty program. {sizes} are the numbers of the user's runs, "
        f"which have ended. `--all` lists all of them. `ms` is the median of {args.repeats} starts of the command, "
        "after one that does not count."
    )
    publish("cli", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
