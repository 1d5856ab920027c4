"""Send weights, optimizer and shared state from the ranks that have them to those that need them."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
from trainer.recovery.agreement import Agreement
from trainer.recovery.sending import bytes_of, receive, send
from trainer.world import World

_LEAST_BYTES = 1 << 20  # of a stripe: less is not worth the messages of one more giver

_LOOP = "loop"
_IMMUTABLE = frozenset((bool, int, float, str, bytes, type(None)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The small state that all ranks share, right after an update, copied because later code may change it.

    `objects` are states by name, `groups` the options of each optimizer's parameter groups, and `loop` the training
    loop's own state, such as its counters of steps and samples.
    """

    step: int
    objects: Mapping[str, Any]
    groups: Mapping[str, list[dict[str, Any]]]  # by optimizer, the options of its groups
    loop: Mapping[str, Any]  # the position of the loop

    @classmethod
    def of(
        cls, step: int, objects: Mapping[str, Stateful], optimizers: Mapping[str, Optimizer], loop: Mapping[str, Any]
    ) -> "Snapshot":
        """Return a snapshot of the state right after step `step`, which later changes of that state do not change.

        It has the states of `objects`, the options of the optimizers' parameter groups, such as the learning rate, and
        `loop`, the training loop's own state.
        """
        groups = {
            key: [{name: value for name, value in group.items() if name != "params"} for group in one.param_groups]
            for key, one in optimizers.items()
        }
        states = {key: thing.state_dict() for key, thing in objects.items()}
        return cls(step, _copied(states), _copied(groups), _copied(dict(loop)))

    def put_back(self, subjects: Subjects) -> None:
        """Restore the snapshot in `subjects`, the objects of the training.

        Call it on a rank whose weights and optimizer state are those of the snapshot's step.
        """
        names = ModelNames(subjects.models)
        for key, optimizer in subjects.optimizers.items():
            OptimizerNames(key, optimizer, names).set_groups(copy.deepcopy(self.groups[key]))
        for key, thing in subjects.shared.items():
            thing.load_state_dict(copy.deepcopy(self.objects[key]))


def _copied(value: Any) -> Any:
    """Return a deep copy, five times as fast as copy.deepcopy for common types, since each step makes one."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {key: _copied(part) for key, part in value.items()}
    if kind is list:
        return [_copied(part) for part in value]
    if kind is tuple:
        return tuple(_copied(part) for part in value)
    if isinstance(value, Tensor):
        return value.detach().clone()  # one that has a graph cannot be deep-copied
    return copy.deepcopy(value)


class Shared(msgspec.Struct, frozen=True):
    """The first message of the rank that sends state (the source): a JSON document, and which tensors follow.

    Each tensor is described by (name, type, shape). `alike` are tensors that are equal on all ranks with the step, and
    each of these ranks sends a stripe (a range of bytes) of them; `own` are those that the source alone sends.
    """

    document: bytes
    alike: list[tuple[str, str, list[int]]]  # on all ranks that have the step, each of which gives a stripe
    own: list[tuple[str, str, list[int]]]  # sent by the source alone, such as buffers


class Replica:
    """A rank's state in a training in which each rank has the whole model, ready to be sent.

    It refers to the live tensors, and must be sent before they change.
    """

    def __init__(self, subjects: Subjects, snapshot: Snapshot) -> None:
        names = ModelNames(subjects.models)
        optimizers = {key: OptimizerNames(key, value, names) for key, value in subjects.optimizers.items()}
        whole = {key: one for key, one in optimizers.items() if not one.is_partitioned}  # else it is no other rank's
        alike = names.parameters()
        for optimizer in whole.values():
            alike |= optimizer.tensors()
        self._alike = dict(sorted(alike.items()))  # in one order on all ranks, in whichever each has made or taken them
        self._own = dict(subjects.averages) | names.buffers()
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
        document = to_json(shared, f"state/{SHARED}", self._own)
        self._header = Shared(document, _described(self._alike), _described(self._own))

    def give(self, agreed: Agreement, world: World) -> None:
        """Send this rank's state to the ranks in `agreed` that need it (the receivers).

        All ranks that have the state call it, and each sends its stripe (range of bytes) of weights and optimizer. One
        of them, the source, also sends the rest, such as buffers. Meanwhile each receiver makes a ReplicaReader and
        calls `take`. It returns once all is sent. Raises torch's RuntimeError if a rank is gone.
        """
        is_source = world.rank == agreed.source
        alike: dict[tuple[int, ...], list[int]] = {}
        for receiver in agreed.receivers:
            if is_source:
                dist.send_object_list([self._header], dst=receiver, group=world.control)
            senders = senders_of(receiver, agreed.receivers, world.size, world.local_size)
            alike.setdefault(tuple(senders), []).append(receiver)
        own = [*self._own.values()] if is_source else []
        send([(receivers, own + self._stripe(world.rank, senders)) for senders, receivers in alike.items()], world)

    def _stripe(self, rank: int, senders: Sequence[int]) -> list[Tensor]:
        """Return the pieces of weights and optimizer, as bytes, that rank `rank` sends as one of `senders`.

        They have about equal shares of all bytes, and with few bytes the last ones send nothing. The list is empty
        also if the rank is not among them.
        """
        if rank not in senders:
            return []
        tensors = [*self._alike.values()]
        dealt = stripes([one.nbytes for one in tensors], len(senders))
        return [_bytes(tensors[one.tensor])[one.begin : one.end] for one in dealt[senders.index(rank)]]


class ReplicaReader(Reader):
    """The receiver of the training's state on a rank that lacks it, sent by ranks that have it.

    The state is that of the step from which all ranks have agreed to continue. It is applied as the base class applies
    a checkpoint.
    """

    def __init__(self, agreed: Agreement, subjects: Subjects, world: World) -> None:
        received: list[Any] = [None]
        dist.recv_object_list(received, src=agreed.source, group=world.control)
        self._source, self._header, self._sending_world = agreed.source, received[0], world
        self._givers = senders_of(world.rank, agreed.receivers, world.size, world.local_size)
        coming = self._header.alike + self._header.own
        tensors = {name: TensorEntry(dtype, tuple(shape), ()) for name, dtype, shape in coming}
        manifest = Manifest(agreed.step, world.size, "", (), tensors, {})
        super().__init__(Path(f"rank {agreed.source}"), manifest, subjects, world)
        self._documents[SHARED] = memoryview(self._header.document)
        own = {"generators": state_of_generators(*subjects.devices(world)), "objects": {}, "extra": {}}
        self._documents[of_rank(world.rank)] = memoryview(to_json(own, "", {}))  # its own state a rank has kept

    def take(self) -> dict[str, Any]:
        """Wait for the state and put it into the training's objects; return the loop's own state, such as its counters.

        These objects are the models, the optimizers and the others that have state. Raises TrainerError if the state is
        of another model, and torch's RuntimeError if a sender is gone.
        """
        self.prepare()
        alike = {name: self._place(name, dtype, shape) for name, dtype, shape in self._header.alike}
        own = {name: self._place(name, dtype, shape) for name, dtype, shape in self._header.own}
        tensors_from = {self._source: [*own.values()]}
        tensors = [*alike.values()]
        for sender, dealt in zip(
            self._givers, stripes([one.nbytes for one in tensors], len(self._givers)), strict=True
        ):
            tensors_from.setdefault(sender, []).extend(
                bytes_of(tensors[one.tensor])[one.begin : one.end] for one in dealt
            )
        receive(tensors_from, self._sending_world)
        coming = alike | own
        with torch.no_grad():
            for name, target in self._targets.by_name.items():
                if coming[name].data_ptr() != target.data_ptr():
                    target.copy_(coming[name])
        self.apply()
        loop: dict[str, Any] = self._document(SHARED)[_LOOP]
        return loop

    def _place(self, name: str, dtype: str, shape: list[int]) -> Tensor:
        """Return the memory to receive tensor `name` into.

        It is the training's own tensor if that is contiguous, on the CPU and of this type and shape, else new memory.
        """
        target = self._targets.by_name.get(name)
        if target is not None and target.device.type == "cpu" and target.is_contiguous():
            value = target.detach()
            if value.dtype == dtype_of(dtype) and [*value.shape] == shape:
                return value
        return torch.empty(shape, dtype=dtype_of(dtype))


def _described(tensors: Mapping[str, Tensor]) -> list[tuple[str, str, list[int]]]:
    """Return (name, type, shape) of the tensors. Raises TrainerError for a type that cannot be saved."""
    return [(name, dtype_name(one.dtype), [*one.shape]) for name, one in tensors.items()]


def _bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes as a flat tensor, without a copy if it is contiguous."""
    value = tensor.detach()
    return bytes_of(value if value.is_contiguous() else value.cpu().contiguous())


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of one tensor in a list of tensors."""

    tensor: int  # its index in the list of tensors
    begin: int  # of the tensor's bytes, the first in the range
    end: int  # the first after the range


def senders_of(receiver: int, receivers: Collection[int], size: int, ranks_per_node: int) -> list[int]:
    """Return the ranks that send to the receiver: those on its node that have the state, or else all that have it.

    `receivers` are the ranks that lack the state; `size` is the number of all ranks.
    """
    senders = [rank for rank in range(size) if rank not in receivers]
    near = [rank for rank in senders if rank // ranks_per_node == receiver // ranks_per_node]
    return near or senders


# tensors, by name     | a ...... | b | c ............... |
# stripes of givers    | first ...... | second ... | third |
def stripes(sizes: Sequence[int], senders: int, least_bytes: int = _LEAST_BYTES) -> list[list[Piece]]:
    """Return for each of so many senders the pieces that it sends of tensors with these sizes in bytes.

    A piece is a range of bytes of one tensor. The first senders get equal stripes of at least `least_bytes`, the others
    nothing; the first one sends all if there are fewer bytes than for two stripes.
    """
    ends = [*accumulate(sizes, initial=0)]
    total, places = ends[-1], [*enumerate(pairwise(ends))]
    used = max(1, min(senders, total // least_bytes))
    cuts = [sender * total // used for sender in range(used + 1)] + [total] * (senders - used)
    return [
        [
            Piece(tensor, max(first, begin) - begin, min(last, end) - begin)
            for tensor, (begin, end) in places
            if max(first, begin) < min(last, end)
        ]
        for first, last in pairwise(cuts)
    ]
