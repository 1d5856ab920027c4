"""Runs a committed checkpoint over a data set: each sample once, shared out over the ranks, resumable."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

from trainer.checkpoint.generators import seed_all
from trainer.checkpoint.models import load_model_together
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint_files.choice import named_best
from trainer.checkpoint_files.layout import new_nonce
from trainer.errors import EXIT_RESUME_ME, BadSettings
from trainer.loop.determinism import be_deterministic
from trainer.loop.placing import placed
from trainer.loop.settings import Settings
from trainer.loop.sums import sum_over_ranks
from trainer.stopping import StopRequest
from trainer.strategies import SHARDS, StrategySettings, build_to_ask, needs_group
from trainer.tasks.disks import bring_answers, bring_checkpoint, leaders_of, missing_on_all
from trainer.tasks.shards import Answers, Job, Line
from trainer.wire import Launched, Wire
from trainer.world import World, from_first, membership


@dataclass(frozen=True, slots=True)
class Prediction:
    """What to ask of which model. `answer(model, batch)` gives a line for each sample, and what counts for the mean."""

    task: str
    model: nn.Module | Callable[[], nn.Module]
    dataset: Dataset[Any]
    data: str  # the data set in words: with others nobody may go on
    answer: Callable[[nn.Module, Any], tuple[list[Line], list[float]]]
    mean: str  # what the mean over all samples is called
    batch_size: int
    settings: Settings  # of the training; what is of no use here does not count


def checkpoints_at(wanted: str, world: World, leaders: tuple[int, ...]) -> Path:
    """What `--checkpoint` means: a folder of checkpoints, one of them, FOLDER/best, or `newest` of where a training
    would save. From then on it is on the disk of every node."""
    folder = (Launched.from_environment().checkpoint_dir or Path("checkpoints")) if wanted == "newest" else Path(wanted)
    bring_checkpoint(folder, world, leaders)
    if not named_best(folder)[0].is_dir():
        raise BadSettings(f"--checkpoint: expected a folder with checkpoints, found none at {folder}")
    return folder


def predict(prediction: Prediction, out: Path, checkpoint: str) -> int:
    """All ranks call it. 0: `out` is there. 75: asked to stop, what is done is kept; start again."""
    settings = prediction.settings
    if settings.precision not in ("fp32", "bf16"):
        raise BadSettings(f"--precision: expected fp32 or bf16 for predictions, got {settings.precision}")
    if settings.deterministic:
        be_deterministic()
    stop = StopRequest()
    stop.listen()
    try:
        with membership(group=needs_group(settings.strategy), device=settings.device) as world:
            return _predict(prediction, out, checkpoint, world, stop)
    finally:
        stop.unlisten()


def _predict(prediction: Prediction, out: Path, wanted: str, world: World, stop: StopRequest) -> int:
    leaders = leaders_of(world, apart=Launched.from_environment().disks_apart)
    checkpoint = checkpoints_at(wanted, world, leaders)
    seed_all(prediction.settings.seed)  # who makes a model by parts has to make the same one
    model = build_to_ask(prediction.model, world, _sharing(prediction.settings))
    step = load_model_together(model, checkpoint, world)
    job = Job(
        task=prediction.task,
        data=prediction.data,
        samples=_length(prediction.dataset),
        batch_size=prediction.batch_size,
        precision=prediction.settings.precision,
        step=step,
        weights=_digest(model, world.device),
    )
    answers = Answers(out, job)
    if not from_first(world, answers.begin):
        _say(world, f"{out}: is there already")
        return 0
    if leaders[world.rank] == world.rank != 0:
        answers.join()
    todo = missing_on_all(answers, world, leaders)
    total = len(job.shards())
    _say(world, f"step {step}: {job.samples} samples in {total} shards, {len(todo)} of them to do")
    wire = Wire.from_environment()
    queue = Queue(todo, prediction.batch_size, world)

    def done() -> int:
        return total - len(todo) + queue.taken  # by all ranks, but for the last few

    answered = _answered(prediction, model, queue, world, stop, lambda: wire.report_step(done(), total))
    for shard, lines, values in answered:
        answers.put(shard, lines, values)
        wire.report(step=done(), total_steps=total, checkpoint=done())
    if sum_over_ranks(world, int(queue.closed)):
        _say(world, "stopped, to be resumed")
        return EXIT_RESUME_ME
    bring_answers(answers, world, leaders)
    value = from_first(world, lambda: answers.merge(prediction.mean))
    _say(world, f"{out}: {job.samples} samples, {prediction.mean} {value:.4g}")
    wire.report(done=True)
    if leaders[world.rank] == world.rank:
        answers.clean_up()
    return 0


class Queue:
    """The shards that are to do, batch by batch. Whoever is ready takes the next, so that all ranks end together."""

    def __init__(self, shards: Sequence[range], batch_size: int, world: World) -> None:
        self._shards, self._batch_size = shards, batch_size
        self._counter = from_first(world, lambda: f"shards taken {new_nonce()}")
        # The store in which the ranks have found each other counts for all of them.
        self._store = dist.distributed_c10d._get_default_store() if world.control is not None else dist.HashStore()  # noqa: SLF001 - no public way to it
        self.in_hand: deque[range] = deque()  # taken by this rank, and not done
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of samples, for a loader; it may ask for some ahead."""
        while (place := self._store.add(self._counter, 1) - 1) < len(self._shards):
            shard = self._shards[place]
            self.in_hand.append(shard)
            self.taken = place + 1
            for begin in range(0, len(shard), self._batch_size):
                yield list(shard[begin : begin + self._batch_size])

    def close(self) -> None:
        """Nobody takes any more."""
        self.closed = True
        self._store.add(self._counter, len(self._shards))


def _answered(
    prediction: Prediction,
    model: nn.Module,
    queue: Queue,
    world: World,
    stop: StopRequest,
    after_batch: Callable[[], None],
) -> Iterator[tuple[range, list[Line], list[float]]]:
    """One shard after the other, until there are no more or someone was asked to stop."""
    settings = prediction.settings
    sharded = settings.strategy in SHARDS
    batches = _fetched(prediction, queue, stop)
    if sharded:
        batches = _in_step(batches, prediction.dataset, world)
    precision = torch.autocast(
        world.device.type,
        torch.bfloat16,
        enabled=settings.precision == "bf16",
        cache_enabled=not sharded,  # or all blocks would be there at once after all
    )
    lines: list[Line] = []
    values: list[float] = []
    for batch, counts in batches:
        with torch.no_grad(), precision:
            some, their_values = prediction.answer(model, placed(batch, world.device))
        after_batch()
        if not counts:
            continue
        lines += some
        values += their_values
        if len(lines) == len(queue.in_hand[0]):
            yield queue.in_hand.popleft(), lines, values
            lines, values = [], []


def _fetched(prediction: Prediction, queue: Queue, stop: StopRequest) -> Iterator[tuple[Any, bool]]:
    """This rank's batches; all of them count."""
    loader = DataLoader(
        prediction.dataset,
        batch_sampler=queue,
        num_workers=prediction.settings.workers,
        generator=torch.Generator(),  # not the global one
    )
    for batch in loader:
        if stop.asked:
            queue.close()
            return
        yield batch, True


def _in_step(batches: Iterator[tuple[Any, bool]], dataset: Dataset[Any], world: World) -> Iterator[tuple[Any, bool]]:
    """For a model in whose forward pass ranks meet: who has no batch left takes part until all have had theirs."""
    filler: tuple[Any, bool] | None = None
    while True:
        batch = next(batches, None)
        if not sum_over_ranks(world, int(batch is not None)):
            return
        if batch is None:
            batch = filler = filler or (next(iter(DataLoader(dataset, generator=torch.Generator()))), False)
        yield batch


def _sharing(settings: Settings) -> StrategySettings:
    """Weights travel in fp32, whatever is calculated in: so they are those of one rank that has the whole model."""
    if settings.strategy not in SHARDS:
        return StrategySettings(settings.strategy)
    names = ("strategy", "shard_size", "by_parts", "offload", "blocks", "units")
    return StrategySettings(**{name: getattr(settings, name) for name in names})


def _length(dataset: Any) -> int:
    count = len(dataset)
    if not count:
        raise BadSettings("--predict: expected at least one sample, got none")
    return count


def _digest(model: nn.Module, device: torch.device) -> str:
    """Of the weights, tensor by tensor: of a sharded model none is whole for longer. All ranks call it."""
    digest = xxhash.xxh3_128()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(bytes_of(_whole(value.detach(), device).cpu().reshape(-1).view(torch.uint8)))
    return digest.hexdigest()


def _whole(value: Tensor, device: torch.device) -> Tensor:
    """Gathered on the device, where ranks meet: it may be in the host's memory."""
    if not isinstance(value, DTensor):
        return value
    there: Any = value.to(device)
    gathered: Tensor = there.full_tensor()
    return gathered


def _say(world: World, text: str) -> None:
    if world.is_first:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
