"""Judge what a disturbed run proves, from all that is known of it and of the undisturbed one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from launcher.api import Run
from launcher.apps.proof.causes import Evidence, causes_of
from launcher.apps.proof.comparing import compared_rows, compared_states
from launcher.apps.proof.findings import ComparedRun, Judgement, Kill
from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.states import State
from launcher.status.checkpoints import Condition
from launcher.status.derive import RunStatus, exit_code_of
from launcher.status.series import Rows, first_steps, rows_of_ranks
from trainer.metrics_files import files_in, starts_in

Start = tuple[int, int]  # attempt and generation


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, with its reports and checkpoints."""

    status: RunStatus
    rows: Mapping[int, Rows]  # by rank
    checkpoints: Mapping[int, Path]  # by step
    first_steps: Mapping[tuple[int, int], int] = field(default_factory=dict)  # by attempt and generation
    starts: Sequence[int] = ()  # of the trainer: from which steps they went on
    history: Sequence[Event] = ()
    first_saved: int = 0  # the step of its first whole checkpoint, here or elsewhere

    @property
    def took_s(self) -> float:
        """The seconds from the first start to the end."""
        begin, end = self.status.started_at, self.status.ended_at
        return end - begin if begin is not None and end is not None else 0.0

    @property
    def end(self) -> tuple[int | None, str | None]:
        """The last step and the fingerprint of the final state; None for what is not known."""
        return self.status.step, self.status.fingerprint

    @property
    def failure(self) -> str:
        """Why the run did not complete, or "" if it did."""
        if self.status.state is State.SUCCEEDED:
            return ""
        said = self.status.last_word
        return f"{self.status.run} is {self.status.state}" + (f": {said}" if said else "")


def finished(run: Run, status: RunStatus) -> FinishedRun:
    """Return the records of a completed run, after fetching those that are on other machines."""
    run.renew()
    folder = RunDir(run.path)
    whole = [one for one in run.checkpoints() if one.kind == "step" and one.state is Condition.OK]
    return FinishedRun(
        status,
        rows_of_ranks(folder),
        {one.step: Path(one.path) for one in whole if Path(one.path).is_dir()},
        first_steps(folder),
        starts_in(folder.metrics) if files_in(folder.metrics) else (),
        read_lines(folder.events, Event),
        min((one.step for one in whole), default=0),
    )


def judged(
    mode: str, kills: Sequence[Kill], run: FinishedRun, undisturbed: FinishedRun, metrics: Collection[str] = ()
) -> ComparedRun:
    """Compare a disturbed run with the undisturbed one, without looking for causes."""
    status = run.status
    found = ComparedRun(
        mode, status.run, Judgement.UNPROVEN, with_costs(kills, run.history, run.first_steps, run.starts), status.state,
        run.took_s, fingerprint=status.fingerprint, exit_code=exit_code_of(status), why=run.failure,
    )  # fmt: skip
    if run.failure:
        return msgspec.structs.replace(found, verdict=Judgement.FAILED)
    rows = compared_rows(undisturbed.rows, run.rows, metrics)
    alike = rows.first is None and run.end == undisturbed.end
    untouched = min((one.step or 0 for one in kills if not one.missed), default=0)
    states = compared_states(undisturbed.checkpoints, run.checkpoints, untouched=untouched, every=not alike)
    found = msgspec.structs.replace(
        found, steps=len(rows.at), metrics=rows.metrics, checkpoints=states.steps, first=rows.first,
        first_state=states.first, why=states.unread,
    )  # fmt: skip
    if rows.first is not None or states.first is not None:
        return msgspec.structs.replace(found, verdict=Judgement.DIFFERS)
    if not alike:
        why = f"it ended {_end(run)}, the undisturbed run {_end(undisturbed)}"
        return msgspec.structs.replace(found, verdict=Judgement.DIFFERS, why=why)
    why = found.why or _nothing_proven(found, rows.at, undisturbed)
    return msgspec.structs.replace(found, verdict=Judgement.UNPROVEN if why else Judgement.EXACT, why=why)


def _end(run: FinishedRun) -> str:
    """Return where a run ended, and with which fingerprint, as text."""
    step, fingerprint = run.end
    return f"at step {step} with {'no fingerprint' if fingerprint is None else f'fingerprint {fingerprint[:16]}'}"


def _nothing_proven(found: ComparedRun, compared: Collection[int], undisturbed: FinishedRun) -> str:
    """Return why equal results prove nothing, or "" if they do.

    Only what is trained after a restart shows that it has lost nothing.
    """
    if all(one.missed for one in found.kills):
        return f"nothing was hit: {found.kills[0].missed if found.kills else 'no kill was planned'}"
    last = undisturbed.status.step or 0
    from_steps = [one.went_on_from or 0 for one in found.kills if not one.missed]
    if not any(from_steps):
        return "nothing was resumed: it began anew after each kill, as nothing had been saved before"
    first = min(step for step in from_steps if step)
    if first >= last:
        each = "the kill, which" if len(from_steps) == 1 else "any of the kills, which"
        return f"nothing was trained after {each} came after the last of {last} steps"
    if undisturbed.status.fingerprint is None and not any(step > first for step in (*compared, *found.checkpoints)):
        if not compared:
            return "there is nothing to compare: no rank reports a metric that is known to belong to the training"
        return f"there is nothing to compare after step {first}, from which it went on"
    return ""


def with_causes(
    found: ComparedRun,
    run: FinishedRun,
    undisturbed: FinishedRun,
    once_more: FinishedRun | None,
    metrics: Collection[str] = (),
) -> ComparedRun:
    """Add the usual causes of such a difference. `once_more` is a second undisturbed run, or None if it failed."""
    repeats, step = None, None
    if once_more is not None:
        again = compared_rows(undisturbed.rows, once_more.rows, metrics)
        repeats = again.first is None and once_more.end == undisturbed.end
        step = again.first.step if again.first is not None else None
    compared = {*compared_rows(undisturbed.rows, run.rows, metrics).at, *found.checkpoints}
    evidence = Evidence(found.first, found.first_state, found.kills, repeats, bool(found.checkpoints), compared)
    return msgspec.structs.replace(found, causes=causes_of(evidence), again_differs=step)


def with_costs(
    kills: Sequence[Kill], history: Sequence[Event], first_steps: Mapping[Start, int], noted: Sequence[int]
) -> tuple[Kill, ...]:
    """Return the kills with their costs. `first_steps` holds the first step that each start of ranks reported;
    `noted` the steps from which the trainer's starts resumed, in order.
    """
    hits = [one for one in kills if not one.missed]
    known = noted[1:] if len(noted) == len(hits) + 1 else [None for _ in hits]
    found = iter([_with_cost(one, history, first_steps, start) for one, start in zip(hits, known, strict=True)])
    return tuple(one if one.missed else next(found) for one in kills)


def _with_cost(kill: Kill, history: Sequence[Event], first_steps: Mapping[Start, int], noted: int | None) -> Kill:
    hit = (kill.attempt, kill.generation)
    failure = next((one for one in history if one.kind == "failure" and (one.attempt, one.generation) == hit), None)
    trains = next((one for one in history if one.kind == "training" and (one.attempt, one.generation) > hit), None)
    step, checkpoint = kill.step, kill.checkpoint
    if failure is not None:
        step, checkpoint = failure.step or step, failure.checkpoint
    first = next((first_steps[start] for start in sorted(first_steps) if start > hit), None)
    went_on = noted if noted is not None else _went_on_from(first, checkpoint)
    return msgspec.structs.replace(
        kill,
        step=step if step is None else max(step, went_on),
        checkpoint=checkpoint,
        went_on_from=went_on,
        steps_again=None if step is None else max(0, step - went_on),
        next_step_s=None if trains is None else max(0.0, trains.at - kill.at),
    )


def _went_on_from(first: int | None, checkpoint: int | None) -> int:
    """Return the step that a start resumed from, as far as reports show: the one before its first report, or the loaded
    checkpoint's.
    """
    if first is None or first == checkpoint:
        return checkpoint or 0
    return max(0, first - 1)
