"""Queue inputs, compute them in batches on workers, and cache the answers. The workers of one checkpoint are a group; a
worker that dies is replaced, and another group takes over for a newer checkpoint.

```
ask ─► cache? ─► Batcher ──batch──► an idle worker ──► answers to all clients that wait, and into the cache
```
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from launcher.apps.serving.batching import AnswerCache, Batcher, BatchPace, Key, WantedAnswer
from launcher.apps.serving.figures import ServingFigures, ServingState, exposition
from launcher.apps.serving.input_schema import Inputs
from launcher.apps.serving.processes import (
    Answer,
    Loaded,
    NotBegun,
    NotLoaded,
    ServingWorker,
    WorkerLost,
    WorkerPool,
    WorkerPoolLost,
)
from launcher.apps.serving.what_is_served import Served
from launcher.errors import Refused
from trainer.checkpoint_files.catalog import Entry

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # between two starts of a worker that never answered anything
_LOOK_EVERY_S = 1.0
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Limits and sizes of a model's server: up to `batch` inputs are computed together, for which the first waits up
    to `wait_s`; up to `cache` answers are kept for `cache_s`; `queue` inputs may be without an answer, and further
    requests are refused; `timeout_s` limits a request, and a batch; `watch` loads newer checkpoints.
    """

    workers: int = 2  # processes that compute
    batch: int = 32
    wait_s: float = 0.005
    cache: int = 10_000
    cache_s: float = 3600.0
    queue: int = 1024
    timeout_s: float = 30.0  # of a request; and of a batch, whose worker is then killed
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Computed:
    """An answer as JSON, the step of the checkpoint that computed it, and whether it came from the cache."""

    json: bytes
    step: int | None  # None: the model was served without a checkpoint
    cached: bool = False


class Overloaded(Exception):
    """Raised if too many inputs wait; the client may retry after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many requests wait; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class InputRefused(Exception):
    """Raised if the service refuses an input that fits its schema, with the field and the reason."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field, self.why = field, why


class PredictFailed(Exception):
    """Raised if the service's `predict` raised an exception for an input."""


class TookTooLong(Exception):
    """Raised if an input was not answered within the time limit."""


AnswerFuture = asyncio.Future[Computed]


def pause_s(failures: int) -> float:
    """Return the seconds to wait before a worker is restarted, after `failures` failures in a row without an answer."""
    return 0.0 if failures == 0 else min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)


class Engine:
    """The part of the server that answers inputs, with workers, a queue and a cache, in one event loop."""

    def __init__(self, served: Served, options: ServingOptions, say: Callable[[str], None]) -> None:
        self._served, self.options = served, options
        self.say = say
        self._batcher: Batcher[AnswerFuture] = Batcher(options.batch, options.wait_s, options.queue)
        self._cache = AnswerCache(options.cache, options.cache_s)
        self._pace = BatchPace()
        self._idle: deque[ServingWorker] = deque()
        self._group: WorkerGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.figures = ServingFigures()
        self.inputs = Inputs({})

    # -- its life

    async def start(self) -> None:
        """Start the workers and wait until all are ready; raise LaunchError if no checkpoint can be loaded."""
        self._take_over(await self._first_whole(self._served.choices() or [None]))
        if self.loaded.unfit:
            self.say(f"note: each worker loads the model itself, which takes longer: {self.loaded.unfit}")
        if self.options.watch:
            self._spawn(self._watch())

    async def _first_whole(self, choices: "Sequence[Entry | None]") -> "WorkerGroup":
        """Start and return workers for the first of the checkpoints in `choices`; one that is damaged is skipped, with
        a warning.

        With None, the service loads without a checkpoint. Raise NotLoaded if the last one is damaged, or any cannot be
        loaded for another reason.
        """
        for choice in choices:
            try:
                return await WorkerGroup.assembled(self, self._served, self.options, choice, None)
            except NotLoaded as error:
                if not error.damaged or choice is choices[-1]:
                    raise
                self.say(f"warning: passed over: {error}")
        raise AssertionError("there is at least one choice")

    async def close(self) -> None:
        """Stop all tasks and end the workers at once, without waiting for the batches that they compute.

        Inputs without an answer get none any more, so the HTTP server has to end before.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._group is not None:
            await self._group.dismiss(at_once=True)

    @property
    def loaded(self) -> Loaded:
        """The report of the present workers on the model that they loaded, such as the schemas of input and output;
        raise Refused if no model is loaded yet.
        """
        return self._working.loaded

    @property
    def step(self) -> int | None:
        """The step of the checkpoint of the present workers, or None if they have no checkpoint."""
        return self._working.step

    @property
    def ready(self) -> int:
        """The number of workers of the group that answers now; raise Refused if no model is loaded yet."""
        return len(self._working.workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers of the group that answers now; raise Refused if no model is loaded yet."""
        return sorted(worker.pid for worker in self._working.workers)

    def exposition(self) -> str:
        """Return the server's metrics as OpenMetrics text."""
        state = ServingState(
            self._served.run, self.step, self.ready, len(self._idle), self._batcher.waiting, self._batcher.shared,
            len(self._cache), self._cache.hits, self._cache.misses,
        )  # fmt: skip
        return exposition(self.figures, state)

    # -- answering

    async def ask(self, inputs: Sequence[Any]) -> list[Computed]:
        """Return the answers to the inputs, in their order, from the cache or from workers.

        Raise Overloaded at once if too many wait, TookTooLong if some are not answered in time, else the error of the
        first input that failed: WorkerLost, PredictFailed or InputRefused.
        """
        now = asyncio.get_running_loop().time()
        keyed = [_keyed(one) for one in inputs]
        kept = [self._cache.get(key, now) for key, _ in keyed] if self.options.cache else [None] * len(keyed)
        missing = sum(one is None for one in kept)
        if missing and not self._batcher.takes(missing):
            self.figures.refused += 1
            raise Overloaded(self._pace.retry_after_s(self._batcher.waiting, self.ready))
        found = [
            self._future(key, payload, now) if one is None else one
            for (key, payload), one in zip(keyed, kept, strict=True)
        ]
        self._pump()
        return await self._answers(keyed, found) if missing else [self._from_cache(one) for one in found]

    async def _answers(
        self, keyed: Sequence[tuple[Key, bytes]], found: "Sequence[AnswerFuture | bytes]"
    ) -> list[Computed]:
        """Return the answers once all have come; raise the first error, or TookTooLong after the time limit.

        For each input `keyed` has its key and encoding, and `found` a future or a cached answer, in the same order.
        """
        futures = [(key, one) for (key, _), one in zip(keyed, found, strict=True) if not isinstance(one, bytes)]
        try:
            await asyncio.wait([one for _, one in futures], timeout=self.options.timeout_s)
            if not all(one.done() for _, one in futures):
                raise TookTooLong(f"not answered within {self.options.timeout_s:g} s")
            answered = [self._from_cache(one) if isinstance(one, bytes) else one for one in found]
            return [one if isinstance(one, Computed) else one.result() for one in answered]
        finally:
            for key, future in futures:
                if not future.done():
                    self._batcher.withdraw(key, future)
                elif not future.cancelled():
                    future.exception()  # of several that failed one is told; the others are known all the same

    def _future(self, key: Key, payload: bytes, now: float) -> AnswerFuture:
        """Put an input, encoded as `payload`, into the queue at time `now`, and return the future of its answer; inputs
        with the same `key` are equal and computed once.
        """
        future: AnswerFuture = asyncio.get_running_loop().create_future()
        self._batcher.ask(key, payload, future, now)
        return future

    def _from_cache(self, answer: Any) -> Computed:
        """Return the cached `answer`, encoded as JSON, in the form of a computed one: with the step of the present
        workers' checkpoint, and marked as cached.
        """
        return Computed(answer, self.step, cached=True)

    def _pump(self) -> None:
        """Give idle workers the batches that are due: those that are full, or whose first input has waited for the
        `wait_s` of the options. If a worker stays idle, schedule the next call for the time when the next batch is due.
        """
        loop = asyncio.get_running_loop()
        while self._idle and (batch := self._batcher.take(loop.time())):
            self._spawn(self._run(self._idle.popleft(), batch))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._batcher.due_at()
        if self._idle and due is not None:
            self._timer = loop.call_at(due, self._pump)

    async def _run(self, worker: ServingWorker, batch: Sequence[WantedAnswer[AnswerFuture]]) -> None:
        """Have a worker compute a batch, and pass the answers to the clients.

        If the worker ended before it read the batch, queue the batch again; if it ended later, the clients get
        WorkerLost.
        """
        loop = asyncio.get_running_loop()
        began, step = loop.time(), worker.step
        try:
            answers = await worker.compute([wanted.payload for wanted in batch], self.options.timeout_s)
        except NotBegun:
            self._batcher.put_back(batch)
            self._pump()
            return
        except WorkerLost as error:
            self.figures.lost_workers += 1
            self._batcher.settle(batch)
            for future in _waiting(batch):
                future.set_exception(error)
            return
        took = loop.time() - began
        self._pace.took(took, len(batch))
        self.figures.batch(len(batch), took)
        self._batcher.settle(batch)
        for wanted, answer in zip(batch, answers, strict=True):
            self._settle(wanted, answer, step, loop.time())
        self.free(worker)

    def _settle(self, wanted: WantedAnswer[AnswerFuture], answer: Answer, step: int | None, now: float) -> None:
        """Pass the answer or error for one input to all clients that wait for it. `step` is that of the checkpoint that
        computed it. An answer is cached, at time `now`, unless another checkpoint has taken over; an error is not.
        """
        if "json" in answer and step == self.step:  # answers of a group that was replaced meanwhile are not cached
            self._cache.put(wanted.key, answer["json"], now)
        for future in _waiting([wanted]):
            if "json" in answer:
                future.set_result(Computed(answer["json"], step))
            elif "field" in answer:
                future.set_exception(InputRefused(answer["field"], answer["why"]))
            else:
                future.set_exception(PredictFailed(answer["error"]))

    # -- workers

    def free(self, worker: ServingWorker) -> None:
        """Record that a worker is idle and give it its next batch, as soon as there is one, or close it if its group
        was dismissed.
        """
        if worker.retired:
            worker.close()
        elif not worker.gone.is_set():
            self._idle.append(worker)
            self._pump()

    def left(self, worker: ServingWorker) -> None:
        """Remove a worker from the idle ones, so that it gets no batch any more; do nothing if it is not idle. It has
        ended, or another group has taken over from its group.
        """
        with suppress(ValueError):
            self._idle.remove(worker)

    @property
    def _working(self) -> "WorkerGroup":
        """The group of workers that answers now; raise Refused if there is none yet."""
        if self._group is None:
            raise Refused("no model is loaded")
        return self._group

    def _take_over(self, group: "WorkerGroup") -> None:
        """Let a new group answer from now on, with an empty cache; the old one finishes the batches that its workers
        have, and is ended.
        """
        old, self._group = self._group, group
        self.inputs = Inputs(group.loaded.input)
        self._cache.clear()
        if old is not None:
            for worker in old.workers:
                self.left(worker)
            self._spawn(old.dismiss())
        for worker in group.workers:
            self.free(worker)

    async def _watch(self) -> None:
        """Look again and again for the newest checkpoint, or the best one if the server serves the best. If it is not
        the one that is served, start a group of workers with it, which takes over.

        A checkpoint that cannot be loaded is reported, and not tried again.
        """
        refused: set[str] = set()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            choice = next(iter(self._served.choices()), None)
            if choice is None or _folder_name(choice) in refused | {self._working.name}:
                continue
            try:
                group = await WorkerGroup.assembled(self, self._served, self.options, choice, self._working)
            except (NotLoaded, WorkerPoolLost, WorkerLost) as error:
                self.say(f"warning: {_folder_name(choice)} is passed over: {error}")
                refused.add(_folder_name(choice))
                continue
            self._take_over(group)
            self.figures.takeovers += 1
            self.say(f"{_folder_name(choice)} answers now")

    def _spawn(self, work: Any) -> None:
        """Run a coroutine in the background, until `close` cancels it; its result is not used."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class WorkerGroup:
    """The workers that compute with one checkpoint, and the pool that forks them. A worker that dies is replaced until
    the group is dismissed.
    """

    loaded: Loaded  # what the pool reported of the model: its schemas, and whether it can be forked

    def __init__(self, engine: Engine, served: Served, options: ServingOptions, choice: Entry | None) -> None:
        self._engine, self._served, self._options = engine, served, options
        self._choice = choice
        self.name = _folder_name(choice)
        self.step = None if choice is None else choice.step
        self.workers: set[ServingWorker] = set()
        self._pool: WorkerPool | None = None
        self._started: list[WorkerPool] = []
        self._changing = asyncio.Lock()
        self._slots: list[asyncio.Task[None]] = []
        self._failures = 0
        self._working = False

    @classmethod
    async def assembled(
        cls, engine: Engine, served: Served, options: ServingOptions, choice: Entry | None, before: "WorkerGroup | None"
    ) -> "WorkerGroup":
        """Start a group of workers for the checkpoint `choice` (None: the service loads without one), and return it
        once all are ready.

        `before` is the group that answers now (None: there is none), which goes on. If its pool lives and can be
        forked, the new pool is a fork of that, else a new process. Raise NotLoaded if the checkpoint cannot be loaded.
        """
        group = cls(engine, served, options, choice)
        try:
            await group._load(before)
            started = await asyncio.gather(*(group._new_worker(number) for number in range(options.workers)))
        except BaseException:
            await group.dismiss(at_once=True)
            raise
        group._working = True
        group._slots = [asyncio.create_task(group._replace_ended(worker, n)) for n, worker in enumerate(started)]
        return group

    async def dismiss(self, *, at_once: bool = False) -> None:
        """Let each worker finish the batch that it computes, then end the workers and their pool; with `at_once`, end
        them now, in the middle of a batch. Return once all have ended. Inputs that wait stay in the service's queue.
        """
        self._working = False
        for slot in self._slots:
            slot.cancel()
        for worker in [*self.workers]:
            worker.retired = True
            if at_once or not worker.busy:
                worker.close()
        await asyncio.gather(*(worker.gone.wait() for worker in [*self.workers]))
        if self._pool is not None:
            self._pool.close()
        await asyncio.gather(*(pool.wait_until_ended() for pool in self._started))

    async def _load(self, before: "WorkerGroup | None" = None) -> None:
        """Start a pool that has loaded the checkpoint: as a fork of the pool of `before` if that lives and can be
        forked, else as a new process. Raise NotLoaded if the checkpoint cannot be loaded.
        """
        where = str(self._served.checkpoints if self._choice is None else self._choice.path)
        parent = before._pool if before is not None and not before.loaded.unfit else None  # noqa: SLF001 - one of us
        if parent is not None and not parent.ended.is_set():
            with suppress(OSError):
                self._pool, self.loaded = await parent.renewed(where)
                return
        self._pool, self.loaded = await WorkerPool.started(self._served, where)
        self._started.append(self._pool)

    async def _new_worker(self, number: int) -> ServingWorker:
        """Start worker `number` and return it: a fork of the pool or, if that cannot fork, a process of its own."""
        async with self._changing:
            if self._pool is None or self._pool.ended.is_set():
                await self._load()
            pool = self._pool
            op = "become" if self.loaded.unfit else "fork"
            if self.loaded.unfit:
                self._pool = None
        assert pool is not None, "it was loaded"  # noqa: S101 - for the type checker
        worker = await pool.worker(op, self._threads(), number, self._left)
        if worker.gone.is_set():
            raise WorkerLost("it ended right after its start")
        worker.step = self.step
        self.workers.add(worker)
        return worker

    def _threads(self) -> int:
        """Return how many threads each worker may use: an equal share of the cores that this process may use, at least
        one.
        """
        return max(1, len(os.sched_getaffinity(0)) // self._options.workers)

    async def _replace_ended(self, worker: ServingWorker, number: int) -> None:
        """Replace worker `number` whenever it ends, until the task is cancelled, as `dismiss` does."""
        while True:
            await worker.gone.wait()
            self._failures = 0 if worker.batches else self._failures + 1
            self._engine.say(f"worker {worker.pid} has ended; another one takes its place")
            worker = await self._replaced(number)
            self._engine.free(worker)

    async def _replaced(self, number: int) -> ServingWorker:
        """Return a new worker `number` in place of one that ended; retry, after pauses, until one starts."""
        while True:
            await asyncio.sleep(pause_s(self._failures))
            try:
                return await self._new_worker(number)
            except (NotLoaded, WorkerPoolLost, WorkerLost) as error:
                self._failures += 1
                self._engine.say(f"warning: no worker could be started: {error}")

    def _left(self, worker: ServingWorker) -> None:
        """Remove a worker that has ended from the group and from the idle ones."""
        self.workers.discard(worker)
        self._engine.left(worker)


def _keyed(one: Any) -> tuple[Key, bytes]:
    """Return (the cache key of an input, its encoding for a worker).

    Equal inputs have equal keys, because fields are in the schema's order, with defaults filled in.
    """
    payload = msgspec.msgpack.encode(one)
    return hashlib.blake2b(payload, digest_size=_KEY_BYTES).digest(), payload


def _waiting(batch: Sequence[WantedAnswer[AnswerFuture]]) -> list[AnswerFuture]:
    """Return the futures of the clients that still wait for a batch."""
    return [future for wanted in batch for future in wanted.clients if not future.done()]


def _folder_name(choice: Entry | None) -> str:
    """Return the name of a checkpoint's folder, or "" for None."""
    return "" if choice is None else choice.path.name
