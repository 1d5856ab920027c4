"""Ways to share a training out that lectures begin with, to be measured beside those of today; nobody trains by them.

`launch scale` alone asks for one, in the environment, for it is no option of the Trainer's:

    TRAINER_BASELINE=master    beside strategy ddp: one rank gathers all gradients, updates, and sends its parameters
    TRAINER_BASELINE=dp=4      beside strategy dp: so many copies of the model in one process
    TRAINER_BASELINE=mp=4      beside strategy none: its layers on so many devices of one process
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from trainer.errors import BadSettings
from trainer.strategies.precision import autocasting

VARIABLE = "TRAINER_BASELINE"
_MASTER, _COPIES, _DEVICES = "master", "dp=", "mp="


def has_master(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether one rank has to gather all gradients, in the place of an all-reduce."""
    return _asked(environ) == _MASTER


def copies(environ: Mapping[str, str] = os.environ) -> int | None:
    """Of the model in one process, where somebody said how many."""
    return _number(_COPIES, _asked(environ))


def devices(environ: Mapping[str, str] = os.environ) -> int | None:
    """That have the layers of the model between them, in one process, where somebody said how many."""
    return _number(_DEVICES, _asked(environ))


def _number(kind: str, asked: str) -> int | None:
    number = asked.removeprefix(kind)
    if number == asked or not number.isdecimal():
        return None
    return int(number) or None


def _asked(environ: Mapping[str, str]) -> str:
    asked = environ.get(VARIABLE, "")
    if asked in ("", _MASTER) or _number(_COPIES, asked) or _number(_DEVICES, asked):
        return asked
    raise BadSettings(f"{VARIABLE}: expected {_MASTER}, or {_COPIES} or {_DEVICES} and a number above 0, got {asked!r}")


def gathered_at_first(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """In the place of DDP's all-reduce of a bucket: the first rank takes in those of all, and has their mean.

    The others keep what they have, of which nothing comes.
    """
    mine, many = bucket.buffer(), dist.get_world_size(group)
    got = [torch.empty_like(mine) for _ in range(many)] if dist.get_rank(group) == 0 else None
    work = dist.gather(mine, got, dst=0, group=group, async_op=True)
    assert work is not None  # noqa: S101 - all ranks are of the group

    def mean(_: torch.futures.Future[Any]) -> Tensor:
        if got is not None:
            mine.copy_(got[0])
            for other in got[1:]:
                mine.add_(other)
            mine.div_(many)
        return mine

    future: torch.futures.Future[Tensor] = work.get_future().then(mean)
    return future


def lay_out(module: nn.Module, blocks: Sequence[nn.Module], many: int, first: torch.device) -> None:
    """Model parallel as it is written by hand: `.to("cuda:1")` for some of the layers, and for what goes into them.

    Each device has equally many blocks, and what is no block goes with the one before it. What comes out is on the
    first device again, where the loss is. One device works at a time, and the others wait for it: that is what is
    measured. Of CPUs there is one device; so that a part is as fast as a rank would be, it has as many of the cores.
    """
    if first.type == "cuda":
        others = [index for index in range(torch.cuda.device_count()) if index != first.index]
        if many > 1 + len(others):
            raise BadSettings(f"{VARIABLE}: expected {many} GPUs in one process, found {1 + len(others)}")
        here = [first, *(torch.device("cuda", index) for index in others[: many - 1])]
    else:
        here = [first] * many
        torch.set_num_threads(max(1, torch.get_num_threads() // many))
    place_layers(module, blocks, here)


def place_layers(module: nn.Module, blocks: Sequence[nn.Module], here: Sequence[torch.device]) -> None:
    """Blocks, and what is before, between and after them, on these devices in turn. What they share stays together."""
    if len(blocks) < len(here):
        raise BadSettings(
            f"{VARIABLE}: expected at least {len(here)} layers for {len(here)} devices, found {len(blocks)}\n"
            "hint: name them by `blocks`"
        )
    numbers = {block: number for number, block in enumerate(blocks)}
    inside = {part for block in blocks for part in block.modules() if part is not block}
    homes: dict[Tensor, torch.device] = {}
    current = here[0]
    for part in module.modules():
        if part in numbers:
            current = here[numbers[part] * len(here) // len(blocks)]
        elif part in inside or any(True for _ in part.children()):
            continue
        tensors = [*part.parameters(), *part.buffers()]
        home = next((homes[one] for one in tensors if one in homes), current)
        homes |= dict.fromkeys(tensors, home)
        part.to(home)
        part.register_forward_pre_hook(partial(_bring, home), with_kwargs=True)
    module.register_forward_hook(lambda _module, _inputs, found: _brought(found, here[0]))


def _bring(
    home: torch.device, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found: tuple[tuple[Any, ...], dict[str, Any]] = _brought((inputs, named), home)
    return found


def _brought(data: Any, home: torch.device) -> Any:
    """Every tensor in it there; all else as it is."""
    if isinstance(data, Tensor):
        return data.to(home)
    if isinstance(data, dict):
        return {key: _brought(value, home) for key, value in data.items()}
    if type(data) in (list, tuple):
        return type(data)(_brought(value, home) for value in data)
    return data


class CopiesInThreads(nn.Module):
    """What nn.DataParallel does on GPUs, on CPUs, which that one refuses: a copy of the model for each thread.

    In each forward pass copies take over the parameters, a batch is dealt out, and what comes of it is put together. In
    the backward pass each copy goes back in its own thread, and gradients of all are added up in the first.
    """

    def __init__(self, module: nn.Module, many: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.module = module
        self._all = (module, *(deepcopy(module) for _ in range(many - 1)))
        self._dtype = dtype
        self._threads = ThreadPoolExecutor(many, thread_name_prefix="copy")
        # Each thread may use as many cores as a rank could, of which there would be as many.
        torch.set_num_threads(max(1, torch.get_num_threads() // many))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        parts = _dealt_out((inputs, named), len(self._all))
        if len(parts) == 1:
            return self.module(*inputs, **named)
        here = self._all[: len(parts)]
        self._take_over(here)
        learns = torch.is_grad_enabled()

        def call(one: nn.Module, part: Any) -> Any:
            with torch.set_grad_enabled(learns), autocasting(torch.device("cpu"), self._dtype):
                return one(*part[0], **part[1])

        answers = list(self._threads.map(call, here, parts))
        several = not isinstance(answers[0], Tensor)  # each of which goes back through what they have in common
        return _put_together(answers, lambda tensors: self._joined(here, tensors, several=several))

    def _take_over(self, some: Sequence[nn.Module]) -> None:
        first, *others = some
        with torch.no_grad():
            for other in others:
                other.train(first.training)
                for kind in (nn.Module.parameters, nn.Module.buffers):
                    for tensor, source in zip(kind(other), kind(first), strict=True):
                        tensor.copy_(source)

    def _joined(self, some: Sequence[nn.Module], tensors: Sequence[Tensor], *, several: bool) -> Tensor:
        """One tensor of all copies' ones, from which a backward pass goes back into each of them."""
        if not any(one.requires_grad for one in tensors):
            return _beside(tensors)
        anchor = torch.empty(0, requires_grad=True)  # else autograd would not come back here

        def back(gradients: Sequence[Tensor]) -> None:
            list(self._threads.map(lambda one, gradient: one.backward(gradient, several), tensors, gradients))
            self._add_up(some)

        joined: Tensor = _Joined.apply(anchor, tensors, back)
        return joined

    def _add_up(self, some: Sequence[nn.Module]) -> None:
        first, *others = some
        for other in others:
            for parameter, source in zip(first.parameters(), other.parameters(), strict=True):
                if source.grad is not None:
                    parameter.grad = source.grad if parameter.grad is None else parameter.grad.add_(source.grad)
                    source.grad = None


class _Joined(torch.autograd.Function):
    """Tensors put together. Its backward pass gives each of them its part of the gradient."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, _: Tensor, tensors: Sequence[Tensor], back: Callable[[Sequence[Tensor]], None]
    ) -> Tensor:
        ctx.back, ctx.lengths = back, [1 if one.dim() == 0 else len(one) for one in tensors]  # type: ignore[attr-defined] # torch's own way
        ctx.scalars = tensors[0].dim() == 0  # type: ignore[attr-defined] # likewise
        return _beside([one.detach() for one in tensors])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        parts = gradients[0].split(ctx.lengths)
        ctx.back([part[0] for part in parts] if ctx.scalars else parts)
        return None, None, None


def _beside(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)) if tensors[0].dim() == 0 else torch.cat(list(tensors))


def _dealt_out(data: Any, many: int) -> list[Any]:
    """Samples of every tensor in it to so many, or fewer where there are not as many; all else to each."""
    if isinstance(data, Tensor):
        return list(data.chunk(many)) if data.dim() else [data] * many
    if isinstance(data, Mapping):
        each = [_dealt_out(value, many) for value in data.values()]
        return [type(data)(zip(data, values, strict=True)) for values in zip(*each, strict=False)] or [data] * many  # type: ignore[call-arg] # a dict
    if isinstance(data, (list, tuple)):
        found = [*zip(*(_dealt_out(value, many) for value in data), strict=False)]
        return [type(data)(values) for values in found] or [data] * many
    return [data] * many


def _put_together(answers: Sequence[Any], join: Callable[[Sequence[Tensor]], Tensor]) -> Any:
    first = answers[0]
    if isinstance(first, Tensor):
        return join(answers)
    if isinstance(first, Mapping):
        return {key: _put_together([one[key] for one in answers], join) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_put_together(some, join) for some in zip(*answers, strict=True))
    return first
