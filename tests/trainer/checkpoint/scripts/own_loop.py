"""A loop as somebody writes it who has never heard of us, plus the lines that Checkpointer needs."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer import EXIT_RESUME_ME, Checkpointer

folder, stop_at = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
ddp = "RANK" in os.environ
if ddp:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ddp else 0

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
if ddp:
    model = DDP(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
torch.manual_seed(rank)

checkpointer = Checkpointer(folder, model=model, optimizer=optimizer, state={"scheduler": scheduler}, every="5 steps")
step = checkpointer.load()
while step < 20:
    x = torch.randn(8, 4)
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step == stop_at:
        checkpointer.ask_to_stop()
    if checkpointer.after_step(step):
        sys.exit(EXIT_RESUME_ME)
# One write, also where PYTHONUNBUFFERED is set: all ranks of torchrun have one stdout.
sys.stdout.write(f"rank {rank} {loss.item()!r} {checkpointer.finish(step)}\n")
if ddp:
    dist.destroy_process_group()
