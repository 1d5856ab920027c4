"""The training of the parameter server done by DDP, to compare: all ranks wait for each other at each step.

    launch run --nproc-per-node 2 -m jobs.parameter_server.ddp --steps 1000
    launch scale last --ranks 1,2 --steps 1000

It has no checkpoints: it only serves to be measured.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from jobs.parameter_server.mlp import accuracy, draw, line, new_mlp

_LINES = 20


def main() -> None:
    """Train with DDP on this rank, as a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = new_mlp(args.seed)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) if "LAUNCH_PROGRESS" in os.environ else None
    every = max(1, args.steps // _LINES)
    since = time.monotonic()
    for step in range(1, args.steps + 1):
        samples, classes = draw(args.seed, rank, step, args.batch_size)
        loss = nn.functional.cross_entropy(model(samples), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            rate = every * world * args.batch_size / (time.monotonic() - since)
            since = time.monotonic()
            if rank == 0:
                print(line(step, args.steps, loss.item(), args.lr, rate), flush=True)
            if report is not None:
                words = {"step": step, "total_steps": args.steps, "loss": loss.item(), "samples_per_s": rate}
                report.write(json.dumps(words) + "\n")
    if rank == 0:
        print(f"accuracy {accuracy(net, args.seed):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
