"""A usual training loop for torchrun that resumes exactly: only the lines with `checkpoints` were added.

    launch submit jobs/plain_ddp.yaml --follow
    torchrun --nproc-per-node 2 jobs/plain_ddp.py        # the same, without launch

Killed and started again, any number of times, it ends with the same bytes as if it had been left alone.
"""

import argparse
import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchvision.models import resnet18

from trainer import EXIT_RESUME_ME, Checkpointer
from trainer.tasks.stripes import CLASSES, Stripes


def main() -> int:
    """Train on this rank; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all ranks")
    parser.add_argument("--images", type=int, default=2048, help="images per epoch")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-every", default=None, help="as '50 steps' or '90 s'; launch says it in the YAML")
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    net = resnet18(num_classes=CLASSES)
    net.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=2, padding=1, bias=False)  # made for small images
    net.maxpool = nn.Identity()
    model = DistributedDataParallel(net.to(device), device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.steps)
    torch.manual_seed(args.seed + 1 + rank)
    images = Stripes(args.images, seed=args.seed, augment=True)

    # With more than two ranks the order of a sum depends on how DDP lays out its buckets, and it does so anew after the
    # first backward pass. One pass for nothing before anything counts, and every start of the run adds up alike.
    untouched = copy.deepcopy(net.state_dict())
    model(torch.zeros(2, 3, 32, 32, device=device)).sum().backward()
    optimizer.zero_grad()
    net.load_state_dict(untouched)

    checkpoints = Checkpointer(
        model=model,
        optimizer=optimizer,
        state={"scheduler": scheduler},
        every=args.checkpoint_every,
        total_steps=args.steps,
    )
    step = checkpoints.load()
    if rank == 0:
        print(f"resnet18 on {world} x {device.type}, step {step} of {args.steps}", flush=True)
    while step < args.steps:
        batch, labels = load(images, shares(args, step)[rank::world])
        loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}/{args.steps}  loss {loss.item():.3f}", flush=True)
        if checkpoints.after_step(step):
            return EXIT_RESUME_ME  # somebody asked this run to stop; all is saved, and launch starts it again
    fingerprint = checkpoints.finish(step)
    if rank == 0:
        print(f"fingerprint sha256={fingerprint}", flush=True)
    dist.destroy_process_group()
    return 0


def shares(args: argparse.Namespace, step: int) -> list[int]:
    """Return the indexes of the images of a step, for all ranks together; `args` are the parsed options.

    They depend only on the step, so no position in the data has to be saved.
    """
    epoch, place = divmod(step, args.images // args.batch_size)
    order = torch.randperm(args.images, generator=torch.Generator().manual_seed(args.seed * 1_000_003 + epoch))
    chosen: list[int] = order[place * args.batch_size : (place + 1) * args.batch_size].tolist()
    return chosen


def load(images: Stripes, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the images with these indexes, their labels) as tensors."""
    pictures, labels = zip(*images.__getitems__(indices), strict=True)
    return torch.stack(pictures), torch.tensor(labels)


if __name__ == "__main__":
    sys.exit(main())
