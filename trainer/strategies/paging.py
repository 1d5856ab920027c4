"""Make a large model with each rank keeping only its rows of every parameter; one parameter is whole at a time."""

import ctypes
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainer.errors import BadSettings
from trainer.world import World

_SMALLEST_BYTES = 2**16  # smaller parameters stay whole until the end
_aten = torch.ops.aten
# What was there before does not matter to them.
_OVERWRITES = {
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.fill_.Scalar,
    _aten.fill_.Tensor,
    _aten.zero_.default,
    _aten.copy_.default,
}


def made_by_parts(make: Callable[[], nn.Module], world: World, count: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the model, with parameters on the meta device, and this rank's rows of each by name.

    All ranks call it and make the same model, with the values that `make` alone would give. The rows of a parameter are
    divided among `count` consecutive ranks, as FSDP2 does; the next `count` ranks keep the same rows again. Parameters
    that `make` copies by `deepcopy`, as nn.TransformerEncoder does, stay whole until it returns. Raises BadSettings if
    ranks have made different weights.
    """
    paging = _Paging(world, count)
    with _registering(paging), paging:
        module = make()
    rows = {name: paging.rows_of(parameter) for name, parameter in module.named_parameters()}
    paging.compare()
    _leave_empty(module)
    return module, rows


class _Page:
    """A parameter that is being made, of which this rank has all values or only its own rows.

    `rows` are these rows, or None while the parameter is whole; `digest` is of its values when it was last reduced to
    rows.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter  # held, so that its storage's address is nobody else's
        self.size = parameter.untyped_storage().nbytes()
        self.rows: Tensor | None = None  # None: it is whole
        self.digest = b""  # of what it was when it was put away

    @property
    def whole(self) -> Tensor:
        """The parameter as a tensor, whose memory is empty while only its rows are kept."""
        return self.parameter.detach()


class _Paging(TorchDispatchMode):
    """A dispatch mode that makes parameters whole before an operation that uses them.

    At the same time all other whole parameters are reduced to the rows that this rank keeps. Only parameters that were
    given to `register` are managed.
    """

    def __init__(self, world: World, count: int) -> None:
        super().__init__()
        self._world, self._count = world, count
        self._pages: dict[int, _Page] = {}
        self._whole: list[_Page] = []
        self._digest = xxhash.xxh3_128()  # of all that the model has in the end

    def register(self, parameter: nn.Parameter) -> None:
        """Begin to manage a parameter's memory, and reduce those registered before to this rank's rows.

        The new one stays whole until another is registered or used. Small parameters, and those that are not on the
        CPU, are not managed and stay whole.
        """
        storage = parameter.untyped_storage()
        fits = parameter.is_contiguous() and storage.nbytes() == parameter.nbytes >= _SMALLEST_BYTES
        if self._count == 1 or not fits or parameter.device.type != "cpu" or parameter.ndim == 0:
            return
        if storage._cdata not in self._pages:  # noqa: SLF001 - its identity
            page = _Page(parameter)
            self._pages[storage._cdata] = page  # noqa: SLF001 - its identity
            self._put_away(keep=[page])
            self._whole = [page]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not _aten.detach.default:  # which reads nothing
            wanted = list(self._wanted((args, kwargs)))
            if wanted:
                self._put_away(keep=[page for page, _ in wanted])
                for page, tensor in wanted:
                    replaced = func in _OVERWRITES and tensor is args[0] and tensor.nbytes == page.size
                    self._bring(page, replaced=replaced)
        return func(*args, **kwargs)

    def _wanted(self, values: Any) -> Iterator[tuple[_Page, Tensor]]:
        """Yield (the _Page of a registered parameter, argument) for each argument that shares this parameter's memory.

        `values` are the arguments of an operation, as nested lists, tuples and dicts.
        """
        for value in tree_iter(values):
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided:
                page = self._pages.get(value.untyped_storage()._cdata)  # noqa: SLF001 - its identity
                if page is not None:
                    yield page, value

    def _bring(self, page: _Page, *, replaced: bool) -> None:
        """Make a parameter whole from the rows of all ranks, which all call this; do nothing if it is whole.

        With `replaced`, only memory is allocated, as its values are about to be overwritten.
        """
        if page.rows is None:
            return
        page.parameter.untyped_storage().resize_(page.size)
        if not replaced:
            for rank, rows in enumerate(page.whole.chunk(self._count)):
                if rank == self._world.rank % self._count:
                    rows.copy_(page.rows)
                dist.broadcast(rows, src=rank, group=self._world.control)
        page.rows = None
        self._whole.append(page)

    def _put_away(self, keep: list[_Page]) -> None:
        """Reduce all whole parameters except `keep` to this rank's rows."""
        for page in self._whole:
            if page not in keep:
                page.digest = _digest(page.whole)
                page.rows = self._own(page.whole)
                page.parameter.untyped_storage().resize_(0)
        self._whole = [page for page in self._whole if page in keep]

    def rows_of(self, parameter: nn.Parameter) -> Tensor:
        """Return this rank's rows of a parameter of the finished model.

        The parameters that `register` manages are first reduced to rows. A digest of the whole parameter is added to
        the model's, which `compare` compares between ranks. Call it once for each parameter, in the same order on all
        ranks.
        """
        self._put_away(keep=[])
        page = self._pages.get(parameter.untyped_storage()._cdata)  # noqa: SLF001 - its identity
        if page is None or page.rows is None:
            self._digest.update(_digest(parameter.detach()))
            return self._own(parameter.detach())
        self._digest.update(page.digest)
        return page.rows

    def _own(self, whole: Tensor) -> Tensor:
        """Return a copy of the rows of the tensor `whole` that FSDP2 gives this rank."""
        rows = whole.chunk(self._count) if whole.ndim else (whole,)
        mine = self._world.rank % self._count
        return rows[mine].clone() if mine < len(rows) else whole[:0].clone()

    def compare(self) -> None:
        """Raise BadSettings if the ranks have not all made the same weights.

        All ranks call it, after `rows_of` for each parameter.
        """
        found: list[Any] = [None] * self._world.size
        dist.all_gather_object(found, self._digest.hexdigest(), group=self._world.control)
        if len(set(found)) > 1:
            raise BadSettings(
                "model: expected the same weights on all ranks, got others on some\n"
                "hint: without by_parts those of rank 0 count"
            )


def _digest(tensor: Tensor) -> bytes:
    """Return a digest of the tensor's bytes."""
    tensor = tensor.contiguous()
    # Not by numpy(), after which the storage could not be resized.
    return xxhash.xxh3_128_digest((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


@contextmanager
def _registering(paging: _Paging) -> Iterator[None]:
    """Let `paging` manage the memory of every parameter that a module registers in this context.

    Only the newest of them is then whole; of the others, unless they are small, this rank keeps its rows. Parameters on
    the meta device are left as they are.
    """

    def note(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        """Manage a parameter that was registered."""
        if parameter is not None and not parameter.is_meta:
            paging.register(parameter)

    handle = register_module_parameter_registration_hook(note)
    try:
        yield
    finally:
        handle.remove()


def _leave_empty(module: nn.Module) -> None:
    """Replace each parameter by one on the meta device; parameters that were tied stay tied."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001 - setattr() would ask hooks and descriptors
            if parameter is None:
                continue
            if id(parameter) not in made:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
                empty.__dict__.update(parameter.__dict__)
                made[id(parameter)] = empty
            part._parameters[name] = made[id(parameter)]  # noqa: SLF001 - the same


def bring_whole(
    module: nn.Module, rows: dict[str, Tensor], world: World, wanted: Collection[int], device: torch.device
) -> None:
    """Replace the parameters of `module` whose ids are in `wanted` by their whole values.

    The parameters are on the meta device, and the values are put on `device`. All ranks call it, each with its rows of
    all parameters by name, and its own `wanted`. They broadcast the rows of one parameter after the other, so that a
    rank has only one whole parameter besides those that it wants. `rows` is empty afterwards.
    """
    brought: dict[int, nn.Parameter] = {}
    for name, empty in list(module.named_parameters()):
        whole = torch.empty(empty.shape, dtype=empty.dtype)
        mine = rows.pop(name)
        for rank, part in enumerate(whole.chunk(world.size) if whole.ndim else (whole,)):
            if rank == world.rank:
                part.copy_(mine)
            dist.broadcast(part, src=rank, group=world.control)
        if id(empty) in wanted:
            brought[id(empty)] = nn.Parameter(whole.to(device), empty.requires_grad)
            brought[id(empty)].__dict__.update(empty.__dict__)
    for holder in module.modules():
        for name, parameter in holder._parameters.items():  # noqa: SLF001 - setattr() would ask hooks and descriptors
            holder._parameters[name] = brought.get(id(parameter), parameter)  # noqa: SLF001 - for the same reason


def fill(module: nn.Module, rows: dict[str, Tensor], device: torch.device) -> None:
    """Replace a sharded model's parameters on the meta device by this rank's rows on `device`.

    `rows` are by parameter name, and are removed from the dict.
    """
    mine = {id(parameter): rows.pop(name) for name, parameter in module.named_parameters()}

    def filled(tensor: Tensor) -> Tensor:
        """Return this rank's rows as a DTensor, or the tensor itself if it has been filled."""
        if not isinstance(tensor, DTensor) or not tensor.is_meta:
            return tensor  # a buffer, or another name of a parameter that has been filled
        local = mine.pop(id(tensor)).to(device)
        return DTensor.from_local(
            local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # or tied parameters would be separated
    try:
        module._apply(filled)  # noqa: SLF001 - to_empty() would empty buffers too
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swap)
