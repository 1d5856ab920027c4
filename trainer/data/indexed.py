"""Batches of a data set with a length and indices, from any position of any epoch."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from trainer.data.fetch import Collate, Fetch, Job
from trainer.data.fetchers import Fetchers, Fetching, in_turn, start_fetchers
from trainer.data.order import Batch, Sharing, epoch_order, micro_batches, steps_in
from trainer.errors import BadSettings


class Indexed:
    """A source of batches with a computed order for every epoch, so that it can begin at any position at once."""

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None,
        sharing: Sharing,
        fetching: Fetching,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        fillers: bool = True,
    ) -> None:
        self._length = len(dataset)
        self.steps_per_epoch: int | None = steps_in(self._length, sharing.batch_size, drop_last=drop_last)
        if not self.steps_per_epoch:
            least = sharing.batch_size if drop_last else 1
            raise BadSettings(f"data: expected a data set of {least} samples or more, got {self._length}")
        self._dataset, self._sharing, self._fetching = dataset, sharing, fetching
        self._seed, self._shuffle, self._drop_last, self._fillers = seed, shuffle, drop_last, fillers
        self._fetch = Fetch(dataset, collate, seed=seed, rank=sharing.rank)
        self._fetchers: Fetchers | None = None

    def place(self, _epoch: int, done: int) -> int:
        """Return the position from which the epoch continues: always `done`, the number of its samples that are over.

        The sources of streams have this method too, and may have to begin the epoch again.
        """
        return done

    def batches(self, epoch: int, done: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches of the epoch after the first `done` samples, counted over all ranks."""
        self._fetchers = self._fetchers or start_fetchers(lambda _: self._fetch, self._fetching, self._dataset)
        world_size = self._sharing.world_size
        answers = in_turn(self._fetchers, self._jobs(epoch, done), self._fetching.ahead)
        with closing(self._fetching.pin(answers)) as pinned:
            for job, data in pinned:
                micro, samples = job.micro, job.samples
                whole = micro.stop - micro.start
                indices = tuple(job.indices) if samples else ()
                yield Batch(data, samples, samples * world_size / whole, micro.hi == micro.stop, whole, indices)

    def state_dict(self) -> dict[str, Any]:
        """Return what decides the order of an epoch: `length` (of the data), `shuffle` and `seed`.

        They must not change in the middle of an epoch.
        """
        return {"length": self._length, "shuffle": self._shuffle, "seed": self._seed}

    def shared(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of `state`, as `state_dict` returned it, that all ranks share: all of it."""
        return state

    def count_done(self, done: int) -> int:
        """Return at which sample of the epoch to continue once its first `done` samples, over all ranks, were used.

        That is `done`, but with `drop_last` the length of the epoch, so that it is over, if fewer samples are left than
        one step needs.
        """
        least = self._sharing.batch_size if self._drop_last else 1
        return self._length if self._length - done < least else done

    def load_state_dict(self, state: dict[str, Any], epoch: int, done: int) -> int:
        """Check a saved state, as `state_dict` returned it, against the present settings.

        `done` is how many samples of `epoch`, over all ranks, were done when it was saved; return how many count as
        done now: `done`, or all if that epoch was over. Raises BadSettings if the length, seed or shuffling has changed
        in the middle of an epoch.
        """
        if done >= state["length"]:
            return self._length  # that epoch is over, whatever the next ones are like
        now = self.state_dict()
        for name in now if done else ():
            if state[name] != now[name]:
                raise BadSettings(
                    f"data: saved in the middle of epoch {epoch} with {name} {state[name]}, got {now[name]}\n"
                    f"hint: keep the {name} until an epoch is over; another one changes which samples are left"
                )
        return done

    def close(self) -> None:
        """End the worker processes."""
        if self._fetchers is not None:
            self._fetchers.end()
        self._fetchers = None

    def _jobs(self, epoch: int, done: int) -> Iterator[Job]:
        """Yield a Job for each micro-batch of the epoch after its first `done` samples, with this rank's samples of it.

        For a micro-batch in which this rank has none, the Job has one sample as a filler, which does not count, if this
        object was made with `fillers`; else there is no Job.
        """
        order = epoch_order(self._length, self._seed, epoch, shuffle=self._shuffle)
        for micro in micro_batches(done, self._length, self._sharing, drop_last=self._drop_last):
            own = self._sharing.share(micro.lo, micro.hi)
            if own:
                yield Job(order[own.start : own.stop : own.step].tolist(), len(own), epoch, micro)
            elif self._fillers:
                yield Job([int(order[micro.lo])], 0, epoch, micro)
