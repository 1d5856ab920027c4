"""Keep one rank's part of a training whose shards have copies (hsdp), and put it into a rebuilt model.

A rank that has lost members of its shard group builds its model again. Meanwhile it keeps its own shards of parameters
and optimizer of the last step, and the shared state, in place. A new rank gets the state of one that has the same
shard.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.contents import Subjects
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.optimizers import OptimizerNames
from trainer.recovery.replica import Snapshot
from trainer.recovery.sending import receive, send
from trainer.world import World

State = dict[str, Any]  # of a parameter: tensors, and plain values


class CannotHandOver(Exception):
    """Raised if an optimizer's tensor cannot be sent to another rank, as it is not sharded like its parameter."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """A rank's piece of a tensor in an optimizer's state, such as `exp_avg`, that is sharded like its parameter."""

    piece: Tensor  # an ordinary tensor, with the shape of this rank's shard


@dataclass(frozen=True, slots=True)
class ShardState:
    """A rank's shards of the weights and the optimizers' state, and its snapshot with everything else, after one step.

    `weights` has the shards by the parameter's name, `states` the state of each parameter by the names of its optimizer
    and itself. The tensors are the live ones, not copies.
    """

    snapshot: Snapshot  # the step, and all state that is not in shards
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # this rank's shards, by the parameter's name
    states: Mapping[str, Mapping[str, State]] = field(default_factory=dict)  # by optimizer, then by parameter

    @property
    def step(self) -> int:
        """The step after which the state was saved."""
        return self.snapshot.step

    def put_back(self, subjects: Subjects) -> None:
        """Restore the state into `subjects`, the objects of the training.

        The models and optimizers among them have been rebuilt, on a mesh of the same shape.
        """
        names = ModelNames(subjects.models)
        with torch.no_grad():
            for name, parameter in names.parameters().items():
                _piece(parameter).copy_(self.weights[name])
            for key, optimizer in subjects.optimizers.items():
                made = OptimizerNames(key, optimizer, names)
                owned = {name: parameter for name, parameter, _ in made.owned()}
                made.replace(
                    {
                        name: {part: _laid_out_like(value, owned[name]) for part, value in state.items()}
                        for name, state in self.states[key].items()
                    }
                )
        self.snapshot.put_back(subjects)

    def give(self, ranks: Sequence[int], world: World) -> None:
        """Send the state to each of these ranks, which call `take`.

        It returns once all is sent. Raises torch's RuntimeError if a rank is gone.
        """
        empty = {name: torch.empty_like(one, device="meta") for name, one in self.weights.items()}
        states = {
            key: {name: {part: _described(value) for part, value in state.items()} for name, state in some.items()}
            for key, some in self.states.items()
        }
        for rank in ranks:
            dist.send_object_list([ShardState(self.snapshot, empty, states)], dst=rank, group=world.control)
        send([(ranks, [*self._tensors()])], world)

    @classmethod
    def take(cls, rank: int, world: World) -> "ShardState":
        """Wait for the state that rank `rank` sends with `give`, and return it.

        Raises torch's RuntimeError if that rank is gone.
        """
        received: list[Any] = [None]
        dist.recv_object_list(received, src=rank, group=world.control)
        described: ShardState = received[0]
        weights = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in described.weights.items()}
        states = {
            key: {name: {part: _room(value) for part, value in state.items()} for name, state in some.items()}
            for key, some in described.states.items()
        }
        taken = cls(described.snapshot, weights, states)
        receive({rank: [*taken._tensors()]}, world)
        return taken

    def _tensors(self) -> Iterator[Tensor]:
        """Yield all tensors in an order that is the same on the sending and on the receiving rank."""
        yield from self.weights.values()
        for some in self.states.values():
            for state in some.values():
                for value in state.values():
                    if isinstance(value, Sharded):
                        yield value.piece
                    elif isinstance(value, Tensor):
                        yield value


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors from which any thread can take a rank's state, even while FSDP has gathered whole parameters.

    `weights` has this rank's pieces by name, which an update changes in place; `optimizers` has each optimizer with its
    parameters by name.
    """

    weights: Mapping[str, Tensor]  # by name: this rank's pieces, which an update changes in place
    optimizers: Mapping[str, tuple[Optimizer, Mapping[str, Tensor]]]  # and the parameters of each, by name

    @classmethod
    def of(cls, subjects: Subjects) -> "Source":
        """Return the Source of `subjects`, the training's objects; call it between two steps."""
        names = ModelNames(subjects.models)
        weights = {name: _piece(one) for name, one in names.parameters().items()}
        optimizers = {
            key: (optimizer, {name: one for name, one, _ in OptimizerNames(key, optimizer, names).owned()})
            for key, optimizer in subjects.optimizers.items()
        }
        return cls(weights, optimizers)

    def part(self, snapshot: Snapshot) -> ShardState:
        """Return this rank's state without copying anything.

        `snapshot` is the shared state of the same step. Raises CannotHandOver if an optimizer's tensor is not sharded
        like its parameter.
        """
        states = {
            key: {
                name: {kind: _kept(kind, value, parameter) for kind, value in optimizer.state[parameter].items()}
                for name, parameter in parameters.items()
                if parameter in optimizer.state
            }
            for key, (optimizer, parameters) in self.optimizers.items()
        }
        return ShardState(snapshot, self.weights, states)


def _piece(tensor: Tensor) -> Tensor:
    """Return the local shard of the tensor without copying."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _kept(name: str, value: Any, parameter: Tensor) -> Any:
    """Return an optimizer's value as it is kept: this rank's piece of a sharded tensor as Sharded, others as they are.

    Nothing is copied. `name` is the value's key in the state of `parameter`. Raises CannotHandOver for a sharded tensor
    whose shape is not the parameter's.
    """
    if not isinstance(value, Tensor):
        return value
    if not isinstance(value, DTensor):
        return value.detach()
    if value.shape != parameter.shape:
        raise CannotHandOver(f"its optimizer keeps {name!r} in another shape than the parameter, in shards")
    return Sharded(_piece(value))


def _laid_out_like(value: Any, parameter: Tensor) -> Any:
    """Return a copy of a value that an optimizer keeps for `parameter`, such as a moment.

    A Sharded, which has this rank's piece only, becomes a tensor that is sharded like the parameter. Values that are no
    tensors are returned as they are.
    """
    if isinstance(value, Sharded):
        made = torch.empty_like(parameter, dtype=value.piece.dtype, requires_grad=False)
        _piece(made).copy_(value.piece)
        return made
    return value.clone() if isinstance(value, Tensor) else value


def _described(value: Any) -> Any:
    """Return the value with each tensor replaced by one without data (on the meta device), to send shape and type."""
    if isinstance(value, Sharded):
        return Sharded(torch.empty_like(value.piece, device="meta"))
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _room(value: Any) -> Any:
    """Return an uninitialised tensor to receive into, with the shape and type of the meta tensor `value`.

    For a Sharded, whose piece is a meta tensor, return a Sharded with such a tensor. Return any other value as it is.
    """
    if isinstance(value, Sharded):
        return Sharded(torch.empty(value.piece.shape, dtype=value.piece.dtype))
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value
