"""Run a checkpoint over a data set: each sample once, divided over the ranks, resumable."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from trainer.checkpoint_files.layout import new_nonce, parse_folder_name
from trainer.errors import EXIT_RESUME_ME, BadSettings
from trainer.loop.kept_cuts import KeptCuts
from trainer.loop.pipeline_loss import Piped
from trainer.loop.placing import placed
from trainer.loop.settings import Settings
from trainer.loop.sums import gathered
from trainer.stopping import StopRequest
from trainer.strategies import SHARDS, EvaluatedModel, StrategySettings, build_for_evaluation, needs_group
from trainer.strategies.mesh import mesh_of, on_mesh
from trainer.tasks.answers import Answers, Job, Line
from trainer.tasks.separate_disks import bring_answers, bring_checkpoint, leaders_of, missing_on_all
from trainer.wire import Launched, Wire
from trainer.world import World, be_deterministic, call_on_first, membership

if TYPE_CHECKING:
    from trainer.strategies.tensor_parallel import Plan


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model and its inputs.

    `answer(model, batch)` returns a line (a dict for the output file) and a number for each sample; the mean of these
    numbers is called `mean`. `data` describes the data set: if an interrupted prediction is resumed, stored answers for
    another one are refused. `settings` are those of the training, `tp_plan` how layers are divided if the mesh has tp
    (None: the model's own plan).
    """

    task: str  # its name, stored with the answers
    model: nn.Module | Callable[[], nn.Module]  # or a function that makes it
    dataset: Dataset[Any]
    data: str  # a description of the data set, stored with the answers
    answer: Callable[[nn.Module, Any], tuple[list[Line], list[float]]]
    mean: str  # what the mean over all samples is called
    batch_size: int
    settings: Settings  # of the training; those without a meaning for a prediction are ignored
    tp_plan: "Plan | None" = None  # how layers are divided where the mesh has tp; left out, the model's own


def checkpoints_at(wanted: str, world: World, leaders: tuple[int, ...]) -> Path:
    """Return the folder that `--checkpoint` names, after copying the checkpoint to every node's disk.

    `wanted`, the option's text, names a folder of checkpoints, a single one, FOLDER/best, or `newest` for the folder in
    which a training would save. `leaders` gives for each rank the rank that reads and writes files on its disk. All
    ranks call it. Raises BadSettings if there is no such folder.
    """
    folder = (Launched.from_environment().checkpoint_dir or Path("checkpoints")) if wanted == "newest" else Path(wanted)
    bring_checkpoint(folder, world, leaders)
    if not named_best(folder)[0].is_dir():
        raise BadSettings(f"--checkpoint: expected a folder with checkpoints, found none at {folder}")
    return folder


def predict(prediction: Prediction, out: Path, checkpoint: str) -> int:
    """Predict on all ranks and return 0 once the file `out` is written, or 75 (to be resumed) if asked to stop.

    `checkpoint` names a folder of checkpoints, a single one, FOLDER/best, or `newest` for the folder in which a
    training would save. Raises BadSettings if there is no such folder, and for a precision other than fp32 and bf16.
    """
    settings = prediction.settings
    if settings.precision not in ("fp32", "bf16"):
        raise BadSettings(f"--precision: expected fp32 or bf16 for predictions, got {settings.precision}")
    if settings.deterministic:
        be_deterministic()
    stop = StopRequest()
    stop.listen()
    try:
        with membership(group=needs_group(settings.strategy), device=settings.device) as world:
            return _predict(prediction, out, checkpoint, _on_its_mesh(world, settings), stop)
    finally:
        stop.unlisten()


def _predict(prediction: Prediction, out: Path, wanted: str, world: World, stop: StopRequest) -> int:
    """Predict on the ranks of `world`, write the answers to `out`, and return the exit code; all ranks call it.

    `wanted` is the text of `--checkpoint`. The prediction ends early, with the exit code 75, if `stop` asks for it.
    Raises BadSettings if there is no folder of checkpoints, or no sample.
    """
    leaders = leaders_of(world, apart=Launched.from_environment().disks_apart)
    checkpoint = checkpoints_at(wanted, world, leaders)
    seed_all(prediction.settings.seed)  # ranks that make a model by parts have to make the same one
    cuts = KeptCuts(_with_checkpoints(checkpoint), world, None)
    asked = build_for_evaluation(
        prediction.model, world, _sharing(prediction.settings), tp_plan=prediction.tp_plan, cuts=cuts
    )
    step = load_model_together(asked.module, checkpoint, world)
    job = Job(
        task=prediction.task,
        data=prediction.data,
        samples=_length(prediction.dataset),
        batch_size=prediction.batch_size,
        precision=prediction.settings.precision,
        step=step,
        weights=_digest(asked, world.device),
    )
    answers = Answers(out, job)
    if not call_on_first(world, answers.begin):
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
        """Return about how many shards all ranks have done."""
        return total - len(todo) + queue.taken  # by all ranks, but for the last few

    writes = world.rank == world.replica_ranks[-world.tp_size]  # of those with the last stage the first
    answered = _answered_shards(prediction, asked, queue, world, stop, lambda: wire.report_step(done(), total))
    for shard, lines, values in answered:
        if writes:
            answers.put(shard, lines, values)
        wire.report(step=done(), total_steps=total, checkpoint=done())
    if any(gathered(queue.closed, world)):
        _say(world, "stopped, to be resumed")
        wire.report(asked_to_stop=True)  # else exit code 75 would be an error of the script's
        return EXIT_RESUME_ME
    bring_answers(answers, world, leaders)
    value = call_on_first(world, lambda: answers.merge(prediction.mean))
    _say(world, f"{out}: {job.samples} samples, {prediction.mean} {value:.4g}")
    wire.report_done()
    if leaders[world.rank] == world.rank:
        answers.clean_up()
    return 0


class Queue:
    """The shards that are still to do; each rank takes the next one when it is ready, so that all end together.

    Ranks that work on the same samples get the same shards: the first of them takes a shard and writes its number to
    torch's store, where the others read the numbers in that order.
    """

    def __init__(self, shards: Sequence[range], batch_size: int, world: World) -> None:
        self._shards, self._batch_size = shards, batch_size
        self._counter = call_on_first(world, lambda: f"shards taken {new_nonce()}")
        # The store in which the ranks have found each other counts for all of them.
        self._store = dist.distributed_c10d._get_default_store() if world.control is not None else dist.HashStore()  # noqa: SLF001 - no public way to it
        self._key = f"{self._counter} for {world.dp_rank}"
        self._leads, self._follows = (
            world.ranks_per_replica > 1 and world.rank == world.replica_ranks[0],
            world.rank != world.replica_ranks[0],
        )
        self._place_number = 0  # of the next place to publish or to read
        self.in_hand: deque[range] = deque()  # taken by this rank, and not done
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of sample numbers for a loader, which may ask for some ahead."""
        while (place := self._next()) < len(self._shards):
            shard = self._shards[place]
            self.in_hand.append(shard)
            self.taken = place + 1
            for begin in range(0, len(shard), self._batch_size):
                yield list(shard[begin : begin + self._batch_size])

    def close(self) -> None:
        """Let no rank take another shard, because a stop was asked for.

        Shards that ranks have taken are not given back.
        """
        self.closed = True
        self._store.add(self._counter, len(self._shards))
        if self._leads:  # or the others might wait for one more
            self._publish(len(self._shards))

    def _next(self) -> int:
        """Take the next shard and return its number, which is too high if none is left.

        Ranks that work on the same samples get the number that the first of them has taken.
        """
        if self._follows:
            place = int(self._store.get(f"{self._key} {self._place_number}"))
            self._place_number += 1
            return place
        place = self._store.add(self._counter, 1) - 1
        if self._leads:
            self._publish(place)
        return place

    def _publish(self, place: int) -> None:
        """Pass the number `place` of a shard to the ranks that work on the same samples."""
        self._store.set(f"{self._key} {self._place_number}", str(place))
        self._place_number += 1


def _answered_shards(
    prediction: Prediction,
    asked: EvaluatedModel,
    queue: Queue,
    world: World,
    stop: StopRequest,
    after_batch: Callable[[], None],
) -> Iterator[tuple[range, list[Line], list[float]]]:
    """Yield (shard, lines, numbers) for each shard that this rank takes from the queue, until none is left.

    For each sample of the shard there is a line, the answer, and a number, of which the mean is reported. In a
    pipeline only ranks with the last stage have them; on the others both lists are empty. If a stop was asked for,
    the shard that is not complete and all further ones are left out. `asked` has the model, and `after_batch` is called
    after each batch.
    """
    settings, size = prediction.settings, prediction.batch_size
    meets = settings.strategy in SHARDS or world.ranks_per_replica > 1
    batches = _fetched(prediction, queue, stop)
    if meets:
        batches = _in_step(batches, prediction.dataset, world)
    precision = torch.autocast(
        world.device.type,
        torch.bfloat16,
        enabled=settings.precision == "bf16",
        cache_enabled=settings.strategy not in SHARDS,  # or all blocks would be there at once after all
    )
    ask: Callable[[Any], Any] = partial(prediction.answer, asked.module)
    if asked.pipeline is not None:
        ask = partial(Piped(asked.pipeline).answered, prediction.answer)
    lines: list[Line] = []
    values: list[float] = []
    done = 0
    for batch, counts in batches:
        with torch.no_grad(), precision:
            some, their_values = ask(placed(batch, world.device)) or ([], [])
        after_batch()
        if not counts:
            continue
        lines += some
        values += their_values
        done += size
        if done >= len(queue.in_hand[0]):
            yield queue.in_hand.popleft(), lines, values
            lines, values, done = [], [], 0


def _fetched(prediction: Prediction, queue: Queue, stop: StopRequest) -> Iterator[tuple[Any, bool]]:
    """Yield (batch, True) for each of this rank's batches, whose samples `queue` chooses.

    End, and close the queue, if a stop was asked for. True says that the batch's results count. `_in_step` adds batches
    with False, whose results are dropped: a rank without samples computes them so that the ranks that wait for it can
    go on.
    """
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
    """Yield batches until all ranks are done, for a model whose forward pass all ranks do together.

    It yields the pairs (batch, True) of `batches`, and (batch, False) for a filler: a batch of `dataset` that a rank
    without one of its own computes in vain, so that the other ranks can go on.

    Ranks that share one copy of the model need equal batches. If one of these ranks has no more, because it was asked
    to stop, the others that share its copy drop their remaining batches.
    """
    filler: tuple[Any, bool] | None = None
    together = world.replica_ranks
    while True:
        batch = next(batches, None)
        there = gathered(batch is not None, world)
        if not any(there):
            return
        if not all(there[rank] for rank in together):
            batches = iter(())
            batch = filler = filler or (next(iter(DataLoader(dataset, generator=torch.Generator()))), False)
        if batch is not None:
            yield batch


def _on_its_mesh(world: World, settings: Settings) -> World:
    """Return the world divided by the mesh of the training's settings: pipeline stages, tensor-parallel ranks.

    Raises BadSettings if that mesh does not fit the number of ranks.
    """
    try:
        return on_mesh(world, settings.mesh)
    except BadSettings as error:
        raise BadSettings(
            f"{error}\nhint: ranks share the model as in the training: start as many, or give another --mesh, or none"
        ) from error


def _with_checkpoints(wanted: Path) -> Path:
    """Return the folder of checkpoints that `wanted` names: itself, or the parent of a checkpoint or of FOLDER/best."""
    folder, _ = named_best(wanted)
    return folder.parent if parse_folder_name(folder.name) else folder


def _sharing(settings: Settings) -> StrategySettings:
    """Return the settings by which a prediction divides the model over ranks, taken from those of the training.

    These are the strategy, the mesh, and what belongs to sharding and pipelines if they are used. The training's
    precision is not among them, so weights stay in fp32 and equal those of a single rank.
    """
    names: tuple[str, ...] = ("strategy",)
    if settings.strategy in SHARDS:
        names += ("shard_size", "by_parts", "offload", "blocks", "units")
    if settings.mesh:
        names += ("mesh", "blocks")
    if mesh_of(settings.mesh).get("pp", 1) > 1:
        names += ("pp_schedule", "pp_cut")
    return StrategySettings(**{name: getattr(settings, name) for name in names})


def _length(dataset: Any) -> int:
    """Return the number of samples. Raises BadSettings if it is 0."""
    count = len(dataset)
    if not count:
        raise BadSettings("--predict: expected at least one sample, got none")
    return count


def _digest(asked: EvaluatedModel, device: torch.device) -> str:
    """Return a digest of the model's weights, gathered tensor by tensor on the device; all ranks call it."""
    digest = xxhash.xxh3_128()
    for name, value in _whole_values(asked, device):
        digest.update(name.encode())
        digest.update(bytes_of(value.cpu().reshape(-1).view(torch.uint8)))
    return digest.hexdigest()


def _whole_values(asked: EvaluatedModel, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield, on every rank, the name and the whole value of each parameter and saved buffer; all ranks call it.

    If the model is cut into a pipeline, only parameters are yielded.
    """
    module, pipeline = asked.module, asked.pipeline
    if pipeline is None:
        for name, value in sorted(module.state_dict().items()):
            if isinstance(value, Tensor):
                yield name, _whole(value.detach(), device)
        return
    first_names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in sorted(module.named_parameters(remove_duplicate=False)):
        yield name, pipeline.whole(first_names[id(parameter)], parameter)


def _whole(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor, which may be divided over ranks, as a whole, gathered on the device; all ranks call it."""
    if not isinstance(value, DTensor):
        return value
    there: Any = value.to(device)
    whole: Tensor = there.full_tensor()
    return whole


def _say(world: World, text: str) -> None:
    """Print a line on rank 0."""
    if world.is_first:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
