"""Measure how long launch takes to list and copy the code of a project with 50,000 files when a run is submitted.

uv run python tests/benchmarks/freeze.py [--files 50000] [--turns 5] [--write]

Beside `cp -r` of the same files, and `git status`, which looks at each. What the sides make is only taken away at the
end: ext4 is slow to make files for minutes after many were removed.
"""

import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from results import benchmark_parser, publish

from launcher.run.code.freezing import bring_code, freeze
from launcher.run.code.listing import list_code
from launcher.run.layout import STORE, RunDir
from launcher.spec.model import Code

_IN_A_FOLDER = 100
_LIMIT_BYTES = 1 << 40


def make_project(root, files):
    for number in range(files):
        folder = root / f"d{number // _IN_A_FOLDER:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.py").write_text(f"value = {number}\n" * 100)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)


def cpu_s():
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, (0, resource.RUSAGE_CHILDREN)))


def measured(work):
    wall, cpu = time.monotonic(), cpu_s()
    work()
    return time.monotonic() - wall, cpu_s() - cpu


def turn(project, scratch):
    """Seconds and seconds of CPU of each side, by what it is."""
    run = RunDir(scratch / "runs" / "run-2345")
    run.path.mkdir(parents=True)

    store = run.path.parent / STORE

    def ask_git():
        subprocess.run(["git", "status", "-s"], cwd=project, check=True, stdout=subprocess.DEVNULL)

    def list_it():
        return list_code(project, Code(max_bytes=_LIMIT_BYTES))

    def freeze_it():
        freeze(list_it(), store, None)

    def bring_it():
        [digest] = [tree.name for tree in store.iterdir() if tree.is_dir()]
        bring_code(run, digest)

    def copy_it():
        subprocess.run(["cp", "-r", *sorted(project.glob("d*")), scratch / "copy"], check=True)
        subprocess.run(["sync", "-f", scratch], check=True)

    (scratch / "copy").mkdir(parents=True)
    return {
        "list the files": measured(list_it),
        "list and freeze, first time": measured(freeze_it),
        "list and freeze, nothing changed": measured(freeze_it),
        "copy for the ranks, after the submit": measured(bring_it),
        "cp -r and sync": measured(copy_it),
        "git status": measured(ask_git),
    }


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        project = Path(folder) / "project"
        make_project(project, args.files)
        subprocess.run(["sync"], check=True)
        taken = [turn(project, Path(folder) / f"turn-{number}") for number in range(args.turns)]
    peer = statistics.median(one["cp -r and sync"][0] for one in taken)
    table = [f"| {args.files:,} files | s | range | CPU, s | of `cp -r` |", "|---|---|---|---|---|"]
    for what in taken[0]:
        walls, cpus = zip(*(one[what] for one in taken), strict=True)
        middle, cpu = statistics.median(walls), statistics.median(cpus)
        table.append(f"| {what} | {middle:.2f} | {min(walls):.2f}-{max(walls):.2f} | {cpu:.2f} | {middle / peer:.2f} |")
    notes = (
        "`freeze` copies the project's files into a store beside the runs; files that are there already are not "
        "copied again. `copy for the ranks` copies them from the store into the run's folder. The rows `cp -r and "
        "sync` and `git status` are for comparison. The last column divides the time of the row, `s`, by that of `cp "
        "-r and sync`."
    )
    publish("freeze", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
