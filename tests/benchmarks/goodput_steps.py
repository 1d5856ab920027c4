"""The training of goodput.py, the same model and checkpoints under launch, torchrun and torchft; or in a `Trainer`.

Each line of OUT is `time rank pid host step what`, by the wall clock. What a rank does: it has `begun`, has `imported`
what it needs, has `met` the others, has its state `loaded`, has made a `step`.
"""

import argparse
import contextlib
import datetime as dt
import os
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", required=True)
parser.add_argument("--folder", help="for checkpoints, where the launcher names none")
parser.add_argument("--every", default="10 steps")
parser.add_argument("--step-s", type=float, default=0.05, help="time that a step takes beside its work")
parser.add_argument("--patience-s", type=float, default=10.0, help="for what the other ranks do")
parser.add_argument("--trainer", action="store_true", help="a Trainer trains, whose ranks can stay when one is killed")
parser.add_argument("--replica", type=int, help="which replica group of torchft's this is")
args = parser.parse_args()
OUT = os.open(args.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
RANK = int(os.environ.get("RANK", "0")) if args.replica is None else args.replica


def note(what, step=0):
    os.write(OUT, f"{time.time():.6f} {RANK} {os.getpid()} {os.uname().nodename} {step} {what}\n".encode())


note("begun")
import torch  # here: the time that this takes is noted
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import Checkpointer


def made():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def gradients(model, optimizer):
    images, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()


def ours():
    """Under launch and torchrun: DDP over all ranks."""
    note("imported")
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=args.patience_s))
    note("met")
    model, optimizer = made()
    model = DistributedDataParallel(model)
    checkpointer = Checkpointer(args.folder, model=model, optimizer=optimizer, every=args.every)
    step = checkpointer.load()
    note("loaded", step)
    while True:
        gradients(model, optimizer)
        optimizer.step()
        step += 1
        note("step", step)
        if checkpointer.after_step(step):
            break
        time.sleep(args.step_s)


def trained():
    """Train with a `Trainer`, as side `ours`; only its ranks survive a fault."""
    from torch.utils.data import TensorDataset

    from trainer import Settings, Trainer
    from trainer.loop import Callback

    note("imported")

    class Notes(Callback):
        def on_step(self, training):
            note("step", training.step)
            time.sleep(args.step_s)

    settings = Settings(
        max_steps=1_000_000_000, batch_size=16, drop_last=True, strategy="ddp", checkpoint_every=args.every
    )
    Trainer(
        settings,
        model=lambda: made()[0],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,))),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        callbacks=[Notes()],
    ).fit()


def torchft():
    """Each group is one process, which meets the others anew for every step and gets its state from one of them."""
    from torchft import DistributedDataParallel as Replicated
    from torchft import Manager, Optimizer, ProcessGroupGloo

    note("imported")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, optimizer = made()

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    patience = dt.timedelta(seconds=args.patience_s)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"group{args.replica}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=patience,
        quorum_timeout=3 * patience,
    )
    checkpointer = Checkpointer(args.folder, model=model, optimizer=optimizer, every=args.every)
    step = checkpointer.load()
    manager.load_state_dict({"step": step, "batches_committed": step})
    replicated, committing = Replicated(manager, model), Optimizer(manager, optimizer)
    note("loaded", step)
    while True:
        gradients(replicated, committing)
        committing.step()
        if manager.current_step() > step and manager.is_participating():
            note("step", manager.current_step())
        if manager.current_step() > step:
            step = manager.current_step()
            checkpointer.after_step(step)
        time.sleep(args.step_s)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        if args.trainer:
            trained()
        else:
            ours() if args.replica is None else torchft()
