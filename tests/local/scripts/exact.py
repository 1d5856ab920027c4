"""A small training by `Checkpointer` that resumes exactly; or, sabotaged, does not. All of it takes milliseconds."""

import argparse
import time

import torch

from trainer import Checkpointer
from trainer.wire import Wire


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--noise", action="store_true", help="random numbers by a generator that no checkpoint has")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    own = torch.Generator().manual_seed(2)
    wire = Wire.from_environment()
    checkpoints = Checkpointer(model=model, optimizer=optimizer)
    step = checkpoints.load()
    while step < args.steps:
        x = torch.randn(16, 4)
        noise = torch.randn(16, 1, generator=own) if args.noise else 0.0
        loss = (model(x) - x.sum(1, keepdim=True) + 0.1 * noise).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(args.pause)
        wire.report_step(step, args.steps, loss=loss.item())
        checkpoints.after_step(step)
    checkpoints.finish(step)


if __name__ == "__main__":
    main()
