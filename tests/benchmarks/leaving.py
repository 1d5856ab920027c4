"""Count how often a rank is still in an operation of gloo one second after its connections were cut.

    uv run python tests/benchmarks/leaving.py [--rounds 150] [--write]

Two ranks gather from each other without a pause; at a random moment both hear that they are to leave, as when a third
one was killed, and cut. `reading first`: a moment before both directions, as is done. `at once`: both directions. gloo
forgets a message whose sending fails, as its connection breaks, and never wakes who waits for it; launch replaces such
a rank after two seconds. The two ways take turns.
"""

import datetime as dt
import os
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch
import torch.distributed as dist
from results import benchmark_parser, publish

from trainer.connections import Connections

WAYS = ("reading first", "at once")
TIMEOUT_S, LATE_S = 4, 1.0
AT_S = (0.02, 0.05)


class AtOnce(Connections):
    def cut(self, _=socket.SHUT_RDWR):
        super().cut()


def left_in_time(way, rank, met, number):
    kind = AtOnce if way == "at once" else Connections
    made, (word, end) = kind(stuck_s=float("inf")), os.pipe()
    with made.watching():
        timeout = dt.timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", store=dist.FileStore(str(met), 2), rank=rank, world_size=2, timeout=timeout)
    own, both = torch.zeros(20_000), torch.zeros(40_000)
    at_s = random.Random(number).uniform(*AT_S)
    watch = made.cut_on(word)
    dist.barrier()
    began, timer = time.monotonic(), threading.Timer(at_s, os.write, (end, b"a word"))
    timer.start()
    try:
        while True:
            dist.all_gather_into_tensor(both, own)
    except RuntimeError:
        took_s = time.monotonic() - began - at_s
    watch.close()
    timer.join()
    dist.destroy_process_group()
    os.close(word)
    os.close(end)
    return took_s < LATE_S


def ranks_late(rounds, folder):
    """By way; of two ranks, this process and one that is forked."""
    os.environ["LAUNCH_CONTROL"] = "/there"
    torch.set_num_threads(1)
    word, end = os.pipe()
    rank = 0 if os.fork() else 1
    late = dict.fromkeys(WAYS, 0)
    for number in range(rounds):
        for way in WAYS:
            late[way] += not left_in_time(way, rank, folder / f"{number} {way}", number)
    if rank == 1:
        os.write(end, " ".join(str(late[way]) for way in WAYS).encode())
        os._exit(0)
    others = os.read(word, 100).split()
    os.wait()
    return {way: late[way] + int(other) for way, other in zip(WAYS, others, strict=True)}


NOTES = (
    "When a rank is lost, `trainer` cuts (shuts down) the connections of each other rank, so that its "
    "operation of gloo ends with an error. A rank that is still in its operation two seconds later is "
    "replaced. The rows compare two ways to cut. `reading first` shuts down reading a moment before both "
    "directions, as `trainer` does; `at once` shuts down both directions together. Two ranks left an "
    "operation in each way, once per round, so `ranks that left` is twice the number of rounds; `not after "
    "a second` is how many of these were still in the operation after one second."
)


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leaving-") as place:
        late = ranks_late(args.rounds, Path(place))
    lines = ["| connections are cut | ranks that left | not after a second |", "|---|---|---|"]
    lines += [f"| {way} | {2 * args.rounds} | {late[way]} |" for way in WAYS]
    publish("leaving", "\n".join([*lines, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
