"""Measure how long Slurm users wait for a submit, a status, a first step, and after a killed rank or a lost node.

    uv run python tests/benchmarks/slurm.py [--write]

Runs in the lab of tests/lab: a real Slurm inside this machine, four nodes in namespaces of their own. The peer is
`srun torchrun` with the c10d rendezvous, on the same script in the same lab; the sides take turns. "granted" is the
moment at which squeue shows the job as running. Where a rank of the second node is killed, the next step counts once
every rank has made one in a process that was not there before.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "local")]
from lab import Lab
from noted_steps import Steps, network_card
from results import benchmark_parser, publish
from sides import LAUNCH, START_S, first_step_row, middle, recovery_rows, take_turns, to_recover

from tests.lab.slurm import SlurmLab

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TORCHRUN, WITH_VARIABLE = "srun torchrun", "srun torchrun, own store"
SPEC = """name: race
run:
  script: ddp_steps.py
  args: [--out, {out}, --step-s, "0.02"]
resources:
  nodes: {nodes}
  ranks_per_node: 2
  gpus_per_node: 0
  cpus_per_rank: 1
recovery:
  killed: {{restarts: unlimited, backoff: 0s..0s}}
  no_progress: off
"""
PEER = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --output={said}
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME={card} {variable}
exec srun --cpus-per-task=2 {torchrun} --nnodes=2 --nproc-per-node=2 --max-restarts=1000 --rdzv-backend=c10d \\
  --rdzv-id=race --rdzv-endpoint={head}:29400 {script} --out {out} --step-s 0.02
"""


class Bench:
    """A user at the login node of a lab."""

    def __init__(self, folder):
        self.folder = folder
        self.slurm = SlurmLab(folder / "lab")
        self.desk = None

    def __enter__(self):
        self.slurm.__enter__()
        self.desk = Lab(self.folder)
        self.desk.env |= self.slurm.env
        self.desk.env.pop("PYTHONDONTWRITEBYTECODE", None)
        shutil.copy(HERE / "ddp_steps.py", self.desk.project)
        return self

    def __exit__(self, *error):
        self.slurm.clear()
        self.slurm.__exit__(*error)

    def timed(self, command, **more):
        began = time.monotonic()
        done = subprocess.run(command, cwd=self.desk.project, env={**os.environ, **self.desk.env}, check=True,
                              capture_output=True, text=True, **more)  # fmt: skip
        return time.monotonic() - began, done.stdout

    def spec(self, text, name="job.yaml"):
        return self.desk.spec(text, name)


def granted(bench, job):
    """The moment at which the job has its nodes."""
    while "RUNNING" not in bench.slurm.ask("squeue", "--noheader", f"--jobs={job}", "--format=%T"):
        time.sleep(0.01)
    return time.monotonic()


def begin(bench, peer, turn, nodes="2"):
    """Start one side; gives its steps, its job, and when it had its nodes."""
    out = bench.folder / f"steps-{peer.replace(' ', '-').replace(',', '')}-{turn}.txt"
    if peer == LAUNCH:
        run = bench.desk.submit(bench.spec(SPEC.format(out=out, nodes=nodes)), "--on", "slurm")
        job = bench.desk.status(run)["job"]
    else:
        variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" if peer == WITH_VARIABLE else ""
        script = bench.folder / "peer.sh"
        text = PEER.format(said=bench.folder / "said.txt", card=network_card(bench.slurm.nodes[0]),
                           variable=variable, torchrun=BIN / "torchrun", head=bench.slurm.nodes[0].name,
                           script=bench.desk.project / "ddp_steps.py", out=out)  # fmt: skip
        script.write_text(text)
        job = bench.slurm.ask("sbatch", "--parsable", str(script)).strip()
    return Steps(out), job, granted(bench, job)


def first_step(bench, peer, turn):
    steps, _, at = begin(bench, peer, turn)
    last = steps.wait(START_S)
    bench.slurm.clear()
    if last is None:
        raise SystemExit(f"{peer} made no step:\n{(bench.folder / 'said.txt').read_text()[-2000:]}")
    return last - at


def killed_rank(bench, peer, turn, patience_s):
    """Seconds from kill -9 of rank 3, on the second node, to the next step of all; None where that never comes."""
    steps, _, _ = begin(bench, peer, f"kill-{turn}")
    took = to_recover(steps, lambda notes: bench.slurm.nodes[1].exec("kill", "-9", notes[3][-1][1]), patience_s)
    bench.slurm.clear()
    return took


def lost_node(bench, turn):
    """Seconds from the power cut of the second node to the next step of the smaller world."""
    steps, _, _ = begin(bench, LAUNCH, f"lost-{turn}", nodes="1..2")
    took = to_recover(steps, lambda _: bench.slurm.nodes[1].power_off(), 120, left=2)
    bench.slurm.clear()
    return took


def submits(bench, pairs):
    """Whole processes: `launch submit`, and a bare sbatch of the very script."""
    spec = bench.spec(
        "name: quick\nrun:\n  command: [sleep, '60']\nresources:\n  ranks_per_node: 1\n  gpus_per_node: 0\n"
    )
    ours, theirs = [], []
    for turn in range(pairs + 1):
        took, run = bench.timed([BIN / "launch", "submit", spec, "--on", "slurm"])
        script = bench.folder / "bare.sh"
        written = (bench.desk.run_dir(run.strip()) / "attempts" / "0001" / "job.sh").read_text()
        script.write_text(written.replace("\nexec ", "\nexec true "))
        bare, _ = bench.timed(["sbatch", "--parsable", str(script)])
        if turn:
            ours.append(took)
            theirs.append(bare)
    bench.slurm.clear()
    return ours, theirs


def arrays_and_status(bench, pairs, many, live):
    """An array of many runs; then the table of all of them while some are live, beside one bare squeue."""
    body = "name: {}\nrun:\n  command: [sleep, '600']\nresources:\n  ranks_per_node: 1\n  gpus_per_node: 0\n"
    spec = bench.spec(body.format("many") + "slurm:\n  extra: {hold: true}\n", "many.yaml")
    arrays = [bench.timed([BIN / "launch", "submit", spec, "--on", "slurm", "--repeat", str(many - live)])[0]]
    few = bench.spec(body.format("live") + "slurm:\n  extra: {hold: true}\n", "live.yaml")
    bench.timed([BIN / "launch", "submit", few, "--on", "slurm", "--repeat", str(live)])
    for run in bench.timed([BIN / "launch", "status", "--all"])[1].splitlines()[1:]:
        if run.startswith("many-"):
            bench.desk.launch("cancel", run.split()[0])
    status, squeue = [], []
    for turn in range(pairs + 1):
        took, _ = bench.timed([BIN / "launch", "status", "--all"])
        bare, _ = bench.timed(["squeue", "--noheader", "--all", "--array-unique", "--states=all", "--me"])
        if turn:
            status.append(took)
            squeue.append(bare)
    bench.slurm.clear()
    arrays += [
        bench.timed([BIN / "launch", "submit", spec, "--on", "slurm", "--repeat", str(many)])[0]
        for _ in range(pairs - 1)
    ]
    bench.slurm.clear()
    return arrays, status, squeue


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--live", type=int, default=50)
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--only", nargs="+", choices=["submit", "status", "start", "kill", "node"])
    args = parser.parse_args()
    chosen = args.only or ["submit", "status", "start", "kill", "node"]
    rows = ["| what | launch | beside it | |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
        if "submit" in chosen:
            ours, theirs = submits(bench, args.pairs)
            more = middle(ours) - middle(theirs)
            beside = f"bare sbatch {middle(theirs):.3f} s"
            rows.append(f"| submit, whole process | {middle(ours):.3f} s | {beside} | + {more:.3f} s |")
        if "status" in chosen:
            arrays, status, squeue = arrays_and_status(bench, args.pairs, args.runs, args.live)
            rows.append(f"| {args.runs} runs as an array, all ids | {middle(arrays):.2f} s | | |")
            more = middle(status) - middle(squeue)
            what = f"status of {args.runs} runs, {args.live} live"
            rows.append(f"| {what} | {middle(status):.3f} s | bare squeue {middle(squeue):.3f} s | + {more:.3f} s |")
        if "start" in chosen:
            taken = take_turns(args.pairs, (LAUNCH, TORCHRUN), lambda peer, turn: first_step(bench, peer, turn))
            rows.append(first_step_row("granted to first step of all, 2 x 2", taken))
        if "kill" in chosen:
            peers = (LAUNCH, WITH_VARIABLE, TORCHRUN)
            taken = take_turns(args.pairs, peers, lambda peer, turn: killed_rank(bench, peer, turn, args.patience_s))
            rows += recovery_rows("kill -9 on node 2 to next step of all", taken)
        if "node" in chosen:
            times = [lost_node(bench, turn) for turn in range(min(3, args.pairs))]
            rows.append(f"| power of node 2 cut to next step, `nodes: 1..2`, lease 15 s | {middle(times):.1f} s | | |")
    notes = (
        "`beside it` is the time of the same task without launch, and the last column the difference or the ratio "
        "of the two. `submit` is the whole process of `launch submit`; the array is one `launch submit` of "
        f"{args.runs} runs. `2 x 2` means 2 nodes with 2 ranks each. `granted` is when squeue shows the job as "
        "running. `own store` means TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; `5 of 5` is the number of kills after which "
        "all ranks made a step. With `nodes: 1..2` the run continues on one node. Slurm ran in the lab of tests/lab: "
        "nodes in network namespaces of this machine."
    )
    publish("slurm", "\n".join([*rows, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
