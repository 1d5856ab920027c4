"""Train a ResNet-18 with DistributedDataParallel on images that the script draws itself, and resume it exactly.

Runs under `launch submit jobs/resnet_ddp.yaml` and, as it is, under `torchrun --nproc-per-node 2 jobs/resnet_ddp.py`.
A run that is killed and started again, any number of times, ends with the same bytes as one that was left alone.
"""

import argparse
import copy
import hashlib
import io
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchvision.models import ResNet, resnet18

CLASSES = 10
PIXELS = 32
EXIT_RESUME_ME = 75  # EX_TEMPFAIL: stopped on request with everything saved; start me again
State = dict[str, Any]


def parse_args() -> argparse.Namespace:
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all ranks")
    parser.add_argument("--train-images", type=int, default=4096, help="images per epoch")
    parser.add_argument("--validation-images", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path(env("LAUNCH_CHECKPOINT_DIR") or "checkpoints"))
    parser.add_argument("--checkpoint-every", type=interval, default=env("LAUNCH_CHECKPOINT_EVERY") or "50 steps")
    parser.add_argument("--checkpoint-keep", type=int, default=int(env("LAUNCH_CHECKPOINT_KEEP") or 3))
    return parser.parse_args()


def interval(text: str) -> tuple[float, float]:
    """Steps and seconds between checkpoints, from `50 steps` or `90 s`; the one that is not meant is infinite."""
    number, _, unit = text.partition(" ")
    if unit not in ("steps", "s") or float(number) <= 0:
        raise argparse.ArgumentTypeError(f"expected something like '50 steps' or '90 s', got {text!r}")
    return (float(number), math.inf) if unit == "steps" else (math.inf, float(number))


# -- the images: ten kinds of stripes, five directions in two colours, each drawn from (seed, index) alone


def draw(seed: int, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """These images and their labels; the same on every machine, in any order, on any number of ranks."""
    axis = torch.linspace(-1, 1, PIXELS)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    colours = torch.tensor([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9]])
    images = torch.empty(len(indices), 3, PIXELS, PIXELS)
    for place, index in enumerate(indices):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        width, phase, tilt, light = torch.rand(4, generator=generator).tolist()
        angle = math.pi * (index % 5) / 5 + 0.2 * (tilt - 0.5)
        wave = torch.sin((8 + 8 * width) * (across * math.cos(angle) + down * math.sin(angle)) + 2 * math.pi * phase)
        noise = torch.randn(3, PIXELS, PIXELS, generator=generator)
        images[place] = (0.5 + light) * wave * colours[index % CLASSES // 5][:, None, None] + 0.8 * noise
    return images, torch.tensor([index % CLASSES for index in indices])


def epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    """In which order an epoch goes through the images; every rank knows it whole and takes its share."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()


def small_image_resnet() -> ResNet:
    """The stem made for 224 pixels would leave nothing of 32: a small first convolution and no pooling instead."""
    model = resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=2, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


# -- checkpoints: one file and its SHA-256 beside it. The checksum is written last: without it there is no checkpoint


def write_checkpoint(folder: Path, state: State, keep: int) -> None:
    """Put it on disk so that a kill or a power cut at any instant leaves this one whole, or the one before."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state['step']:08d}.pt"
    write_durably(path, data)
    write_durably(checksum_of(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n".encode())
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        checksum_of(old).unlink(missing_ok=True)
        old.unlink()


def write_durably(path: Path, data: bytes | memoryview) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def checksum_of(path: Path) -> Path:
    return path.with_suffix(".pt.sha256")


def read_checkpoint(path: Path) -> State | None:
    """What is in it; None where a byte is not as it was written. Loading runs no code that the file might hold."""
    try:
        wanted = checksum_of(path).read_text().split()[0]
        data = path.read_bytes()
    except (OSError, IndexError):
        return None
    if hashlib.sha256(data).hexdigest() != wanted:
        return None
    state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def newest_checkpoint(folder: Path) -> State | None:
    """The newest whole one, the same on all ranks: rank 0 decides. The folder is one that all ranks see."""
    state, name = None, ""
    if dist.get_rank() == 0:
        for path in sorted(folder.glob("step-*.pt"), reverse=True):
            state, name = read_checkpoint(path), path.name
            if state is not None:
                break
            print(f"passing over {path}: not finished or damaged", flush=True)
    choice = [name if state is not None else ""]
    dist.broadcast_object_list(choice, src=0)
    if choice[0] and state is None:
        state = read_checkpoint(folder / choice[0])
        if state is None:
            raise RuntimeError(f"rank {dist.get_rank()} cannot read {folder / choice[0]}, which rank 0 has verified")
    return state


def random_state() -> State:
    """This rank's generators."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None}


def restore_random_state(state: State) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def gather_random_states() -> list[State]:
    states: list[State] = [{}] * dist.get_world_size()
    dist.all_gather_object(states, random_state())
    return states


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over every byte of the model and of the optimizer's state."""
    digest = hashlib.sha256()
    tensors = dict(model.state_dict())
    for place, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": value for name, value in values.items()}
    for name in sorted(tensors):
        digest.update(name.encode())
        if isinstance(tensors[name], Tensor):
            digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def accuracy(model: nn.Module, args: argparse.Namespace, device: torch.device) -> float:
    """Share of right answers on images that were never trained on."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # between steps, only rank 0's batch norm statistics count
    model.eval()
    all_indices = range(args.train_images, args.train_images + args.validation_images)
    indices = all_indices[dist.get_rank() :: dist.get_world_size()]
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for begin in range(0, len(indices), 100):
            images, labels = draw(args.seed, indices[begin : begin + 100])
            right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(right)
    return float(right) / len(all_indices)


class Progress:
    """Tells `launch`, where it is there, how far this rank is; it shows in `launch status`."""

    def __init__(self) -> None:
        path = os.environ.get("LAUNCH_PROGRESS")
        self.wire = open(path, "w", buffering=1) if path else None

    def report(self, **words: Any) -> None:
        if self.wire is not None:
            self.wire.write(json.dumps(words) + "\n")


def any_rank(*flags: bool, device: torch.device) -> list[bool]:
    """For each flag, whether it is up on some rank; so all ranks do the same thing at the same step."""
    votes = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(votes, dist.ReduceOp.MAX)
    return [bool(vote) for vote in votes.tolist()]


def set_up() -> torch.device:
    """Join the other ranks; the environment says who and where they are."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what exact repetition costs on a GPU
    torch.use_deterministic_algorithms(True)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def main() -> int:
    args = parse_args()
    stop_asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_asked.set())
    device = set_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch_size < world:
        raise SystemExit(f"--batch-size {args.batch_size} leaves some of {world} ranks without an image")
    progress = Progress()

    torch.manual_seed(args.seed)
    model = small_image_resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.steps)
    torch.manual_seed(args.seed + 1 + rank)
    state: State = {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": 0,
        "epoch": 0,
        "position": 0,  # images of the epoch that are done
        "random": gather_random_states(),
    }

    # DDP lays its buckets out anew after the first backward pass, and with more than two ranks the order of a sum
    # depends on the layout. So every start does one pass for nothing, and all real steps have the same layout.
    replica = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    replica(torch.zeros(2, 3, PIXELS, PIXELS, device=device)).sum().backward()
    optimizer.zero_grad()

    state = newest_checkpoint(args.checkpoint_dir) or state
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    step, epoch, position = state["step"], state["epoch"], state["position"]
    if len(state["random"]) == world:  # on another number of ranks nothing can be bit by bit the same anyway
        restore_random_state(state["random"][rank])
    if rank == 0:
        print(f"resnet18 on {world} x {device.type}, step {step} of {args.steps}", flush=True)

    every_steps, every_s = args.checkpoint_every
    saved_at = time.monotonic()
    order = epoch_order(args.seed, epoch, args.train_images)
    while step < args.steps:
        if position + args.batch_size > args.train_images:
            epoch, position = epoch + 1, 0
            order = epoch_order(args.seed, epoch, args.train_images)
        images, labels = draw(args.seed, order[position : position + args.batch_size][rank::world])
        images += 0.2 * torch.randn_like(images)  # augmentation, from this rank's own generator
        replica.train()
        loss = nn.functional.cross_entropy(replica(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step, position = step + 1, position + args.batch_size

        progress.report(step=step, total_steps=args.steps, epoch=epoch, loss=loss.item())
        if rank == 0 and step % 10 == 0:
            print(f"step {step}/{args.steps}  loss {loss.item():.3f}  lr {scheduler.get_last_lr()[0]:.4f}", flush=True)
        late = rank == 0 and time.monotonic() - saved_at >= every_s
        stop, save = any_rank(stop_asked.is_set(), late, device=device)
        if save or stop or step % every_steps == 0 or step == args.steps:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
                "epoch": epoch,
                "position": position,
                "random": gather_random_states(),
            }
            if rank == 0:
                write_checkpoint(args.checkpoint_dir, state, args.checkpoint_keep)
            dist.barrier()  # it is acknowledged only when it is on disk
            progress.report(checkpoint=step)
            saved_at = time.monotonic()
        if stop and step < args.steps:
            dist.destroy_process_group()
            return EXIT_RESUME_ME

    result = accuracy(model, args, device)
    if rank == 0:
        mark = fingerprint(model, optimizer)
        print(f"validation accuracy {result:.1%}\nfingerprint sha256={mark}", flush=True)
        progress.report(accuracy=result, fingerprint=mark)
    progress.report(done=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
