"""Training of one rank as far as its checkpoint files go, without torch: loads the newest that is whole, sets aside what
is not, saves every few steps. The "weights" are a hash chain, so a lost or repeated step shows in the fingerprint."""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, new_nonce
from trainer.checkpoint_files.manifest import FileEntry, Manifest
from trainer.errors import CheckpointDamaged

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

attempt, generation = int(os.environ["LAUNCH_ATTEMPT"]), int(os.environ["LAUNCH_GENERATION"])
folder, run_dir = Path(os.environ["LAUNCH_CHECKPOINT_DIR"]), Path(os.environ["LAUNCH_RUN_DIR"])
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)


def send(**words):
    """Write the values as a line of JSON to the test."""
    wire.write(json.dumps(words) + "\n")


def load():
    for entry in reversed([one for one in catalog.entries(folder) if one.kind == "step"]):
        try:
            catalog.verify(entry)
        except (CheckpointDamaged, OSError):
            commit.set_aside(entry)
            continue
        return entry.step, (entry.path / data_name(0)).read_text()
    return 0, "start"


def save(step, weights):
    draft = commit.begin(folder, step, claim, run_dir)
    written = write_new(draft / data_name(0), [weights.encode()])
    sync_folder(draft)
    files = (FileEntry(data_name(0), written.size, written.digest),)
    manifest = Manifest(step, 1, new_nonce(), files, {}, {}, attempt=attempt, saved_unix_s=time.time())
    commit.publish(draft, manifest, claim, run_dir)
    send(checkpoint=step)


make_folder(folder)
claim = commit.take_over(folder, attempt, generation)
step, weights = load()
print(f"starts at step {step}", flush=True)
while step < args.steps:
    step += 1
    weights = hashlib.sha256(f"{weights} {step}".encode()).hexdigest()
    time.sleep(args.pause)
    send(step=step, total_steps=args.steps)
    if step % args.every == 0:
        save(step, weights)
send(fingerprint=weights, done=True)
sys.exit(0)
