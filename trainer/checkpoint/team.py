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
_FRAME = 1024  # bytes that are sent in any case: most words fit in, and need no second message
_LENGTH = struct.Struct("<Q")
_LOST = (1 << 64) - 1  # in the place of a length: there is no word, for whoever should have brought it is lost
_FAREWELL = dt.timedelta(seconds=3)  # to say so: whoever does not take it in time has it from the end of the connection


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks with a gloo group of their own, which nothing else uses; a group of one rank has none."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]  # in the world
    me: int  # place among them
    leaders: tuple[int, ...] | None = None  # disks apart: the place of who acts for each one's; None: there is one disk
    fan: int = 8  # so many hear one of them

    @property
    def is_first(self) -> bool:
        """Whether this rank has place 0."""
        return self.me == 0

    @property
    def apart(self) -> bool:
        """Whether the files of a checkpoint are spread over several disks."""
        return self.leaders is not None

    @property
    def leader(self) -> int:
        """The place of the rank that takes tokens, commits and removes on this rank's disk."""
        return 0 if self.leaders is None else self.leaders[self.me]

    @property
    def leads(self) -> bool:
        """Whether this rank acts for its disk."""
        return self.me == self.leader

    def near(self, place: int) -> bool:
        """Return whether the rank at `place` writes on the same disk as this one."""
        return self.leaders is None or self.leaders[place] == self.leader

    def tell(self, word: T) -> T:
        """Return on all ranks what the first one passes."""
        if self.group is None:
            return word
        said = self._told() if self.me else pickle.dumps(word)
        if lost := self._pass_on(said):
            raise lost
        told: T = _unpacked(said)
        return told

    def exchange(self, word: T) -> list[T]:
        """Return on all ranks what each of them passes."""
        words = self.join(pickle.dumps([word]), _in_a_row)
        said: list[T] = _unpacked(self.tell(words or b""))
        return said

    def greatest(self, *numbers: int) -> list[int]:
        """Return for each position the greatest number that any rank passes."""
        found = self.join(pickle.dumps(numbers), _greatest)
        return list(_unpacked(self.tell(found or b"")))

    def join(self, word: bytes, joined: Callable[[Sequence[bytes]], bytes]) -> bytes | None:
        """Return all messages merged on the first rank, and None on the others; a `tell` has to follow.

        `joined` merges the messages of neighbouring ranks, so that no rank receives more than a few.
        """
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
        """Send the message up the tree; None means it was lost, and the loss then comes back down."""
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
        """Send the message down the tree to all who answer, and return the last error."""
        lost = None
        for place in (place for level in reversed(self.below) for place in level):
            try:
                self._say(word, place)
            except RuntimeError as error:
                lost = error
        return lost

    @property
    def below(self) -> list[list[int]]:
        """The places that send to this one, level by level, nearest first."""
        levels, step = [], 1
        while step < len(self.ranks) and self.me % (step * self.fan) == 0:
            level = range(self.me + step, min(self.me + step * self.fan, len(self.ranks)), step)
            levels += [list(level)] if level else []
            step *= self.fan
        return levels

    @property
    def above(self) -> int:
        """The place that this one sends to."""
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
        """Return the message from `place`. Raises RuntimeError, as gloo does, if there is none."""
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
        """Send bytes to the first rank."""
        dist.send(torch.frombuffer(view, dtype=torch.uint8), dst=self.ranks[0], group=self.group)

    def receive(self, view: memoryview, place: int) -> None:
        """Receive bytes from the rank at `place`."""
        dist.recv(torch.frombuffer(view, dtype=torch.uint8), src=self.ranks[place], group=self.group)


def _unpacked(word: bytes) -> Any:
    return pickle.loads(word)  # noqa: S301 # nosec B301 - ranks of one run believe each other, as all of torch does


def _in_a_row(words: Sequence[bytes]) -> bytes:
    return pickle.dumps([one for word in words for one in _unpacked(word)])


def _greatest(words: Sequence[bytes]) -> bytes:
    return pickle.dumps([max(each) for each in zip(*(_unpacked(word) for word in words), strict=True)])


def nodes(world: World) -> list[str]:
    """Return the node of each rank; all ranks call it."""
    # Two nodes of a run may share a machine: its name alone would not tell them apart.
    here = f"{os.uname().nodename}/{os.environ.get('LAUNCH_NODE') or world.node}"
    if world.control is None:
        return [here]
    found: list[str] = [""] * world.size
    dist.all_gather_object(found, here, group=world.control)
    return found


def disk_leaders(world: World) -> tuple[int, ...]:
    """Return for each rank the first rank on its node; all ranks call it."""
    found = nodes(world)
    return tuple(found.index(node) for node in found)
