"""Usual causes of a training that differs from itself, judged by what differs, where, and when."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from launcher.apps.proof.comparing import named_in
from launcher.apps.proof.findings import Departure, Kill, StateDeparture

_ROUNDING = 1e-4  # of a number: what another order of a sum makes of it in its first steps


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known about a difference between two trainings."""

    first: Departure | None
    state: StateDeparture | None
    kills: Sequence[Kill]
    repeats: bool | None  # whether two undisturbed runs are alike; None: that is not known
    has_checkpoints: bool  # of the trainer's
    compared: Collection[int]  # steps at which something could be compared

    @property
    def step(self) -> int | None:
        """The first step at which the difference shows, or None if it is not known."""
        steps = [one.step for one in (self.first, self.state) if one is not None]
        return min(steps, default=None)

    @property
    def resumed_at(self) -> int | None:
        """The step from which the run had last resumed before it began to differ, or None."""
        resumed = [one.went_on_from for one in self.kills if one.went_on_from is not None and not one.missed]
        return None if self.step is None else max((at for at in resumed if at < self.step), default=None)

    @property
    def alike(self) -> int:
        """The number of compared steps between the last restart and the first difference, all of them equal."""
        begin, end = self.resumed_at or 0, self.step or 0
        return sum(begin < step < end for step in set(self.compared))


def causes_of(evidence: Evidence) -> tuple[str, ...]:
    """Return the likely causes, likeliest first; none if nothing differs."""
    return () if evidence.step is None else tuple(_causes(evidence))


def _causes(evidence: Evidence) -> Iterator[str]:
    """Yield causes, likeliest first."""
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
    """Name the state that a restart has lost. `between`: steps from it to the first difference; `alike`: of these."""
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
    """Yield causes that apply whatever was killed."""
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
    """Return whether the two values differ only by rounding."""
    size = max(abs(first.undisturbed), abs(first.disturbed))
    return 0 < abs(first.undisturbed - first.disturbed) <= _ROUNDING * size
