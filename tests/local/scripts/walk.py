"""A training that needs no torch: a walk of three numbers, in checkpoints as the trainer writes them.

It reports itself, resumes by itself, and waits where it is to be killed. `--noise` comes of a generator that no checkpoint
has, `--unseeded` of one that nobody has seeded.
"""

import argparse
import json
import os
import random
import struct
import time
from pathlib import Path

from awaiting import held_at

from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, new_nonce
from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry

FOLDER = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--fails-at", type=int)
    parser.add_argument("--holds", type=int, nargs="*", default=[])
    args = parser.parse_args()
    make_folder(FOLDER)
    mine = commit.take_over(FOLDER, int(os.environ["LAUNCH_ATTEMPT"]))
    step, weights = load()
    own = random.Random(None if args.unseeded else 2)
    hold = held_at(args.holds)
    with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
        while step < args.steps:
            while hold is not None and step >= hold:
                time.sleep(0.02)
            step += 1
            if step == args.fails_at:
                raise KeyError(step)
            noise = own.random() if args.noise or args.unseeded else 0.0
            weights = [one + random.Random(f"{step} {place}").random() + noise for place, one in enumerate(weights)]
            weights = rounded(weights)
            time.sleep(0.06)  # else some reports would be left out
            wire.write(json.dumps({"step": step, "total_steps": args.steps, "loss": sum(weights)}) + "\n")
            if step % args.every == 0:
                save(step, weights, mine)
                wire.write(json.dumps({"checkpoint": step}) + "\n")
        wire.write(json.dumps({"done": True}) + "\n")


def rounded(weights):
    return list(struct.unpack("<3f", struct.pack("<3f", *weights)))


def load():
    entries = catalog.entries(FOLDER)
    if not entries:
        return 0, [0.0, 0.0, 0.0]
    return entries[-1].step, list(struct.unpack("<3f", (entries[-1].path / data_name(0)).read_bytes()))


def save(step, weights, mine):
    draft = commit.begin(FOLDER, step, mine)
    written = write_new(draft / data_name(0), [struct.pack("<3f", *weights)])
    sync_folder(draft)
    tensors = {"model/weight": TensorEntry("float32", (3,), (Chunk(0, 0, (0,), (3,)),))}
    files = (FileEntry(data_name(0), written.size, written.digest),)
    commit.publish(draft, Manifest(step, 1, new_nonce(), files, tensors, {}), mine)


if __name__ == "__main__":
    main()
