"""Judge by the ranks' own notes and by the answers that users got whether every promise was kept. Pure.

Each rank of `scripts/audited.py` adds a line to a file outside of the run for all that it does: by the machine's own
clock, which all hosts of a lab share. Nothing of the launcher's records is believed here.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ENDED = frozenset({"succeeded", "failed", "cancelled"})
OVER = ENDED | {"lost"}  # what nobody may be told of a run that goes on


class Incarnation(NamedTuple):
    attempt: int
    generation: int


@dataclass(frozen=True)
class Deed:
    """An action of a rank: `start` at a step, made a `step`, has a `save` on its disk, saw that one is `safe` on two
    disks, reached the `end`.
    """

    at: float
    what: str
    attempt: int
    generation: int
    rank: int
    step: int
    host: str = ""
    pid: int = 0  # as that host knows it

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.attempt, self.generation)


@dataclass(frozen=True)
class Told:
    """An answer of `launch status`; without a state if there was no answer."""

    at: float
    who: str
    state: str | None
    took_s: float
    words: str = ""


@dataclass(frozen=True)
class Promise:
    """What is promised for a run, given its spec and its faults."""

    kept: str = "save"  # rank 0 has done this with a checkpoint: it is not lost; "": nothing is kept
    damaged: frozenset[int] = frozenset()  # but for the steps that a fault has damaged
    answer_s: float = 60.0
    resumed: tuple[float, ...] = ()  # when a person has


def violations(deeds: Sequence[Deed], told: Sequence[Told], promise: Promise) -> list[str]:
    """Return what was wrong, in plain sentences; empty if nothing was."""
    deeds = sorted(deeds, key=lambda deed: deed.at)
    return [
        *two_at_once(deeds),
        *lost_steps(deeds, promise),
        *wrong_words(deeds, told, promise),
    ]


def two_at_once(deeds: Iterable[Deed]) -> Iterator[str]:
    """An older incarnation does nothing any more once a newer one has begun."""
    newest: Deed | None = None
    complained: set[tuple[Incarnation, Incarnation]] = set()
    for deed in deeds:
        if newest is None or deed.incarnation > newest.incarnation:
            newest = deed
        elif deed.incarnation < newest.incarnation and (deed.incarnation, newest.incarnation) not in complained:
            complained.add((deed.incarnation, newest.incarnation))
            yield (
                f"two incarnations at once: rank {deed.rank} of {deed.incarnation} on {deed.host} did {deed.what} "
                f"{deed.step} {deed.at - newest.at:.2f} s after {newest.incarnation} had begun"
            )


def lost_steps(deeds: Sequence[Deed], promise: Promise) -> Iterator[str]:
    """Every incarnation goes on from a checkpoint no older than the newest that was safe before it began."""
    safe: int | None = None
    if not promise.kept:
        return
    for deed in (deed for deed in deeds if deed.rank == 0):
        if deed.what == promise.kept and deed.step not in promise.damaged:
            safe = max(deed.step, safe or 0)
        elif deed.what == "start" and deed.step < (safe or 0):
            yield f"progress lost: {deed.incarnation} began at step {deed.step}, and {safe} was safe"
    if safe is None:
        yield "no step was ever safe"


def wrong_words(deeds: Sequence[Deed], told: Sequence[Told], promise: Promise) -> Iterator[str]:
    """Yield wrong answers: a run that ended and goes on, a false end, an answer that came too late."""
    worked = [deed.at for deed in deeds if deed.what in ("start", "step")]
    done = max((deed.at for deed in deeds if deed.what == "end"), default=None)
    for who in dict.fromkeys(one.who for one in told):
        mine = [one for one in told if one.who == who]
        for before, after in itertools.pairwise(mine):
            if before.state in ENDED and after.state not in (before.state, None):
                yield f"{who} was told {before.state}, and then {after.state}"
        for one in mine:
            again = min((at for at in promise.resumed if at > one.at - one.took_s), default=math.inf)
            last = max((at for at in worked if at < again), default=0.0)
            if one.state in OVER and one.at < last:
                yield f"{who} was told {one.state} {last - one.at:.1f} s before the last step"
            if one.state == "succeeded" and done is None:
                yield f"{who} was told succeeded, and no rank has reached its end"
            if one.took_s > promise.answer_s:
                yield f"{who} waited {one.took_s:.0f} s for an answer"


def chain_fingerprint(steps: int, world: int) -> str:
    """The weights of an undisturbed chain.py."""
    weights = "start"
    for step in range(1, steps + 1):
        weights = _sha256(_sha256(f"{weights} {step}") * world)
    return weights


def apart_fingerprint(steps: int, world: int) -> str:
    """And of an undisturbed apart.py."""
    chains = [f"start {rank}" for rank in range(world)]
    for step in range(1, steps + 1):
        chains = [_sha256(f"{chain} {step}") for chain in chains]
    return _sha256(" ".join(chains))


def steps_lost(deeds: Sequence[Deed]) -> int:
    """Return how many steps were made more than once."""
    made = [deed.step for deed in deeds if deed.what == "step" and deed.rank == 0]
    return len(made) - len(set(made))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
