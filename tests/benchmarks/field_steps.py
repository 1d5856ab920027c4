"""The training of field.py under other tools that keep a training running through a lost rank.

Each as its documentation shows it. Model, data, batch and optimizer are those of tiny_mlp.py, a step is as long, and
who begins again from a checkpoint writes one every so many steps. Notes are written as ddp_steps.py does.
"""

import argparse
import contextlib
import datetime as dt
import os
import socket
import tempfile
import time
from pathlib import Path

import tiny_mlp
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Notes:
    """Writes a line to OUT for each step, then pauses to lengthen the step."""

    def __init__(self, args, rank):
        self._fd = os.open(args.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._rank, self._step_s = rank, args.step_s

    def step(self, step):
        os.write(self._fd, f"{time.monotonic():.6f} {self._rank} {os.getpid()} {step}\n".encode())
        time.sleep(self._step_s)


def made():
    torch.manual_seed(1)
    model = tiny_mlp.model()
    return model, tiny_mlp.optimizer(model.parameters())


def epochs(loader):
    """Batches without end, each epoch in another order."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loader_of(args, rank):
    data = tiny_mlp.data()
    sampler = DistributedSampler(data, args.ranks, rank, drop_last=True)
    return DataLoader(data, tiny_mlp.BATCH_SIZE // args.ranks, sampler=sampler, drop_last=True)


def saving_steps(args, rank, name, model, optimizer, at_once=contextlib.nullcontext):
    """Train without end from the newest checkpoint in the file NAME beside OUT, if there is one; rank 0 writes it."""
    replicated = nn.parallel.DistributedDataParallel(model)
    saved, step, notes = args.out.with_name(name), 0, Notes(args, rank)
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for batch in epochs(loader_of(args, rank)):
        optimizer.zero_grad()
        tiny_mlp.loss(replicated, batch).backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            dist.barrier()
            if rank == 0:
                with at_once():
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, saved.with_suffix(".new"))
                    saved.with_suffix(".new").replace(saved)
        notes.step(step)


def torchft(args):
    """A replica group of one process: groups meet anew where one is lost or comes, and who comes is given the state."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from torchft import DistributedSampler as GroupSampler

    model, plain = made()
    data = tiny_mlp.data()
    sampler = GroupSampler(data, args.rank, args.ranks, group_rank=0, num_replicas=1, shuffle=True)
    batches = epochs(DataLoader(data, tiny_mlp.BATCH_SIZE // args.ranks, sampler=sampler, drop_last=True))

    def load(state):
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    patience = dt.timedelta(seconds=args.patience_s)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        replica_id=f"group{args.rank}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=6 * patience,
        quorum_timeout=6 * patience,
    )
    replicated, optimizer, notes = (
        DistributedDataParallel(manager, model),
        Optimizer(manager, plain),
        Notes(args, args.rank),
    )
    step = 0
    for batch in batches:
        optimizer.zero_grad()
        tiny_mlp.loss(replicated, batch).backward()
        optimizer.step()
        if manager.current_step() > step and manager.is_participating():
            notes.step(manager.current_step())
        step = manager.current_step()


def nvrx(args):
    """The training function begins again in each process that is left; one that stood by takes the lost one's place."""
    from nvidia_resiliency_ext import inprocess
    from nvidia_resiliency_ext.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks

    model, optimizer = made()
    base = dist.TCPStore("127.0.0.1", args.port, is_master=args.rank == 0, wait_for_workers=False)

    looks = {f"monitor_{who}_interval": dt.timedelta(seconds=args.look_s) for who in ("thread", "process")}

    @inprocess.Wrapper(
        **looks,
        last_call_wait=dt.timedelta(seconds=args.look_s),
        rank_assignment=inprocess.Compose(MaxActiveWorldSize(args.ranks), ShiftRanks()),
    )
    def train(call: inprocess.CallWrapper = None):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        patience = dt.timedelta(seconds=args.patience_s)
        store = dist.PrefixStore(str(call.iteration), base)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
        saving_steps(args, rank, "nvrx.pt", model, optimizer, call.atomic)

    train()


def ray_train(args):
    """Train with Ray: all workers are ended and others started, which begin with the newest checkpoint."""
    import ray
    from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig, get_checkpoint, get_context, report
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

    def train(_):
        context = get_context()
        notes = Notes(args, context.get_world_rank())
        plain, optimizer = made()
        step = 0
        if (newest := get_checkpoint()) is not None:
            with newest.as_directory() as folder:
                state = torch.load(Path(folder, "state.pt"))
            plain.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        model = prepare_model(plain)
        per_rank = tiny_mlp.BATCH_SIZE // context.get_world_size()
        for batch in epochs(prepare_data_loader(DataLoader(tiny_mlp.data(), per_rank, shuffle=True, drop_last=True))):
            optimizer.zero_grad()
            tiny_mlp.loss(model, batch).backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint = None
                    if context.get_world_rank() == 0:
                        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                        torch.save(state, Path(folder, "state.pt"))
                        checkpoint = Checkpoint.from_directory(folder)
                    report({"step": step}, checkpoint=checkpoint)
            notes.step(step)

    here = args.out.parent
    ray.init(num_cpus=args.ranks, include_dashboard=False, _temp_dir=str(here / "ray"))
    TorchTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=args.ranks),
        run_config=RunConfig(
            name="race", storage_path=str(here / "results"), failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()


def monarch_actors(args):
    """A mesh of actors, one for each rank: once one is lost, all are stopped and others are spawned."""
    import monarch.actor
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class Trainer(Actor):
        @endpoint
        def train(self, port):
            torch.set_num_threads(1)
            rank, patience = current_rank().rank, dt.timedelta(seconds=args.patience_s)
            store = dist.TCPStore("127.0.0.1", port, args.ranks, is_master=rank == 0)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks, timeout=patience)
            saving_steps(args, rank, "monarch.pt", *made())

    monarch.actor.unhandled_fault_hook = lambda _failure: None  # else a lost actor ends this process
    while True:
        ranks = this_host().spawn_procs(per_host={"ranks": args.ranks})
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            ranks.spawn("trainer", Trainer).train.call(port).get()
        except Exception as error:  # of a type that Monarch does not name
            print(f"a rank is lost: {type(error).__name__}", flush=True)
            ranks.stop().get()


PEERS = {"torchft": torchft, "nvrx": nvrx, "ray": ray_train, "monarch": monarch_actors}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-s", type=float, required=True, help="time that a step takes beside its work")
    parser.add_argument("--every", type=int, required=True, help="steps to a checkpoint")
    parser.add_argument("--ranks", type=int, required=True, help="that train")
    parser.add_argument("--rank", type=int, default=0, help="which one this is, where each is started by itself")
    parser.add_argument("--port", type=int, help="for the store of what NVRx wraps")
    parser.add_argument("--patience-s", type=float, default=5.0, help="of gloo, with ranks that say nothing")
    parser.add_argument("--look-s", type=float, default=1.0, help="how often NVRx looks after its ranks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    PEERS[args.peer](args)


if __name__ == "__main__":
    main()
