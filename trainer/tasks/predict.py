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
from torch.utils.data import DataLoader, Dataset

from trainer.checkpoint.models import load_model_together
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint_files.layout import new_nonce
from trainer.errors import EXIT_RESUME_ME, BadSettings
from trainer.loop.determinism import be_deterministic
from trainer.loop.placing import placed
from trainer.stopping import StopRequest
from trainer.tasks.shards import Answers, Job, Line
from trainer.wire import Launched, Wire
from trainer.world import World, barrier, from_first, join, leave


@dataclass(frozen=True, slots=True)
class Prediction:
    """What to ask of which model. `answer(model, batch)` gives a line for each sample, and what counts for the mean."""

    task: str
    model: nn.Module
    dataset: Dataset[Any]
    data: str  # the data set in words: with others nobody may go on
    answer: Callable[[nn.Module, Any], tuple[list[Line], list[float]]]
    mean: str  # what the mean over all samples is called
    batch_size: int
    workers: int = 0
    device: str | None = None
    precision: str = "fp32"
    deterministic: bool = False


def checkpoints_at(wanted: str) -> Path:
    """What `--checkpoint` means: a folder of checkpoints, one of them, or `newest` of where a training would save."""
    folder = (Launched.from_environment().checkpoint_dir or Path("checkpoints")) if wanted == "newest" else Path(wanted)
    if not folder.is_dir():
        raise BadSettings(f"--checkpoint: expected a folder with checkpoints, found none at {folder}")
    return folder


def predict(prediction: Prediction, out: Path, checkpoint: str) -> int:
    """All ranks call it. 0: `out` is there. 75: asked to stop, what is done is kept; start again."""
    if prediction.precision not in ("fp32", "bf16"):
        raise BadSettings(f"--precision: expected fp32 or bf16 for predictions, got {prediction.precision}")
    if prediction.deterministic:
        be_deterministic()
    stop = StopRequest()
    stop.listen()
    world = join(device=prediction.device)
    try:
        code = _predict(prediction, out, checkpoints_at(checkpoint), world, stop)
    finally:
        stop.unlisten()
    barrier(world)
    leave(world)
    return code


def _predict(prediction: Prediction, out: Path, checkpoint: Path, world: World, stop: StopRequest) -> int:
    model = prediction.model.to(world.device).eval()
    step = load_model_together(model, checkpoint, world)
    job = Job(
        task=prediction.task,
        data=prediction.data,
        samples=_length(prediction.dataset),
        batch_size=prediction.batch_size,
        precision=prediction.precision,
        step=step,
        weights=_digest(model),
    )
    answers = Answers(out, job)
    todo = from_first(world, lambda: answers.missing() if answers.begin() else None)
    if todo is None:
        _say(world, f"{out}: is there already")
        return 0
    total = len(job.shards())
    _say(world, f"step {step}: {job.samples} samples in {total} shards, {len(todo)} of them to do")
    wire = Wire.from_environment()
    queue = Queue(todo, prediction.batch_size, world)

    def done() -> int:
        return total - len(todo) + queue.taken  # by all ranks, but for the last few

    answered = _answered(prediction, model, queue, world.device, stop, lambda: wire.report_step(done(), total))
    for shard, lines, values in answered:
        answers.put(shard, lines, values)
        wire.report(step=done(), total_steps=total, checkpoint=done())
    if _on_any_rank(world, queue.closed):
        _say(world, "stopped, to be resumed")
        return EXIT_RESUME_ME
    value = from_first(world, lambda: answers.merge(prediction.mean))
    _say(world, f"{out}: {job.samples} samples, {prediction.mean} {value:.4g}")
    wire.report(done=True)
    if world.is_first:
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
    device: torch.device,
    stop: StopRequest,
    after_batch: Callable[[], None],
) -> Iterator[tuple[range, list[Line], list[float]]]:
    """One shard after the other, until there are no more or someone was asked to stop."""
    loader = DataLoader(
        prediction.dataset,
        batch_sampler=queue,
        num_workers=prediction.workers,
        generator=torch.Generator(),  # not the global one
    )
    precision = torch.autocast(device.type, torch.bfloat16, enabled=prediction.precision == "bf16")
    lines: list[Line] = []
    values: list[float] = []
    for batch in loader:
        if stop.asked:
            queue.close()
            return
        with torch.no_grad(), precision:
            some, their_values = prediction.answer(model, placed(batch, device))
        lines += some
        values += their_values
        after_batch()
        if len(lines) == len(queue.in_hand[0]):
            yield queue.in_hand.popleft(), lines, values
            lines, values = [], []


def _length(dataset: Any) -> int:
    count = len(dataset)
    if not count:
        raise BadSettings("--predict: expected at least one sample, got none")
    return count


def _digest(model: nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(bytes_of(value.detach().cpu().reshape(-1).view(torch.uint8)))
    return digest.hexdigest()


def _on_any_rank(world: World, flag: bool) -> bool:
    if world.control is None:
        return flag
    vote = torch.tensor(int(flag))
    dist.all_reduce(vote, dist.ReduceOp.MAX, group=world.control)
    return bool(vote)


def _say(world: World, text: str) -> None:
    if world.is_first:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
