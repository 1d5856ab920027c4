"""The ranks that write one checkpoint together, which of them acts for which disk, and their messages.

Messages go along a tree, so that in a world of a thousand ranks none has more than a few dozen peers and connections.
"""

import datetime as dt
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer.world import World

T = TypeVar("T")
_FRAME = 1024  # bytes of the first part of a message: most fit in and need no second part
_LENGTH = struct.Struct("<Q")
_LOST = (1 << 64) - 1  # in place of a length: there is no message, as its sender is lost
_LOSS_NOTICE_TIMEOUT = dt.timedelta(seconds=3)  # a peer that does not receive it in time sees the connection end


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Ranks that save together, with a gloo group of their own; for a single rank the group is None.

    `ranks` are their numbers in the world; a rank's place is its index there, and `me` is this rank's place. `leaders`,
    if nodes share no disk, gives for each place the place of the rank that commits and removes checkpoints on its disk;
    else the first rank does. Messages go along a tree with `fan` children on each level.
    """

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]  # in the world
    me: int  # this rank's place among them
    leaders: tuple[int, ...] | None = None  # no shared disk: for each rank the place of the one that acts for its disk
    fan: int = 8  # children on each level of the tree

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first one of the group (place 0), which other docstrings call rank 0."""
        return self.me == 0

    @property
    def separate_disks(self) -> bool:
        """Whether nodes share no disk, so that the files of a checkpoint are spread over several."""
        return self.leaders is not None

    @property
    def disk_leader(self) -> int:
        """The place (index in `ranks`) of the rank that acts for this rank's disk.

        It alone takes fencing tokens, commits and removes checkpoints there.
        """
        return 0 if self.leaders is None else self.leaders[self.me]

    @property
    def acts_for_disk(self) -> bool:
        """Whether this rank is the one that takes fencing tokens, commits and removes on its disk."""
        return self.me == self.disk_leader

    def shares_disk_with(self, place: int) -> bool:
        """Return whether the rank at this place (index in `ranks`) writes on the same disk as this one."""
        return self.leaders is None or self.leaders[place] == self.disk_leader

    def broadcast(self, message: T) -> T:
        """Return on all ranks of the group, which all call it, the value that the first rank passes.

        Other ranks may pass anything. Raises RuntimeError if a message is lost.
        """
        if self.group is None:
            return message
        data = self._receive_down() if self.me else pickle.dumps(message)
        if lost := self._send_down(data):
            raise lost
        received: T = _unpickle(data)
        return received

    def all_gather(self, message: T) -> list[T]:
        """Return on all ranks, which all call it, the values that all ranks pass, in the order of `ranks`.

        Raises RuntimeError if a message is lost.
        """
        messages = self.reduce(pickle.dumps([message]), _concatenate)
        data: list[T] = _unpickle(self.broadcast(messages or b""))
        return data

    def maximum(self, *numbers: int) -> list[int]:
        """Return on all ranks, which all call it, the greatest number that any rank passes for each argument.

        Raises RuntimeError if a message is lost.
        """
        found = self.reduce(pickle.dumps(numbers), _elementwise_maximum)
        return list(_unpickle(self.broadcast(found or b"")))

    def reduce(self, message: bytes, merge: Callable[[Sequence[bytes]], bytes]) -> bytes | None:
        """Merge the messages of all ranks, which all call it; return the result on the first rank, else None.

        `merge` joins the messages of neighbouring ranks, so that no rank receives more than a few. A rank that fails to
        receive one, or whose `merge` fails, raises the error; a `broadcast` has to follow, in which the other ranks get
        an error too.
        """
        lost: Exception | None = None
        for level in self.children:
            messages = [message]
            for place in level:  # all of them, whatever went wrong: no rank may be left sending
                try:
                    messages.append(self._receive_message(place))
                except RuntimeError as error:
                    lost = error
            try:
                message = merge(messages) if lost is None else b""
            except Exception as error:  # noqa: BLE001 - the others wait for a message, whatever the error is
                lost = error
        if self.me == 0 and lost is None:
            return message
        self._send_up(message if lost is None else None)
        if lost is not None:
            raise lost
        return None

    def _send_up(self, message: bytes | None) -> None:
        """Send the message to the parent in the tree; None reports that a message was lost, and all ranks get an error.

        Rank 0, which has no parent, calls it only after a loss, and reports that to its children. Raises RuntimeError
        if sending fails.
        """
        if self.me == 0:
            self._send_down(None)
            return
        try:
            self._send_message(message, self.parent)
        except RuntimeError:
            self._send_down(None)
            raise
        if message is None:
            self._receive_down()

    def _receive_down(self) -> bytes:
        """Return the message from the parent in the tree.

        If it does not come, report the loss to the children and raise RuntimeError.
        """
        try:
            return self._receive_message(self.parent)
        except RuntimeError:
            self._send_down(None)
            raise

    def _send_down(self, message: bytes | None) -> RuntimeError | None:
        """Send the message to all ranks directly below this one in the tree; None tells them that a message was lost.

        An error with one does not keep it from the others; return the last error, or None if there was none.
        """
        lost = None
        for place in (place for level in reversed(self.children) for place in level):
            try:
                self._send_message(message, place)
            except RuntimeError as error:
                lost = error
        return lost

    @property
    def children(self) -> list[list[int]]:
        """The places (indexes in `ranks`) of the ranks that send to this rank in the tree, by level, leaves first."""
        levels, step = [], 1
        while step < len(self.ranks) and self.me % (step * self.fan) == 0:
            level = range(self.me + step, min(self.me + step * self.fan, len(self.ranks)), step)
            levels += [list(level)] if level else []
            step *= self.fan
        return levels

    @property
    def parent(self) -> int:
        """The place (index in `ranks`) that this one sends to in the tree; call it only if `me` is not 0."""
        step = self.fan
        while self.me % step == 0:
            step *= self.fan
        return self.me - self.me % step

    def _send_message(self, message: bytes | None, place: int) -> None:
        """Send one message to the rank at this place (index in `ranks`).

        None is sent as a notice that there is no message, because another rank was lost or failed.
        """
        frame = bytearray(_LENGTH.pack(_LOST) if message is None else _LENGTH.pack(len(message)) + message)
        frame += bytes(max(0, _FRAME - len(frame)))
        if message is None:
            # A send that gloo takes just as its connection is cut is never over, and no error of its.
            work = dist.isend(torch.frombuffer(frame, dtype=torch.uint8), dst=self.ranks[place], group=self.group)
            if work is not None:
                work.wait(_LOSS_NOTICE_TIMEOUT)
            return
        for piece in (frame[:_FRAME], frame[_FRAME:]):
            if piece:
                dist.send(torch.frombuffer(piece, dtype=torch.uint8), dst=self.ranks[place], group=self.group)

    def _receive_message(self, place: int) -> bytes:
        """Wait for the message of the rank at this place (index in `ranks`), and return it.

        Raises RuntimeError if there is none, because another rank was lost or failed.
        """
        frame = bytearray(_FRAME)
        self.receive(memoryview(frame), place)
        (size,) = _LENGTH.unpack_from(frame)
        if size == _LOST:
            raise RuntimeError("another rank was lost, or failed, while ranks exchanged messages about a checkpoint")
        rest = bytearray(max(0, size + _LENGTH.size - _FRAME))
        if rest:
            self.receive(memoryview(rest), place)
        return bytes((frame + rest)[_LENGTH.size : _LENGTH.size + size])

    def send(self, view: memoryview) -> None:
        """Send the bytes in `view` to the first rank of the group, which calls `receive`."""
        dist.send(torch.frombuffer(view, dtype=torch.uint8), dst=self.ranks[0], group=self.group)

    def receive(self, view: memoryview, place: int) -> None:
        """Wait for bytes that the rank at this place (index in `ranks`) sends, and fill `view` with them."""
        dist.recv(torch.frombuffer(view, dtype=torch.uint8), src=self.ranks[place], group=self.group)


def _unpickle(message: bytes) -> Any:
    """Return the object that another rank pickled into this message."""
    return pickle.loads(message)  # noqa: S301 # nosec B301 - ranks of one run trust each other, as all of torch does


def _concatenate(messages: Sequence[bytes]) -> bytes:
    """Return several pickled lists as one pickled list."""
    return pickle.dumps([one for message in messages for one in _unpickle(message)])


def _elementwise_maximum(messages: Sequence[bytes]) -> bytes:
    """Return the greatest number at each position of several pickled lists, pickled."""
    return pickle.dumps([max(each) for each in zip(*(_unpickle(message) for message in messages), strict=True)])


def nodes(world: World) -> list[str]:
    """Return the name of each rank's node (machine/node), by rank: equal texts mean one node. All ranks call it."""
    # Two nodes of a run may share a machine: its name alone would not tell them apart.
    here = f"{os.uname().nodename}/{os.environ.get('LAUNCH_NODE') or world.node}"
    if world.control is None:
        return [here]
    found: list[str] = [""] * world.size
    dist.all_gather_object(found, here, group=world.control)
    return found


def disk_leaders(world: World) -> tuple[int, ...]:
    """Return for each rank the number of the first rank on its node, which acts for the node's disk.

    For trainings in which each node has a disk of its own. All ranks call it.
    """
    found = nodes(world)
    return tuple(found.index(node) for node in found)
