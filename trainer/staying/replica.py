"""Weights, optimizer and all that is one for all ranks, from a rank that has them to those that need them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from trainer.checkpoint.contents import SHARED, Stateful, Subjects, of_rank
from trainer.checkpoint.generators import state_of_generators
from trainer.checkpoint.loading import Reader
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.optimizers import OptimizerNames
from trainer.checkpoint.tree import dtype_name, dtype_of, to_json
from trainer.checkpoint_files.manifest import Manifest, TensorEntry
from trainer.staying.sending import receive, send
from trainer.world import World

_LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is small and one for all ranks, right after an update: what follows it may have changed some since."""

    step: int
    objects: Mapping[str, Any]
    groups: Mapping[str, list[dict[str, Any]]]  # of each optimizer
    loop: Mapping[str, Any]  # where the loop stands

    @classmethod
    def of(
        cls, step: int, objects: Mapping[str, Stateful], optimizers: Mapping[str, Optimizer], loop: Mapping[str, Any]
    ) -> "Snapshot":
        groups = {
            key: [{name: value for name, value in group.items() if name != "params"} for group in one.param_groups]
            for key, one in optimizers.items()
        }
        states = {key: thing.state_dict() for key, thing in objects.items()}
        return cls(step, *copy.deepcopy((states, groups, dict(loop))))

    def put_back(self, subjects: Subjects) -> None:
        """On a rank that has the weights and the optimizer's state of that step."""
        names = ModelNames(subjects.models)
        for key, optimizer in subjects.optimizers.items():
            OptimizerNames(key, optimizer, names).set_groups(copy.deepcopy(self.groups[key]))
        for key, thing in subjects.shared.items():
            thing.load_state_dict(copy.deepcopy(self.objects[key]))


class Shared(msgspec.Struct, frozen=True):
    """The source's word: a document, and which tensors come beside it, in this order."""

    document: bytes
    tensors: list[tuple[str, str, list[int]]]  # name, type, shape


class Replica:
    """What one rank has of a training in which each has all of it."""

    def __init__(self, subjects: Subjects, snapshot: Snapshot) -> None:
        names = ModelNames(subjects.models)
        optimizers = {key: OptimizerNames(key, value, names) for key, value in subjects.optimizers.items()}
        self._tensors = names.parameters() | dict(subjects.averages) | names.buffers()
        whole = {key: one for key, one in optimizers.items() if not one.shared_out}  # else it is no other rank's
        for optimizer in whole.values():
            self._tensors |= optimizer.tensors()
        named = {
            key: [
                then | {"params": now["params"]} for now, then in zip(one.groups(), snapshot.groups[key], strict=True)
            ]
            for key, one in optimizers.items()
        }
        shared = {
            "groups": named,
            "values": {key: value.values() for key, value in whole.items()},
            "layouts": {},
            "objects": dict(snapshot.objects),
            "extra": {},
            _LOOP: dict(snapshot.loop),
        }
        document = to_json(shared, f"state/{SHARED}", self._tensors)
        tensors = [(name, dtype_name(one.dtype), [*one.shape]) for name, one in self._tensors.items()]
        self._word = Shared(document, tensors)

    def give(self, takers: Sequence[int], group: dist.ProcessGroup | None) -> None:
        """To each of these ranks."""
        for rank in takers:
            dist.send_object_list([self._word], dst=rank, group=group)
        send([*self._tensors.values()], takers, group)


class Taker(Reader):
    """A rank that needs it: reads from a peer as from a checkpoint."""

    def __init__(self, source: int, step: int, subjects: Subjects, world: World) -> None:
        said: list[Any] = [None]
        dist.recv_object_list(said, src=source, group=world.control)
        self._source, self._word, self._control = source, said[0], world.control
        tensors = {name: TensorEntry(dtype, tuple(shape), ()) for name, dtype, shape in self._word.tensors}
        super().__init__(Path(f"rank {source}"), Manifest(step, world.size, "", (), tensors, {}), subjects, world)
        self._documents[SHARED] = memoryview(self._word.document)
        own = {"generators": state_of_generators(*subjects.devices(world)), "objects": {}, "extra": {}}
        self._documents[of_rank(world.rank)] = memoryview(to_json(own, "", {}))  # what is its own, a rank has noted

    def take(self) -> dict[str, Any]:
        """Into the model, the optimizers and all objects; where the loop stands."""
        self.prepare()
        coming = {name: self._place(name, dtype, shape) for name, dtype, shape in self._word.tensors}
        receive([*coming.values()], self._source, self._control)
        with torch.no_grad():
            for name, target in self._targets.by_name.items():
                if coming[name].data_ptr() != target.data_ptr():
                    target.copy_(coming[name])
        self.apply()
        loop: dict[str, Any] = self._document(SHARED)[_LOOP]
        return loop

    def _place(self, name: str, dtype: str, shape: list[int]) -> Tensor:
        """Where it belongs; or memory to take it from there."""
        target = self._targets.by_name.get(name)
        if target is not None and target.device.type == "cpu" and target.is_contiguous():
            value = target.detach()
            if value.dtype == dtype_of(dtype) and [*value.shape] == shape:
                return value
        return torch.empty(shape, dtype=dtype_of(dtype))
