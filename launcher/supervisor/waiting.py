"""Hold a run back while it must wait: for the release of a hold, a start time, other runs, its turn among the runs of
one submission (`queue.max_parallel`), or free resources. An awaited event is that another run succeeds, ends or reaches
a step.

Waiter.wait ─┬─ held, too early, behind other runs ─► the reason is in `state.json`, where status and board read it
             ├─ what it waits for cannot happen ────► its end is written
             └─ nothing holds it back ──────────────► `place`: take what the place has, or say what it lacks
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import assert_never

import msgspec

from launcher.errors import Exit, LaunchError, NoSuchRun, Unreachable
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.run import registry
from launcher.run.attempts import newest, read_intent, used_s_of
from launcher.run.durable import readable, write_record
from launcher.run.layout import AttemptDir, BatchDir, RunDir
from launcher.run.records import AttemptEnd, RunState
from launcher.spec.model import Predecessor
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import cancelled, write_end
from launcher.supervisor.wakeup import Wakeup

WAITS_HERE = "one that waits on this machine can: `--on local`"
_AGAIN_S = 20.0  # after a place did not answer


@dataclass(frozen=True, slots=True)
class OtherRun:
    """The present state of another run; `state` is None if its folder was removed."""

    state: State | None
    text: str = ""  # its state and the cause, as text for the user
    step: int | None = None  # the newest that its ranks reported; None: unknown

    @property
    def over(self) -> bool:
        """Return whether the other run has ended or is gone."""
        return self.state is None or self.state.ended


def is_fulfilled(awaited: AwaitedRun, other: OtherRun) -> bool:
    """Return whether the awaited event has happened; a run that succeeded counts as having made all of its steps."""
    match awaited.until:
        case "ended":
            return other.over
        case "step" if other.step is not None and other.step >= awaited.step:
            return True
        case _:
            return other.state is State.SUCCEEDED


def why_impossible(awaited: AwaitedRun, other: OtherRun) -> str:
    """Return why the awaited event cannot happen any more, or "" if it can or has. It cannot once the other run, whose
    present state is `other`, has ended or was removed without it.
    """
    if is_fulfilled(awaited, other) or not other.over:
        return ""
    how = "was taken away" if other.state is None else f"is {other.text}"
    return f"{awaited.run_id}, which it was to follow, {how}"


def waits_for(awaited: AwaitedRun, other: OtherRun) -> str:
    """Return a text such as `waits for bert-7k3f to end (it is running)`, for an event in the other run that this run
    waits for.
    """
    wanted = {"ended": "to end", "step": f"to come to step {awaited.step}"}.get(awaited.until, "to succeed")
    match other.state:
        case State.RUNNING if awaited.until == "step" and other.step is not None:
            how = f"at step {other.step}"
        case None:
            how = "gone"
        case (
            State.QUEUED | State.STARTING | State.RUNNING | State.REGROUPING | State.UNKNOWN
            | State.SUCCEEDED | State.FAILED | State.INTERRUPTED | State.CANCELLED | State.LOST
        ):  # fmt: skip
            how = f"it is {other.text}"
        case _:
            assert_never(other.state)
    return f"waits for {awaited.run_id} {wanted} ({how})"


def has_happened(one: AwaitedRun) -> bool:
    """Return whether the awaited event has certainly happened, by the other run's folder on this machine: the run has
    succeeded or, if only its end is awaited, ended in any way.

    A run that has reached an awaited step but has not succeeded counts as not there yet.
    """
    state = ended_as(one)
    return state is State.SUCCEEDED or (state is not None and one.until == "ended")


def ended_as(one: AwaitedRun) -> State | None:
    """Return the state in which the awaited run ended. Return None if it has not ended, has been resumed since, or has
    no readable record of its state.
    """
    run = RunDir(Path(one.run_dir))
    said, attempt = readable(run.state, RunState), newest(run)
    resumed = said is not None and attempt is not None and attempt.number > said.attempt
    return said.state if said is not None and said.state.ended and not resumed else None


def awaited_by(after: Sequence[Predecessor]) -> tuple[tuple[AwaitedRun, ...], list[Misfit]]:
    """Return (the runs that a new run is to wait for, one problem for each that does not exist). `after` are the runs
    that its spec names in `queue.after`, by id, name or `last`.
    """
    found, problems = list[AwaitedRun](), list[Misfit]()
    for index, one in enumerate(after):
        try:
            run_id, path = registry.find(one.run)
        except NoSuchRun as error:
            problems.append(not_followed(index, error))
        else:
            found.append(AwaitedRun(run_id, str(path), one.until, one.step))
    return tuple(found), problems


def not_followed(index: int, error: LaunchError) -> Misfit:
    """Return the problem, for the reason in `error`, that a run cannot wait for the run number `index` in its spec's
    list `queue.after`.
    """
    said, *more = error.lines
    return Misfit(f"queue.after.{index}", said, more[0].removeprefix("hint: ") if more else "")


def record_queued(run: RunDir, attempt: AttemptDir, why: str) -> None:
    """Record in `state.json` that the run waits and why, unless that reason is recorded already or the file does not
    exist. Raise OSError if it cannot be written.
    """
    _write_state(run, attempt, State.QUEUED, why)


def record_starting(run: RunDir, attempt: AttemptDir) -> None:
    """Record in `state.json` that the run no longer waits. Raise OSError if it cannot be written."""
    _write_state(run, attempt, State.STARTING, "starting agents")


def _write_state(run: RunDir, attempt: AttemptDir, state: State, text: str) -> None:
    """Write the state and its message to `state.json`, unless it has them already or does not exist; raise OSError if
    that fails.
    """
    last = readable(run.state, RunState)
    if last is None or (last.attempt, last.state, last.message) == (attempt.number, state, text):
        return
    used_s = used_s_of(run, attempt, last)
    said = msgspec.structs.replace(last, attempt=attempt.number, state=state, message=text, used_s=used_s)
    if last.attempt != attempt.number:  # how the one before ended is not how this one is
        said = msgspec.structs.replace(said, cause=None, exit_code=None, ended_at=None)
    write_record(run.state, msgspec.structs.replace(said, updated_at=time.time()))


class Turn(Enum):
    """The end of a run's wait to start, unless the run itself ended meanwhile: its turn has come, or the wait was
    stopped before.
    """

    COME = auto()  # the run starts
    STOPPED = auto()  # the wait was ended by a request to stop, or because the caller no longer waits


class Waiter:
    """The wait of one attempt before it may start. An awaited event that has happened is not checked again."""

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan, other: Callable[[Path], OtherRun]) -> None:
        self._run, self._attempt, self._plan, self._other = run, attempt, plan, other
        self._hold, self._starts_at, self._awaited = plan.spec.queue.hold, plan.starts_at, [*plan.awaited]
        self._at_once = plan.spec.queue.max_parallel or 0
        self._earlier = _submitted_before(run, attempt) if self._at_once else []
        self.held_back = False  # it has waited for anything but its place
        self.waited = False

    def wait(
        self,
        wakeup: Wakeup,
        *,
        every_s: float,
        place: Callable[[], str] = str,  # lacks nothing
        leaves: Callable[[], bool] = lambda: False,
        at_first: Callable[[], None] | None = None,
    ) -> Turn | AttemptEnd:
        """Check every `every_s` seconds whether the run may start, and return Turn.COME once it may.

        Return Turn.STOPPED once a signal to stop has come (`wakeup.stop_asked`), or if `leaves` returns True after a
        check. If the run cannot
        start, write and return its end. `place` takes the resources that the run needs and returns "", or a text that
        says what is lacking; it is called again later if it raises Unreachable, and any other LaunchError ends the run.
        `at_first` is called once if the run has to wait. Raise Fenced if a newer attempt exists when an end is to be
        written, and OSError if a record cannot be written.
        """
        again_at = 0.0
        while not wakeup.stop_asked:
            try:
                never, reasons = self.check()
                self.held_back = self.held_back or bool(reasons)
                if never:
                    return self._end(cancelled(never))
                why = "; ".join(reasons)
                if not why and time.monotonic() >= again_at:
                    why = place()
                    if not why:
                        return Turn.COME
            except Unreachable as error:
                why, again_at = f"waits for its cluster: {error.lines[0]}", time.monotonic() + _AGAIN_S
            except LaunchError as error:
                fault = Cause.LAUNCHER_FAULT
                return self._end(AttemptEnd(State.FAILED, fault, Exit.LAUNCHER_FAULT, time.time(), str(error)))
            if why:
                record_queued(self._run, self._attempt, why)
            if at_first is not None and not self.waited:
                at_first()
            self.waited = True
            if leaves():
                break
            wakeup.sleep(every_s)
        return Turn.STOPPED

    def check(self) -> tuple[str, list[str]]:
        """Return (why the run's turn can never come, or ""; the reasons why it waits).

        The run may start if both are empty.
        """
        seen = [(one, self._other(Path(one.run_dir))) for one in self._awaited]
        left = [(one, other) for one, other in seen if not is_fulfilled(one, other)]
        self._awaited = [one for one, _ in left]
        never = filter(None, (why_impossible(one, other) for one, other in left))
        reasons = [*self._by_itself(), *(waits_for(one, other) for one, other in left), *self._by_its_number()]
        return "; ".join(never), reasons

    def _end(self, end: AttemptEnd) -> AttemptEnd:
        """Write `end` as the end of the run, which has not started, and return it. Raise Fenced if a newer attempt
        exists, and OSError if it cannot be written.
        """
        write_end(self._run, self._attempt, end, self._plan)
        return end

    def _by_itself(self) -> Iterator[str]:
        """Yield the reasons to wait that lie in the run itself: a hold, or a later start time."""
        if self._hold and not self._attempt.released.exists():
            yield f"held until `launch release {self._run.id}`"
        if self._starts_at is not None and time.time() < self._starts_at:
            yield f"starts at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self._starts_at))}"

    def _by_its_number(self) -> Iterator[str]:
        """Yield one reason to wait if, of the runs that were submitted together with this one, `queue.max_parallel`
        with a lower number than it have not ended; yield none otherwise.
        """
        going = list[Path]()
        for number, path in enumerate(self._earlier):
            if not self._other(path).over:
                going.append(path)
            if len(going) == self._at_once:
                self._earlier = [*going, *self._earlier[number + 1 :]]
                names = ", ".join(one.name for one in going)
                yield f"{self._at_once} of the runs that were submitted with it are running or waiting: {names}"
                return
        self._earlier = going


def _submitted_before(run: RunDir, attempt: AttemptDir) -> list[Path]:
    """Return the folders of the runs before this one in the list of runs that were submitted together as one job, or an
    empty list if this run was submitted alone; raise Damaged if the attempt's record intent.json cannot be read.
    """
    batch = read_intent(attempt).batch
    together = [Path(path) for path in readable(BatchDir(Path(batch)).runs, list[str]) or []] if batch else []
    return together[: together.index(run.path)] if run.path in together else []
