"""Keep copies of ranks' states in the memory of another node, since a lost node's own memory is lost with it.

    a rank of node g    state(k) ─ send it ────► backward ─ has all of it been sent? ─ update
    its holder, of g-1  state(k) ─ receive it ─► backward ─ has all of it come? ───── update

A holder that has done a step therefore has a copy of that step's state. Ranks of the first node have no holder:
launch's coordinator runs there, and no rank continues in place without it.
"""

import struct
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.recovery.agreement import holder_of
from trainer.recovery.rank_states import KEPT
from trainer.world import World

_HEAD = struct.Struct("<QQ")  # step, length
_FRAME_BYTES = 1 << 14  # of the first message, which takes a state without losses
_TAG = 1


@dataclass(slots=True)
class Copies:
    """The copies that one rank keeps of another's states, and the transfer of its own state to its holder.

    The holder of a rank is the rank with the same local rank on the previous node, which keeps its copies; ranks of the
    first node have none.
    """

    world: World
    kept: dict[int, bytes] = field(default_factory=dict)  # by step: the states of the other rank, the newest three
    _coming: tuple[dist.Work, Tensor] | None = None  # the receive under way, and its memory
    _going: list[tuple[dist.Work, Tensor]] = field(default_factory=list)  # the sends under way, and their memory

    def exchange(self, step: int, state: bytes) -> None:
        """Start to send this rank's state to its holder, and to receive the state of the rank whose copies it keeps.

        All ranks call it at the same step, then `finish`. An empty `state` means that this rank has none.
        """
        world, each = self.world, self.world.local_size
        charge = world.rank + each
        if charge < world.size:
            frame = torch.empty(_FRAME_BYTES, dtype=torch.uint8)
            self._coming = _begun(dist.irecv(frame, src=charge, group=world.control, tag=_TAG)), frame
        holder = holder_of(world.rank, each)
        if holder is not None:
            data = _HEAD.pack(step, len(state)) + state
            self._send(data[:_FRAME_BYTES].ljust(_FRAME_BYTES, b"\0"), holder)
            if len(data) > _FRAME_BYTES:
                self._send(data[_FRAME_BYTES:], holder)

    def finish(self) -> None:
        """Wait until the two transfers that `exchange` began are done.

        This rank's state has then been sent to its holder, and that of the rank whose copies it keeps is in `kept`.
        Raises RuntimeError if one of these two ranks is gone.
        """
        if self._coming is not None:
            work, frame = self._coming
            work.wait()
            self._keep(frame)
            self._coming = None
        for work, _ in self._going:
            work.wait()
        self._going.clear()

    def rejoin(self, world: World) -> None:
        """Use the process groups of the new `world`.

        The copies received so far are kept; transfers that were under way in the old groups are forgotten.
        """
        self.world, self._coming, self._going = world, None, []

    def _keep(self, frame: Tensor) -> None:
        """Receive the rest of the state that begins with `frame`, and store it in `kept`, which has the newest three.

        The tensor `frame` has the state's step and length, and its first bytes.
        """
        data = frame.numpy().tobytes()
        step, length = _HEAD.unpack_from(data)
        state = data[_HEAD.size : _HEAD.size + length]
        if length > len(state):
            rest = torch.empty(length - len(state), dtype=torch.uint8)
            dist.recv(rest, src=self.world.rank + self.world.local_size, group=self.world.control, tag=_TAG)
            state += rest.numpy().tobytes()
        if state:
            self.kept[step] = state
        for old in sorted(self.kept)[:-KEPT]:
            del self.kept[old]

    def _send(self, data: bytes, holder: int) -> None:
        """Start to send bytes to `holder`, which keeps copies of this rank's state; `finish` waits for the end."""
        message = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._going.append((_begun(dist.isend(message, dst=holder, group=self.world.control, tag=_TAG)), message))


def _begun(work: dist.Work | None) -> dist.Work:
    """Return the operation that torch has begun.

    Raises AssertionError for None, which a rank outside of the group would get.
    """
    if work is None:
        raise AssertionError("this rank is in the group")
    return work
