"""A stand-in for training that needs no torch: ranks agree on every step over MASTER_ADDR:MASTER_PORT.

The "weights" are a hash chain over the contributions of all ranks, so a lost, repeated or reordered step shows in the
final fingerprint. Rank 0 checkpoints every few steps, where disks are apart the first rank of each node, and every
start goes on from the newest checkpoint that all have.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import select
import socket
import time


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pause", type=float, help="between two steps (default: 0.01, of thousands of steps 0.1)")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--hold", help="a file; while a number is in it no rank goes on from that step")
    parser.add_argument("--audit", help="a file to which each rank adds what it does, as tests/chaos/audit.py reads it")
    args = parser.parse_args()
    if args.pause is None:
        args.pause = 0.01 if args.steps < 2_000 else 0.1  # these are never waited for: they need not take the machine
    return args


@contextlib.contextmanager
def words_of_gloo():
    """Raise failures between ranks as gloo does."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"[gloo/transport/tcp/pair.cc:534] Connection closed by peer: {error}") from error


def audit(path):
    """Writes down what this rank does, where that is wanted. The import is hidden, else torch would be preloaded."""
    if path is None:
        return lambda what, step: None
    return importlib.import_module("audited").Audit(path).note


def pause(seconds):
    select.select([], [], [], seconds)  # a sleep that a faked clock leaves alone


def is_held(path, step):
    """A file with a number holds the ranks at that step: what a test does meanwhile may take its time."""
    try:
        with open(path or "") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False


def meet(rank, world, address, port):
    """Connections to all others on rank 0; the one to rank 0 on the others."""
    if rank == 0:
        with socket.create_server((address, port)) as server:
            return [server.accept()[0].makefile("rwb") for _ in range(world - 1)]
    deadline = time.monotonic() + 30
    while True:
        try:
            return [socket.create_connection((address, port)).makefile("rwb")]
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            pause(0.005)


def exchange(rank, peers, word):
    """Combine the messages of all ranks, in no particular order, on rank 0, and return the result everywhere."""
    if rank == 0:
        words = sorted([word, *(read(peer) for peer in peers)])
        result = hashlib.sha256("".join(words).encode()).hexdigest()
        for peer in peers:
            write(peer, result)
        return result
    write(peers[0], word)
    return read(peers[0])


def agree(rank, peers, number):
    """The least that any rank says."""
    if rank == 0:
        least = min([number, *(int(read(peer)) for peer in peers)])
        for peer in peers:
            write(peer, str(least))
        return least
    write(peers[0], str(number))
    return int(read(peers[0]))


def write(peer, word):
    peer.write(word.encode() + b"\n")
    peer.flush()


def read(peer):
    line = peer.readline()
    if not line:
        raise ConnectionResetError("the line has ended")
    return line.decode().strip()


def newest(folder):
    names = sorted(name for name in os.listdir(folder) if name.startswith("step-")) if os.path.isdir(folder) else []
    return int(names[-1].removeprefix("step-")) if names else 0


def load(folder, step):
    if not step:
        return "start"
    with open(os.path.join(folder, f"step-{step:08d}")) as file:
        return json.load(file)["weights"]


def save(folder, step, weights):
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".tmp-{os.getpid()}")
    with open(draft, "w") as file:
        json.dump({"step": step, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, os.path.join(folder, f"step-{step:08d}"))


def main():
    args = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = os.environ["LAUNCH_CHECKPOINT_DIR"]
    apart = os.environ.get("LAUNCH_DISK") == "apart"
    saves = os.environ["LOCAL_RANK"] == "0" if apart else rank == 0
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
    with words_of_gloo():
        peers = meet(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    mine = newest(folder)
    with words_of_gloo():
        step = agree(rank, peers, mine)
    weights = load(folder, step)
    note = audit(args.audit)
    note("start", step)
    os.umask(mask := os.umask(0))
    print(f"rank {rank} of {world} starts at step {step}, umask {mask:04o}", flush=True)
    while step < args.steps:
        while is_held(args.hold, step):
            pause(0.02)
        step += 1
        mine = hashlib.sha256(f"{weights} {step}".encode()).hexdigest()
        with words_of_gloo():
            weights = exchange(rank, peers, mine)
        note("step", step)
        pause(args.pause)
        if not args.quiet:
            print(f"step {step}", flush=True)
        report.write(json.dumps({"step": step, "total_steps": args.steps, "loss": 1 / step}) + "\n")
        if saves and step % args.every == 0:
            save(folder, step, weights)
            note("save", step)
            report.write(json.dumps({"checkpoint": step}) + "\n")
    report.write(json.dumps({"fingerprint": weights, "done": True}) + "\n")
    note("end", step)
    print("weights", weights, flush=True)


if __name__ == "__main__":
    main()
