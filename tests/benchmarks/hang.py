"""Measure how often and how soon launch names the rank that the others wait for when a training hangs.

    uv run python tests/benchmarks/hang.py [--kinds order,data] [--styles hand,ddp] [--shapes 1x2,2x2] [--repeats 10]
    uv run python tests/benchmarks/hang.py --calm 60 [--styles ddp]    # false alarms in an hour of healthy trainings
    uv run python tests/benchmarks/hang.py --others                    # what torch itself and NVRx tell of them

Each case is a run of tests/node/scripts/hangs.py on this machine, with steps of 0.1 s and `hang_after: auto`.
The clock starts at the moment of the hang and stops when the verdict is in the run's records. A loop of all_reduce
with and without torch's Flight Recorder gives the cost of a step. `--write` keeps each of the three tables.
"""

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from results import benchmark_parser, publish

SCRIPT = Path(__file__).parents[1] / "node/scripts/hangs.py"
KINDS = {
    "data": "never_entered", "sleep": "never_entered", "lock": "never_entered", "save": "never_entered",
    "busy": "never_entered", "order": "different_collectives", "receive": "different_collectives",
    "groups": "different_collectives", "shapes": "different_shapes", "left_early": "left_early", "frozen": "frozen",
    "python_lock": "frozen", "nobody": "nobody_in_a_collective",
}  # fmt: skip
# A rank that has no more batches ends neither of these: both train for a number of steps that all ranks agree on.
INAPPLICABLE = {("left_early", "trainer"), ("left_early", "lightning")}
CULPRIT = 1
KINDS_MEAN = (
    "The kinds are what rank 1 did while the others waited: its sample never came (`data`), it slept "
    "(`sleep`), waited for a lock (`lock`), saved to storage that did not answer (`save`), or computed "
    "without end (`busy`); it called another collective (`order`), received a message that nobody sent "
    "(`receive`), used another process group (`groups`), or sent a tensor of another shape (`shapes`); it "
    "had ended (`left_early`), was stopped by SIGSTOP (`frozen`), or held Python's lock in C code "
    "(`python_lock`). With `nobody`, no rank was in a collective. `right` counts verdicts that name this "
    "kind and rank 1; `unknown` counts cases without a definite verdict. The column `crashed` counts "
    "trainings that ended with an error before they could hang: with four ranks, gloo raises an error in a "
    "rank that receives more bytes than it expects, and launch reports the line of the script where it was raised."
)
CALM = "Count how often launch reports or ends a healthy training as hanging."
OTHERS_TOO = "Compare what launch, torchrun and NVRx report about the same hangs."
START_S, PATIENCE_S = 240.0, 60.0
HEALTHY = ("validation", "saving", "compile", "uneven", "suspended", "starved")
HEALTHY_MEAN = """The healthy trainings do things that could look like a hang:

- The trainings `validation` and `saving` make no step for 20 s after every 100 steps. `compile` makes none in its
  first 30 s.
- `uneven` has slow batches: each batch, with a probability of a tenth, is preceded by a pause of random length, two
  seconds on average.
- `suspended` has every process of the run stopped for a minute every 90 s.
- `starved` gets little CPU time: it runs with nice 19 on one core, beside two other busy programs.

The column `ended by false alarm` counts restarts of these trainings. The column `looked at` counts how often launch
inspected the ranks because they had made no step for unusually long. After the first long pause of a training it
expects later pauses of the same length."""
STOPPED_S, STOPPED_EVERY_S = 60.0, 90.0
LAUNCH = [sys.executable, "-m", "launcher.cli.main"]

# Others need a limit to be given, and NVRx to be installed, and called in the loop.
LIMIT_S, OTHERS_WAIT_S = 8, 90.0
OTHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "NVRx": [
        "nvidia_resiliency_ext.fault_tolerance.launcher", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0", f"--ft-rank-section-timeouts=step:{LIMIT_S}",
        "--ft-rank-out-of-section-timeout=600", "--ft-workload-check-interval=1",
    ],
}  # fmt: skip
OTHERS_ENVIRONMENT = {"torchrun": {"HANGS_TIMEOUT_S": f"{LIMIT_S}"}, "NVRx": {"HANGS_NVRX": "1"}}
OTHERS_WORDS = re.compile(
    r"Timed out waiting \d+ms for \w+ operation|Connection closed by peer|(?<=:)\d\] Section 'step' has been open"
)


class Case:
    """One run that hangs."""

    def __init__(self, kind, style, shape, device="cpu"):
        self._folder = Path(tempfile.mkdtemp(prefix="launch-hang-"))
        shutil.copy(SCRIPT, self._folder)
        nodes, each = shape.split("x")
        spec = f"name: hangs\nrun: {{script: hangs.py, args: [{kind}, {style}]}}\n"
        gpus = f", gpus_per_node: {each}" if device == "cuda" else ""
        spec += f"resources: {{nodes: {nodes}, ranks_per_node: {each}{gpus}}}\nqueue: {{now: true}}\n"
        spec += f"env: {{HANGS_DEVICE: {device}}}\n"
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

    def crashed(self):
        """Return whether a rank has failed by itself."""
        return '"cause":"killed"' in "".join(one.read_text() for one in (self._folder / "runs").glob("*/events.jsonl"))

    def alarms(self, seconds, kind):
        """Return how often a healthy run was ended in its first seconds of training, and was looked at."""
        until(lambda: self._status()["step"], START_S)
        ends = time.monotonic() + seconds
        while (left_s := ends - time.monotonic()) > 0:
            time.sleep(min(left_s, STOPPED_EVERY_S))
            if kind == "suspended":
                self._suspend()
        looks = list((self._folder / "runs").glob("*/attempts/*/hang-*"))
        return self._status()["restarts"]["total"], len(looks)

    def _suspend(self):
        """Stop every process of the run for a while, as a suspended machine does."""
        pids = processes_with(f"LAUNCH_RUNS={self._folder}/runs")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(STOPPED_S if number == signal.SIGSTOP else 0)

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


def processes_with(entry):
    """Return the pids of all processes that have this entry in their environment."""
    wanted = entry.encode()
    return [
        int(one.name)
        for one in Path("/proc").iterdir()
        if one.name.isdigit() and wanted in environment_of(one).split(b"\0")
    ]


def environment_of(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended
        return b""


def until(look, seconds):
    """Return what `look` finds, or None where it finds nothing in that time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if found := look():
            return found
        time.sleep(0.1)
    return None


def judged(kind, verdict, crashed):
    """`right`, `unknown` or `wrong`: a verdict that names another rank, or another kind of hang.

    `crashed`: there was no hang to be judged, as where gloo itself ends a rank for what it has received.
    """
    if verdict is None and crashed:
        return "crashed"
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
dist.destroy_process_group()
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


def hangs(options):
    """Return the lines about hangs: all kinds come by turns, so that each has had some when the time is up."""
    turns = itertools.product(options.shapes.split(","), options.styles.split(","), options.kinds.split(","))
    cases = [(kind, style, shape) for shape, style, kind in turns if (kind, style) not in INAPPLICABLE]
    found, ends = defaultdict(list), time.monotonic() + 60 * options.minutes
    for kind, style, shape in cases * options.repeats:
        if time.monotonic() >= ends:
            break
        with Case(kind, style, shape) as case:
            took_s, verdict = case.seconds_to_verdict()
            found[kind].append((judged(kind, verdict, case.crashed()), took_s))
        text = verdict["text"] if verdict else "no verdict"
        told = f"{kind} {style} {shape}: {found[kind][-1][0]}, {took_s or 0:.1f} s: {text}"
        print(told, file=sys.stderr, flush=True)
    lines = ["| kind | right | unknown | wrong | crashed | seconds to the verdict |", "|---|---|---|---|---|---|"]
    for kind, results in found.items():
        lines.append(f"| {kind} | {counted(results)} | {spread([took_s for _, took_s in results])} |")
    all_ = [one for results in found.values() for one in results]
    together = f"The columns from `right` to `crashed` have together, for {len(all_)} cases: {counted(all_)}."
    lines += ["", together, "", KINDS_MEAN, ""]
    recorder_us = 1e6 * recorder_s()
    return [
        *lines,
        f"One record of torch's Flight Recorder, by which launch finds hangs, takes {recorder_us:.1f} µs of CPU time.",
    ]


def counted(results):
    return " | ".join(str(sum(one == word for one, _ in results)) for word in ("right", "unknown", "wrong", "crashed"))


def spread(seconds):
    taken = [one for one in seconds if one is not None]
    return f"{statistics.median(taken):.1f} ({max(taken):.1f} at most)" if taken else "-"


def healthy(options):
    """Return the lines about trainings that never hang."""
    lines = ["| healthy training | minutes | ended by false alarm | looked at |", "|---|---|---|---|"]
    turns = [(kind, style) for style in options.styles.split(",") for kind in HEALTHY]
    each_s = 60 * options.calm / len(turns)
    for kind, style in turns:
        with beside(kind), Case(kind, style, options.shapes.split(",")[0]) as case:
            alarms, looks = case.alarms(each_s, kind)
        lines.append(f"| {kind}, {style} | {each_s / 60:.1f} | {alarms} | {looks} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, "", HEALTHY_MEAN]


@contextlib.contextmanager
def beside(kind):
    """Have a starved training share one processor with two loops that are preferred to it."""
    if kind != "starved":
        yield
        return
    before, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    os.sched_setaffinity(0, {min(before)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.sched_setaffinity(0, before)


def by_others(options):
    """Return the lines about what others tell of the same hangs when the time limit that they are given is over."""
    lines = ["| kind | who | seconds to the first word | what it tells |", "|---|---|---|---|"]
    for kind, who in itertools.product(options.kinds.split(","), OTHERS):
        told, case = list[tuple[float, str]](), str(time.time_ns())
        with subprocess.Popen(
            [sys.executable, "-m", *OTHERS[who], str(SCRIPT), kind, "ddp"],
            env={**os.environ, **OTHERS_ENVIRONMENT[who], "OMP_NUM_THREADS": "1", "HANGS_CASE": case},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            end = threading.Timer(OTHERS_WAIT_S, process.terminate)  # then it ends its ranks
            end.start()
            hung_at = None
            for line in process.stdout:
                if at := re.findall(r"hangs (\d+\.\d+)", line):  # ranks write into one line
                    hung_at = float(at[-1])
                elif hung_at is not None and (found := OTHERS_WORDS.search(line)):
                    told.append((time.time() - hung_at, found[0]))
            end.cancel()
        for pid in processes_with(f"HANGS_CASE={case}"):  # as a stopped rank outlives both
            os.kill(pid, signal.SIGKILL)
        texts = ", ".join(dict.fromkeys(text for _, text in told)) or "nothing"
        lines.append(f"| {kind} | {who} | {spread([at for at, _ in told[:1]])} | {texts} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--styles", default="hand,ddp,fsdp,accelerate,lightning,trainer")
    parser.add_argument("--shapes", default="2x1,1x2,1x4", help="nodes x ranks on each")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further hang after so many")
    parser.add_argument("--calm", type=float, metavar="MINUTES", help="of trainings that do not hang, instead")
    parser.add_argument("--others", action="store_true", help="what torch itself and NVRx tell, instead")
    options = parser.parse_args()
    if options.calm is not None:
        publish("hang-calm", "\n".join(healthy(options)), write=options.write, title="hang.py, false alarms", what=CALM)
    elif options.others:
        publish(
            "hang-others", "\n".join(by_others(options)), write=options.write, title="hang.py, others", what=OTHERS_TOO
        )
    else:
        publish("hang", "\n".join(hangs(options)), write=options.write)


if __name__ == "__main__":
    main()
