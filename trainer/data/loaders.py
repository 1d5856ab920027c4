"""Batches of a loader that keeps its own position: torchdata's StatefulDataLoader, MosaicML's StreamingDataLoader.

The loader decides what is in a batch and in which order batches come, and its state_dict() has the position. A step is
`accumulate` batches of each rank. None is read ahead, so the state after a step is where to continue.
"""

import copy
import logging
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from trainer.data.iterable import keeps_its_place
from trainer.data.order import Batch, Sharing, steps_in
from trainer.data.seeds import IsolatedDraws, seed_draws
from trainer.data.step_agreement import StepAgreement
from trainer.errors import BadSettings

log = logging.getLogger("trainer")
_OPENING, _READING = range(20, 22)  # what is seeded, beside the place in the epoch
_OF_ONE_RANK = ("RandomSampler", "SequentialSampler")  # torch's and torchdata's: they know of no other ranks
_OF_ALL_RANKS = "sample_in_epoch"  # MosaicML's key: the samples of the epoch that are done, on any ranks


def is_loader(data: Any) -> bool:
    """Return whether `data` gives batches and can save and restore its position in them, judging by its attributes."""
    return keeps_its_place(data) and hasattr(data, "batch_size") and hasattr(data, "dataset")


class LoaderBatches:
    """Gives this rank's batches of a loader that keeps its own position; TrainData, a training's data, reads them."""

    def __init__(self, loader: Any, sharing: Sharing, seed: int, agreement: StepAgreement) -> None:
        _check(loader, sharing)
        self._loader, self._sharing, self._seed, self._step_agreement = loader, sharing, seed, agreement
        self._length = _length(loader)
        self.steps_per_epoch = None if not self._length else steps_in(self._length, sharing.accumulate, drop_last=False)
        self._items: Iterator[Any] | None = None  # of the epoch under way
        self._step: list[Any] | None = None  # read, and not yet given out whole
        self._before: Any = None  # the loader's state before that step
        self._state: Any = None  # where no epoch is under way
        self._loads = False  # whether the loader has to load that state
        self._may_be_at_end = False  # of the epoch before, in which case the next pass is meant
        # A stream's own length may be wrong.
        self._certain = None if isinstance(getattr(loader, "dataset", None), IterableDataset) else self._length
        self._batches_given = 0  # batches of the epoch
        self._ended = False  # whether the loader was seen to have no more
        self._epoch_over = False  # the epoch; what is left of it is nothing
        self._filler: Any = None

    def place(self, _epoch: int, done: int) -> int:
        """Return the position from which the epoch continues: always `done`, the number of its samples that were used.

        Other sources of data return 0 if they have to begin the epoch again; a loader restores its position.
        """
        return done

    def count_done(self, done: int) -> int:
        """Return how many samples of the epoch are over once `done` were used: for a loader the same number."""
        return done

    def batches(self, epoch: int, done: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches of the rest of the epoch, of which all ranks together have used `done` samples.

        Nothing is yielded if the state that was loaded is that of the epoch's end.
        """
        if self._epoch_over:
            self._epoch_over, self._batches_given = False, 0
            return
        if self._items is None:
            self._before, self._items = self._state, self._opened(epoch, done)
        while True:
            step = self._step = self._step or self._read(epoch, done)
            samples = [samples_in(batch) for batch in step]
            able, source = bool(step) or self._filler is not None, f"its {type(self._loader).__name__}"
            total = self._step_agreement.samples(sum(samples), able=able, source=source)
            if not total:
                break
            for batch in self._parts(step, samples, total):
                if batch.ends_step:
                    self._batches_given += len(step)
                    self._step = None
                    done += total
                    if self._sharing.accumulate > 1:  # else nobody asks in the middle of a step
                        self._before = self._state_of_loader()
                yield batch
        self._state, self._items, self._step, self._batches_given, self._ended = (
            self._state_of_loader(),
            None,
            None,
            0,
            False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position after the last complete step."""
        state = self._state
        if self._items is not None:
            state = self._state_of_loader() if self._step is None else self._before
        ended = self._epoch_over or self._ended or (self._certain is not None and self._batches_given >= self._certain)
        of_rank = {"world_size": self._sharing.world_size, "given": self._batches_given, "ended": ended, "state": state}
        return {"loader": of_rank}

    def shared(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `state`, as `state_dict` returned it, that all ranks share.

        That is the number of ranks, how many batches each was given, and whether the epoch ended; and the loader's own
        state, but only if it serves any number of ranks.
        """
        of_rank = state["loader"]
        kept = {name: of_rank[name] for name in ("world_size", "given", "ended")}
        return {"loader": {**kept, "state": of_rank["state"]} if is_of_all_ranks(of_rank["state"]) else kept}

    def load_state_dict(self, state: Mapping[str, Any], epoch: int, done: int) -> int:
        """Restore the position after `done` samples of `epoch` from `state`; return at which sample to continue.

        That is `done`; or 0, and a warning is logged, if the loader saved no position, so that the epoch has to begin
        again. Raises BadSettings if the number of ranks has changed in the middle of an epoch and the loader's position
        is only that of one rank.
        """
        self._items = self._step = None
        saved = state["loader"]
        own, world_size = saved.get("state"), self._sharing.world_size
        self._state, self._loads, self._batches_given, self._ended = own, own is not None, saved["given"], False
        self._epoch_over = bool(done) and saved["ended"]
        if is_of_all_ranks(own) or not done:
            return done
        if saved["world_size"] != world_size:
            if not saved["ended"]:
                raise BadSettings(
                    f"data: in the middle of epoch {epoch} a {type(self._loader).__name__} continues only on as many "
                    f"ranks as it was saved by: expected {saved['world_size']}, got {world_size}\n"
                    "hint: continue with as many ranks as before until the epoch is over"
                )
            self._state, self._loads = None, False
        elif "state" in saved and own is None:  # else the rank's own is still to come
            name = type(self._loader).__name__
            log.warning("data: epoch %d starts again: %s has saved no position", epoch, name)
            self._batches_given = 0
            return 0
        return done

    def close(self) -> None:
        """Drop the loader's iterator, with which its workers end, and keep its position."""
        if self._items is not None:
            self._state, self._loads = self.state_dict()["loader"]["state"], True
        self._items = self._step = None

    def _opened(self, epoch: int, done: int) -> Iterator[Any]:
        """Return a new iterator of the loader, for `epoch`, of which `done` samples are used.

        It continues at the position that `load_state_dict` got, if that was not used yet; else it begins the epoch.
        """
        with IsolatedDraws():
            self._seed_for(_OPENING, epoch, done)
            for part in ("dataset", "sampler", "batch_sampler"):
                if callable(enter := getattr(getattr(self._loader, part, None), "set_epoch", None)):
                    enter(epoch)
            self._may_be_at_end = self._loads and not done
            if self._loads:
                self._loader.load_state_dict(copy.deepcopy(self._state))
                self._loads = False
            return iter(self._loader)

    def _read(self, epoch: int, done: int) -> list[Any]:
        """Return this rank's batches for the next step: as many as a step accumulates, or fewer at the end of an epoch.

        While they are read, the random generators are seeded by `epoch` and `done`, the number of its samples that were
        read before.
        """
        step = self._next_batches(epoch, done)
        if self._may_be_at_end and not step:
            self._items = self._opened(epoch, done)
            step = self._next_batches(epoch, done)
        self._may_be_at_end = False
        self._ended = len(step) < self._sharing.accumulate
        return step

    def _next_batches(self, epoch: int, done: int) -> list[Any]:
        """Return this rank's next batches: as many as a step accumulates, or fewer at the end of an epoch.

        While they are read, the random generators are seeded by `epoch` and `done`, the number of samples of it that
        were read before.
        """
        with IsolatedDraws():
            self._seed_for(_READING, epoch, done)
            # Not `or`: an iterator of a DataLoader has a length, which it may not know.
            return [] if self._items is None else list(islice(self._items, self._sharing.accumulate))

    def _parts(self, step: list[Any], samples: list[int], total: int) -> Iterator[Batch]:
        """Yield this rank's batches of a step, those in `step`; with several ranks always as many as `accumulate`.

        Every rank has to do the same number of passes. If `step` has fewer batches, its first, or that of an earlier
        step, is yielded again with 0 samples, so that it does not count.

        `samples` has the number of samples in each batch of `step`, and `total` is that of the step over all ranks.
        """
        sharing = self._sharing
        parts = list(zip(step, samples, strict=True))
        if step:
            self._filler = step[0]
        if sharing.world_size > 1:
            parts += [(self._filler, 0)] * (sharing.accumulate - len(parts))
        for number, (data, count) in enumerate(parts, 1):
            yield Batch(data, count, count * sharing.world_size / total, number == len(parts), total, ())

    def _seed_for(self, what: int, epoch: int, done: int) -> None:
        """Seed the generators for this rank at the position after `done` samples of `epoch`.

        `what` is a number that differs between opening the loader and reading it.
        """
        seed_draws(self._seed, epoch, what, done, self._sharing.rank)

    def _state_of_loader(self) -> Any:
        """Return a copy of the loader's own state."""
        return copy.deepcopy(self._loader.state_dict())


def is_of_all_ranks(state: Any) -> bool:
    """Return whether the loader's state serves any number of ranks: it counts the samples of all, as MosaicML's."""
    return isinstance(state, Mapping) and _OF_ALL_RANKS in state


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the length of the first tensor in it.

    A list of numbers or texts counts as a tensor. Raises BadSettings for a batch without any.
    """
    if shape := getattr(batch, "shape", None):
        return int(shape[0])
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    first = next(iter(parts), None)
    if first is None:
        raise BadSettings(f"data: expected a batch with tensors in it, got {type(batch).__name__}")
    return len(parts) if isinstance(first, (str, bytes, int, float)) else samples_in(first)


def _length(loader: Any) -> int | None:
    """Return the loader's number of batches, or None if its length is unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _check(loader: Any, sharing: Sharing) -> None:
    """Raise BadSettings if the loader cannot give the ranks their shares of each step.

    Its batches must add up to `batch_size` over all ranks and micro-batches, and with several ranks its sampler must
    not be one that gives every rank all samples.
    """
    name, world_size, own = type(loader).__name__, sharing.world_size, loader.batch_size
    if own is not None and (expected := own * sharing.accumulate * world_size) != sharing.batch_size:
        raise BadSettings(
            f"data: batch_size: expected {expected} with a {name} of {own} samples a batch, {world_size} ranks and "
            f"accumulate {sharing.accumulate}, got {sharing.batch_size}"
        )
    sampler = type(getattr(loader, "sampler", None)).__name__
    if world_size > 1 and sampler in _OF_ONE_RANK:
        raise BadSettings(
            f"data: with {world_size} ranks expected a {name} that gives each its own samples, got one with "
            f"{sampler}, by which each would train on all\n"
            "hint: sampler=DistributedSampler(dataset), or torchdata's StatefulDistributedSampler"
        )
