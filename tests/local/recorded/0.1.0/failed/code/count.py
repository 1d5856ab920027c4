"""Counts, and keeps each number as its checkpoint. Fails at a number, or waits there for ever, if it is told to."""

import argparse
import os
import pathlib
import signal

parser = argparse.ArgumentParser()
parser.add_argument("--to", type=int, default=6)
parser.add_argument("--fail-at", type=int)
parser.add_argument("--wait-at", type=int)
args = parser.parse_args()

kept = pathlib.Path(os.environ["LAUNCH_CHECKPOINT_DIR"]) / f"rank-{os.environ['RANK']}"
kept.parent.mkdir(exist_ok=True)
begun = int(kept.read_text()) if kept.exists() else 0
print(f"goes on after {begun}")
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    for step in range(begun + 1, args.to + 1):
        if step == args.fail_at:
            raise ValueError(f"asked to fail at {step}")
        kept.write_text(str(step))
        wire.write(f'{{"step": {step}, "total_steps": {args.to}, "checkpoint": {step}}}\n')
        if step == args.wait_at:
            signal.pause()
