"""The rank of `copies.py`: DDP steps with the project's own checkpoints, and when each step was done."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import Checkpointer

parser = argparse.ArgumentParser()
parser.add_argument("--megabytes", type=float, default=150)
parser.add_argument("--seconds", type=float, default=65)
parser.add_argument("--batch", type=int, default=64)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
width = 1024 if args.megabytes > 20 else 128
layers = max(1, round(args.megabytes * 1e6 / (12 * width * (width + 1))))
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
replicas = DistributedDataParallel(model)
checkpointer = Checkpointer(model=replicas, optimizer=optimizer)
step = checkpointer.load()
first = dist.get_rank() == 0
file = (Path(os.environ["LAUNCH_RUN_DIR"]) / "metrics" / "steps.txt").open("w") if first else None
data = torch.randn(args.batch, width)
over, began, saved, saves = torch.zeros(1), time.monotonic(), 0, 0
while not over.item():
    replicas(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    checkpointer.after_step(step)
    if file is not None:
        saves += checkpointer._saved_step != saved
        saved = checkpointer._saved_step
        file.write(f"{time.monotonic()} {saves} {step}\n")
    if step % 10 == 0:
        over.fill_(time.monotonic() - began > args.seconds)
        dist.broadcast(over, 0)
if file is not None:
    file.close()
checkpointer.finish(step)
dist.barrier()
dist.destroy_process_group()
sys.exit(0)
