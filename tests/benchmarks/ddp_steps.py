"""A plain DDP script that no side of a race knows: it notes when each rank made which step.

Each line of OUT is `time rank pid what`; the time is CLOCK_MONOTONIC, which all processes of a machine share.
"""

import argparse
import itertools
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: until somebody ends it")
    parser.add_argument("--step-s", type=float, default=0.0, help="time that a step takes beside its work")
    parser.add_argument("--hold", action="store_true", help="stop before there is a model")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    out = os.open(args.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what):
        os.write(out, f"{time.monotonic():.6f} {rank} {os.getpid()} {what}\n".encode())

    if args.hold:
        note("joined")
        while True:
            signal.pause()

    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in itertools.count(1):
        images, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        note(step)
        if step == args.steps:
            break
        time.sleep(args.step_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
