"""Results of `launch prove`, which kills a training again and again and compares its results, as `--json` prints
them.
"""

from enum import StrEnum

import msgspec

from launcher.states import State


class Judgement(StrEnum):
    """The verdict on one disturbed run, or on all: the results are exactly equal, differ, prove nothing, or the run
    failed.
    """

    EXACT = "exact"  # nothing that could be compared differs from the undisturbed run
    DIFFERS = "differs"
    UNPROVEN = "unproven"  # nothing was killed, or nothing could be compared
    FAILED = "failed"  # a run did not succeed


class Kill(msgspec.Struct, frozen=True):
    """A planned kill of a rank, or of everything on a node, and its effect on the run. If it was not made, only
    `planned_step` and `missed` are set.
    """

    planned_step: int  # the kill was to follow once this step was done
    missed: str = ""  # why nothing was killed, or ""
    rank: int | None = None  # None: everything of the run on `node`
    node: int = 0
    attempt: int = 0  # in which it was made, and `generation` within it
    generation: int = 0
    at: float = 0.0  # Unix time
    step: int | None = None  # the last step before the kill
    checkpoint: int | None = None  # the step of the newest before the kill
    went_on_from: int | None = None  # the step from which the run resumed
    steps_again: int | None = None  # how many steps it repeated
    next_step_s: float | None = None  # from the kill to the end of the next step


class Departure(msgspec.Struct, frozen=True):
    """The first reported number that differs, by step, then rank: its step, metric and rank, and its value in both
    runs.
    """

    step: int
    rank: int
    metric: str
    undisturbed: float
    disturbed: float


class StateDeparture(msgspec.Struct, frozen=True):
    """The first checkpoint that differs between the undisturbed and the disturbed run, among those that both have: how
    many of its `tensors` are `different`, the first of these with an element and both values, and other state that
    differs (`kept`).
    """

    step: int  # of the checkpoint
    tensors: int  # in the checkpoint
    different: int  # how many of them differ
    tensor: str = ""  # the first one that differs
    index: tuple[int, ...] = ()  # of the first element that differs
    undisturbed: str = ""  # that element's value, as text
    disturbed: str = ""  # likewise in the disturbed run
    kept: tuple[str, ...] = ()  # other state that differs: generators, the position in the data, users' objects


class ComparedRun(msgspec.Struct, frozen=True):
    """A disturbed run compared with the undisturbed one: at how many steps, which metrics and which checkpoints. `why`
    says why the run proves nothing or failed, `first` and `first_state` where it differs, `causes` what usually causes
    that, and `again_differs` the step at which a second undisturbed run differs from the first one as well.
    """

    mode: str  # the way in which it was disturbed
    run: str  # its id
    verdict: Judgement
    kills: tuple[Kill, ...]  # the planned ones, also those that were missed
    state: State  # of the run, at its end
    took_s: float  # from its first start to its end
    why: str = ""  # the reason why it proves nothing or has failed, or ""
    steps: int = 0  # at which a metric could be compared
    metrics: tuple[str, ...] = ()  # that could be compared
    checkpoints: tuple[int, ...] = ()  # steps of those that were compared
    fingerprint: str | None = None  # of its final state; None: it reported none
    exit_code: int = 0  # of the run
    first: Departure | None = None  # the first reported number that differs, if one does
    first_state: StateDeparture | None = None  # the first checkpoint that differs, if one does
    again_differs: int | None = None  # first step at which a second undisturbed run differs; None: no such step, or run
    causes: tuple[str, ...] = ()  # what usually causes such a difference


class Proof(msgspec.Struct, frozen=True):
    """The result of one `launch prove`. `undisturbed` is that run's id, `kept` are the ids of runs that still exist,
    and `why` says why nothing is proven, or is "".
    """

    id: str
    seed: int  # by which the kills were drawn
    verdict: Judgement
    steps: int  # of the training
    undisturbed: str  # the undisturbed run's id
    undisturbed_s: float  # seconds that it took
    took_s: float  # of the whole proof
    fingerprint: str | None  # of the undisturbed run's final state; None: it reported none
    exit_code: int  # of the undisturbed run
    compared: tuple[ComparedRun, ...]  # a disturbed run for each mode
    kept: tuple[str, ...] = ()  # ids of runs that still exist
    why: str = ""  # the reason why nothing is proven, or ""
