"""Who writes what, where: torch.distributed.checkpoint's planner decides, this gives each part its place in a file."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import default_planner, planner
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans

from trainer.checkpoint.tree import dtype_name
from trainer.checkpoint_files.manifest import ITEM_BYTES, Chunk, TensorEntry

_ALIGNED = 64  # bytes: so that a part can be read as a tensor where it lies


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor and its place in this rank's file."""

    name: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtype: torch.dtype
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What this rank writes, and where every part of every tensor will be."""

    parts: tuple[Part, ...]
    size: int  # of this rank's parts
    tensors: dict[str, TensorEntry]
    signature: int  # of what this rank had to bring when the plan was made


def signature(tensors: Mapping[str, Tensor]) -> int:
    """Changes when a plan has to be made anew."""
    return hash(tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))


def make_plan(tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> WritePlan:
    """Agree on who writes what. All ranks call it with what they have; what several have is written once."""
    local = default_planner.create_default_local_save_plan(tensors, is_coordinator=True)
    plans, rank = [local], 0
    if group is not None:
        plans = [local] * group.size()
        dist.all_gather_object(plans, local, group=group)
        rank = group.rank()
    plans = dedup_save_plans(plans)
    places = [_place(plan) for plan in plans]
    return WritePlan(
        parts=tuple(_part(item, at) for item, at in zip(plans[rank].items, places[rank], strict=True)),
        size=_end(plans[rank], places[rank]),
        tensors=_entries(plans, places),
        signature=signature(tensors),
    )


def _place(plan: planner.SavePlan) -> list[int]:
    ats, at = [], 0
    for item in plan.items:
        ats.append(at)
        at = _aligned(at + _bytes(item))
    return ats


def _end(plan: planner.SavePlan, ats: list[int]) -> int:
    return _aligned(ats[-1] + _bytes(plan.items[-1])) if ats else 0


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _data(item: planner.WriteItem) -> planner.TensorWriteData:
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn}: expected a tensor")
    return item.tensor_data


def _bytes(item: planner.WriteItem) -> int:
    data = _data(item)
    return data.chunk.sizes.numel() * ITEM_BYTES[dtype_name(data.properties.dtype)]


def _part(item: planner.WriteItem, at: int) -> Part:
    data = _data(item)
    return Part(
        name=item.index.fqn,
        offsets=tuple(data.chunk.offsets),
        lengths=tuple(data.chunk.sizes),
        dtype=data.properties.dtype,
        at=at,
        size=_bytes(item),
    )


def _entries(plans: list[planner.SavePlan], places: list[list[int]]) -> dict[str, TensorEntry]:
    wholes: dict[str, tuple[str, tuple[int, ...]]] = {}
    chunks: dict[str, list[Chunk]] = {}
    for number, (plan, ats) in enumerate(zip(plans, places, strict=True)):
        for item, at in zip(plan.items, ats, strict=True):
            data, name = _data(item), item.index.fqn
            wholes[name] = (dtype_name(data.properties.dtype), tuple(data.size))
            parts = chunks.setdefault(name, [])
            # An empty shard of an uneven split has nothing to say.
            if data.chunk.sizes.numel() or not data.size.numel():
                parts.append(Chunk(number, at, tuple(data.chunk.offsets), tuple(data.chunk.sizes)))
    return {name: TensorEntry(*whole, tuple(chunks[name])) for name, whole in wholes.items()}


def local_part(tensor: Tensor, part: Part) -> Tensor:
    """The bytes of a part as this rank has them: a shard of a DTensor, or the whole tensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if tuple(local.shape) != part.lengths:
        raise ValueError(f"{part.name}: planned for {part.lengths}, but it is {tuple(local.shape)} here")
    return local
