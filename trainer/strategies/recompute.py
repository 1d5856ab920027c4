"""Activation checkpointing: recompute a block's activations in the backward pass instead of keeping them."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from trainer.errors import TrainerError

Buffers = list[tuple[nn.Module, str, Tensor]]
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
KEPT = {  # torch's names below autograd; one of ours may mean several
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ),
    "convolution": ("convolution",),
}
_HINTS = {  # by torch's messages
    "has been mutated": "change nothing in place after an operation that is kept (inplace=True), or keep others",
    "Trying to backward an extra time": "go backward once only (no retain_graph), or keep no operations",
}
_listeners: list[Callable[[bool], None]] = []  # called where a repetition begins and ends
_made: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def recompute(block: nn.Module, kept: tuple[str, ...] = ()) -> None:
    """Make the block recompute its activations in the backward pass, in place.

    `kept` names operations whose results are kept nevertheless: `matmul`, `attention` or `convolution`.
    """
    # By its class, as fully_shard does it: nn.DataParallel copies an instance's own `forward` with the wrong self.
    key = type(block), kept
    if key not in _made:
        _made[key] = _recomputing(*key)
    block.__class__ = _made[key]


@contextmanager
def reporting_repetitions(report: Callable[[bool], None]) -> Iterator[None]:
    """Call `report` with True when a block begins to be recomputed in the context, and False when it is done."""
    _listeners.append(report)
    try:
        yield
    finally:
        _listeners.remove(report)


def _recomputing(kind: type[nn.Module], kept: tuple[str, ...]) -> type[nn.Module]:
    """Return a subclass of the block's class that recomputes its activations in the backward pass.

    Results of the operations that `kept` names (keys of KEPT, such as `matmul`) are kept instead.
    """
    operations = [getattr(torch.ops.aten, name).default for word in kept for name in KEPT[word]]
    plain = functools.partial(create_selective_checkpoint_contexts, operations) if operations else noop_context_fn

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass so that the backward pass repeats it."""
        run = functools.partial(kind.forward, self)
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        if torch.compiler.is_compiling() and operations:
            # Made here: the compiler does not take it from outside.
            keeping = functools.partial(create_selective_checkpoint_contexts, operations)
            return checkpoint(run, *args, use_reentrant=False, context_fn=keeping, **kwargs)
        if torch.compiler.is_compiling() or not (operations or _listeners or next(self.buffers(), None) is not None):
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, context_fn=lambda: _contexts(self, plain), **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _contexts(block: nn.Module, plain: Callable[[], Contexts]) -> Contexts:
    """Return (the context of the block's forward pass, that of its repetition), made of the pair that `plain` returns.

    During the repetition the block has copies of its buffers as they are now, at the call; otherwise BatchNorm would
    count each batch twice.
    """
    first, again = plain()
    return first, _Repetition(_copied(_buffers(block)), again)


class _Repetition(AbstractContextManager[None]):
    """The context in which a block's forward pass is repeated by a backward pass.

    In it the block's buffers are copies of the ones `before` its first forward pass, and the functions that
    `reporting_repetitions` has registered are told that what runs is a repetition. It is entered several times if the
    graph is retained.
    """

    def __init__(self, before: Buffers, inner: AbstractContextManager[Any]) -> None:
        self._before, self._inner = before, inner

    def __enter__(self) -> None:
        for report in _listeners:
            report(True)
        self._entered = _with_buffers(_copied(self._before), self._inner)
        self._entered.__enter__()

    def __exit__(self, *raised: object) -> bool | None:
        try:
            return self._entered.__exit__(*raised)  # type: ignore[arg-type]
        finally:
            for report in _listeners:
                report(False)


def _buffers(block: nn.Module) -> Buffers:
    """Return the block's buffers, with the module and name of each."""
    return [(part, name, buffer) for part in block.modules() for name, buffer in part.named_buffers(recurse=False)]


def _copied(buffers: Buffers) -> Buffers:
    """Return the list of (module, name, buffer) with a copy of each buffer."""
    return [(part, name, buffer.clone()) for part, name, buffer in buffers]


@contextmanager
def _with_buffers(before: Buffers, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Put the buffers in `before` into their modules inside the context, and restore the present ones after it.

    No buffer's memory is written, as autograd may have saved it. `inner` is another context, entered inside. Known
    errors of torch in it are raised as TrainerError with a hint.
    """
    now = [(part, name, getattr(part, name)) for part, name, _ in before]
    _place(before)
    try:
        with inner:
            yield
    except RuntimeError as error:
        for message, hint in _HINTS.items():
            if message in str(error):
                raise TrainerError(f"recompute_keeps: {error}\nhint: {hint}") from error
        raise
    finally:
        _place(now)


def _place(buffers: Buffers) -> None:
    """Set each buffer of the list of (module, name, buffer) as the attribute `name` of that module."""
    for part, name, buffer in buffers:
        setattr(part, name, buffer)
