"""Read streams in canonical shards, whose number is fixed; a slot is the position of a sample in an epoch.

Slot p of an epoch is the next sample of shard p % shards, and is empty once that shard has ended. A step is
`batch_size` slots, and a rank reads every world_size-th shard. The samples in a step follow from the shards alone, and
one number, the same on all ranks, is a position from which any number of them can continue.
"""

from collections.abc import Generator, Iterator
from itertools import repeat
from typing import Any

from trainer.data.fetchers import Fetchers, Fetching, in_turn, start_fetchers
from trainer.data.iterable import Part, Reading, Step
from trainer.data.order import Sharing
from trainer.data.seeds import seed_draws, seed_of
from trainer.errors import BadSettings

# What is seeded, beside the place in the epoch.
_SHARD, _READING, _COLLATING = range(10, 13)


class Canonical:
    """Reads the batches of a stream that is divided into canonical shards.

    Each rank has one reader, which reads the rank's shards in turn. The position in an epoch, which a checkpoint
    stores, is the number of the next slot.
    """

    def __init__(self, reading: Reading, fetching: Fetching) -> None:
        self._reading, self._fetching = reading, fetching

    def start_fetchers(self, epoch: int, done: int, after: int | None) -> Fetchers:
        """Start this rank's one reader, in a worker process or in this process, and return it for `read`.

        Its first slot is `after`, the position from a checkpoint: the number of the first slot that was not read yet.
        `done` counts the samples of the epoch that are over. If it is 0, or `after` is None, the reader begins at the
        start of the epoch.
        """
        slot = after or 0 if done else 0
        return start_fetchers(
            lambda _: CanonicalReader(self._reading, epoch, slot), self._fetching, self._reading.dataset, most=1
        )

    def read(self, fetchers: Fetchers, epoch: int, _after: int | None) -> Generator[Step, None, None]:
        """Yield the steps of `epoch` from this rank's reader.

        It begins at the slot that `start_fetchers` was given, so that the position `_after` is not used.
        """
        for _, step in in_turn(fetchers, repeat(epoch), self._fetching.ahead):
            yield step

    def saved(self, after: int | None) -> Any:
        """Return what a checkpoint stores of the position `after`: a dict of it and the number of shards.

        `after` is the number of the next slot; None (no position) and 0 (the start of the epoch) are returned as they
        are.
        """
        return after and {"slot": after, "shards": self._reading.dataset.shards}

    def loaded(self, saved: Any, epoch: int, done: int) -> int | None:
        """Return the position in `epoch`, the number of the next slot, or None to begin the epoch again.

        `saved` is what the method `saved` returned for the checkpoint, and `done` counts the samples of the epoch that
        are over; the epoch begins again if `saved` is None or `done` is 0. Raises BadSettings if the number of shards
        has changed in the middle of an epoch.
        """
        if saved is None or not done:
            return None
        shards = self._reading.dataset.shards
        if saved.get("shards") != shards:
            raise BadSettings(
                f"data: in the middle of epoch {epoch} a stream in shards continues only with as many as it was saved "
                f"with: expected {saved.get('shards', 'another kind of stream')}, got {shards}\n"
                "hint: the number of shards is to stay as it is, whatever the number of ranks"
            )
        return int(saved["slot"])


class CanonicalReader:
    """A reader of this rank's shards: called with an epoch, it returns this rank's part of that epoch's next step.

    Called with another epoch than before, it begins with that epoch's first slot. At the end of an epoch, when its
    shards have no more samples, it returns steps that count 0 samples.
    """

    def __init__(self, reading: Reading, epoch: int, slot: int) -> None:
        self._reading, self._epoch, self._slot = reading, epoch, slot
        self._own = range(reading.sharing.rank, reading.dataset.shards, reading.sharing.world_size)
        self._items: dict[int, Iterator[Any]] = {}  # of the shards that are not at their ends
        self._open(slot)
        self._filler: Any = None

    def __call__(self, epoch: int) -> Step:
        if epoch != self._epoch:
            self._epoch, self._slot = epoch, 0
            self._open(0)
        while True:
            start, self._slot = self._slot, self._slot + self._reading.sharing.batch_size
            own = self._take_slots(start, self._slot)
            if own or not self._items:  # a validation's few slots may be those of others
                break
        return Step(tuple(self._parts(own, start)), len(own), self._slot)

    def _open(self, slot: int) -> None:
        """Open this rank's shards so that the next sample of each is its first at or after `slot` of the epoch.

        First `set_epoch` of the data set, if it has this method, is called with the epoch's number.
        """
        dataset = self._reading.dataset
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(self._epoch)
        self._items = {shard: self._opened(shard, _slots(shard, 0, slot, dataset.shards)) for shard in self._own}

    def _opened(self, shard: int, slots: range) -> Iterator[Any]:
        """Seed the random generators for one shard of this epoch, and return the iterator of its items.

        As many items as `slots` has, which are over, are skipped by the data set's own `read_shard`.
        """
        numbers = (self._reading.seed, self._epoch, _SHARD, shard)
        seed_draws(*numbers)
        return iter(self._reading.dataset.read_shard(shard, start=len(slots), seed=seed_of(*numbers)))

    def _take_slots(self, start: int, stop: int) -> dict[int, Any]:
        """Return this rank's samples in the slots from `start` up to `stop`, by slot.

        The random numbers that a shard draws do not depend on the rank that reads it.
        """
        own: dict[int, Any] = {}
        for shard, items in list(self._items.items()):
            slots = _slots(shard, start, stop, self._reading.dataset.shards)
            seed_draws(self._reading.seed, self._epoch, _READING, shard, start)
            found = dict(zip(slots, items, strict=False))
            if len(found) < len(slots):
                del self._items[shard]
            own |= found
        return own

    def _parts(self, own: dict[int, Any], start: int) -> Iterator[Part]:
        """Yield this rank's part of each micro-batch of the step that begins at slot `start`.

        `own` has this rank's samples by slot. If none of them is in a micro-batch, its part is a filler, a sample that
        is not counted. Nothing is yielded if all shards of the data set are empty.
        """
        reading = self._reading
        if own:
            self._filler = next(iter(own.values()))
        elif self._filler is None:
            self._filler = self._any_item()
        if self._filler is None:
            return
        stop = start + reading.sharing.batch_size
        for number, (lo, hi) in enumerate(reading.sharing.micro_batches(start, stop)):
            items = [own[slot] for slot in range(lo, hi) if slot in own]
            seed_draws(reading.seed, self._epoch, _COLLATING, start, number, reading.sharing.rank)
            yield Part(reading.into_batch(items or [self._filler]), len(items))

    def _any_item(self) -> Any:
        """Return an item for micro-batches without samples: the first of this rank's shards, else of any shard.

        None is returned if all shards are empty.
        """
        shards = (*self._own, *range(self._reading.dataset.shards))
        return next((item for shard in shards for item in self._opened(shard, range(0))), None)


def check_shards(dataset: Any, sharing: Sharing) -> None:
    """Raise BadSettings unless the stream's number of shards is from the number of ranks to the samples of a batch.

    `sharing` has these two limits, as `world_size` and `batch_size`.
    """
    shards = dataset.shards
    if type(shards) is not int or shards < sharing.world_size:
        raise BadSettings(
            f"data: shards: expected at least as many as ranks, {sharing.world_size}, got {shards!r}\n"
            "hint: choose a number that many numbers of ranks divide, as 48"
        )
    if sharing.batch_size < shards:
        raise BadSettings(
            f"data: batch_size: expected at least as much as the stream has shards, {shards}, got {sharing.batch_size}"
        )


def _slots(shard: int, start: int, stop: int, shards: int) -> range:
    """Return the slots from `start` up to `stop` that belong to shard `shard`: every `shards`-th slot.

    Slot p is of shard p % `shards`.
    """
    return range(start + (shard - start) % shards, stop, shards)
