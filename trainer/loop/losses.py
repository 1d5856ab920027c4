"""Read what a loss function returns, and compute the loss of a step over its micro-batches and ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.data import Batch
from trainer.errors import TrainerError
from trainer.loop.sums import Count, Sum, divided, exact_sum, read
from trainer.world import World

_IGNORED = -100  # a label that is to be left out
_NEXT_TOKEN = ("CausalLM", "LMHead", "ForConditionalGeneration")  # in the names of models that predict the next one

More = Mapping[str, Sum]
LossFunction = Callable[
    [nn.Module, Any], Tensor | tuple[Tensor, More] | tuple[Tensor, Count] | tuple[Tensor, Count, More]
]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a loss function: the loss, an optional count, and other values by name.

    Without `count` the loss is a mean over the batch's samples, else a sum over so many things, such as tokens. Each of
    `more_values` is a mean over the same things as the loss, or a pair of sum and count.
    """

    loss: Tensor  # a mean over the samples of the batch; with a count, a sum
    count: Count | None = None
    more_values: More = field(default_factory=dict)  # means of the same things as the loss, or pairs of sum and count

    def sums(self, samples: int) -> dict[str, tuple[Count, Count]]:
        """Return {name: (sum, count)} of the loss and the other values, from a batch of `samples` samples.

        A value that is given as such a pair stays as it is. Any other is a mean: its sum is the mean times its count,
        which is that of the loss, or `samples` if the loss has none.
        """
        count = samples if self.count is None else self.count
        pairs = {"loss": self.loss if self.count is None else (self.loss, count), **self.more_values}
        return {
            name: value if isinstance(value, tuple) else (torch.as_tensor(value).detach().double() * count, count)
            for name, value in pairs.items()
        }


def answer_of(given: Any) -> Answer:
    """Return as an Answer what a loss function returned: `loss`, `loss, {...}`, `sum, count` or `sum, count, {...}`.

    Raises TrainerError for anything else.
    """
    match plain(given):
        case Tensor() as loss:
            return _checked(Answer(loss))
        case (Tensor() as loss, Mapping() as more_values):
            return _checked(Answer(loss, None, more_values))
        case (Tensor() as loss, Tensor() | int() | float() as count):
            return _checked(Answer(loss, count))
        case (Tensor() as loss, Tensor() | int() | float() as count, Mapping() as more_values):
            return _checked(Answer(loss, count, more_values))
    got = ", ".join(map(described, given)) if isinstance(given, (tuple, list)) else described(given)
    raise TrainerError(
        f"loss: expected a tensor, a sum and a count, and perhaps a dict of more values, got {got}\n"
        "hint: `return loss`, `return loss, {'name': value}`, or `return loss_sum, number_of_tokens`"
    )


def _checked(answer: Answer) -> Answer:
    """Return `answer` unchanged. Raises TrainerError if its loss, its count or another value is no single number."""
    if answer.loss.numel() != 1:
        raise TrainerError(f"loss: expected one number, got {described(answer.loss)}\nhint: the mean over the batch")
    if isinstance(answer.count, Tensor) and answer.count.numel() != 1:
        raise TrainerError(
            f"loss: expected a number of samples or tokens after the loss, got {described(answer.count)}\n"
            "hint: return the loss alone; put other values into a dict, `return loss, {'name': value}`"
        )
    for name, value in answer.more_values.items():
        refuse_no_number(f"loss: {name}", value)
    return answer


def refuse_no_number(what: str, value: Any) -> None:
    """Raise TrainerError for a value that is neither one number nor a sum and a count of one number each.

    `what` names the value in the error message.
    """
    pair = isinstance(value, tuple) and len(value) == 2
    for one in value if pair else (value,):
        if not (isinstance(one, Real) or (isinstance(one, Tensor) and one.numel() == 1)):
            raise TrainerError(
                f"{what}: expected one number, or a sum and a count, got {described(one)}\n"
                "hint: the mean over the batch, as .mean(), or (sum, count)"
            )


def by_name(given: Any) -> Mapping[str, Any]:
    """Return unchanged what a metrics function returned: values by name. Raises TrainerError unless it is a mapping."""
    if not isinstance(given, Mapping):
        raise TrainerError(
            f"metrics: expected a dict of values by name, got {described(given)}\nhint: return {{'accuracy': value}}"
        )
    return given


def described(value: Any) -> str:
    """Return the words for a wrong value in an error message: its type, or a tensor's shape."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def plain(given: Any) -> Any:
    """Return the value, which may be nested, with each DTensor in it replaced by its whole tensor."""
    if isinstance(given, Tensor):
        return given.full_tensor() if hasattr(given, "full_tensor") else given
    if isinstance(given, Mapping):
        return {name: plain(value) for name, value in given.items()}
    return tuple(map(plain, given)) if type(given) is tuple else given


class StepLosses:
    """Collects the losses of a step's micro-batches, and averages them over all ranks if the step is logged.

    In the same exchange each rank may send other numbers of its own to all (`extra` of `take`). `of_ranks` has a list
    for each rank: the numbers that it sent in the last exchange.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: tuple[str, ...] = ()
        self._sums: list[dict[str, tuple[Count, Count]]] = []
        self._others: list[list[float]] = []  # of ranks that are no more, by name the sum and the count
        self.of_ranks: list[list[float]] = []  # what each rank sent along when they last met

    def add(self, answer: Answer, batch: Batch) -> None:
        """Add the losses in `answer`, the loss function's result for a micro-batch; one of 0 samples adds nothing."""
        self._names = ("loss", *answer.more_values)
        if batch.samples:  # one that only fills up has no part in it, whatever its loss is
            self._sums.append(answer.sums(batch.samples))

    def noted(self) -> tuple[tuple[str, ...], list[float]]:
        """Return the losses' names, and a flat list of numbers: for each micro-batch added, sum and count of each name.

        `put_back` restores the step's losses from both, if training continues after a lost rank.
        """
        return self._names, read([one for sums in self._sums for pair in sums.values() for one in pair])

    def put_back(self, names: Sequence[str], numbers: Sequence[float], others: Sequence[Sequence[float]] = ()) -> None:
        """Restore the step's losses from the names and numbers that `noted` returned, after a rank was lost.

        `others` has such numbers of each rank that is gone, which count in the means of this step.
        """
        self._names, width = tuple(names), 2 * len(names)
        tensors = [torch.tensor(number, dtype=torch.float64) for number in numbers]
        batches = [tensors[place : place + width] for place in range(0, len(tensors), width or 1)]
        self._sums = [dict(zip(self._names, zip(one[::2], one[1::2], strict=True), strict=True)) for one in batches]
        self._others = [_added_up(one, width) for one in others]

    def take(self, extra: Sequence[float] = ()) -> dict[str, float]:
        """Return the means of the losses that were added since the last call, by name, and begin to collect anew.

        They are means over all ranks, and equal on all. All ranks call it, each with as many numbers in `extra`: these
        are exchanged too, and afterwards the attribute `of_ranks` has a list of them for each rank.
        """
        numbers = read([one for sums in self._sums for pair in sums.values() for one in pair])
        width = 2 * len(self._names)
        rows = self._of_all([*_added_up(numbers, width), *extra])
        self.of_ranks = [row[width:] for row in rows]
        of_each = [*(rows[rank][:width] for rank in self._world.replica_leaders), *self._others]
        self._sums.clear()
        self._others = []
        sums = [exact_sum(column) for column in zip(*of_each, strict=True)]
        return {name: divided(sums[2 * place], sums[2 * place + 1]) for place, name in enumerate(self._names)}

    def _of_all(self, mine: list[float]) -> list[list[float]]:
        """Return every rank's list of numbers, by rank; all ranks call it, each with its own."""
        if self._world.control is None:
            return [mine]
        sums = torch.tensor(mine, dtype=torch.float64)
        found = [torch.empty_like(sums) for _ in range(self._world.size)]
        dist.all_gather(found, sums, group=self._world.control)
        return [each.tolist() for each in found]


def _added_up(numbers: Sequence[float], width: int) -> list[float]:
    """Divide `numbers` into rows of `width` and return the sum of each column, rounded once.

    Returns `width` zeros if there are no numbers.
    """
    batches = [numbers[place : place + width] for place in range(0, len(numbers), width or 1)]
    return [exact_sum(column) for column in zip(*batches, strict=True)] or [0.0] * width


class StepCount:
    """Sums, over a step and all ranks, the counts that a loss function returns with its loss, such as tokens.

    The whole count is known only after the last micro-batch of all ranks. Until then losses are divided by the step's
    samples in place of the count, so that gradients have about the right size. Then gradients are multiplied once by
    `factor`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._count: Tensor | None = None

    def weighted(self, answer: Answer, batch: Batch) -> Tensor:
        """Add the count of a micro-batch's `answer`, and return its loss, scaled for `backward`."""
        self.add(answer, batch)
        return self.share_of(answer, batch)

    def share_of(self, answer: Answer, batch: Batch) -> Tensor:
        """Return the loss of a micro-batch, or of a part of one, scaled to its share of the step, for `backward`.

        Unlike `weighted`, it does not add the answer's count to the step's; a caller with parts adds that of the whole.
        """
        if answer.count is None:
            return answer.loss if batch.scale == 1.0 else answer.loss * batch.scale
        # DDP and the shards take the mean over ranks.
        return answer.loss * (self._world.dp_size / batch.step_samples if batch.samples else 0.0)

    def add(self, answer: Answer, batch: Batch) -> None:
        """Add the count in `answer`, the loss function's result for the micro-batch `batch`, to the step's count.

        Nothing is added if the loss function gives no count. A batch of 0 samples, which only fills up, counts as 0.
        """
        if answer.count is None:
            return
        here = torch.as_tensor(answer.count, dtype=torch.float64, device=answer.loss.device).detach()
        here = here.reshape(()) if batch.samples else torch.zeros_like(here.reshape(()))
        self._count = here if self._count is None else self._count + here

    def factor(self, step_samples: int) -> Tensor | None:
        """Return the factor that turns the step's gradients into those of the mean over the count of all ranks.

        It is the step's samples, by which losses were divided, over that count. Returns None if the loss function gives
        no count. All ranks call it.
        """
        count, self._count = self._count, None
        if count is None:
            return None
        if self._world.size > 1:
            count = count.clone()  # it may be the user's own
            dist.all_reduce(count)
        return step_samples * self._world.ranks_per_replica / count


def own_loss(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Return the loss that the model itself computes for a batch, as a mean, or as a pair of sum and count.

    The Trainer uses it when given no `loss`. It is a pair if each token has a label: the count is that of labels other
    than -100, so that accumulation, ranks and validation weigh each token alike. Raises TrainerError if the batch is no
    mapping or the model returns no loss.
    """
    if not isinstance(batch, Mapping):
        raise TrainerError(
            f"loss: without one of yours a batch goes to the model as model(**batch): expected a dict, "
            f"got {type(batch).__name__}\nhint: Trainer(loss=...), or a collate function that makes dicts"
        )
    answer = model(**batch)
    loss = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", None)
    if not isinstance(loss, Tensor):
        raise TrainerError(
            f"loss: {type(model).__name__} returned no loss\nhint: Trainer(loss=...), or labels in the batch"
        )
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return loss
    counted = (labels[..., 1:] if _predicts_the_next(model) else labels) != _IGNORED
    count = counted.sum()
    return loss * count, count


def _predicts_the_next(model: nn.Module) -> bool:
    """Return whether the model is a Hugging Face one that predicts the next token, by the name of its class.

    The first label does not count in such a model's loss.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return any(word in kind.__name__ for kind in type(model).__mro__ for word in _NEXT_TOKEN)
