"""Batches of a stream, read in one of three ways: whole by every rank, in canonical shards, or as it splits itself.

The data set decides (`_kind`). A stream that is read whole is shared: every rank keeps its own part. Canonical shards
have a fixed number and are dealt to the ranks. A stream that shards itself gives each rank and worker samples of its
own.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any, Protocol

from trainer.data.canonical import Canonical
from trainer.data.fetchers import Fetchers, Fetching, in_turn, start_fetchers
from trainer.data.iterable import (
    Part,
    Place,
    Reading,
    ShardReader,
    SharedReader,
    Step,
    Turns,
    has_shards,
    keeps_its_place,
    shards_itself,
)
from trainer.data.order import Batch, steps_in
from trainer.data.step_agreement import StepAgreement
from trainer.errors import BadSettings

log = logging.getLogger("trainer")


class Steps(Protocol):
    """The interface of the steps of one kind of stream; a step's `state` is the position after it.

    A position (`after`) is of a type of its own for each kind; None is the beginning of the epoch.
    """

    def start_fetchers(self, epoch: int, done: int, after: Any) -> Fetchers:
        """Start the processes that read the stream from the position `after` on, and return them for `read`.

        With None they begin at the start of the epoch. `done` counts the samples of the epoch that are over.
        """

    def read(self, fetchers: Fetchers, epoch: int, after: Any) -> Generator[Step, None, None]:
        """Yield the steps of the epoch from the position `after`.

        `fetchers` are the running readers, which `start_fetchers` has returned for the same position.
        """

    def saved(self, after: Any) -> Any:
        """Return the position `after`, such as a step's `state`, as plain values for a checkpoint.

        The method `loaded` makes a position of them again.
        """

    def loaded(self, saved: Any, epoch: int, done: int) -> Any:
        """Return the position from plain values that the method `saved` returned, to go on with `epoch` there.

        `done` counts the samples of the epoch that are over. The result is None if the epoch begins again.
        """


class Shared:
    """Steps of a stream that every rank reads whole: one reader a rank, which keeps its rank's part of each step."""

    def __init__(self, reading: Reading, fetching: Fetching) -> None:
        self._reading, self._fetching = reading, fetching

    def start_fetchers(self, epoch: int, done: int, after: Place | None) -> Fetchers:
        """Start this rank's one reader, in a worker process or, without workers, in this process.

        `read` gets its steps, beginning after the one that had the position `after`; None: at the beginning of the
        stream. `done` counts the samples of the epoch that earlier steps have used.
        """
        place = Place(epoch, done, after.state, after.ended and done > 0) if after else Place(epoch, done)
        return start_fetchers(
            lambda _: SharedReader(self._reading, place), self._fetching, self._reading.dataset, most=1
        )

    def read(self, fetchers: Fetchers, epoch: int, _after: Place | None) -> Generator[Step, None, None]:
        """Yield the steps of the epoch, each with the position after it.

        The one reader in `fetchers` was started at `_after`, which is not needed here.
        """
        for _, step in in_turn(fetchers, repeat(epoch), self._fetching.ahead):
            yield replace(step, state=Place(state=step.state, ended=step.ended))

    def saved(self, after: Place | None) -> Any:
        """Return `after`, the reader's position after a step, as plain values for a checkpoint; None stays None."""
        return after and {"state": after.state, "ended": after.ended}

    def loaded(self, saved: Any, _epoch: int, _done: int) -> Place | None:
        """Return the position from plain values that the method `saved` returned; None, the beginning, stays None."""
        return saved and Place(state=saved["state"], ended=saved["ended"])


class Sharded:
    """Steps of a stream that gives each rank and worker its own samples: one reader in each worker, read in turn."""

    def __init__(self, reading: Reading, fetching: Fetching) -> None:
        self._reading, self._fetching = reading, fetching
        self._readers = max(1, fetching.workers)

    def start_fetchers(self, epoch: int, _done: int, after: Turns | None) -> Fetchers:
        """Start a reader in each worker, at its position in `after`; None: at the beginning of the epoch.

        The number of samples that all ranks have used of the epoch (`_done`) is not needed, as each position has its
        own count.
        """
        turns = after or self._turns(epoch)
        return start_fetchers(
            lambda number: ShardReader(self._reading, turns.places[number], number),
            self._fetching,
            self._reading.dataset,
        )

    def read(self, fetchers: Fetchers, epoch: int, after: Turns | None) -> Generator[Step, None, None]:
        """Yield this rank's steps of the epoch, asking the readers in turn.

        Once no reader has samples left it yields steps without any for ever, as other ranks may still have some.
        `after` has the readers' positions to begin at, the same with which `start_fetchers` was called; None: the
        beginning of the epoch.
        """
        turns = after or self._turns(epoch)
        if turns.places[0].epoch != epoch:
            turns = turns.at_epoch(epoch)
        fetchers.forget()
        for reader in set(range(self._readers)) - turns.ended:
            for _ in range(max(1, self._fetching.ahead)):
                fetchers.ask(reader, epoch)
        while (whose := turns.next_reader()) is not None:
            step: Step = fetchers.take(whose)
            turns = turns.after(whose, step)
            if not step.ended:
                fetchers.ask(whose, epoch)
            if step.parts:
                yield replace(step, state=turns)
        while True:  # others may still have some
            yield Step((), 0, turns)

    def saved(self, after: Turns | None) -> Any:
        """Return `after`, all readers' positions after a step, as plain values for a checkpoint; None stays None."""
        if after is None:
            return None
        readers = [{"epoch": place.epoch, "done": place.done, "state": place.state} for place in after.places]
        return {**self._reader_numbers(), "readers": readers, "turn": after.turn, "ended": sorted(after.ended)}

    def loaded(self, saved: Any, epoch: int, done: int) -> Turns | None:
        """Return the readers' positions from the plain values that the method `saved` returned.

        Returns None, to begin the epoch again, if no positions were saved, or if the training had another number of
        ranks or workers then, or this rank another number. Raises BadSettings instead if that is so in the middle of an
        epoch (`done`, the number of samples that are over, is not 0) and the stream can save its position.
        """
        if saved is None:
            return None
        now = {
            name: number for name, number in self._reader_numbers().items() if name in saved
        }  # no rank in what all share
        who = {name: saved[name] for name in now}
        if who != now and done and keeps_its_place(self._reading.dataset):
            was, is_now = (", ".join(f"{name} {number}" for name, number in some.items()) for some in (who, now))
            raise BadSettings(
                f"data: in the middle of epoch {epoch} a stream that shards itself continues only as it was saved: "
                f"expected {was}, got {is_now}\n"
                "hint: continue with as many ranks and workers as before until the epoch is over"
            )
        if who != now or "readers" not in saved:
            return None
        places = (Place(reader["epoch"], reader["done"], reader["state"]) for reader in saved["readers"])
        return Turns(tuple(places), saved["turn"], frozenset(saved["ended"]))

    def _turns(self, epoch: int) -> Turns:
        """Return the state at the beginning of an epoch: every reader at its start, the first reader to be asked."""
        return Turns(tuple(Place(epoch) for _ in range(self._readers)))

    def _reader_numbers(self) -> dict[str, int]:
        """Return the numbers that decide which samples a reader gets.

        They are by name `rank`, `world_size` and `readers_of_rank` (how many each rank has); saved positions fit no
        others.
        """
        sharing = self._reading.sharing
        return {"rank": sharing.rank, "world_size": sharing.world_size, "readers_of_rank": self._readers}


class Streamed:
    """The batches of a training whose data is a stream, read in whichever of the three ways suits the data set.

    Canonical shards are a fixed number of parts, which are dealt to the ranks. Reading continues at a saved position or
    begins an epoch.
    """

    def __init__(self, reading: Reading, fetching: Fetching, agreement: StepAgreement) -> None:
        self._reading, self._fetching, self._step_agreement = reading, fetching, agreement
        self._how: Steps = _kind(reading.dataset)(reading, fetching)
        self.steps_per_epoch = _steps_per_epoch(reading)
        self._fetchers: Fetchers | None = None
        self._steps: Generator[Step, None, None] | None = None
        self._step: Step | None = None  # read, and not yet consumed
        self._after: Any = None  # the last consumed step: where to go on
        self._fillers: tuple[Part, ...] = ()

    def place(self, epoch: int, done: int) -> int:
        """Return the position from which the epoch continues, as the number of its samples that were used before.

        It is `done`, or 0, with a warning, if the stream cannot restore its position and begins the epoch again.
        """
        if not done or self._steps is not None or keeps_its_place(self._reading.dataset):
            return done
        log.warning(
            "data: epoch %d starts again: %s cannot restore its position", epoch, type(self._reading.dataset).__name__
        )
        self._after = None
        return 0

    def batches(self, epoch: int, done: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches of the rest of the epoch, of which all ranks together have used `done` samples."""
        if self._steps is None:
            self._fetchers = self._fetchers or self._how.start_fetchers(epoch, done, self._after)
            self._steps = self._fetching.pin(self._how.read(self._fetchers, epoch, self._after))
        while True:
            step = self._step = self._step or self._next(self._steps)
            if not step.samples:
                break
            for part in step.parts:
                ends_step = part is step.parts[-1]
                if ends_step:
                    self._step, self._after = None, step.state
                scale = part.samples * self._reading.sharing.world_size / step.samples
                yield Batch(part.data, part.samples, scale, ends_step, step.samples, ())
        self._step, self._after = None, step.state
        self._close_steps()

    def state_dict(self) -> dict[str, Any]:
        """Return {"stream": position after the last complete step} as plain values.

        The position is None until a step is complete, unless one was restored.
        """
        return {"stream": self._how.saved(self._after)}

    def shared(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `state`, as `state_dict` returned it, that all ranks share.

        It is for a stream that shards itself, and says how many ranks there were, and readers of each rank. The rest is
        a rank's own position in the stream, which is of no use to another number of ranks or readers.
        """
        stream = state["stream"]
        return {"stream": stream and {name: stream[name] for name in ("world_size", "readers_of_rank")}}

    def count_done(self, done: int) -> int:
        """Return `done`, the samples of the epoch that are over, without rounding it up to the epoch's length.

        Other sources round it up if the rest is too small for a step; a stream's end is known only once it is reached.
        """
        return done  # whether there is more of a stream is known only when it is read on

    def load_state_dict(self, state: dict[str, Any], epoch: int, done: int) -> int:
        """Restore the position in `state`, as `state_dict` returned it after `done` samples of `epoch`; return `done`.

        Other sources return another number if less or more of the epoch counts as done now.
        """
        self.close()
        self._after = self._how.loaded(state["stream"], epoch, done)
        return done

    def rewind(self) -> None:
        """Read the stream from its beginning with the next call of `batches`."""
        self.close()
        self._after = None

    def close(self) -> None:
        """End the worker processes, and drop the step that was read but not consumed.

        A later call of `batches` reads this step again.
        """
        if self._fetchers is not None:
            self._fetchers.end()
        self._fetchers = self._step = None
        self._close_steps()

    def _next(self, steps: Generator[Step, None, None]) -> Step:
        """Return the next of `steps`, with the number of samples of all ranks as its `samples`; all ranks call it.

        If this rank has no samples left while other ranks have some, the step has fillers: the batches of its last
        step, with 0 samples, so that they do not count. After an error the stream is closed.
        """
        try:
            step = next(steps)
            able = bool(step.parts or self._fillers)
            samples = self._step_agreement.samples(step.samples, able=able, source="its part of the stream")
        except BaseException:
            self.close()  # what was read is lost: go on from the last state
            raise
        if step.parts:
            self._fillers = tuple(Part(part.data, 0) for part in step.parts)
        return replace(step, parts=step.parts or self._fillers, samples=samples)

    def _close_steps(self) -> None:
        """Close the generator of steps that is being read, if there is one."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None


def _kind(dataset: Any) -> Callable[[Reading, Fetching], Steps]:
    """Return the class of Steps for this data set.

    It is Canonical if the data set has a fixed number of shards, Sharded if it shards itself over ranks and workers,
    else Shared.
    """
    if has_shards(dataset):
        return Canonical
    return Sharded if shards_itself(dataset) else Shared


def _steps_per_epoch(reading: Reading) -> int | None:
    """Return the number of steps in an epoch, or None if the stream has no length, or only that of one rank's part.

    The latter is assumed of a data set that has shards or splits itself.
    """
    dataset = reading.dataset
    if has_shards(dataset) or shards_itself(dataset) or not hasattr(dataset, "__len__"):
        return None  # the length of one part does not give that of the others
    return steps_in(len(dataset), reading.sharing.batch_size, drop_last=reading.drop_last)
