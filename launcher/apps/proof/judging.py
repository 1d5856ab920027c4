"""Judge what a disturbed run proves, from the records of it and of the undisturbed run, and name the usual causes of a
difference.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from launcher.api import Run
from launcher.apps.proof.comparing import compared_rows, compared_states, named_in
from launcher.apps.proof.findings import ComparedRun, Departure, Judgement, Kill, StateDeparture
from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.states import State
from launcher.status.checkpoints import Condition
from launcher.status.derive import RunStatus, exit_code_of
from launcher.status.series import Rows, first_steps, rows_of_ranks
from trainer.metrics_files import files_in, starts_in

Start = tuple[int, int]  # attempt and generation
_ROUNDING = 1e-4  # of a number: what another order of a sum makes of it in its first steps


@dataclass(frozen=True, slots=True)
class Evidence:
    """The known facts about a difference between a run that was disturbed by kills and an undisturbed one: where
    metrics and checkpoints first differ, the kills, and the steps that could be compared. `repeats` tells whether two
    undisturbed runs are equal (None: not known).
    """

    first: Departure | None  # the first reported number that differs, or None
    state: StateDeparture | None  # the first checkpoint that differs, or None
    kills: Sequence[Kill]
    repeats: bool | None  # whether two undisturbed runs are equal; None: not known
    has_checkpoints: bool  # whether checkpoints of both, in the trainer's format, could be compared
    compared: Collection[int]  # steps at which something could be compared

    @property
    def step(self) -> int | None:
        """The first step at which the difference shows, or None if nothing differs."""
        steps = [one.step for one in (self.first, self.state) if one is not None]
        return min(steps, default=None)

    @property
    def resumed_at(self) -> int | None:
        """The step from which the run had last resumed before the difference, or None if it had not resumed by then."""
        resumed = [one.went_on_from for one in self.kills if one.went_on_from is not None and not one.missed]
        return None if self.step is None else max((at for at in resumed if at < self.step), default=None)

    @property
    def alike(self) -> int:
        """The number of steps that were compared and are equal, from the last resume before the first difference on.

        If the run had not resumed before, they are counted from its beginning. It is 0 if nothing differs.
        """
        begin, end = self.resumed_at or 0, self.step or 0
        return sum(begin < step < end for step in set(self.compared))


def causes_of(evidence: Evidence) -> tuple[str, ...]:
    """Return the likely causes, as sentences and likeliest first, of the difference between the disturbed run and the
    undisturbed one; empty if nothing differs.
    """
    return () if evidence.step is None else tuple(_causes(evidence))


def _causes(evidence: Evidence) -> Iterator[str]:
    """Yield the likely causes of the difference as sentences, likeliest first."""
    kept = evidence.state.kept if evidence.state is not None else ()
    if evidence.repeats is False or (evidence.repeats is None and evidence.resumed_at is None):
        yield from _never_the_same(evidence)
        return
    if lost := named_in(kept, ["data"]):
        yield (
            f"the order of samples: {lost[0]} differs, so the data does not go on where it was; keep the loader's or "
            "sampler's position in the checkpoint, and draw nothing of it before it is put back"
        )
    if lost := named_in(kept, ["generators"]):
        yield (
            f"random numbers: {lost[0]} differs, so somebody drew from it once more, or once less, between the "
            "checkpoint and here; draw nothing between loading and the loop, and seed the workers of data by the epoch"
        )
    if others := [place for place in kept if not named_in([place], ["data", "generators"])]:
        yield f"an object's own state: {others[0]} differs; its state_dict() has to give all that it is put back by"
    if not evidence.has_checkpoints:
        yield "the script's own checkpoint: it has to hold weights, optimizer, step, data position and all generators"
    if evidence.resumed_at is not None and evidence.step is not None:
        yield _lost_by_a_resume(evidence.step, evidence.step - evidence.resumed_at - 1, evidence.alike)
    if evidence.first is not None and _is_rounding(evidence.first):
        yield (
            "the order of a sum: only the last digits differ, as where DDP lays out its buckets anew, or where another "
            "kernel or number of threads is chosen after a start"
        )


def _lost_by_a_resume(step: int, between: int, alike: int) -> str:
    """Return a sentence on which kind of state a restart has lost; `step` is the first step that differs.

    `between` is the number of steps from the restart to the first difference, and `alike` how many of these could be
    compared and are equal.
    """
    if alike:
        were = "was" if alike == 1 else "were"
        if alike == between:
            seen = f"the first {f'{between} steps' if between > 1 else 'step'} after the restart {were} alike"
        else:
            seen = f"{alike} of the first {between} steps after the restart could be compared, and {were} alike"
        return (
            f"state that is needed later: {seen}; what is drawn or decided once in a while (an epoch's order, a "
            "validation's best value, patience), or by the clock"
        )
    if between:
        seen = f"step {step} is the first that could be compared after the restart, and it differs"
    else:
        seen = "it differs in the first step after a restart"
    return (
        f"state that no checkpoint has: {seen}; a generator of one's own (torch.Generator, random.Random, numpy's "
        "default_rng), what a callback or the loss remembers, a buffer with persistent=False; keep it in "
        "Checkpointer's `state` or `per_rank`, or in a callback's state_dict()"
    )


def _never_the_same(evidence: Evidence) -> Iterator[str]:
    """Yield sentences for the user on a training that differs from run to run even if nothing is killed, as `evidence`
    shows: first how that was found, then what usually causes it.
    """
    if evidence.repeats is False:
        yield "the training does not repeat itself: two undisturbed runs differ as well, so no restart is to blame"
    else:
        yield "it differs before anything was killed"
    yield (
        "random numbers without a seed: random, numpy and torch have one each, and so has each generator of one's own "
        "and each worker of a DataLoader; the order of a set or of a folder's files is one, too"
    )
    yield (
        "kernels that add in no fixed order: torch.use_deterministic_algorithms(True), on GPUs with "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 (of the trainer: deterministic: true)"
    )
    yield "what depends on time: a limit or a schedule by the clock, samples in the order in which they are ready"


def _is_rounding(first: Departure) -> bool:
    """Return whether the values in `first`, a metric's in the undisturbed and the disturbed run, differ by at most a
    ten-thousandth of the larger one, as a sum in another order explains.
    """
    size = max(abs(first.undisturbed), abs(first.disturbed))
    return 0 < abs(first.undisturbed - first.disturbed) <= _ROUNDING * size


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The records of a run that has ended: metrics by rank, checkpoints by step, the first step that each start of
    ranks reported, the steps from which the trainer's `starts` resumed, its events, and the step of its first complete
    checkpoint (0: none).
    """

    status: RunStatus
    rows: Mapping[int, Rows]  # by rank
    checkpoints: Mapping[int, Path]  # by step
    first_steps: Mapping[tuple[int, int], int] = field(default_factory=dict)  # by attempt and generation
    starts: Sequence[int] = ()  # steps from which the trainer's starts resumed
    history: Sequence[Event] = ()
    first_saved: int = 0  # the step of its first complete checkpoint; 0: none

    @property
    def took_s(self) -> float:
        """The seconds from the run's first start to its end, or 0 if one of these times is not recorded."""
        begin, end = self.status.started_at, self.status.ended_at
        return end - begin if begin is not None and end is not None else 0.0

    @property
    def end(self) -> tuple[int | None, str | None]:
        """(the last step, the fingerprint of the final state); each is None if the run has not reported it."""
        return self.status.step, self.status.fingerprint

    @property
    def failure(self) -> str:
        """Why the run did not succeed, as text, or "" if it did."""
        if self.status.state is State.SUCCEEDED:
            return ""
        said = self.status.last_word
        return f"{self.status.run} is {self.status.state}" + (f": {said}" if said else "")


def finished(run: Run, status: RunStatus) -> FinishedRun:
    """Return the metrics, checkpoints, events and first steps of a run that has ended with `status`, after fetching
    what is on other machines. Only complete checkpoints of steps count, and `checkpoints` has those on this machine.
    """
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
    """Compare a run that was disturbed in the way `mode`, such as `hot`, with the undisturbed one, and return the
    verdict; causes are not looked for.

    `kills` are the planned ones, also those that killed nothing. Only the metrics in `metrics` are compared or, if it
    is empty, all but rates and times.
    """
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
    """Return text that says at which step a run ended, and with which fingerprint (a digest of the final state that its
    ranks reported), of which the first 16 characters are shown.
    """
    step, fingerprint = run.end
    return f"at step {step} with {'no fingerprint' if fingerprint is None else f'fingerprint {fingerprint[:16]}'}"


def _nothing_proven(found: ComparedRun, compared: Collection[int], undisturbed: FinishedRun) -> str:
    """Return the reason why equal results prove nothing, or "" if they do prove something.

    `compared` are the steps at which something could be compared; only those that were trained after a restart show
    that the restart lost nothing.
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
    """Return `found`, the comparison of `run` with the `undisturbed` one, with two facts more: the usual causes of such
    a difference, and the first step at which two undisturbed runs differ from each other (None: at none, or not known).

    `once_more` is a second undisturbed run, or None if that failed. `metrics` are the metrics to compare; if empty, all
    but rates and times.
    """
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
    """Return the kills, each with its cost: repeated steps, and the time until the next step; missed kills are returned
    unchanged.

    `history` are the run's events. `first_steps` has the first step that each start of ranks, (attempt, generation),
    reported; `noted` are the steps from which the trainer's starts resumed, in order. If `noted` does not have one step
    more than there are kills that hit, the step from which the run went on after a kill is derived from `first_steps`
    and the loaded checkpoint instead.
    """
    hits = [one for one in kills if not one.missed]
    known = noted[1:] if len(noted) == len(hits) + 1 else [None for _ in hits]
    found = iter([_with_cost(one, history, first_steps, start) for one, start in zip(hits, known, strict=True)])
    return tuple(one if one.missed else next(found) for one in kills)


def _with_cost(kill: Kill, history: Sequence[Event], first_steps: Mapping[Start, int], noted: int | None) -> Kill:
    """Return one kill that hit, with its cost: the step from which the run resumed, the number of steps that it
    repeated, and the time until its next step.

    `history` are the run's events, and `first_steps` has the first step that each start of ranks, (attempt,
    generation), reported. `noted` is the step from which the start after the kill resumed, as the trainer recorded it;
    None: it did not, and the step follows from `first_steps` and the loaded checkpoint.
    """
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
    """Return the step from which a start resumed: that before its first report or, without one, the loaded
    checkpoint's.

    It is 0 if there is neither.
    """
    if first is None or first == checkpoint:
        return checkpoint or 0
    return max(0, first - 1)
