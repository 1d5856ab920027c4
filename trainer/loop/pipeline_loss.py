"""Run a user's loss function over a pipeline by splitting it where it calls the model.

    loss(model, batch)  ─ up to the call ─►  what the first stage gets
    what the last stage gives  ─ as the call's answer ─►  loss(model, batch) to its end, on each part of the batch

Each rank has the whole batch. The last stage computes what the function returns and sends it to all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.data import Batch
from trainer.errors import BadSettings, TrainerError
from trainer.loop.losses import Answer, LossFunction, StepCount, answer_of, by_name, plain
from trainer.loop.metric_objects import is_of_object
from trainer.loop.settings import Settings
from trainer.loop.shared_forward import marks_of
from trainer.strategies.finite import first_gradient
from trainer.strategies.pipeline_cutting import Sample
from trainer.strategies.pipeline_schedule import micro_batches
from trainer.strategies.precision import autocasting, low_dtype
from trainer.world import World

if TYPE_CHECKING:
    from trainer.strategies.pipeline import Pipeline

Function = Callable[[nn.Module, Any], Any]


class _Called(BaseException):
    """Carries the arguments of the model's call out of a loss function.

    It is a BaseException, so that an `except Exception` in that function does not catch it.
    """

    def __init__(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.given, self.named = given, named


class _StandIn(nn.Module):
    """A module that takes the place of a model spread over several ranks while a loss function runs."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise TrainerError(
                f"loss: it asks for model.{name}, but with pp the model is on several ranks\n"
                "hint: with mesh pp it may only call the model, once"
            ) from None


class _CaptureInput(_StandIn):
    """A stand-in that raises _Called with the arguments of its call."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """Raise _Called with the arguments."""
        raise _Called(given, named)


class _ReplayOutput(_StandIn):
    """A stand-in for the model in a loss function: its call returns the last stage's output, computed before."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self._answers = [answer]

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """Return the output; raise TrainerError at a second call."""
        if not self._answers:
            raise TrainerError("loss: it calls the model twice, but in a pipeline a batch goes through it once")
        return self._answers.pop()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The form of a loss function's Answer without the numbers: whether its loss has a count, and its other values.

    `pairs` has the name of each value, and whether it is a pair of a sum and a count instead of a mean.
    """

    counts: bool
    pairs: tuple[tuple[str, bool], ...]  # (name, whether the value is a sum and a count)


class Piped:
    """Runs batches through a pipeline for a user's loss and metrics functions.

    All ranks of the pipeline make the same calls.
    """

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._device = pipeline.world.device
        self._shape: _Shape | None = None  # of what the loss function returns, known after the first batch

    def train(self, loss: LossFunction, data: Any, batch: Batch, count: StepCount, *, known: bool) -> Answer:
        """Compute the gradients of a batch, and return the loss function's answer for all of it.

        If the function also returns a count, such as that of tokens, it is added to the step's sum `count`. All ranks
        of the pipeline call it. `data` is the content of `batch`, placed on this rank's device. With `known`, or if the
        function returns a count, the answer has the loss and all other values on every rank; otherwise its loss is 0
        and it has no other values, which saves a message. Raises TrainerError if the function or the batch does not
        suit a pipeline.
        """
        pipeline = self._pipeline
        inputs = self._inputs(loss, data, training=True)
        many = pipeline.micro_batches(len(inputs))
        parts = _parts(data, len(inputs), many) if pipeline.is_last else []
        part = replace(batch, scale=batch.scale / many)
        answers: dict[int, Answer] = {}

        def loss_of(output: Tensor, number: int) -> Tensor:
            """Return the loss of one part of the batch from the last stage's output."""
            with pipeline.casting():
                answer = answers[number] = answer_of(loss(_ReplayOutput(output), parts[number]))
            mine = count.share_of(answer, part)
            first = first_gradient(mine)  # NaN, where the loss is not finite: then so are all gradients
            return mine if first is None else mine * first

        pipeline.train(inputs, loss_of)
        answer = self._merged_answer([answers[number] for number in range(len(answers))], known=known)
        count.add(answer, batch)
        return answer

    def ask(self, functions: Sequence[Function], data: Any) -> dict[str, Any]:
        """Return the values of all functions for the batch `data` in one dict by name, computed without gradients.

        Every rank of the pipeline calls this and gets the values that the last stage computed. Functions that call
        the model with the same tensor share one forward pass. Raises TrainerError if a function does not suit a
        pipeline, or returns a metric object.
        """
        # Before any of them has an answer: only the last stage has one, and all have to decide alike.
        inputs = [self._inputs(one, data, training=False) for one in functions]
        found: dict[str, Any] = {}
        given = output = None
        for function, mine in zip(functions, inputs, strict=True):
            if given is None or marks_of(mine) != marks_of(given):
                given, output = mine, self._pipeline.ask(mine)
            found |= self._named_values(function, data, None if output is None else output.clone())
        return found

    def _named_values(self, function: Function, data: Any, output: Tensor | None) -> Mapping[str, Any]:
        """Return the named values of one function on all ranks; the last stage computes them from the model's `output`.

        `data` is the batch; `output` is None on other stages. Raises TrainerError on all ranks if the values are not
        given by name, or one is a metric object.
        """
        values: Mapping[str, Any] = {}
        problem = ""
        if output is not None:
            with self._pipeline.casting():
                given = plain(function(_ReplayOutput(output), data))
            try:
                values = by_name(given)
            except TrainerError as error:  # which all ranks have to know
                problem = str(error)
        if values:
            objects = [name for name, value in values.items() if is_of_object(value)]
            if objects:
                problem = (
                    f"metrics: {objects[0]} is an object that collects, but with pp values are known on the last stage"
                    "\nhint: sums, or pairs of a sum and a count"
                )
            values = {} if problem else tree_map_only(Tensor, lambda one: one.detach().cpu(), dict(values))
        values, problem = self._pipeline.broadcast_from_last((values, problem))
        if problem:
            raise TrainerError(problem)
        return values

    def answered(self, function: Function, data: Any) -> Any:
        """Return `function(model, data)` for the batch `data`, without gradients, on the pipeline's last stage.

        All ranks of the pipeline call it; on the other stages it returns None.
        """
        output = self._pipeline.ask(self._inputs(function, data, training=False))
        if output is None:
            return None
        with self._pipeline.casting():
            return function(_ReplayOutput(output), data)

    def _inputs(self, function: Function, data: Any, *, training: bool) -> Tensor:
        """Run the function on the batch `data` until it calls the model; return the tensor that it passes.

        The tensor is not compared between ranks: it is the same on all, because each has the whole batch, and a
        function that draws random numbers before the call is refused by a TrainerError. `training` is the mode of the
        model that the function gets.
        """
        return _model_input(function, data, self._pipeline.casting, self._device, training=training)

    def _merged_answer(self, answers: list[Answer], *, known: bool) -> Answer:
        """Return on all ranks one answer, merged from `answers`, those for the parts of a batch.

        Only the last stage has them; other stages pass an empty list. The last stage sends the merged values to the
        others, unless `known` is False, because nobody needs them, and the loss function returns no count: then every
        rank gets an answer with the loss 0 and no other values. Raises TrainerError if the names of the values are not
        those of the first answer.
        """
        pipeline = self._pipeline
        if self._shape is None:
            self._shape = cast("_Shape", pipeline.broadcast_from_last(_shape_of(answers[0]) if answers else None))
        shape, nothing = self._shape, torch.zeros((), device=self._device)
        if not known and not shape.counts:
            return Answer(nothing)
        sums = torch.zeros(2 * len(shape.pairs), dtype=torch.float64, device=self._device)
        for answer in answers:
            if _shape_of(answer) != shape:
                raise TrainerError(f"loss: expected values {_names(shape)} as before, got {_names(_shape_of(answer))}")
            pairs = answer.sums(1).values()
            sums += torch.stack([_number(one, self._device) for pair in pairs for one in pair])
        sums = pipeline.broadcast_numbers_from_last(sums)
        found = {name: (sums[2 * place], sums[2 * place + 1]) for place, (name, _) in enumerate(shape.pairs)}
        own = dict(shape.pairs)
        means = {name: pair if own[name] else pair[0] / pair[1] for name, pair in found.items()}
        loss = means.pop("loss")
        if isinstance(loss, tuple):
            return Answer(loss[0], loss[1], means)
        return Answer(loss, None, means)


def _model_input(
    function: Function, data: Any, casting: Callable[[], AbstractContextManager[None]], device: torch.device, *,
    training: bool,
) -> Tensor:  # fmt: skip
    """Return the tensor with which a function calls the model for the batch `data`, which all ranks have whole.

    `casting` returns the context to call the function in, and `training` is the mode of the model that it gets. Raises
    TrainerError if the function never calls the model, calls it with anything else, or draws random numbers first,
    with which ranks could get different tensors.
    """
    before = state_of_generators(device)
    try:
        with casting():
            function(_CaptureInput().train(training), data)
    except _Called as called:
        given = called.given
        if called.named or len(given) != 1 or not isinstance(given[0], Tensor) or given[0].ndim == 0:
            raise TrainerError(
                "loss: expected the model to be called with one tensor, as a pipeline's stages are, got "
                f"{len(given) + len(called.named)} arguments: {_kinds(*given, *called.named.values())}"
            ) from None
        if _differ(before, state_of_generators(device)):
            restore_generators(before, device)
            raise TrainerError(
                "loss: it draws random numbers before it calls the model: with pp each rank would draw others\n"
                "hint: draw them where the data comes from"
            ) from None
        found: Tensor = given[0]
        return found
    raise TrainerError("loss: it never calls the model, which a pipeline is to calculate")


def sample_of(loss: LossFunction, data: Any, settings: Settings, world: World) -> Sample:
    """Return the first part of the batch `data`, as a pipeline would divide it, to measure stages with.

    Its input is the tensor with which `loss` calls the model. Raises TrainerError if the loss function or the batch
    does not suit a pipeline.
    """

    def casting() -> AbstractContextManager[None]:
        """Return the context of a forward pass in the training's precision."""
        return autocasting(world.device, low_dtype(settings.precision))

    samples = len(_model_input(loss, data, casting, world.device, training=True))
    part = _parts(data, samples, micro_batches(samples, world.stages, settings.pp_microbatches))[0]

    def loss_of(output: Tensor) -> Tensor:
        """Return the loss of the part from the last stage's output."""
        with casting():
            return answer_of(loss(_ReplayOutput(output), part)).loss

    return Sample(_model_input(loss, part, casting, world.device, training=True), loss_of)


def _shape_of(answer: Answer) -> _Shape:
    """Return which values of a loss function's answer are pairs of a sum and a count, and not means.

    If the answer has a count, as of tokens, its loss and all other values are such pairs, else only those values that
    the function returned as a tuple.
    """
    counts = answer.count is not None
    return _Shape(
        counts,
        (("loss", counts), *((name, counts or isinstance(one, tuple)) for name, one in answer.more_values.items())),
    )


def _names(shape: _Shape) -> str:
    """Return the names of the values in a loss function's answer, separated by commas, for an error message."""
    return ", ".join(name for name, _ in shape.pairs)


def _number(value: Any, device: torch.device) -> Tensor:
    """Return a number, or a tensor with one element, as a float64 scalar tensor on `device`, without gradient."""
    return torch.as_tensor(value, dtype=torch.float64, device=device).detach().reshape(())


def _parts(data: Any, samples: int, many: int) -> list[Any]:
    """Return the batch `data` in `many` equal parts, by its first dimension; `many` has to divide `samples`.

    Raises TrainerError unless `data` consists of tensors of `samples` items.
    """
    for leaf in tree_flatten(data)[0]:
        if not isinstance(leaf, Tensor) or leaf.ndim == 0 or len(leaf) != samples:
            raise TrainerError(
                f"data: expected a batch of tensors with {samples} samples each, which a pipeline can divide, got "
                f"{_kinds(leaf)}"
            )
    size = samples // many

    def rows(begin: int, tensor: Tensor) -> Tensor:
        """Return the rows of one part."""
        return tensor[begin : begin + size]

    return [tree_map_only(Tensor, partial(rows, number * size), data) for number in range(many)]


def _kinds(*values: Any) -> str:
    """Return the types of the values, and shapes of tensors, as text for an error message."""
    return ", ".join(
        f"a tensor of shape {tuple(one.shape)}" if isinstance(one, Tensor) else type(one).__name__ for one in values
    )


def _differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two states of the random generators differ."""
    (_, keys, *rest), (_, keys_now, *rest_now) = before["numpy"], now["numpy"]
    pairs = zip([before["torch"], *before["devices"]], [now["torch"], *now["devices"]], strict=True)
    return (
        before["python"] != now["python"]
        or rest != rest_now
        or not np.array_equal(keys, keys_now)
        or not all(torch.equal(one, other) for one, other in pairs)
    )


def samples_at_once(settings: Settings, world: World) -> int:
    """Return the number of samples that one rank gets in one micro-batch of a step, rounded up."""
    return -(-settings.batch_size // (settings.accumulate * world.dp_size))


def refuse_unfit_batch(settings: Settings, world: World) -> None:
    """Raise BadSettings if a rank's samples cannot be divided into the pipeline's micro-batches.

    Without a pipeline nothing is done.
    """
    if world.stages > 1 and (problems := list(_problems(settings, world))):
        raise BadSettings("\n".join(problems))


def _problems(settings: Settings, world: World) -> Iterator[str]:
    """Yield as text each reason why a rank's samples do not fit the pipeline's stages and micro-batches."""
    samples, wanted = samples_at_once(settings, world), settings.pp_microbatches
    ways = f"batch_size {settings.batch_size} / (accumulate {settings.accumulate} x {world.dp_size} dp) = {samples}"
    if samples < world.stages:
        yield f"mesh: pp={world.stages} expected at least {world.stages} samples of a rank at once, got {ways}"
    elif wanted is not None and samples % wanted:
        yield f"pp_microbatches: {wanted} does not divide the samples of a rank at once, {ways}"
