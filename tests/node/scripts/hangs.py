"""A training of a few steps that then hangs: `hangs.py KIND STYLE`. Rank 1 is the culprit wherever there is one."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

HANG_AT = 5
kind, style = sys.argv[1], sys.argv[2]


class Numbers(Dataset):
    """One sample of rank 1 never comes."""

    def __len__(self):
        return 4 * (12 if kind == "left_early" and dist.get_rank() == 1 else 1000)

    def __getitem__(self, index):
        if kind == "data" and dist.get_rank() == 1 and index >= 4 * HANG_AT:
            time.sleep(3600)
        return torch.full((8,), float(index))


def make_step():
    """Return what one step does with a batch: forward, backward, and the average of the gradients."""
    if style == "accelerate":
        return accelerated_step()
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 1))
    if style == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    if style == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch):
        optimizer.zero_grad()
        model(batch).mean().backward()
        if style == "hand":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


def accelerated_step():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))

    def step(batch):
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()

    return step


def hang():
    """What the ranks do instead of their next step."""
    culprit = dist.get_rank() == 1
    if kind == "order":
        dist.broadcast(torch.zeros(4), 0) if culprit else dist.all_reduce(torch.zeros(4))
    if kind == "receive" and culprit:
        dist.recv(torch.zeros(4), 0)
    if kind == "shapes":
        dist.all_reduce(torch.zeros(1 << 20 if culprit else 1 << 21))
    if kind == "groups":
        other = PAIRS[1] if culprit else PAIRS[0]
        dist.all_reduce(torch.zeros(4), group=other)
    if kind == "sleep" and culprit:
        time.sleep(3600)
    if kind == "lock" and culprit:
        lock = threading.Condition()
        with lock:
            lock.wait()
    if kind == "save" and culprit:
        torch.save({"weights": torch.zeros(4)}, SlowFile())
    if kind == "frozen" and culprit:
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "python_lock" and culprit:
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):  # the second waits for ever, with the lock of the interpreter held; no signal interrupts it
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    if kind == "busy" and culprit:
        while True:
            pass
    if kind == "killed" and culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "nobody":
        threading.Event().wait()


class SlowFile:
    """A file on storage that does not answer."""

    def write(self, data):
        time.sleep(3600)

    def flush(self):
        pass


store = os.environ.get("HANGS_STORE")  # a file in which ranks meet that no launcher has started
where = {"init_method": f"file://{store}", "rank": int(os.environ["RANK"])} if store else {}
dist.init_process_group("gloo", **where, world_size=int(os.environ["WORLD_SIZE"]))
PAIRS = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
train_step = make_step()
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) if "LAUNCH_PROGRESS" in os.environ else sys.stderr
for number, data in enumerate(DataLoader(Numbers(), batch_size=4)):
    if number == HANG_AT:
        print(f"hangs {time.time()}", flush=True)
        hang()
    if kind == "slow" and dist.get_rank() == 1:
        time.sleep(0.05)
    train_step(data)
    wire.write(f'{{"step": {number + 1}, "total_steps": 1000}}\n')
    time.sleep(0.1)
if kind == "left_early":
    print(f"hangs {time.time()}", flush=True)
    threading.Thread(target=time.sleep, args=(3600,)).start()  # its connections stay, as those of a GPU would
