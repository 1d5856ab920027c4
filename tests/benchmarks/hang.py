"""From a hang to the name of the rank that the others wait for: right, unknown or wrong, and how many seconds later.

    uv run python tests/benchmarks/hang.py [--kinds order,data] [--styles hand,ddp] [--shapes 1x2,2x2] [--write]

Each case is a run of tests/node/scripts/hangs.py on this machine, with steps of 0.1 s and `hang_after: auto`.
The clock starts at the moment of the hang and stops when the verdict is in the run's records. A calm run beside them
counts false alarms; a loop of all_reduce with and without torch's Flight Recorder gives the cost of a step.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import publish

SCRIPT = Path(__file__).parents[1] / "node/scripts/hangs.py"
KINDS = {
    "data": "never_entered", "sleep": "never_entered", "lock": "never_entered", "save": "never_entered",
    "busy": "never_entered", "order": "different_collectives", "receive": "different_collectives",
    "groups": "different_collectives", "shapes": "different_shapes", "left_early": "left_early", "frozen": "frozen",
    "python_lock": "frozen", "nobody": "nobody_in_a_collective",
}  # fmt: skip
CULPRIT = 1
START_S, PATIENCE_S = 240.0, 60.0
LAUNCH = [sys.executable, "-m", "launcher.cli.main"]


class Case:
    """One run that hangs."""

    def __init__(self, kind, style, shape):
        self.kind, self.style, self.shape = kind, style, shape
        self._folder = Path(tempfile.mkdtemp(prefix="launch-hang-"))
        shutil.copy(SCRIPT, self._folder)
        nodes, each = shape.split("x")
        spec = f"name: hangs\nrun: {{script: hangs.py, args: [{kind}, {style}]}}\n"
        spec += f"resources: {{nodes: {nodes}, ranks_per_node: {each}}}\nqueue: {{now: true}}\n"
        (self._folder / "job.yaml").write_text(spec)
        self._environment = {**os.environ, "LAUNCH_RUNS": str(self._folder / "runs"), "OMP_NUM_THREADS": "1"}
        self._run = self._launch("submit", "job.yaml").stdout.split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._launch("cancel", self._run)
        shutil.rmtree(self._folder)

    def seconds_to_verdict(self):
        """Return (seconds from the hang to the verdict, the verdict); None for what did not come."""
        hung_at = until(self._hung_at, START_S)
        if hung_at is None:
            return None, None
        place = self._folder / "runs" / self._run / "attempts/0001/hang-001/report.json"
        if until(place.exists, PATIENCE_S) is None:
            return None, None
        report = json.loads(place.read_text())
        return report["at"] - hung_at, report["verdict"]

    def alarms(self, seconds):
        """Return how many failures a run has had in its first seconds of training."""
        until(lambda: self._status()["step"], START_S)
        time.sleep(seconds)
        return self._status()["restarts"]["total"]

    def _status(self):
        return json.loads(self._launch("status", self._run, "--json").stdout)

    def _hung_at(self):
        logs = [path.read_text(errors="replace") for path in (self._folder / "runs").glob("*/logs/*/rank-*.log")]
        times = [float(line.split()[1]) for log in logs for line in log.splitlines() if line.startswith("hangs ")]
        return max(times, default=None)

    def _launch(self, *words):
        return subprocess.run(
            [*LAUNCH, *words], cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )


def until(look, seconds):
    """Return what `look` finds, or None where it finds nothing in that time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if found := look():
            return found
        time.sleep(0.1)
    return None


def judged(kind, verdict):
    """`right`, `unknown` or `wrong`: a verdict that names another rank, or another kind of hang."""
    if verdict is None or verdict["kind"] == "unknown":
        return "unknown"
    named = CULPRIT in verdict["ranks"] or kind == "nobody"
    return "right" if verdict["kind"] == KINDS[kind] and named else "wrong"


COST = """
import statistics, time, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
tensor, times = torch.ones(1024), []
for _ in range(30):
    began = time.process_time()
    for _ in range(200):
        dist.all_reduce(tensor)
    times.append((time.process_time() - began) / 200)
print(min(times))
"""


def recorder_s():
    """Return the processor time that noting one collective takes: the least of several turns with and without."""
    least = {"0": [], "2000": []}
    for _ in range(3):
        for size, times in least.items():
            environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": size, "OMP_NUM_THREADS": "1"}
            said = subprocess.run(
                [sys.executable, "-c", COST], env=environment, capture_output=True, text=True, check=True
            )
            times.append(float(said.stdout))
    return min(least["2000"]) - min(least["0"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--styles", default="hand,ddp,fsdp,accelerate")
    parser.add_argument("--shapes", default="1x2,1x4,2x2", help="nodes x ranks on each")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument(
        "--calm", type=float, default=60.0, metavar="S", help="how long a run without a hang is watched"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows, all_ = ["| kind | right | unknown | wrong | seconds to the verdict |", "|---|---|---|---|---|"], []
    for kind in options.kinds.split(","):
        found, seconds = [], []
        for style in options.styles.split(","):
            for shape in options.shapes.split(","):
                for _ in range(options.times):
                    with Case(kind, style, shape) as case:
                        took_s, verdict = case.seconds_to_verdict()
                    found.append(judged(kind, verdict))
                    seconds += [took_s] if took_s is not None else []
                    text = verdict["text"] if verdict else "no verdict"
                    print(
                        f"{kind} {style} {shape}: {found[-1]}, {took_s or 0:.1f} s: {text}", file=sys.stderr, flush=True
                    )
        all_ += found
        took = f"{statistics.median(seconds):.1f} ({max(seconds):.1f} at most)" if seconds else "-"
        rows.append(f"| {kind} | {found.count('right')} | {found.count('unknown')} | {found.count('wrong')} | {took} |")
    with Case("calm", "ddp", "1x2") as case:
        alarms = case.alarms(options.calm)
    rows += ["", f"{all_.count('right')} of {len(all_)} right, {all_.count('wrong')} wrong."]
    rows += [f"False alarms in {options.calm:g} s of a training without a hang: {alarms}."]
    rows += [
        f"Noting one collective takes {1e6 * recorder_s():.1f} µs of processor time; of a step of 2 ms 0.5 % is 10."
    ]
    publish("hang", "\n".join(rows), write=options.write)


if __name__ == "__main__":
    main()
