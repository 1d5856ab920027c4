"""A training of a few steps that then hangs: `hangs.py KIND STYLE`. Rank 1 is the culprit wherever there is one.

The kinds of `PAUSES` never hang: their ranks pause now and then, as healthy trainings do. With HANGS_DEVICE=cuda the styles
`hand`, `ddp` and `fsdp` train on GPUs, by nccl.
"""

import ctypes
import datetime as dt
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

HANG_AT, STEPS, BATCH = 5, 100_000, 4
PAUSES = ("validation", "saving", "compile", "uneven")
PAUSE_EVERY, PAUSE_S = 100, 20.0
kind, style = sys.argv[1], sys.argv[2]
on_gpu = os.environ.get("HANGS_DEVICE") == "cuda"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")


class Numbers(Dataset):
    """One sample of rank 1 never comes."""

    def __init__(self):
        self._taken = 0

    def __len__(self):
        return BATCH * (12 if kind == "left_early" and dist.get_rank() == 1 else STEPS)

    def __getitem__(self, index):
        self._taken += 1
        if kind == "data" and dist.get_rank() == 1 and self._taken > BATCH * HANG_AT:
            time.sleep(3600)
        return torch.full((8,), float(index))


def make_step():
    """Return what one step does with a batch: forward, backward, and the average of the gradients."""
    if style == "accelerate":
        return accelerated_step()
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 1)).to(device)
    if style == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    if style == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch):
        optimizer.zero_grad()
        model(batch.to(device)).mean().backward()
        if style == "hand":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()  # as a training does that logs its loss

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


def before_step(number):
    """Do what this kind of training does before its step of this number, and take the time of a usual step."""
    if monitor is not None:
        if number:
            monitor.end_section("step")
        monitor.start_section("step")
    if kind in PAUSES:
        pause(number)
    elif number == HANG_AT:
        print(f"hangs {time.time()}", flush=True)
        hang()
    if kind == "slow" and dist.get_rank() == 1:
        time.sleep(0.05)
    time.sleep(0.1)


def pause(number):
    """Pause as a validation of all ranks, a save by rank 0, a compilation of the first step, or uneven batches do."""
    due = number % PAUSE_EVERY == PAUSE_EVERY - 1
    if kind == "compile" and number == 0:
        compute(PAUSE_S + 10 * dist.get_rank())
    if kind == "validation" and due:
        compute(PAUSE_S)
    if kind == "saving" and due and dist.get_rank() == 0:
        torch.save({"weights": torch.zeros(4)}, SlowFile(PAUSE_S))
    if kind == "uneven" and random.random() < 0.1:
        time.sleep(random.expovariate(0.5))


def compute(seconds):
    ends, matrix = time.monotonic() + seconds, torch.ones(64, 64)
    while time.monotonic() < ends:
        matrix @ matrix
        time.sleep(0.01)


def hang():
    """Hang in this way instead of making the next step."""
    culprit, few = dist.get_rank() == 1, torch.zeros(4, device=device)
    if kind == "order":
        dist.broadcast(few, 0) if culprit else dist.all_reduce(few)
    if kind == "receive" and culprit:
        dist.recv(few, 0)
    if kind == "shapes":
        dist.all_reduce(torch.zeros(1 << 20 if culprit else 1 << 21, device=device))
    if kind == "groups":
        other = PAIRS[1] if culprit else PAIRS[0]
        dist.all_reduce(few, group=other)
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
    """A file on storage that does not answer, or after a time."""

    def __init__(self, answers_s=3600.0):
        self._answers_s = answers_s

    def write(self, data):
        time.sleep(self._answers_s)
        self._answers_s = 0.0
        return len(data)

    def flush(self):
        pass


def train_plainly():
    train_step = make_step()
    wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) if "LAUNCH_PROGRESS" in os.environ else sys.stderr
    for number, data in enumerate(DataLoader(Numbers(), batch_size=BATCH)):
        before_step(number)
        train_step(data)
        wire.write(f'{{"step": {number + 1}, "total_steps": {STEPS}}}\n')


def train_with_trainer():
    from trainer import Settings, Trainer
    from trainer.loop import Callback

    class Hang(Callback):
        def on_step(self, training):
            before_step(training.step)

    settings = Settings(batch_size=BATCH * dist.get_world_size(), max_steps=STEPS, device="cpu")
    Trainer(
        settings,
        model=lambda: torch.nn.Linear(8, 1),
        loss=lambda model, batch: model(batch).mean(),
        data=Numbers(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        callbacks=[Hang()],
    ).fit()


def train_with_lightning():
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(8, 1)
            self.wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)

        def on_train_batch_start(self, batch, number):
            before_step(number)

        def training_step(self, batch):
            return self.net(batch).mean()

        def on_train_batch_end(self, outputs, batch, number):
            self.wire.write(f'{{"step": {number + 1}, "total_steps": {STEPS}}}\n')

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    lightning.Trainer(
        accelerator="cpu", devices=dist.get_world_size(), strategy="ddp", max_steps=STEPS, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, use_distributed_sampler=False,
    ).fit(Model(), DataLoader(Numbers(), batch_size=BATCH))  # fmt: skip


monitor = None
if "HANGS_NVRX" in os.environ:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
store = os.environ.get("HANGS_STORE")  # a file in which ranks meet that no launcher has started
where = {"init_method": f"file://{store}", "rank": int(os.environ["RANK"])} if store else {}
if "HANGS_TIMEOUT_S" in os.environ:  # after which torch itself ends a collective
    where["timeout"] = dt.timedelta(seconds=float(os.environ["HANGS_TIMEOUT_S"]))
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", **where, world_size=int(os.environ["WORLD_SIZE"]))
PAIRS = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
{"trainer": train_with_trainer, "lightning": train_with_lightning}.get(style, train_plainly)()
if kind == "left_early":
    print(f"hangs {time.time()}", flush=True)
    threading.Thread(target=time.sleep, args=(3600,)).start()  # its connections stay, as those of a GPU would
