"""The ranks of this training: who they are, their device, and how they find each other.

Everything comes from the variables that torchrun and launch set; without them it is a world of one.
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

from trainer.connections import made_here
from trainer.errors import BadSettings, TrainerError

T = TypeVar("T")
TIMEOUT_S = 600.0
_MEET_S = 120.0  # ranks that meet anew wait so long for each other
_LOOK_S = 0.005
_PATIENCE_S = 0.5  # with a store that has been found, at first
_MESH = 64  # so many ranks may each have a connection to each other one
_WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """One rank's view of all ranks."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    backend: str | None = None  # None: no process group, a world of one
    control: dist.ProcessGroup | None = None  # over the CPU, for votes and small words; None where there is no group
    group_rank: int | None = None  # which node this is, where somebody said so
    together: int = 1  # ranks that work on the same samples, each on its part of the model
    stages: int = 1  # of a pipeline; the first ranks have its first stage, and so on
    anew: bool = False  # a rank was replaced: some of these ranks are in the middle of a training, and have its state

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> int:
        """Which share of the samples is this rank's."""
        return self.rank % self.ranks_of_stage // self.dividing

    @property
    def shares(self) -> int:
        """Into how many the samples are divided."""
        return self.size // self.together

    @property
    def of_share(self) -> tuple[int, ...]:
        """The ranks that work on the same samples as this one, by their stages; one of them this rank."""
        return tuple(rank for rank in range(self.size) if rank % self.ranks_of_stage // self.dividing == self.share)

    @property
    def dividing(self) -> int:
        """Neighbouring ranks that divide every layer of their stage."""
        return self.together // self.stages

    @property
    def ranks_of_stage(self) -> int:
        return self.size // self.stages

    @property
    def stage(self) -> int:
        """Which stage of the pipeline is this rank's."""
        return self.rank // self.ranks_of_stage

    @property
    def of_shares(self) -> range:
        """A rank for each share of the samples: one that has the first stage."""
        return range(0, self.ranks_of_stage, self.dividing)

    @property
    def node(self) -> int:
        """Which node this is; where nobody said so, all nodes must have equally many ranks."""
        return self.rank // self.local_size if self.group_rank is None else self.group_rank


def join(
    *,
    group: bool | None = None,
    timeout_s: float | None = None,
    device: torch.device | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> World:
    """Meet the other ranks. `group`: make a process group in a world of one too (FSDP needs one).

    A process group that the script has made already is used as it is.
    """
    if environ.get("LAUNCH_RESERVE"):
        raise BadSettings(
            "recovery.reserve: expected a training by Trainer, which waits until it is a rank, got a program that "
            "meets the other ranks by itself\nhint: leave recovery.reserve out"
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
    if size > _MESH:  # gloo connects two ranks when one of them has a word for the other
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    bound = chosen if chosen.type == "cuda" else None
    if not set_up:
        store: dist.Store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=bound)
    elif environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's agent serves the store
        dist.init_process_group(backend, timeout=timeout, device_id=bound)
    else:
        anew = environ.get("LAUNCH_JOINS") == "1"
        address, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT", 0)
        with made_here.watching():
            if rank == 0:
                store = _own_store(address, port, size, timeout)
            elif anew:
                store = _found_store(address, port, size, timeout)
            else:
                store = _store_of_first(address, port, size, timeout)
            if anew:
                _await_ranks(store, rank, size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
        if bound is not None and dist.group.WORLD is not None:
            made_here.includes(dist.group.WORLD)
    return _joined(environ, chosen, timeout)


def leave(world: World) -> None:
    """Part from the other ranks. Nobody waits for anybody: whoever has to, calls `barrier` before."""
    if world.backend is not None and dist.is_initialized():
        dist.destroy_process_group()


def _have_torch_count_anew() -> None:
    """A group has its number for a name, by which ranks look for each other: new ranks begin with 0.

    A group that was not made is counted all the same; torch forgets the number once the first group there is has gone.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Membership:
    """This process's place in a process group, kept whoever took it until the process exits, and closed then.

    One at a time, shared by all who take part. Ranks meet only once on a port: who left, to meet there again, would
    find it still taken, or a rank that is yet to leave. A process that was forked from this one has no part in it, and
    meets ranks of its own.
    """

    _kept: "Membership | None" = None
    _of_parents: ClassVar[list[Any]] = []  # never freed: that would wait for threads that a fork leaves behind

    def __init__(self, world: World, *, ours: bool) -> None:
        self.world, self._ours = world, ours
        self._group, self._process = dist.group.WORLD, os.getpid()
        self.taken = 1  # so often somebody has taken part
        self._at_a_port = "RANK" in os.environ  # else alone, with a store that nobody else sees
        if ours:
            atexit.register(self._leave)

    @classmethod
    def take(cls, *, group: bool, timeout_s: float | None = None, device: str | None = None) -> "Membership":
        """The one there is, where it fits; else as `join`. A group that the script has made stays the script's."""
        if cls._kept is not None and cls._kept.fits(device):
            cls._kept.taken += 1
            return cls._kept
        cls._kept = None  # its group is gone, and with this its store
        met = dist.is_initialized()
        taken = cls(join(group=group, timeout_s=timeout_s, device=device), ours=not met and dist.is_initialized())
        if taken.world.backend is not None:  # who is alone has nothing to keep, and may fork ranks that are not
            cls._kept = taken
        return taken

    @classmethod
    def only_use(cls, world: World) -> "Membership | None":
        """The one that this world is of, where nobody has taken part in it before, and where it can be had anew."""
        kept = cls._kept
        same = kept is not None and world.control is not None and kept.world.control is world.control
        return kept if kept is not None and same and kept.may_meet_anew else None

    @property
    def may_meet_anew(self) -> bool:
        return self._ours and self._at_a_port and self.taken == 1 and self.world.size <= _MESH

    def meet_anew(self, words: int) -> World:
        """Give up the group, which a rank was lost of, and meet the others where the environment says now.

        Until there is something to read at `words`: they meet elsewhere then. Raises RuntimeError of torch.
        """
        device = self.world.device
        if not dist.is_initialized():  # the meeting before this one came to nothing
            _have_torch_count_anew()
        leave(self.world)
        with made_here.given_up_on(words):
            self.world = join(group=True, device=device)  # who is alone now may meet others again
        self._group = dist.group.WORLD
        return self.world

    def stay(self) -> None:
        """Leave no more: after an error the others may be anywhere, and to part from them might wait for them."""
        atexit.unregister(self._leave)

    def fits(self, device: str | None) -> bool:
        """Whether who wants this can take part in it; BadSettings where the others cannot be met in another way.

        Who is alone without a port can: this is left then, and so is what a forked process has from its parent.
        """
        if self._process != os.getpid():
            self._forget()
            return False
        if dist.group.WORLD is not self._group:  # the script has left it
            return False
        wanted, here = device or ("cuda" if torch.cuda.is_available() else "cpu"), self.world.device.type
        if wanted != here and self._ours:
            if not self._at_a_port:
                self.stay()
                leave(self.world)
                return False
            raise BadSettings(
                f"device: expected {here}, on which this process has met the other ranks, got {wanted}\n"
                "hint: train on one kind of device in one run, and on the other in another run"
            )
        return wanted == here

    def _forget(self) -> None:
        """In a forked process: it is the parent's, and RANK may be another one here."""
        if self._ours and dist.group.WORLD is self._group:
            Membership._of_parents.extend([self, *dist.distributed_c10d._world.pg_map.items()])  # noqa: SLF001 - no public way to all of them
            leave(self.world)

    def _leave(self) -> None:
        """At exit. Not in a forked process, nor after an error that nobody caught, for the reason that `stay` has."""
        if self._process != os.getpid() or getattr(sys, "last_value", None) is not None:
            return
        leave(self.world)
        Membership._kept = None


@contextmanager
def membership(*, group: bool, timeout_s: float | None = None, device: str | None = None) -> Iterator[World]:
    """Take part with the other ranks, all of which go on together from the end of this."""
    taken = Membership.take(group=group, timeout_s=timeout_s, device=device)
    try:
        yield taken.world
    except BaseException:
        taken.stay()
        raise
    barrier(taken.world)


def barrier(world: World) -> None:
    """Wait until all ranks are here."""
    if world.control is not None:
        dist.barrier(world.control)


def from_first(world: World, act: Callable[[], T]) -> T:
    """What the first rank gets from it, on all ranks. What goes wrong there ends all of them alike."""
    return from_rank(world, 0, act)


def from_rank(world: World, rank: int, act: Callable[[], T]) -> T:
    """What this rank gets from it, on all ranks. What goes wrong there ends all of them alike."""
    said: list[Any] = [None, None]
    if world.rank == rank:
        try:
            said[0] = act()
        except TrainerError as error:
            said[1] = str(error)
    if world.control is not None:
        dist.broadcast_object_list(said, src=rank, group=world.control)
    if said[1] is not None:
        raise TrainerError(said[1])
    found: T = said[0]
    return found


def _joined(environ: Mapping[str, str], device: torch.device | None, timeout: dt.timedelta) -> World:
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
        anew=environ.get("LAUNCH_JOINS") == "1",
    )


def cpu_group(timeout: dt.timedelta | None = None) -> dist.ProcessGroup:
    """A new gloo group over all ranks; every rank has to ask for it. Left to itself it waits for half an hour."""
    with made_here.watching():
        group = dist.new_group(backend="gloo", timeout=timeout)
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"expected a process group over all ranks, got {group!r}")
    return group


def set_threads(environ: Mapping[str, str], size: int) -> None:
    """The number of threads decides the last bits of many sums: it must not depend on how this process came to be."""
    wanted = environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))  # said again: a process that forked us may have read another number
    elif size > 1:
        torch.set_num_threads(1)  # as torchrun does: ranks that all take every core slow each other down


def _device(local_rank: int, wanted: torch.device | None) -> torch.device:
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
    """The store in which ranks find each other, served by this one, rank 0, on its own address and on no other.

    Left to itself, TCPStore listens on every interface, without a password (pytorch#173909).
    """
    try:
        listener = _listener(address, port, waiting=min(4096, size + 128))
    except OSError as error:
        raise BadSettings(
            f"MASTER_ADDR={address}, MASTER_PORT={port}: rank 0 cannot listen there: {error.strerror}"
        ) from error
    made_here.serves(listener)
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
    return dist.TCPStore(address, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def _found_store(address: str, port: int, size: int, timeout: dt.timedelta) -> dist.Store:
    """That of rank 0, once it listens there. Raises DistNetworkError where launch has another word meanwhile.

    Left to itself, TCPStore hears of none: refused, as rank 0 has left, it tries again until operations time out, and
    waits for most of a second each time.
    """
    end, patience_s = time.monotonic() + _MEET_S, _PATIENCE_S
    while True:
        _await_listener(address, port, end)
        try:
            store = _store_of_first(address, port, size, dt.timedelta(seconds=patience_s))
        except dist.DistError:
            made_here.check()
            if time.monotonic() > end:
                raise
            patience_s *= 2  # rank 0 may have no processor to answer with
        else:
            store.set_timeout(timeout)
            return store


def _await_listener(address: str, port: int, end: float) -> None:
    while True:
        try:
            socket.create_connection((address, port), timeout=_MEET_S).close()
        except OSError:
            made_here.check()
            if time.monotonic() > end:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _await_ranks(store: dist.Store, rank: int, size: int) -> None:
    """Until all are here: one that does not come is not waited for as long as an operation may take."""
    store.set(f"anew/{rank}", "")
    store.wait([f"anew/{one}" for one in range(size)], dt.timedelta(seconds=_MEET_S))


def _listener(address: str, port: int, waiting: int) -> socket.socket:
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
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise BadSettings(f"environment: {name}: expected a number, got {text!r}")
    return int(text) if text else otherwise
