"""Measure how long twenty trials of two seconds take, two at a time, with `launch sweep`, Optuna and Ray Tune.

uv run python tests/benchmarks/sweeps.py [--peers launch Optuna "Ray Tune"] [--write]

Seconds from the start of the command to its end. Ray Tune is run by `uv run --with ray[tune]`, with a torch of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cli import LAUNCH
from results import benchmark_parser, publish
from sides import take_turns

TRAINING = """
import time
import torch


def train(lr, report, seconds):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        inputs = torch.randn(64, 32)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 0:
            report(step, loss.item())
    report(step, loss.item())
    return loss.item()
"""
SCRIPT = """
import argparse, json, os
from training import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seconds", type=float)
args = parser.parse_args()
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    train(args.lr, lambda step, loss: wire.write(json.dumps({"step": step, "loss": loss}) + "\\n"), args.seconds)
"""
SPEC = """
name: short
run: {{script: trial.py, args: {{lr: 0.1, seconds: {seconds}}}}}
resources: {{ranks_per_node: 1, cpus_per_rank: 1}}
sweep:
  search: random
  seed: 1
  trials: {trials}
  parallel: 2
  metric: loss
  mode: min
  space: {{run.args.lr: {{from: 1e-4, to: 1e-1, log: true}}}}
"""
OPTUNA = """
import sys
import optuna
from training import train

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
report = lambda step, loss: None
study.optimize(lambda trial: train(trial.suggest_float("lr", 1e-4, 1e-1, log=True), report, float(sys.argv[2])),
               n_trials=int(sys.argv[1]), n_jobs=2)
assert len(study.trials) == int(sys.argv[1])
"""
RAY = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import ray
from ray import tune

here, seconds = str(Path(__file__).parent), float(sys.argv[2])
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": here}}, log_to_driver=False)


def trial(config):
    from training import train
    train(config["lr"], lambda step, loss: tune.report({"loss": loss}), seconds)


tuner = tune.Tuner(tune.with_resources(trial, {"cpu": 1}), param_space={"lr": tune.loguniform(1e-4, 1e-1)},
                   tune_config=tune.TuneConfig(num_samples=int(sys.argv[1]), metric="loss", mode="min"))
assert len(tuner.fit()) == int(sys.argv[1])
"""
PEERS = {
    "launch": lambda trials, seconds: [LAUNCH, "sweep", "sweep.yaml", "--follow"],
    "Optuna": lambda trials, seconds: [sys.executable, "by_optuna.py", str(trials), str(seconds)],
    "Ray Tune": lambda trials, seconds: [
        *("uv", "run", "--no-project", "--with", "ray[tune]", "--with", "torch", "python", "by_ray.py"),
        *(str(trials), str(seconds)),
    ],
}


def swept(folder, peer, trials, seconds):
    for name, text in {"training.py": TRAINING, "trial.py": SCRIPT, "by_optuna.py": OPTUNA, "by_ray.py": RAY}.items():
        (folder / name).write_text(text)
    (folder / "sweep.yaml").write_text(SPEC.format(trials=trials, seconds=seconds))
    (folder / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    began = time.monotonic()
    done = subprocess.run(PEERS[peer](trials, seconds), cwd=folder, env=env, capture_output=True, text=True)
    took = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{peer}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    if peer == "launch":
        check(folder, trials, env)
    return took


def check(folder, trials, env):
    """Check that the timed work was really done."""
    told = subprocess.run([LAUNCH, "sweep", "status", "--json"], cwd=folder, env=env, capture_output=True, check=True)
    states = [one["state"] for one in json.loads(told.stdout)["status"]["trials"]]
    if states != ["complete"] * trials:
        raise SystemExit(f"launch sweep: {states}")


NOTES = (
    "A trial is a training with one learning rate. The time is that of the whole command. `launch's share "
    "of it` is launch's median time divided by that of the row. `launch sweep` starts each trial as a run "
    "of its own; Optuna executes the trials in two threads of one process, which imports torch once; Ray "
    "Tune executes them in worker processes."
)


def main():
    parser = benchmark_parser(__doc__.partition("\n")[0], pairs=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one training")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[*PEERS])
    args = parser.parse_args()

    def measure(peer, _):
        with tempfile.TemporaryDirectory() as folder:
            return swept(Path(folder), peer, args.trials, args.seconds)

    if "Ray Tune" in args.peers:
        with tempfile.TemporaryDirectory() as folder:
            swept(Path(folder), "Ray Tune", 1, 0.1)  # that what it needs has been fetched
    taken = take_turns(args.pairs, args.peers, measure)
    ours = statistics.median(taken["launch"]) if "launch" in taken else None
    what = f"{args.trials} trials of {args.seconds:g} s, 2 at a time"
    table = [f"| {what} | s | range | launch's share of it |", "|---|---|---|---|"]
    for peer, times in taken.items():
        share = f"{ours / statistics.median(times):.2f}" if ours and peer != "launch" else ""
        table.append(f"| {peer} | {statistics.median(times):.1f} | {min(times):.1f}-{max(times):.1f} | {share} |")
    publish("sweeps", "\n".join([*table, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
