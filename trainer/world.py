"""Describe the ranks of a training: their numbers and devices, and how they connect.

The facts come from the variables that torchrun and launch set; without them it is a world of one rank.
"""

import atexit
import datetime as dt
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist

from trainer.connections import group_connections
from trainer.errors import BadSettings, TrainerError

T = TypeVar("T")
TIMEOUT_S = 600.0
_MEET_S = 120.0  # ranks that meet again wait so long for each other
_LOOK_S = 0.005
_PATIENCE_S = 0.5  # with a store that has been found, at first
_MESH = 64  # so many ranks may each have a connection to each other one
_WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a training as one of them sees them: its number, their number, device and groups.

    `backend` is None without a process group. `control` is a gloo group of all ranks for votes and small messages, None
    for a single rank. `group_rank` is this node's number, if known. `ranks_per_replica` is the number of ranks that
    share one copy of the model and work on the same samples, and `stages` the number of pipeline stages. `rejoined`: a
    rank was replaced, and some of these ranks are in the middle of a training.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    backend: str | None = None  # None: no process group, a world of one
    control: dist.ProcessGroup | None = None  # over the CPU, for votes and small messages; None where there is no group
    group_rank: int | None = None  # which node this is, if known
    ranks_per_replica: int = 1  # ranks that work on the same samples, each on its part of the model
    stages: int = 1  # of a pipeline; the first ranks have its first stage, and so on
    rejoined: bool = False  # a rank was replaced: some of these ranks are in the middle of a training

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def dp_rank(self) -> int:
        """The data-parallel rank: the number of the copy of the model that this rank has, or a part of which it has."""
        return self.rank % self.ranks_per_stage // self.tp_size

    @property
    def dp_size(self) -> int:
        """The data-parallel size: the number of copies of the model, among which the samples are divided."""
        return self.size // self.ranks_per_replica

    @property
    def replica_ranks(self) -> tuple[int, ...]:
        """The ranks that share one copy of the model with this one, including it, ordered by stage."""
        return tuple(rank for rank in range(self.size) if rank % self.ranks_per_stage // self.tp_size == self.dp_rank)

    @property
    def tp_size(self) -> int:
        """The tensor-parallel size: the number of neighbouring ranks that divide every layer of their stage."""
        return self.ranks_per_replica // self.stages

    @property
    def ranks_per_stage(self) -> int:
        """The number of ranks that have the same pipeline stage."""
        return self.size // self.stages

    @property
    def stage(self) -> int:
        """The number of the pipeline stage that this rank has, from 0; 0 without a pipeline."""
        return self.rank // self.ranks_per_stage

    @property
    def replica_leaders(self) -> range:
        """The first rank of each copy of the model, which has its first pipeline stage."""
        return range(0, self.ranks_per_stage, self.tp_size)

    @property
    def node(self) -> int:
        """The number of this rank's node, from 0.

        It is that in the environment variable GROUP_RANK. If that is not set, it is computed from the rank's number,
        which is right only if all nodes have equally many ranks.
        """
        return self.rank // self.local_size if self.group_rank is None else self.group_rank


def join(
    *,
    group: bool | None = None,
    timeout_s: float | None = None,
    device: torch.device | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> World:
    """Connect to the other ranks, which the environment describes, wait for all of them, and return the world.

    With `group`, a world of one gets a process group too, as FSDP needs it. `timeout_s` (None: that of
    LAUNCH_GROUP_TIMEOUT_S, or 600) limits each operation of the group. `device` None is a GPU if there is one. A
    process group that the script has made is used as it is. Raises BadSettings for an environment that cannot work, and
    torch's DistError or an OSError if the ranks do not meet in time.
    """
    if environ.get("LAUNCH_RESERVE"):
        raise BadSettings(
            "recovery.reserve: expected a training by Trainer, which waits until it is a rank, got a program that "
            "connects to the other ranks by itself\nhint: leave recovery.reserve out"
        )
    timeout = dt.timedelta(seconds=timeout_s or float(environ.get("LAUNCH_GROUP_TIMEOUT_S") or TIMEOUT_S))
    if dist.is_initialized():
        return _joined(environ, torch.device(device) if device else None, timeout)
    set_up = [name for name in _WORLD_VARIABLES if name in environ]
    if set_up and len(set_up) < len(_WORLD_VARIABLES):
        missing = ", ".join(name for name in _WORLD_VARIABLES if name not in environ)
        raise BadSettings(
            f"environment: {', '.join(set_up)} without {missing}\nhint: start ranks by launch or torchrun"
        )
    size = _number(environ, "WORLD_SIZE", 1)
    rank = _number(environ, "RANK", 0)
    local_rank = _number(environ, "LOCAL_RANK", 0)
    set_threads(environ, size)
    chosen = _device(local_rank, torch.device(device) if device else None)
    if size == 1 and not group:
        return World(0, 1, 0, 1, chosen)
    if size > _MESH:  # gloo then connects two ranks when one first sends to the other
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    bound = chosen if chosen.type == "cuda" else None
    if not set_up:
        store: dist.Store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=bound)
    elif environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's agent serves the store
        dist.init_process_group(backend, timeout=timeout, device_id=bound)
    else:
        rejoins = environ.get("LAUNCH_JOINS") == "1"
        address, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT", 0)
        with group_connections.watching():
            if rank == 0:
                store = _own_store(address, port, size, timeout)
            elif rejoins:
                store = _found_store(address, port, size, timeout)
            else:
                store = _store_of_first(address, port, size, timeout)
            if rejoins:
                _await_ranks(store, rank, size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
        if bound is not None and dist.group.WORLD is not None:
            group_connections.abort_with_others(dist.group.WORLD)
    return _joined(environ, chosen, timeout)


def leave(world: World) -> None:
    """Destroy the process group without waiting for other ranks.

    Call `barrier` first if they may still need this one.
    """
    if world.backend is not None and dist.is_initialized():
        dist.destroy_process_group()


def _reset_group_numbers() -> None:
    """Make torch number its groups from 0 again, as new ranks do, since ranks find each other by a group's number.

    Torch counts groups that could not be made too, and begins again only when its first group is destroyed. So this
    makes a first group, of this rank alone, which the caller must destroy by `leave`.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Membership:
    """The membership of this process in the process group, kept until the process exits.

    There is one at a time, shared by all trainings of the process: ranks can meet only once on a port, so one that left
    could not meet there again. A forked process does not inherit it and meets ranks of its own.
    """

    _kept: "Membership | None" = None
    _of_parents: ClassVar[list[Any]] = []  # groups of the process that forked this one; freeing one would never end

    def __init__(self, world: World, *, ours: bool) -> None:
        self.world, self._ours = world, ours
        self._group, self._process = dist.group.WORLD, os.getpid()
        self.taken = 1  # how many trainings take part
        self._at_a_port = "RANK" in os.environ  # else alone, with a store that nobody else sees
        if ours:
            atexit.register(self._leave_at_exit)

    @classmethod
    def take(cls, *, group: bool, timeout_s: float | None = None, device: str | None = None) -> "Membership":
        """Return the current membership if a training on `device` can use it, else join the group and return a new one.

        All ranks call it. With `group`, a world of one gets a process group too. `timeout_s` (None: 600, or
        LAUNCH_GROUP_TIMEOUT_S) limits each operation of the group, and `device` None is a GPU if there is one. A group
        that the script has made is never destroyed here. Raises BadSettings for an environment that cannot work, and
        torch's DistError or an OSError if the ranks do not meet in time.
        """
        if cls._kept is not None and cls._kept.fits(device):
            cls._kept.taken += 1
            return cls._kept
        cls._kept = None  # its group is gone, and with this its store
        met = dist.is_initialized()
        taken = cls(join(group=group, timeout_s=timeout_s, device=device), ours=not met and dist.is_initialized())
        if taken.world.backend is not None:  # a single rank has nothing to keep, and may fork others
            cls._kept = taken
        return taken

    @classmethod
    def sole_user(cls, world: World) -> "Membership | None":
        """Return the membership behind `world`, or None if its ranks cannot `rejoin` or several trainings use it."""
        kept = cls._kept
        same = kept is not None and world.control is not None and kept.world.control is world.control
        return kept if kept is not None and same and kept.can_rejoin else None

    @property
    def can_rejoin(self) -> bool:
        """Whether the group can be made again after a rank is lost.

        It can if all this is so: the trainer made it and not the user's script, its ranks met at an address and a port,
        no second training in this process uses it, and it has at most 64 ranks.
        """
        return self._ours and self._at_a_port and self.taken == 1 and self.world.size <= _MESH

    def rejoin(self, until_readable: int) -> World:
        """Give up the group, which has lost a rank, and meet the other ranks at the address now in the environment.

        Returns the new world. Raises the errors of `join`. One is torch's RuntimeError once the descriptor
        `until_readable` is readable: launch has sent another message, and this meeting is given up for another.
        """
        device = self.world.device
        if not dist.is_initialized():  # the meeting before this one came to nothing
            _reset_group_numbers()
        leave(self.world)
        with group_connections.giving_up_on(until_readable):
            self.world = join(group=True, device=device)  # a single rank may meet others again
        self._group = dist.group.WORLD
        return self.world

    def skip_leaving(self) -> None:
        """Cancel leaving the group at exit: after an error the other ranks may never respond."""
        atexit.unregister(self._leave_at_exit)

    def fits(self, device: str | None) -> bool:
        """Return whether a training on `device` can use this membership; if False, the caller must join again.

        It can if the membership was made in this process, for this kind of device (None: GPU if there is one, else
        CPU), and the script has not left the group. A group that the trainer made and that cannot be used is left: that
        of the parent in a forked process, or that of a process that was started alone (without RANK) and now wants
        another kind of device. Raises BadSettings if a process with RANK wants another kind, as the ranks cannot meet
        again.
        """
        if self._process != os.getpid():
            self._drop_parents_group()
            return False
        if dist.group.WORLD is not self._group:  # the script has left it
            return False
        wanted, here = device or ("cuda" if torch.cuda.is_available() else "cpu"), self.world.device.type
        if wanted != here and self._ours:
            if not self._at_a_port:
                self.skip_leaving()
                leave(self.world)
                return False
            raise BadSettings(
                f"device: expected {here}, with which this process has connected to the other ranks, got {wanted}\n"
                "hint: train on one kind of device in one run, and on the other in another run"
            )
        return wanted == here

    def _drop_parents_group(self) -> None:
        """Destroy a forked process's copy of its parent's process group, if the trainer made that group.

        The process may be another rank (RANK) than its parent, so it has to join by itself. References to the groups
        are kept, because freeing one here would never end.
        """
        if self._ours and dist.group.WORLD is self._group:
            Membership._of_parents.extend([self, *dist.distributed_c10d._world.pg_map.items()])  # noqa: SLF001 - no public way to all of them
            leave(self.world)

    def _leave_at_exit(self) -> None:
        """Destroy the process group at exit.

        Do nothing in a forked process, which is no member of it, or after an uncaught error.
        """
        if self._process != os.getpid() or getattr(sys, "last_value", None) is not None:
            return
        leave(self.world)
        Membership._kept = None


@contextmanager
def membership(*, group: bool, timeout_s: float | None = None, device: str | None = None) -> Iterator[World]:
    """Take part in the process group, and wait for all ranks at the end of the context, except after an error in it.

    With `group`, a world of one gets a process group too. `timeout_s` (None: 600, or LAUNCH_GROUP_TIMEOUT_S) limits
    each operation of the group, and `device` None is a GPU if there is one. Raises BadSettings for an environment that
    cannot work, and torch's DistError or an OSError if the ranks do not meet in time.
    """
    taken = Membership.take(group=group, timeout_s=timeout_s, device=device)
    try:
        yield taken.world
    except BaseException:
        taken.skip_leaving()
        raise
    barrier(taken.world)


def barrier(world: World) -> None:
    """Wait until all ranks have called this."""
    if world.control is not None:
        dist.barrier(world.control)


def call_on_first(world: World, act: Callable[[], T]) -> T:
    """Return on all ranks, which all call it, the result of `act` on rank 0.

    If `act` raises a TrainerError, all ranks raise a TrainerError with its text.
    """
    return call_on_rank(world, 0, act)


def call_on_rank(world: World, rank: int, act: Callable[[], T]) -> T:
    """Return on all ranks, which all call it, the result of `act` on rank `rank`; the result is sent by pickle.

    If `act` raises a TrainerError, all ranks raise a TrainerError with its text. Any other error is raised on that rank
    alone, and the others wait until the group's time limit or the end of that rank.
    """
    answer: list[Any] = [None, None]
    if world.rank == rank:
        try:
            answer[0] = act()
        except TrainerError as error:
            answer[1] = str(error)
    if world.control is not None:
        dist.broadcast_object_list(answer, src=rank, group=world.control)
    if answer[1] is not None:
        raise TrainerError(answer[1])
    found: T = answer[0]
    return found


def _joined(environ: Mapping[str, str], device: torch.device | None, timeout: dt.timedelta) -> World:
    """Make the gloo group for control messages, wait for all ranks in it, and return the world.

    `device` is the one that the user wants; None: a GPU if there is one. `timeout` limits each operation of the group.
    Raises BadSettings if there is no such GPU, or a variable of `environ` is no number.
    """
    local_rank = _number(environ, "LOCAL_RANK", 0)
    size = dist.get_world_size()
    # Of its own, so that what is agreed on never waits behind gradients, nor needs a GPU.
    control = cpu_group(timeout)
    # A rank that is ahead may fail and leave at once: nobody may still need its store, or it is a riddle to the others.
    dist.barrier(control)
    return World(
        rank=dist.get_rank(),
        size=size,
        local_rank=local_rank,
        local_size=_number(environ, "LOCAL_WORLD_SIZE", size),
        device=_device(local_rank, device),
        backend=dist.get_backend(),
        control=control,
        group_rank=_number(environ, "GROUP_RANK", 0) if environ.get("GROUP_RANK") else None,
        rejoined=environ.get("LAUNCH_JOINS") == "1",
    )


def cpu_group(timeout: dt.timedelta | None = None) -> dist.ProcessGroup:
    """Return a new gloo group over all ranks, which all have to call this; the default timeout is half an hour."""
    with group_connections.watching():
        group = dist.new_group(backend="gloo", timeout=timeout)
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"expected a process group over all ranks, got {group!r}")
    return group


def set_threads(environ: Mapping[str, str], size: int) -> None:
    """Set torch's number of threads to OMP_NUM_THREADS, or to 1 if that is not set and there are several ranks.

    `size` is the number of ranks. A single rank without the variable keeps torch's default.
    """
    wanted = environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))  # again, as a process that forked this one may have read another number
    elif size > 1:
        torch.set_num_threads(1)  # as torchrun does: ranks that all take every core slow each other down


def _device(local_rank: int, wanted: torch.device | None) -> torch.device:
    """Return this rank's device: the wanted one, else its GPU, else the CPU.

    Raises BadSettings if there is no such GPU.
    """
    if wanted is not None and wanted.type != "cuda":
        return wanted
    if not torch.cuda.is_available():
        if wanted is not None:
            raise BadSettings(f"device: expected a GPU for {wanted}, found none")
        return torch.device("cpu")
    index = local_rank if wanted is None or wanted.index is None else wanted.index
    count = torch.cuda.device_count()
    if index >= count:
        raise BadSettings(
            f"local rank {local_rank} has no GPU of its own: {count} visible\n"
            "hint: start as many ranks on a node as it has GPUs, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to use CPUs"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _own_store(address: str, port: int, size: int, timeout: dt.timedelta) -> dist.Store:
    """Return the store in which ranks find each other, which this process, rank 0, serves at its own address only.

    `size` is the number of ranks, and `timeout` limits each operation of the store. Raises BadSettings if it cannot
    listen there. By default TCPStore listens on every interface, without a password (pytorch#173909).
    """
    try:
        listener = _listener(address, port, waiting=min(4096, size + 128))
    except OSError as error:
        raise BadSettings(
            f"MASTER_ADDR={address}, MASTER_PORT={port}: rank 0 cannot listen there: {error.strerror}"
        ) from error
    group_connections.exclude_listener(listener)
    # use_libuv: the older backend of the store ignores master_listen_fd.
    return dist.TCPStore(
        address,
        port,
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )


def _store_of_first(address: str, port: int, size: int, timeout: dt.timedelta) -> dist.Store:
    """Connect, as a rank other than 0, to the store that rank 0 serves at this address, and return it.

    `size` is the number of ranks, and `timeout` limits the connecting and each operation. Raises torch's DistError.
    """
    return dist.TCPStore(address, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def _found_store(address: str, port: int, size: int, timeout: dt.timedelta) -> dist.Store:
    """Return rank 0's store once it listens, within about two minutes.

    `size` is the number of ranks, and `timeout` limits each later operation of the store. Raises OSError or torch's
    DistError after the two minutes, and DistNetworkError if launch asks the ranks meanwhile to connect anew because one
    was replaced or more join. TCPStore alone would retry a refused connection until the operation times out, with most
    of a second between tries.
    """
    end, patience_s = time.monotonic() + _MEET_S, _PATIENCE_S
    while True:
        _await_listener(address, port, end)
        try:
            store = _store_of_first(address, port, size, dt.timedelta(seconds=patience_s))
        except dist.DistError:
            group_connections.check()
            if time.monotonic() > end:
                raise
            patience_s *= 2  # rank 0 may have no processor to answer with
        else:
            store.set_timeout(timeout)
            return store


def _await_listener(address: str, port: int, end: float) -> None:
    """Wait until a server listens at the address.

    Raises OSError if there is none at the time `end` (of time.monotonic), and DistNetworkError if launch asks the ranks
    meanwhile to connect anew because one was replaced or more join.
    """
    while True:
        try:
            socket.create_connection((address, port), timeout=_MEET_S).close()
        except OSError:
            group_connections.check()
            if time.monotonic() > end:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _await_ranks(store: dist.Store, rank: int, size: int) -> None:
    """Announce this rank in the store, and wait up to two minutes until all ranks are there.

    Raises torch's DistStoreError if some are not there by then.
    """
    store.set(f"anew/{rank}", "")
    store.wait([f"anew/{one}" for one in range(size)], dt.timedelta(seconds=_MEET_S))


def _listener(address: str, port: int, waiting: int) -> socket.socket:
    """Return a socket that listens at this address, with a queue of `waiting` connections. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(waiting)
    except OSError:
        listener.close()
        raise
    return listener


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the number in the variable `name`, or `otherwise` if it is empty. Raises BadSettings for other text."""
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise BadSettings(f"environment: {name}: expected a number, got {text!r}")
    return int(text) if text else otherwise


def be_deterministic() -> None:
    """Make torch raise an error for operations that differ from run to run, and choose the same kernels each time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
