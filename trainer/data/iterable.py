"""Read streams step by step: each rank reads all of a shared one, or its own part of one that shards itself.

A shared stream is read whole by every rank, which keeps its own part. All ranks draw the same random numbers while they
read, so all see the same stream, and the state after a step is the same on any number of ranks or workers. A stream
that shards itself differs by rank and worker, and so do its states.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, default_collate

from trainer.data.order import Sharing
from trainer.data.pinning import pinned
from trainer.data.seeds import seed_draws

Collate = Callable[[list[Any]], Any]

# What the generators are seeded for, beside the place in the epoch.
_OPENING, _READING, _COLLATING = range(3)


class Part(NamedTuple):
    """The data of one micro-batch on this rank; `samples` is 0 for a filler, a batch that does not count."""

    data: Any
    samples: int  # 0: a filler


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one step that a reader took from its stream; without parts the stream has ended.

    `parts` has one entry for each micro-batch of this rank. `samples` counts the whole step if all ranks share the
    stream, else those of this rank. `state` is the data set's own state after the step, None if it cannot save any.
    `ended`: the stream ended in this step, and `state` may be of the next epoch.
    """

    parts: tuple[Part, ...]  # one for each micro-batch of this rank
    samples: int  # of the whole step, if the stream is shared; else those of this rank
    state: Any  # of the data set after it; None if it cannot tell
    ended: bool = False  # whether the stream was seen to end; its state may speak of the next epoch already

    def pin_memory(self) -> "Step":
        """Return a copy of the step with its tensors in page-locked memory, from which GPUs copy faster."""
        return replace(self, parts=pinned(self.parts))


@dataclass(frozen=True, slots=True)
class Place:
    """The position at which a reader begins.

    `done` counts the epoch's samples, or this reader's steps for a stream that shards itself. `state` is the data set's
    own state (None: it has none, or is at its beginning). `ended`: the stream has ended for this epoch.
    """

    epoch: int = 0
    done: int = 0  # samples of the epoch, or for a sharding stream this reader's steps
    state: Any = None  # of the data set; None: it has none, or begins
    ended: bool = False  # the stream has ended for this epoch


@dataclass(frozen=True, slots=True)
class Reading:
    """The settings that all readers of a stream have in common.

    `collate` makes a batch of a list of samples (None: torch's default). `drop_last` leaves out a last step with too
    few samples.
    """

    dataset: Any
    sharing: Sharing  # how a step's samples are divided over ranks and micro-batches
    seed: int  # of the random numbers that are drawn in reading and collating
    collate: Collate | None = None
    drop_last: bool = False

    def into_batch(self, items: list[Any]) -> Any:
        """Return the items collated into one batch, by `collate` or, without it, by torch's default."""
        return (self.collate or default_collate)(items)


def is_iterable(dataset: Any) -> bool:
    """Return whether the data set is a stream.

    Streams are a torch IterableDataset, an object that can be iterated and has no `__getitem__`, and one with canonical
    shards, that is with a method `read_shard`.
    """
    return (
        isinstance(dataset, IterableDataset)
        or has_shards(dataset)
        or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"))
    )


def has_shards(dataset: Any) -> bool:
    """Return whether the data set has canonical shards, that is a method `read_shard`.

    Such a stream is divided into as many shards as its attribute `shards` tells, whatever the number of ranks.
    """
    return callable(getattr(dataset, "read_shard", None))


def shards_itself(dataset: Any) -> bool:
    """Return whether the stream gives each rank and worker its own samples: its attribute `shards_itself` is True.

    The attribute does not count for a stream in canonical shards, which has a method `read_shard` and the same parts on
    any number of ranks.
    """
    return bool(getattr(dataset, "shards_itself", False)) and not has_shards(dataset)


def keeps_its_place(dataset: Any) -> bool:
    """Return whether the data set can save and restore its position (state_dict and load_state_dict)."""
    return has_shards(dataset) or all(
        callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict")
    )


@dataclass(slots=True)
class _Stream:
    """The data set's iterator over several epochs, which begins at the saved position `place`.

    Before each step the random generators are seeded by all of `seeds` together, the epoch and `done`, so that the
    random numbers of a step do not depend on where reading began.
    """

    dataset: Any
    place: Place
    seeds: tuple[int, ...]
    epoch: int | None = None  # the current one; None: not begun
    done: int = 0  # what was read of the epoch: samples, or steps of a stream that shards itself
    _items: Iterator[Any] | None = None
    _loaded: bool = False  # the state was loaded, and nothing was read since
    _may_be_at_end: bool = False  # the loaded state may be the end of the epoch before: if nothing comes, begin again

    @property
    def ended(self) -> bool:
        """Whether the stream has ended for this epoch."""
        return self._items is None

    def enter(self, epoch: int) -> None:
        """Go to this epoch: to the saved position if it is in this epoch, else to the stream's beginning.

        Nothing is done if it is the current epoch.
        """
        if epoch == self.epoch:
            return
        first = self.epoch is None
        begun = first and epoch == self.place.epoch
        self.epoch, self.done = epoch, self.place.done if begun else 0
        if callable(getattr(self.dataset, "set_epoch", None)):
            self.dataset.set_epoch(epoch)
        if first and self.place.state is not None:
            self.dataset.load_state_dict(copy.deepcopy(self.place.state))
            self._loaded = True
        if begun and self.place.ended:
            return
        self._may_be_at_end = self._loaded and self.done == 0
        self._loaded = False
        self._open()

    def next_items(self) -> Iterator[Any]:
        """Yield items for the current step, until the caller has enough or the stream ends for this epoch.

        The random generators are seeded for the step first, so that what the data set draws does not depend on where a
        training was resumed.
        """
        if self._items is None:
            return
        self._seed_for_reading()
        fresh = self._may_be_at_end
        self._may_be_at_end = False
        for item in self._items:
            fresh = False
            yield item
        if fresh:
            self._open()
            self._seed_for_reading()
            for item in self._items:  # not `yield from`: that would close the stream with each step
                yield item
        self._items = None

    def state(self) -> Any:
        """Return a copy of the data set's own state, or None if it has none."""
        return copy.deepcopy(self.dataset.state_dict()) if keeps_its_place(self.dataset) else None

    def _open(self) -> None:
        """Seed the random generators, and get a new iterator from the data set.

        It begins at the position that the data set has loaded, if it has loaded one, else at the beginning.
        """
        seed_draws(*self.seeds, self.epoch or 0, _OPENING)
        self._items = iter(self.dataset)

    def _seed_for_reading(self) -> None:
        """Seed Python's, NumPy's and torch's generators for the next step, alike wherever a training was resumed.

        The seed is made of `seeds`, the epoch and `done`, the number of samples or steps of the epoch read so far.
        """
        seed_draws(*self.seeds, self.epoch or 0, _READING, self.done)


class SharedReader:
    """A function of an epoch's number that reads the epoch's next step from a stream which all ranks read whole.

    It returns this rank's share of the step's samples. Once no samples are left, or with `drop_last` too few, it
    returns a step without any, marked as `ended`.
    """

    def __init__(self, reading: Reading, place: Place) -> None:
        self._reading = reading
        self._stream = _Stream(reading.dataset, place, (reading.seed,))

    def __call__(self, epoch: int) -> Step:
        stream, sharing = self._stream, self._reading.sharing
        stream.enter(epoch)
        start = stream.done
        own: dict[int, Any] = {}
        first: Any = None  # of the step: fills the place of a rank that has no sample
        stop = start
        for item in islice(stream.next_items(), sharing.batch_size):
            if stop == start:
                first = item
            if stop % sharing.world_size == sharing.rank:
                own[stop] = item
            stop += 1
        if stop == start or (self._reading.drop_last and stop - start < sharing.batch_size):
            return Step((), 0, stream.state(), ended=True)
        stream.done = stop
        state = stream.state()
        parts = []
        for number, (lo, hi) in enumerate(sharing.micro_batches(start, stop)):
            items = [own[position] for position in sharing.share(lo, hi)]
            seed_draws(self._reading.seed, epoch, _COLLATING, start, number, sharing.rank)
            parts.append(Part(self._reading.into_batch(items or [first]), len(items)))
        return Step(tuple(parts), stop - start, state, stream.ended)


class ShardReader:
    """A function of an epoch that returns its next step, from a stream that gives each rank and worker its own samples.

    Once no samples are left, or with `drop_last` too few, it returns a step without any, marked as `ended`.
    """

    def __init__(self, reading: Reading, place: Place, worker: int) -> None:
        self._reading = reading
        self._seeds = (reading.seed, reading.sharing.rank, worker)
        self._stream = _Stream(reading.dataset, place, self._seeds)
        whole = reading.sharing.micro_batches(0, reading.sharing.batch_size)
        self._shares = [len(reading.sharing.share(lo, hi)) for lo, hi in whole]

    def __call__(self, epoch: int) -> Step:
        stream = self._stream
        stream.enter(epoch)
        items = list(islice(stream.next_items(), sum(self._shares)))
        if not items or (self._reading.drop_last and len(items) < sum(self._shares)):
            return Step((), 0, stream.state(), ended=True)
        start = stream.done
        stream.done += 1
        state = stream.state()
        parts, left = [], iter(items)
        for number, share in enumerate(self._shares):
            some = list(islice(left, share))
            seed_draws(*self._seeds, epoch, _COLLATING, start, number)
            parts.append(Part(self._reading.into_batch(some or items[:1]), len(some)))
        return Step(tuple(parts), len(items), state, stream.ended)


@dataclass(frozen=True, slots=True)
class Turns:
    """How far each of a rank's readers has read its own part of a stream, and which one to ask for the next step.

    Readers are numbered from 0, one per worker. `places` has the position of each, `turn` is the number of the reader
    to ask next, and `ended` has those whose stream has ended in this epoch.
    """

    places: tuple[Place, ...]  # by reader
    turn: int = 0  # the reader that is next
    ended: frozenset[int] = frozenset()  # in this epoch

    def after(self, reader: int, step: Step) -> "Turns":
        """Return the positions after the reader `reader` has given `step`, with the following one to ask next.

        A step that has no `parts`, one for each micro-batch, only says that the reader's stream has ended, and does not
        count as one of its steps.
        """
        done = self.places[reader].done + (1 if step.parts else 0)
        place = replace(self.places[reader], done=done, state=step.state)
        places = (*self.places[:reader], place, *self.places[reader + 1 :])
        ended = self.ended | {reader} if step.ended else self.ended
        return Turns(places, (reader + 1) % len(places), ended)

    def next_reader(self) -> int | None:
        """Return the number of the reader to ask next: from `turn` on, the first whose stream has not ended.

        The last reader is followed by the first. Returns None if all streams have ended.
        """
        size = len(self.places)
        return next((n % size for n in range(self.turn, self.turn + size) if n % size not in self.ended), None)

    def at_epoch(self, epoch: int) -> "Turns":
        """Return the same readers at the beginning of an epoch."""
        return Turns(tuple(Place(epoch, 0, place.state) for place in self.places))
