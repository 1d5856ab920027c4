"""Compute what each kill cost from the history of the run that it hit."""

from collections.abc import Mapping, Sequence

import msgspec

from launcher.apps.proof.findings import Kill
from launcher.run.records import Event

Start = tuple[int, int]  # attempt and generation


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
    """Return the step that a start resumed from, as far as reports tell: the one before its first report, unless that
    is the loaded step.
    """
    if first is None or first == checkpoint:
        return checkpoint or 0
    return max(0, first - 1)
