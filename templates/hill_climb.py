"""Climbs to a better learning rate by `launch` alone: python hill_climb.py job.yaml --lr 0.1"""

import argparse
import json
import math
import subprocess
import sys
from typing import Any

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("spec", help="a job whose script has --lr")
parser.add_argument("--metric", default="loss", help="what is to be small")
parser.add_argument("--lr", type=float, default=0.1, help="where to begin")
parser.add_argument("--rounds", type=int, default=6)
options = parser.parse_args()


def launch(*words: str) -> Any:
    """Return what the command prints. Codes from 10 on say how runs have ended, and the answer tells that too."""
    done = subprocess.run(["launch", *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if 0 < done.returncode < 10:
        sys.exit(done.returncode)  # it has said why on stderr
    return json.loads(done.stdout)


def value_of(status: dict[str, Any]) -> float:
    """Return the metric; infinity for a run that has failed, or has measured nothing or NaN."""
    value = status["metrics"].get(options.metric) if status["state"] == "succeeded" else None
    return math.inf if value is None else float(value)


def try_all(rates: list[float]) -> dict[float, tuple[float, str]]:
    """Run these at once; return the metric and the run of each."""
    going, found = dict[str, float](), dict[float, tuple[float, str]]()
    for lr in rates:
        run = launch("submit", options.spec, "--set", f"run.args.lr={lr:.3g}")["run"]
        launch("edit", run, "--tag", "hill-climb")
        going[run] = lr
    while going:
        for status in launch("wait", *going, "--any"):
            lr = going.pop(status["run"])
            found[lr] = value_of(status), status["run"]
            print(f"lr {lr:.3g}: {options.metric} {found[lr][0]:.5g} ({status['run']})", file=sys.stderr, flush=True)
    return found


best, factor, tried = options.lr, 4.0, try_all([options.lr])
for _ in range(options.rounds):
    tried |= try_all([lr for lr in (best / factor, best * factor) if lr not in tried])
    before, best = best, min(tried, key=lambda lr: tried[lr][0])
    if best == before:  # the best, as far as such steps can tell
        factor = math.sqrt(factor)
print(json.dumps({"lr": best, options.metric: tried[best][0], "run": tried[best][1]}))
