"""Older ways to parallelise a training, which `launch scale` measures for comparison.

An environment variable selects one, as they are no options of the Trainer:

    TRAINER_BASELINE=master    with strategy ddp: one rank gathers all gradients, updates, and sends its parameters
    TRAINER_BASELINE=dp=4      with strategy dp: nn.DataParallel over so many GPUs of one process
    TRAINER_BASELINE=mp=4      with strategy none: the model's layers on so many devices of one process
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.errors import BadSettings

VARIABLE = "TRAINER_BASELINE"
_MASTER, _GPUS, _DEVICES = "master", "dp=", "mp="


def has_master(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether TRAINER_BASELINE asks that one rank gathers all gradients and updates (`master`).

    Raises BadSettings for an invalid value.
    """
    return _asked(environ) == _MASTER


def gpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many GPUs TRAINER_BASELINE asks nn.DataParallel to use, such as 4 for `dp=4`.

    Returns None, which means all of them, if the variable is not set or selects another way. Raises BadSettings
    for an invalid value.
    """
    return _number(_GPUS, _asked(environ))


def devices(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return over how many devices TRAINER_BASELINE asks to spread the model's layers; None: over one.

    Raises BadSettings for an invalid value.
    """
    return _number(_DEVICES, _asked(environ))


def _number(kind: str, asked: str) -> int | None:
    """Return the number in `asked`, such as `dp=4`, if it begins with `kind` and is above 0, else None."""
    number = asked.removeprefix(kind)
    if number == asked or not number.isdecimal():
        return None
    return int(number) or None


def _asked(environ: Mapping[str, str]) -> str:
    """Return the value of TRAINER_BASELINE, which is `master`, `dp=N`, `mp=N` or, if it is not set, "".

    Raises BadSettings for any other value.
    """
    asked = environ.get(VARIABLE, "")
    if asked in ("", _MASTER) or _number(_GPUS, asked) or _number(_DEVICES, asked):
        return asked
    raise BadSettings(f"{VARIABLE}: expected {_MASTER}, or {_GPUS} or {_DEVICES} and a number above 0, got {asked!r}")


def gathered_at_first(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a gradient bucket on rank 0, as a DDP hook in place of its all-reduce; return a future of it.

    On other ranks the future has the rank's own bucket, which is not used.
    """
    mine, many = bucket.buffer(), dist.get_world_size(group)
    got = [torch.empty_like(mine) for _ in range(many)] if dist.get_rank(group) == 0 else None
    work = dist.gather(mine, got, dst=0, group=group, async_op=True)
    assert work is not None  # noqa: S101 - all ranks are of the group

    def mean(_: torch.futures.Future[Any]) -> Tensor:
        """Return the mean of the gathered buckets on the first rank, and the rank's own bucket elsewhere."""
        if got is not None:
            mine.copy_(got[0])
            for other in got[1:]:
                mine.add_(other)
            mine.div_(many)
        return mine

    future: torch.futures.Future[Tensor] = work.get_future().then(mean)
    return future


def place_on_devices(module: nn.Module, blocks: Sequence[nn.Module], many: int, first: torch.device) -> None:
    """Place the layers on `many` devices, as `.to("cuda:1")` in a model's own code does: naive model parallelism.

    Each device gets equally many blocks, and a layer outside of blocks goes with the block before it. The output is on
    `first`, where the loss is. One device works at a time while the others wait, which is what is measured. A CPU is
    one device; each part gets as many cores as a rank would, so that it is as fast as a rank. Raises BadSettings if
    there are fewer GPUs or blocks.
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
    """Place blocks, in order, on the devices in `here`, as equally many on each as possible.

    A layer between or after blocks goes to the device of the block before it, one before all blocks to the first. Hooks
    move the inputs of each layer to its device, and the output to the first one. Layers that share a parameter go
    to the same device. Raises BadSettings if there are fewer blocks than devices.
    """
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
        part.register_forward_pre_hook(partial(_move_inputs, home), with_kwargs=True)
    module.register_forward_hook(lambda _module, _inputs, found: _moved(found, here[0]))


def _move_inputs(
    home: torch.device, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a layer's positional and named inputs on the device `home`, as a hook before its forward pass."""
    found: tuple[tuple[Any, ...], dict[str, Any]] = _moved((inputs, named), home)
    return found


def _moved(data: Any, home: torch.device) -> Any:
    """Return nested data with its tensors on the device `home`."""
    if isinstance(data, Tensor):
        return data.to(home)
    if isinstance(data, dict):
        return {key: _moved(value, home) for key, value in data.items()}
    if type(data) in (list, tuple):
        return type(data)(_moved(value, home) for value in data)
    return data
