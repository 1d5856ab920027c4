"""Keep an exponential moving average (EMA) of the weights, which is validated and exported instead of them."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.stand_ins import has_values
from trainer.checkpoint_files.weights import name_of_average
from trainer.errors import BadSettings
from trainer.strategies.finite import plain

_LEAST_BYTES = 4  # of a number: in fewer a small change of the average would be rounded away


class Average:
    """The averages of this rank's trained parameters, in `tensors` by name; of its shards if they are sharded.

    At each update an average becomes `decay` times its old value, plus the rest times the weight. In the first steps
    the factor is smaller, or the random first weights would stay in the average for long: the weights after step n get
    a share of at least 9 / (10 + n).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        names = ModelNames({"": module})
        self._decay = decay
        # The parameters themselves: while FSDP2 calculates, the module shows others.
        self._weights = {
            name_of_average(names.of_parameter[id(one)]): one
            for one in module.parameters()
            if one.requires_grad and has_values(one)
        }
        for name, one in self._weights.items():
            if one.element_size() < _LEAST_BYTES:
                raise BadSettings(
                    f"ema: expected weights of 32 bits, {name} is {str(one.dtype).removeprefix('torch.')}\n"
                    "hint: precision=bf16 calculates in 16 bits and keeps weights in 32; or no ema"
                )
        self.tensors: dict[str, Tensor] = {name: one.detach().clone() for name, one in self._weights.items()}

    @torch.no_grad()
    def begin(self, known: Collection[str] = ()) -> int:
        """Set each average that was not loaded to its current weight, and return how many were set.

        `known` are the names of the averages that were loaded from a checkpoint.
        """
        begun = [name for name in self.tensors if name not in known]
        for name in begun:
            self.tensors[name].copy_(self._weights[name])
        return len(begun)

    @torch.no_grad()
    def update(self, step: int, learned: bool | Tensor) -> None:
        """Move the averages towards the weights after optimizer step `step`, unless `learned` is false.

        `learned` says whether the step changed the weights; on a GPU it is a tensor, so that nothing waits for it.
        """
        if learned is False:
            return
        share = 1 - min(self._decay, (1 + step) / (10 + step))
        for average, weight in self._pairs():
            average.lerp_(weight, share if learned is True else (learned * share).to(weight.device, weight.dtype))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights inside the context, and exactly its own ones afterwards."""
        exchanged: list[tuple[Tensor, Tensor]] = []  # of an exchange that fails on its way what was done is undone
        try:
            for pair in self._pairs():
                _exchange(*pair)
                exchanged.append(pair)
            yield
        finally:
            for pair in exchanged:
                _exchange(*pair)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (average, weight) of each averaged parameter: this rank's parts of both, not copies."""
        for name, weight in self._weights.items():
            yield plain(self.tensors[name]), plain(weight)


@torch.no_grad()
def _exchange(average: Tensor, weight: Tensor) -> None:
    """Exchange the values of the two tensors."""
    held = weight.clone()
    weight.copy_(average)
    average.copy_(held)
