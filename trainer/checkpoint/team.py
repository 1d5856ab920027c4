"""The ranks that write one checkpoint together, who acts for which disk, and the words that they exchange meanwhile."""

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
_FRAME = 1024  # bytes that are sent in any case: most words fit in, and need no second message
_LENGTH = struct.Struct("<Q")
_LOST = (1 << 64) - 1  # in the place of a length: there is no word, for whoever should have brought it is lost
_FAREWELL = dt.timedelta(seconds=3)  # to say so: whoever does not take it in time has it from the end of the connection


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks with a gloo group of their own, which nothing else uses; a team of one has none."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]  # in the world
    me: int  # place among them
    leaders: tuple[int, ...] | None = None  # disks apart: the place of who acts for each one's; None: there is one disk
    fan: int = 8  # so many hear one of them

    @property
    def is_first(self) -> bool:
        return self.me == 0

    @property
    def apart(self) -> bool:
        """Whether the files of a checkpoint are spread over disks."""
        return self.leaders is not None

    @property
    def leader(self) -> int:
        """The place of who claims, commits and removes on this rank's disk."""
        return 0 if self.leaders is None else self.leaders[self.me]

    @property
    def leads(self) -> bool:
        return self.me == self.leader

    def near(self, place: int) -> bool:
        """Whether a rank writes on the same disk as this one."""
        return self.leaders is None or self.leaders[place] == self.leader

    def tell(self, word: T) -> T:
        """What the first one says."""
        if self.group is None:
            return word
        said = self._told() if self.me else pickle.dumps(word)
        if lost := self._pass_on(said):
            raise lost
        told: T = _unpacked(said)
        return told

    def exchange(self, word: T) -> list[T]:
        """What each one says, to all."""
        words = self.join(pickle.dumps([word]), _in_a_row)
        said: list[T] = _unpacked(self.tell(words or b""))
        return said

    def greatest(self, *numbers: int) -> list[int]:
        """For each place, the greatest number that one of them brings."""
        found = self.join(pickle.dumps(numbers), _greatest)
        return list(_unpacked(self.tell(found or b"")))

    def join(self, word: bytes, joined: Callable[[Sequence[bytes]], bytes]) -> bytes | None:
        """The words of all as one, for the first one; None for the others. `joined` is given the words of ranks that
        follow each other, so that nobody gets more than a few. A `tell` has to follow."""
        lost: Exception | None = None
        for level in self.below:
            words = [word]
            for place in level:  # all of them, whatever went wrong: nobody is left with a word to say
                try:
                    words.append(self._heard(place))
                except RuntimeError as error:
                    lost = error
            try:
                word = joined(words) if lost is None else b""
            except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for a word
                lost = error
        if self.me == 0 and lost is None:
            return word
        self._hand_up(word if lost is None else None)
        if lost is not None:
            raise lost
        return None

    def _hand_up(self, word: bytes | None) -> None:
        """None: it is lost; then it comes back down as that."""
        if self.me == 0:
            self._pass_on(None)
            return
        try:
            self._say(word, self.above)
        except RuntimeError:
            self._pass_on(None)
            raise
        if word is None:
            self._told()

    def _told(self) -> bytes:
        try:
            return self._heard(self.above)
        except RuntimeError:
            self._pass_on(None)
            raise

    def _pass_on(self, word: bytes | None) -> RuntimeError | None:
        """Down the tree, to all who are there; what went wrong, if anything did."""
        lost = None
        for place in (place for level in reversed(self.below) for place in level):
            try:
                self._say(word, place)
            except RuntimeError as error:
                lost = error
        return lost

    # Words go along a tree, in which each one stands for the places from its own on: in a world of a thousand nobody
    # has more than a few dozen peers, and so hardly more connections where the group makes them when they are needed.

    @property
    def below(self) -> list[list[int]]:
        """The places that speak to this one, nearest first."""
        levels, step = [], 1
        while step < len(self.ranks) and self.me % (step * self.fan) == 0:
            level = range(self.me + step, min(self.me + step * self.fan, len(self.ranks)), step)
            levels += [list(level)] if level else []
            step *= self.fan
        return levels

    @property
    def above(self) -> int:
        step = self.fan
        while self.me % step == 0:
            step *= self.fan
        return self.me - self.me % step

    def _say(self, word: bytes | None, place: int) -> None:
        frame = bytearray(_LENGTH.pack(_LOST) if word is None else _LENGTH.pack(len(word)) + word)
        frame += bytes(max(0, _FRAME - len(frame)))
        if word is None:
            # A send that gloo takes just as its connection is cut is never over, and no error of its.
            work = dist.isend(torch.frombuffer(frame, dtype=torch.uint8), dst=self.ranks[place], group=self.group)
            if work is not None:
                work.wait(_FAREWELL)
            return
        for piece in (frame[:_FRAME], frame[_FRAME:]):
            if piece:
                dist.send(torch.frombuffer(piece, dtype=torch.uint8), dst=self.ranks[place], group=self.group)

    def _heard(self, place: int) -> bytes:
        """Raises RuntimeError, as all of gloo does, where there is no word."""
        frame = bytearray(_FRAME)
        self.receive(memoryview(frame), place)
        (size,) = _LENGTH.unpack_from(frame)
        if size == _LOST:
            raise RuntimeError("another rank was lost, or failed, while ranks spoke of a checkpoint")
        rest = bytearray(max(0, size + _LENGTH.size - _FRAME))
        if rest:
            self.receive(memoryview(rest), place)
        return bytes((frame + rest)[_LENGTH.size : _LENGTH.size + size])

    def send(self, view: memoryview) -> None:
        """Bytes to the first one, who receives them."""
        dist.send(torch.frombuffer(view, dtype=torch.uint8), dst=self.ranks[0], group=self.group)

    def receive(self, view: memoryview, place: int) -> None:
        """Bytes that the rank at this place sends."""
        dist.recv(torch.frombuffer(view, dtype=torch.uint8), src=self.ranks[place], group=self.group)


def _unpacked(word: bytes) -> Any:
    return pickle.loads(word)  # noqa: S301 # nosec B301 - ranks of one run believe each other, as all of torch does


def _in_a_row(words: Sequence[bytes]) -> bytes:
    return pickle.dumps([one for word in words for one in _unpacked(word)])


def _greatest(words: Sequence[bytes]) -> bytes:
    return pickle.dumps([max(each) for each in zip(*(_unpacked(word) for word in words), strict=True)])


def nodes(world: World) -> list[str]:
    """The node of each rank; all ranks call it."""
    # Two nodes of a run may share a machine: its name alone would not tell them apart.
    here = f"{os.uname().nodename}/{os.environ.get('LAUNCH_NODE') or world.node}"
    if world.control is None:
        return [here]
    found: list[str] = [""] * world.size
    dist.all_gather_object(found, here, group=world.control)
    return found


def disk_leaders(world: World) -> tuple[int, ...]:
    """Where each node has a disk of its own: for each rank, the first one on its node. All ranks call it."""
    found = nodes(world)
    return tuple(found.index(node) for node in found)
