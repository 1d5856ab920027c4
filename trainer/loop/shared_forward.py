"""Share one forward pass between a loss and metrics that call the model with the same tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten


@dataclass(frozen=True, slots=True)
class _Pass:
    """A forward pass: its positional and named arguments (`given`), and its output.

    `marks` are the marks (see `marks_of`) of both when the pass ended; marks that are computed again differ if a tensor
    was changed since.
    """

    given: tuple[tuple[Any, ...], dict[str, Any]]
    output: Any
    marks: list[list[Any]]  # of `given`, and of `output`

    def is_of(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        """Return whether `given` is this pass's input, and no tensor in it or in the output was changed since."""
        return [marks_of(given), marks_of(self.output)] == self.marks


class SharedForward:
    """The model's outputs for one batch, shared by several functions that call the model with the same tensors.

    The n-th pass of one function is shared with the n-th of others only: a function that calls the model twice with the
    same tensors, as to draw twice, still gets two passes.
    """

    def __init__(self) -> None:
        self._passes: list[_Pass] = []
        self._number = 0

    def next_function(self) -> None:
        """Begin to count the passes of the next function on the same batch.

        Its n-th pass gets the output of an earlier function's n-th pass if the arguments are the same.
        """
        self._number = 0

    def take(self, forward: Any, *args: Any, **named: Any) -> Any:
        """Return the output that an earlier function got in its n-th pass, if this is the n-th of the present one.

        That is so only if the arguments are the same; a tensor that was changed since the earlier pass is not.
        Otherwise call `forward` and keep its output for later functions.
        """
        number, given = self._number, (args, named)
        self._number += 1
        if number < len(self._passes) and self._passes[number].is_of(given):
            return self._passes[number].output
        before = marks_of(given)
        output = forward(*args, **named)
        self._passes[number:] = [_Pass(given, output, [before, marks_of(output)])]
        return output


@contextmanager
def sharing_forward(model: nn.Module) -> Iterator[SharedForward]:
    """Share the model's forward passes among the functions of one batch, until the context ends.

    Call `next_function` of the returned object before each function. Nothing is shared if the model is compiled.
    """
    shared, forward = SharedForward(), model.forward
    # One that is compiled would be compiled again for this, and of one of TorchScript it cannot be had.
    if getattr(model, "_compiled_call_impl", None) is not None or isinstance(model, torch.jit.ScriptModule):
        yield shared
        return
    own = vars(model).get("forward")
    model.forward = lambda *args, **named: shared.take(forward, *args, **named)
    try:
        yield shared
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own


def marks_of(value: Any) -> list[Any]:
    """Return a list that differs from one returned before if the nested value `value` may have changed since.

    It has the form of the nesting, for each tensor its memory address, shape and version, for a plain value the value,
    and for any other object its id.
    """
    leaves, form = tree_flatten(value)
    return [form, *map(_mark, leaves)]


def _mark(leaf: Any) -> Any:
    """Return a value that changes whenever `leaf`, a tensor or another argument of a pass, may have changed."""
    if not isinstance(leaf, Tensor):
        return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else id(leaf)
    if hasattr(leaf, "to_local"):
        leaf = leaf.to_local()
    if leaf.is_inference():  # which counts no changes
        return object()
    if leaf.layout is not torch.strided:  # in no single place
        return id(leaf), leaf._version  # noqa: SLF001 - no public way to it
    return leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype, leaf._version  # noqa: SLF001 - the same
