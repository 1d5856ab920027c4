"""What a rank alone has of a shared-out optimizer, and the weights that it steps, in a file in memory.

Under zero1 the weights are whole on each rank, but the optimizer's state of a parameter is on one of them only. A rank
writes its share down right after a step's update. The last two steps are kept: nobody can write down step k + 2 before
all have given their gradients to it, and they do that after step k + 1 is written down. So there is always a step of
which the shares of all are whole, whoever was killed, and wherever; and it is the last but one at worst, which is done
once more then.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from trainer.checkpoint.tree import dtype_name
from trainer.staying.packing import CannotKeep, Packed, described_in, tensors_in
from trainer.staying.slots import SlotFile
from trainer.strategies.zero import SharedOut

_SLOTS = 2


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, of this type and shape; or, without a type, a plain value."""

    key: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    plain: bool | int | float | str | None = None


class Owned(msgspec.Struct, frozen=True, array_like=True):
    """A parameter that this rank steps: its weights, and what the optimizer keeps of it, where it keeps anything."""

    optimizer: str
    number: int  # of those that this rank steps
    weight: Item
    state: list[Item] | None

    def items(self) -> Iterator[Item]:
        """Tensors, in the order in which they lie."""
        return (one for one in (self.weight, *(self.state or ())) if one.dtype)


_decoder = msgspec.msgpack.Decoder(list[Owned])


def own_share(optimizers: Mapping[str, SharedOut]) -> Packed:
    """What a rank has alone. Raises CannotKeep."""
    owned: list[Owned] = []
    tensors: list[Tensor] = []
    for name, optimizer in optimizers.items():
        for number, parameter in enumerate(optimizer.stepped_here):
            state = optimizer.optim.state.get(parameter)
            items = None if state is None else [_item(key, value) for key, value in state.items()]
            owned.append(Owned(name, number, _item("", parameter), items))
            tensors.append(parameter.detach())
            tensors += [value.detach() for value in (state or {}).values() if isinstance(value, Tensor)]
    return Packed.of(msgspec.msgpack.encode(owned), tensors)


def _item(key: object, value: object) -> Item:
    if not isinstance(key, str):
        raise CannotKeep(f"its optimizer keeps something as {key!r}: expected a name")
    if isinstance(value, Tensor):
        return Item(key, dtype_name(value.dtype), tuple(value.shape), value.stride())
    if value is None or isinstance(value, bool | int | float | str):
        return Item(key, plain=value)
    raise CannotKeep(f"its optimizer keeps {type(value).__name__} as {key!r}: expected tensors, numbers or text")


class ShareFile:
    """One rank's. Only it writes, and its successor reads, and goes on writing."""

    def __init__(self, slots: SlotFile, limit_bytes: int | None = None) -> None:
        self._slots, self._limit_bytes = slots, limit_bytes

    @classmethod
    def begin(cls, path: Path, life: str, limit_bytes: int | None = None) -> "ShareFile":
        """A new one, in the place of what is there. Raises OSError."""
        return cls(SlotFile.begin(path, life, _SLOTS, 1), limit_bytes)

    @classmethod
    def found(cls, path: Path, limit_bytes: int | None = None) -> "ShareFile | None":
        """That of the rank whose place is taken; None where there is none."""
        slots = SlotFile.found(path)
        return None if slots is None else cls(slots, limit_bytes)

    @property
    def life(self) -> str:
        return self._slots.life

    def write(self, step: int, optimizers: Mapping[str, SharedOut]) -> None:
        """After the update of this step. Raises CannotKeep."""
        share = own_share(optimizers)
        needed = _SLOTS * share.size
        if self._limit_bytes is not None and needed > self._limit_bytes:
            mb = f"{needed >> 20} MB of memory, allowed are {self._limit_bytes >> 20} MB"
            raise CannotKeep(f"two copies of a rank's share of the optimizer would take {mb}")
        if share.size > self._slots.room:  # in the first step, when optimizers make their state
            try:
                self._slots = self._slots.roomier(share.size)
            except OSError as error:
                raise CannotKeep(f"there is no memory for two copies of its optimizer: {error.strerror}") from error
        self._slots.write(step, share.size, share.put)

    def steps(self) -> tuple[int, ...]:
        """Those whose share is whole."""
        return self._slots.steps()

    def forget_after(self, step: int) -> None:
        """What is newer is done once more."""
        self._slots.forget_after(step)

    def put_back(self, step: int, optimizers: Mapping[str, SharedOut]) -> bool:
        """Into the optimizers, and this rank's weights. False where that step is not there any more."""
        content = self._slots.read(step)
        if content is None:
            return False
        owned = _decoder.decode(described_in(content))
        parts = tensors_in(content, [(item.dtype, item.shape) for one in owned for item in one.items()])
        for optimizer in optimizers.values():
            optimizer.optim.state.clear()
        with torch.no_grad():
            for one in owned:
                optimizer = optimizers[one.optimizer]
                parameter = optimizer.stepped_here[one.number]
                parameter.copy_(next(parts))
                if one.state is not None:
                    optimizer.optim.state[parameter] = {
                        item.key: _copied(next(parts), item) if item.dtype else item.plain for item in one.state
                    }
        return True


def _copied(value: Tensor, item: Item) -> Tensor:
    """In the memory format that it had."""
    form = torch.empty_strided(item.shape, item.strides, device="meta")
    return torch.empty_like(form, device=value.device, dtype=value.dtype).copy_(value)
