"""Skip the random initialisation of weights that a checkpoint is about to replace.

Drawing random numbers takes the longest of making a model, and a restart does not need them. They are skipped only if
nothing else depends on them: once something reads skipped values, or draws random numbers afterwards, the model is made
again with all its draws.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.strategies.broadcast import PersistentBuffers
from trainer.world import World

T = TypeVar("T")
_aten = torch.ops.aten
# Of another tensor they take the form alone.
_FORM_ALONE = {
    _aten.empty_like.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.new_empty.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
}
# They lead to a tensor's memory, or show what is in it, past all operations.
_PAST_OPERATIONS = {
    getattr(Tensor, name)
    for name in (
        *(
            "__array__",
            "__deepcopy__",
            "__dlpack__",
            "__reduce_ex__",
            "__repr__",
            "apply_",
            "data_ptr",
            "map_",
            "map2_",
        ),
        *("numpy", "pin_memory", "share_memory_", "storage", "tolist", "untyped_storage"),
    )
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties of a torch operation.

    `in_place`: it writes into its first argument and returns that. `draws`: it draws random numbers. `reads`: it
    depends on its arguments' values.
    """

    in_place: bool  # it writes numbers into its first argument, and gives that one back
    draws: bool
    reads: bool  # numbers


@cache
def _kind(func: Any) -> _Kind:
    """Return what is known of a torch operation: whether it writes in place, draws random numbers, or reads numbers."""
    name = func.overloadpacket.__name__
    changes_form = torch.Tag.inplace_view in func.tags or "resize" in name
    return _Kind(
        in_place=name.endswith("_") and not name.startswith("_") and not changes_form,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        reads=not func.is_view and func not in _FORM_ALONE,
    )


class WeightsWanted(BaseException):
    """Raised if something depends on weights that were not initialised.

    It is a BaseException, so that model code does not catch it.
    """


class _DeferredInit(TorchDispatchMode):
    """A dispatch mode that skips random draws into fresh memory, which stays uninitialised.

    It raises WeightsWanted if an operation would read such memory.
    """

    def __init__(self, *, made_before: nn.Module | None = None) -> None:
        """Watch `made_before`, a module whose weights are not initialised, and skip nothing more."""
        super().__init__()
        self._leaves_out = made_before is None
        self._memory: dict[int, StorageWeakRef] = {}  # what holds anything
        self.was_wanted = False
        self._has_left_out = made_before is not None
        for tensor in () if made_before is None else _kept(made_before):
            self._hold(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = _kind(func)
        if kind.draws:
            if self._leaves_out and kind.in_place and kwargs.get("generator") is None and _is_fresh(args[0]):
                self._hold(args[0])
                self._has_left_out = True
                return args[0]
            if self._has_left_out:  # and what those should have got would be drawn here
                self.give_up()
        elif kind.in_place and self.holds(args[0]):
            return args[0]  # what is made of anything stays anything
        if kind.reads and self._memory and any(map(self.holds, _values(args, kwargs))):
            self.give_up()
        return func(*args, **kwargs)

    def _hold(self, tensor: Tensor) -> None:
        """Record that the tensor's memory is not initialised, so that reading it raises WeightsWanted."""
        held = StorageWeakRef(_storage(tensor))
        self._memory[held.cdata] = held  # whose identity is nobody else's as long as this is there

    def holds(self, value: object) -> bool:
        """Return whether the value is a tensor whose memory is not initialised."""
        if not isinstance(value, Tensor) or value.layout is not torch.strided or not self._memory:
            return False
        return _storage(value)._cdata in self._memory  # noqa: SLF001 - its identity

    def still_there(self) -> set[int]:
        """Return the storages, by address, that were left uninitialised and are still in use."""
        return {identity for identity, held in self._memory.items() if not held.expired()}

    def give_up(self) -> None:
        """Set `was_wanted` and raise WeightsWanted, because the model's code depends on draws that were skipped.

        Call this when that code reads a weight that was not initialised, or draws other random numbers. `was_wanted`
        stays set if the model's code catches the exception.
        """
        self.was_wanted = True
        raise WeightsWanted


class _PastOperations(TorchFunctionMode):
    """A function mode that raises WeightsWanted when a weight that was not initialised is read past torch's dispatch.

    The functions that read memory so are `__array__`, `__deepcopy__` and the like; the exception ends the skipping.
    """

    def __init__(self, deferred: _DeferredInit) -> None:
        super().__init__()
        self._deferred = deferred

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PAST_OPERATIONS and self._deferred.holds(args[0]):
            self._deferred.give_up()
        return func(*args, **(kwargs or {}))


_at_work: list[_DeferredInit] = []


def is_deferred() -> bool:
    """Return whether the code that runs now must not depend on a model's weights, as a checkpoint will replace them."""
    return bool(_at_work)


def make_deferred(make: Callable[[], nn.Module]) -> nn.Module | None:
    """Return the model that `make` makes, with uninitialised parameters; None if something depends on their values.

    Something does if `make` reads a value that was not initialised, leaves one in a tensor that no checkpoint replaces,
    or, once a draw was skipped, draws random numbers for anything else, which would be other ones than without that.
    """
    deferred = _DeferredInit()
    with _watched(deferred):
        try:
            module = make()
        except WeightsWanted:
            return None
    return None if deferred.was_wanted or deferred.still_there() - _replaced(module) else module


def done_without_weights(module: nn.Module, act: Callable[[], T]) -> T | None:
    """Return the result of `act`, or None if it needs the weights of the model `module`, which are still to be loaded.

    It also is None if `act` draws random numbers, as these would be others than after the draws that were skipped.
    """
    deferred = _DeferredInit(made_before=module)
    with _watched(deferred):
        try:
            done = act()
        except WeightsWanted:
            return None
    return None if deferred.was_wanted else done


def agreed(world: World, yes: bool) -> bool:
    """Return whether `yes` is True on all ranks, which all call this.

    A rank that joins others in the middle of a training gets its own `yes` back at once.
    """
    if world.rejoined:
        return yes
    vote = torch.tensor([yes], dtype=torch.uint8)
    if world.control is not None:
        dist.all_reduce(vote, dist.ReduceOp.MIN, group=world.control)
    return bool(vote)


@contextmanager
def _watched(deferred: _DeferredInit) -> Iterator[None]:
    """Watch all torch operations in this context for reads of uninitialised memory.

    At such a read, `deferred` raises WeightsWanted.
    """
    _at_work.append(deferred)
    try:
        with deferred, _PastOperations(deferred):
            yield
    finally:
        _at_work.remove(deferred)


def _replaced(module: nn.Module) -> set[int]:
    """Return the identities (`_cdata`) of the storages that loading a checkpoint into the module overwrites completely.

    These belong to parameters and persistent buffers that fill their whole storage.
    """
    return {
        tensor.untyped_storage()._cdata  # noqa: SLF001 - its identity
        for tensor in _kept(module)
        if tensor.layout is torch.strided and tensor.nbytes == tensor.untyped_storage().nbytes()
    }


def _values(args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield an operation's arguments, with the items of a list or tuple in place of it; lists inside others stay."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _kept(module: nn.Module) -> list[Tensor]:
    """Return the module's parameters and persistent buffers, which a checkpoint contains."""
    return [*module.parameters(), *PersistentBuffers(module).tensors()]


def _is_fresh(tensor: object) -> bool:
    """Return whether this is a plain CPU tensor that owns its memory, and does not share that of a NumPy array."""
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
    return (
        plain
        and isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.untyped_storage().resizable()
    )


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """Return the memory of a tensor, or of this rank's part of a sharded one."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor  # of a sharded one, this rank's part
    storage: torch.UntypedStorage = local.untyped_storage()
    return storage
