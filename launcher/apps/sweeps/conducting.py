"""Conduct one round of a sweep: read trials and their runs, decide, act. Every action can be repeated after a kill.
Below, `entries` are the trials as Optuna's journal has them, `trials` the same with the state of their runs, and
`views` has the state of each run by its id.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from launcher.apps.sweeps.decide import (
    Aim,
    CancelTrial,
    EndSweep,
    Next,
    NextTrial,
    PromoteTrial,
    ReviveTrial,
    StartTrial,
    TellTrial,
    TrialRun,
    TrialView,
    is_cancelled,
    is_paused,
    next_actions,
    why_no_more,
)
from launcher.apps.sweeps.folder import SweepDir, SweepOrder, SweepRecord, SweepState, TrialNote, Wanted
from launcher.apps.sweeps.trial_book import FAILED, OPEN, BookedTrial, TrialBook
from launcher.apps.sweeps.trial_runs import NotYet, Trials, run_id_of
from launcher.errors import BadInput, LaunchError, said_by_the_system
from launcher.run.durable import readable, write_record
from launcher.run.patience import say

_BEGINS = StartTrial | NextTrial | ReviveTrial | PromoteTrial
_RETRY_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # after a cluster refused a trial or did not answer


@dataclass(slots=True)
class _RetryDelay:
    """The delay after an action has failed: trials are created, started or continued again at the Unix time `until`,
    later the more `failures` there were in a row. `said` is the last error.
    """

    failures: int = 0
    until: float = 0.0
    said: str = ""

    def failed(self, now: float, said: str) -> None:
        """Record the error `said` of a failed action at the Unix time `now`, and set the time of the next try."""
        self.until = now + _RETRY_S[min(self.failures, len(_RETRY_S) - 1)]
        self.failures += 1
        self.said = said


@dataclass(slots=True)
class Round:
    """A round of the conductor, the process that conducts a sweep: each `go` reads the state of all trials once, and
    acts. `record` has the sweep's settings, `book` its trials in Optuna's journal, and `runs` the operations on
    their runs. Its state is on disk, except `patience` (when to try again after a failed action) and the run that will
    be started next.
    """

    sweep: SweepDir
    record: SweepRecord
    book: TrialBook
    runs: Trials
    clock: Callable[[], float] = time.time
    patience: _RetryDelay = field(default_factory=_RetryDelay)
    _next: str = ""  # the run that will be started next

    def go(self) -> tuple[bool, bool]:
        """Read the state of all trials once, and act; return (whether anything was done, whether the sweep is over).

        Unless the sweep is over, the caller calls this again after a pause, which is longer while nothing is done.
        """
        entries = self._chosen(self.book.entries())
        views = self.runs.look([one.run for one in entries if one.state == OPEN])
        self._report(entries, views)
        entries = self.book.entries()
        asked = self._asked()
        aim = self._aim(*asked)
        trials = [_view(one, views) for one in entries]
        found = next_actions(trials, aim)
        if self.clock() < self.patience.until:
            found = [one for one in found if not isinstance(one, _BEGINS)]
        done = self._do(found, {one.number: one for one in entries})
        self._next = self._next_run_id(aim, trials)
        self._clear_order(aim, trials)
        end = next((one for one in found if isinstance(one, EndSweep)), None)
        self._write_state(end)
        # Who asks for more now finds that the sweep has ended, and starts another conductor; who did before is heard.
        return done, end is not None and self._asked() == asked

    def _chosen(self, entries: Sequence[BookedTrial]) -> list[BookedTrial]:
        """Return all trials, after choosing values for those that were created before a kill and have none."""
        half = [one for one in entries if one.state == OPEN and not one.run]
        for one in half:
            self.book.choose(one.number, run_id_of(self.record.id, one.number))
        return self.book.entries() if half else [*entries]

    def _report(self, entries: Sequence[BookedTrial], views: Mapping[str, TrialRun]) -> None:
        """Report to Optuna the metric's values since the last report, for each open trial that may be stopped early. A
        trial whose run goes on is then marked to be stopped if Optuna finds it worse than others.
        """
        if self.record.options.stop.early == "none":
            return
        for one in entries:
            if one.state == OPEN and one.pruned_at is None and one.run in views and not one.extension:
                seen = -1 if one.last_step is None else one.last_step
                news = [(step, value) for step, value in self.runs.reports(one.run) if step > seen]
                self.book.report(one.number, news, may_prune=not views[one.run].state.ended)

    def _clear_order(self, aim: Aim, trials: Sequence[TrialView]) -> None:
        """Remove the user's order to resume (`aim.reviving`) once every trial whose run was cancelled has resumed, so
        that a trial that is cancelled later stays cancelled.

        A trial that the sweep itself has paused at a rung, a step at which only the best go on, does not count.
        """
        if aim.reviving and not any(is_cancelled(one) and not is_paused(one, aim) for one in trials):
            self.sweep.order.unlink(missing_ok=True)

    def _asked(self) -> tuple[Wanted | None, SweepOrder | None]:
        """Return (how many trials the user wants in total, the user's last order: to stop the sweep or to resume it);
        each is None if it was not recorded.
        """
        return readable(self.sweep.wanted, Wanted), readable(self.sweep.order, SweepOrder)

    def _aim(self, wanted: Wanted | None, order: SweepOrder | None) -> Aim:
        """Return the settings of the sweep as they are now: its options, whether it still has time, and what the user
        has ordered.

        `wanted` is how many trials the user wants (None: no number was given), and `order` the user's last order to
        stop or resume the sweep (None: there was none).
        """
        options = self.record.options
        limit_s, stop = options.budget.time_s, options.stop
        return Aim(
            trials=wanted.trials if wanted is not None else 0,
            parallel=options.parallel,
            failures=options.failures,
            metric=options.metric,
            in_time=limit_s is None or self.clock() < self.record.began_at + limit_s,
            stopping=order is not None and order.stop,
            reviving=order is not None and not order.stop,
            factor=stop.factor if stop.early == "asha" else None,
        )

    def _do(self, actions: Sequence[Next], entries: dict[int, BookedTrial]) -> bool:
        """Carry out the actions in order. Return whether the next round is to follow at once: whether an action was
        carried out, other than to cancel a trial or end the sweep, or one failed.

        After an error the remaining actions are left out, and no trial is created, started or continued for a while. A
        spec that cannot run only fails its trial. An action for which it is too early (NotYet) is skipped.
        """
        done = False
        for action in actions:
            try:
                self._carry_out(action, entries)
            except NotYet:
                continue
            except BadInput as error:
                if not isinstance(action, StartTrial | ReviveTrial):
                    raise
                if isinstance(action, ReviveTrial) and not entries[action.number].extension:
                    raise
                self.book.tell(action.number, None, pruned=False, why=str(error))
            except (LaunchError, OSError) as error:
                said = said_by_the_system(error) if isinstance(error, OSError) else str(error)
                say(f"to be tried again: {action}: {said}")
                self.patience.failed(self.clock(), said)
                return True
            else:
                if isinstance(action, StartTrial | ReviveTrial):
                    self.patience = _RetryDelay()
            done = done or not isinstance(action, CancelTrial | EndSweep)
        return done

    def _carry_out(self, action: Next, entries: dict[int, BookedTrial]) -> None:
        """Carry out one action: record a decision about a trial in the journal, or start, cancel or continue a trial's
        run. EndSweep does nothing here, as the caller ends the sweep. `entries` has the trials by number.
        """
        match action:
            case NextTrial():
                number = self.book.ask()
                self.book.choose(number, run_id_of(self.record.id, number))
            case StartTrial(number):
                self.runs.start(entries[number].run, entries[number].overrides)
            case CancelTrial(number):
                self.runs.cancel(entries[number].run)
            case ReviveTrial(number):
                self.runs.revive(entries[number].run, entries[number].extension)
            case PromoteTrial(number, after):
                self.book.promote(number, after)
            case TellTrial(number, value, pruned, why):
                self.book.tell(number, value, pruned=pruned, why=why)
            case EndSweep():
                return
            case _:
                assert_never(action)

    def _next_run_id(self, aim: Aim, trials: Sequence[TrialView]) -> str:
        """Return the id of the next trial's run, so that processes for it can start in advance. Return "" if an
        existing trial has to be started first, or if by the settings `aim` no further trial will start.
        """
        there = not any(one.open and one.run is None for one in trials)
        return run_id_of(self.record.id, len(trials)) if there and not why_no_more(trials, aim) else ""

    def make_ready(self) -> None:
        """Have the cluster start processes in advance for the run that will be started next, if that is known."""
        if self._next:
            self.runs.expect(self._next)

    def _write_state(self, end: EndSweep | None) -> None:
        """Write the sweep's state if it has changed.

        `end` is the action that ends the sweep, or None while it goes on.
        """
        halving = self.record.options.stop.early == "asha"
        notes = tuple(_note(one, halving=halving) for one in self.book.entries())
        message = end.message if end is not None else self.patience.said
        said = SweepState(end.state if end is not None else "running", message, notes, self.clock())
        before = readable(self.sweep.state, SweepState)
        if before is None or (before.state, before.message, before.trials) != (said.state, said.message, said.trials):
            write_record(self.sweep.state, said)


def _view(one: BookedTrial, views: Mapping[str, TrialRun]) -> TrialView:
    """Return a trial with the state of its run, from which the next actions are chosen; `views` has the states of runs
    by id.
    """
    return TrialView(
        one.number,
        one.state == OPEN,
        one.state == FAILED,
        one.why,
        one.pruned_at is not None,
        one.rung,
        one.goes_on_after,
        views.get(one.run),
    )


def _note(one: BookedTrial, *, halving: bool) -> TrialNote:
    """Return a trial as it is shown to the user.

    With `halving`, one that was stopped early is `paused`, because it may resume.
    """
    state = "paused" if halving and one.state == OPEN and one.pruned_at is not None else one.state
    return TrialNote(one.number, state, one.run, one.params, one.value, one.last_step, one.why)
