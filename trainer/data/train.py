"""Yield a rank's micro-batches, epoch after epoch, from a position that can be saved and restored."""

import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from trainer.data.canonical import check_shards
from trainer.data.fetch import Collate
from trainer.data.fetchers import Fetching
from trainer.data.indexed import Indexed
from trainer.data.iterable import Reading, has_shards, is_iterable, keeps_its_place, shards_itself
from trainer.data.loaders import LoaderBatches, is_loader
from trainer.data.order import Batch, Sharing
from trainer.data.step_agreement import StepAgreement
from trainer.data.streamed import Streamed
from trainer.errors import BadSettings, TrainerError

log = logging.getLogger("trainer")


class TrainData:
    """The batches of this rank, epoch after epoch; (seed, epoch) alone decide the order of an epoch.

    `batch_size` counts the samples of one optimizer step over all ranks and micro-batches, so that neither the number
    of ranks nor `accumulate` changes the training.

    The position (`state_dict`) is the same on all ranks, unless `per_rank`: a stream that shards itself has its own on
    each rank, of which `SharedPlace` saves what is equal on all. With several ranks such a stream, or one in canonical
    shards, also needs `sum_over_ranks`, which adds up a number of each rank; it is called once a step to learn whether
    any rank has samples left.

    In place of a data set, `dataset` may be a loader that keeps its own position (loaders.py). Then `shuffle`,
    `drop_last`, `workers`, `prefetch` and `pin_memory` have no effect, `collate` must be None, and the position and
    `sum_over_ranks` are as for a stream that shards itself.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: int = 0,
        collate: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
        sum_over_ranks: Callable[[int], int] | None = None,
    ) -> None:
        sharing = Sharing(batch_size, accumulate, world_size, rank)
        fetching = Fetching(workers, prefetch, pin_memory)
        self.epoch = 0
        self.samples_done = 0  # of the epoch, over all ranks
        self.per_rank = is_loader(dataset) or (is_iterable(dataset) and shards_itself(dataset))
        self._turn = 0
        self._running: Generator[Batch, None, None] | None = None
        self._source: Indexed | Streamed | LoaderBatches
        if is_loader(dataset):
            if collate is not None:
                raise BadSettings("data: collate: expected none beside a loader, which collates by itself")
            self._source = LoaderBatches(
                dataset, sharing, seed, StepAgreement(sharing, _sum_for(sharing, sum_over_ranks))
            )
        elif is_iterable(dataset):
            _refuse_arguments(dataset)
            _warn_of_lost_place(dataset, rank)
            reading = Reading(dataset, sharing, seed, collate, drop_last)
            self._source = Streamed(reading, fetching, _step_agreement(reading, sum_over_ranks))
        else:
            self._source = Indexed(dataset, collate, sharing, fetching, seed=seed, shuffle=shuffle, drop_last=drop_last)

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of optimizer steps in an epoch, or None for a stream of unknown length."""
        return self._source.steps_per_epoch

    def epoch_batches(self) -> Generator[Batch, None, None]:
        """Yield the rest of this epoch's batches, and then add 1 to `epoch`.

        If the generator is closed early, the next call begins after the last optimizer step that was yielded
        completely. Raises TrainerError if the position was changed meanwhile, or if the epoch has no sample.
        """
        self._stop()
        turn = self._turn
        self.samples_done = self._source.place(self.epoch, self.samples_done)
        with closing(self._source.batches(self.epoch, self.samples_done)) as batches:
            self._running = batches
            for batch in batches:
                if batch.ends_step:
                    self.samples_done += batch.step_samples
                yield batch
                if turn != self._turn:
                    raise TrainerError(
                        "data: the position has changed during an epoch\nhint: call epoch_batches() again"
                    )
        if not self.samples_done:
            raise TrainerError(f"data: the stream ended in epoch {self.epoch} before it gave a sample")
        self.epoch += 1
        self.samples_done = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last optimizer step that was yielded completely."""
        done = self._source.count_done(self.samples_done)
        return {"epoch": self.epoch, "samples_done": done, **self._source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that `state_dict` returned, even with other ranks, workers or `accumulate`.

        Raises BadSettings if the position is of other data, or if a stream cannot continue so in the middle of an
        epoch.
        """
        self._stop()
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise BadSettings(f"data: the saved position is of other data: it has no {', '.join(missing)}")
        epoch, done = int(state["epoch"]), int(state["samples_done"])
        self.epoch, self.samples_done = epoch, self._source.load_state_dict(dict(state), epoch, done)

    def shared_state(self) -> dict[str, Any]:
        """Return the part of `state_dict` that is equal on all ranks.

        It has the epoch, how many of its samples are done and, of a stream's or loader's own position, what does not
        differ by rank.
        """
        state = self.state_dict()
        return {**state, **self._source.shared(state)}

    def close(self) -> None:
        """End the worker processes; the next epoch_batches() would start new ones."""
        self._source.close()  # first: a thread that pins may wait for them
        self._stop()

    def _stop(self) -> None:
        """Make generators that `epoch_batches` returned earlier raise an error instead of yielding more batches."""
        self._turn += 1
        if self._running is not None:
            self._running.close()
        self._running = None


class SharedPlace:
    """The part of the position that all ranks share, for data whose position differs by rank.

    For that data `TrainData.per_rank` is True. This part is saved once for all ranks. If the number of ranks changes,
    no rank's own position is useful; then this part says which epoch is next, or that the epoch cannot continue in its
    middle. Load it before the rank's own position.
    """

    def __init__(self, data: TrainData) -> None:
        self._data = data

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the position that all ranks share, such as the epoch."""
        return self._data.shared_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the rank's own position has to be loaded after it."""
        self._data.load_state_dict(state)


def _step_agreement(reading: Reading, sum_over_ranks: Callable[[int], int] | None) -> StepAgreement:
    """Return the object by which ranks agree how many samples a step has.

    `sum_over_ranks` sums a number over all ranks; only streams that several ranks read in parts use it. Raises
    BadSettings if they need it and it is None, or if the stream has too few or too many shards, or the batch too few
    samples for its ranks and micro-batches.
    """
    sharing, dataset = reading.sharing, reading.dataset
    if has_shards(dataset):
        check_shards(dataset, sharing)
    elif not shards_itself(dataset):
        return StepAgreement(sharing, int)
    elif sharing.batch_size < sharing.world_size * sharing.accumulate:
        raise BadSettings(
            f"data: batch_size: expected {sharing.world_size * sharing.accumulate} or more for a stream that shards "
            f"itself (a sample for each rank and micro-batch), got {sharing.batch_size}"
        )
    return StepAgreement(
        sharing, _sum_for(sharing, sum_over_ranks), only_whole=has_shards(dataset) and reading.drop_last
    )


def _sum_for(sharing: Sharing, sum_over_ranks: Callable[[int], int] | None) -> Callable[[int], int]:
    """Return `sum_over_ranks`; for a single rank, return a function that returns its argument.

    Raises BadSettings if there are several ranks and `sum_over_ranks` is None.
    """
    if sharing.world_size == 1:
        return int
    if sum_over_ranks is None:
        raise BadSettings(
            f"data: a stream of which ranks read parts needs sum_over_ranks with {sharing.world_size} ranks: "
            "one may have samples left when another has none"
        )
    return sum_over_ranks


def _refuse_arguments(dataset: Any) -> None:
    """Raise BadSettings for a stream whose state_dict() needs arguments, which only its loader has.

    MosaicML's is such a stream.
    """
    if not keeps_its_place(dataset) or has_shards(dataset):
        return
    wanted = [
        one.name
        for one in inspect.signature(dataset.state_dict).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if wanted:
        name = type(dataset).__name__
        raise BadSettings(
            f"data: state_dict() of {name} wants {', '.join(wanted)}: expected a loader, which knows them\n"
            f"hint: data=StreamingDataLoader(dataset, batch_size=...) where this is MosaicML's"
        )


def _warn_of_lost_place(dataset: Any, rank: int) -> None:
    """Log a warning, on rank 0 only, if `dataset` is a stream that cannot save its position."""
    if rank == 0 and not keeps_its_place(dataset):
        log.warning(
            "data: %s has no state_dict() and load_state_dict(): a resumed run reads its stream from the beginning of "
            "the epoch again, and is not the same as one that was never interrupted",
            type(dataset).__name__,
        )
