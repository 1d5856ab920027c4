"""A rank whose node has a disk of its own, without torch: its "weights" are a hash chain that any rank can compute for
any other, so that all write the same manifest. They wait for each other before and after a checkpoint gets its name,
and let old ones go by the trainer's own rule."""

import argparse
import hashlib
import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import xxhash

from trainer.checkpoint_files import catalog, commit, partial
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import MANIFEST, data_name, draft_name, folder_name, is_draft
from trainer.checkpoint_files.manifest import FileEntry, Manifest, encode
from trainer.checkpoint_files.retention import Parts, Save, expired, safest, spared
from trainer.errors import CheckpointDamaged, CheckpointPartial

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--keep", type=int, default=2)
parser.add_argument("--size", type=int, default=100_000)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--hold", help="a file; while a number is in it no rank goes on from that step")
parser.add_argument("--audit", help="a file to which each rank adds what it does, as tests/chaos/audit.py reads it")
args = parser.parse_args()

assert os.environ["LAUNCH_DISK"] == "apart"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)


def send(**words):
    """Write the values as a line of JSON to the test."""
    wire.write(json.dumps(words) + "\n")


def audit():
    if args.audit is None:
        return lambda what, step: None
    return importlib.import_module("audited").Audit(args.audit).note


def is_held(path, step):
    """A file with a number holds the ranks at that step: what a test does meanwhile may take its time."""
    try:
        with open(path or "") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False


def meet():
    """Connections to all others at rank 0, to rank 0 at all others."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        server = socket.create_server(address)
        return [server.accept()[0].makefile("rwb") for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection(address).makefile("rwb")]
        except ConnectionRefusedError:
            time.sleep(0.01)


def exchange(words=None):
    """Return what each rank sends here, in no order; ranks wait for each other."""
    try:
        if rank == 0:
            words = [words, *(json.loads(peer.readline()) for peer in peers)]
        for peer in peers:
            peer.write(json.dumps(words).encode() + b"\n")
            peer.flush()
        return words if rank == 0 else json.loads(peers[0].readline())
    except (OSError, ValueError):
        while True:
            signal.pause()  # a rank is gone: the agents see to the rest


def next_link(weights, step):
    return hashlib.sha256(f"{weights} {step}".encode()).hexdigest()


def content(weights):
    return (weights * (args.size // 64 + 1)).encode()[: args.size]


def whole():
    """The steps whose files are here as they were written, and whether there was one that was damaged: that is set aside,
    as the trainer does it."""
    steps, damaged = [], False
    for entry in catalog.entries(folder):
        try:
            catalog.verify(entry)
        except CheckpointPartial as error:
            print(f"passes over step {entry.step}: {error}", flush=True)
        except CheckpointDamaged as error:
            print(f"passes over step {entry.step}: {error}", flush=True)
            commit.set_aside(entry)
            damaged = True
        else:
            steps.append(entry.step)
    return steps, damaged


def agreed():
    """The newest step that all have whole; 0 where there was none. As the trainer, ranks do not begin anew because of one
    that is damaged on a disk: the next start looks for copies of it."""
    told = exchange(whole())
    common = set.intersection(*(set(steps) for steps, _ in told))
    if not common and any(damaged for _, damaged in told):
        sys.exit("no checkpoint is sound on all disks; the next start looks for copies of them")
    return max(common, default=0)


def load(step):
    if step == 0:
        return [f"start {one}" for one in range(world)]
    return [(folder / folder_name(step) / data_name(one)).read_text()[:64] for one in range(world)]


def save(step, chains):
    nonce = f"{step:012x}"
    draft = folder / draft_name(step, 1, nonce)
    draft.mkdir()
    write_new(draft / data_name(rank), [content(chains[rank])])
    files = tuple(
        FileEntry(data_name(one), args.size, xxhash.xxh3_128_hexdigest(content(chains[one]))) for one in range(world)
    )
    write_new(draft / MANIFEST, [encode(Manifest(step, world, nonce, files, {}, {}, apart=True))])
    sync_folder(draft)
    exchange()
    if (folder / folder_name(step)).exists():  # of a past that was given up, and not all of it
        commit.set_aside(catalog.Entry("step", step, folder / folder_name(step)))
    draft.rename(folder / folder_name(step))
    sync_folder(folder)
    exchange()
    note("save", step)
    send(checkpoint=step)
    tidy(step)


def tidy(newest):
    leads = os.environ["LOCAL_RANK"] == "0"
    held = [(one.step, one.nonce, one.present, one.missing) for one in partial.inventory(folder) if one.committed]
    disks = [
        {Save(step, nonce): Parts(frozenset(here), frozenset(away)) for step, nonce, here, away in stock}
        for stock in exchange(held if leads else None)
        if stock is not None
    ]
    if (safe := safest(disks)) is not None and rank == 0:
        note("safe", safe)
    if leads:
        steps = [step for step in catalog.steps(folder) if step <= newest]
        commit.remove(folder / folder_name(step) for step in expired(steps, steps, args.keep, spared(disks)))


make_folder(folder)
for name in os.listdir(folder):
    if is_draft(name):
        commit.discard(folder / name)
peers = meet()
step = agreed()
chains = load(step)
print(f"starts at step {step}", flush=True)
note = audit()
note("start", step)
send(checkpoint=step)
while step < args.steps:
    while is_held(args.hold, step):
        time.sleep(0.02)
    step += 1
    chains = [next_link(chain, step) for chain in chains]
    time.sleep(args.pause)
    note("step", step)
    send(step=step, total_steps=args.steps)
    if step % args.every == 0:
        save(step, chains)
chains = [chain for _, chain in sorted(exchange([rank, chains[rank]]))]  # each its own: others' were reckoned here
send(fingerprint=hashlib.sha256(" ".join(chains).encode()).hexdigest(), done=True)
note("end", step)
sys.exit(0)
