"""Which faults come when: drawn from a seed, written as a line that can be given again, and made shorter. Pure."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Schedule = tuple["Strike", ...]


@dataclass(frozen=True)
class Strike:
    """One fault: how long after the one before it has come, where (any number: what there is to hit is counted when it
    comes), and how long it lasts."""

    after_s: float
    fault: str
    target: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.after_s:g}:{self.fault}:{self.target}:{self.lasts_s:g}"


@dataclass(frozen=True)
class Kind:
    """How often a fault is drawn beside the others, how many of it and of its group a run can stand, and how long it
    may last."""

    weight: int = 1
    most: int | None = None
    group: str = ""
    lasts_s: tuple[float, float] = (0.0, 0.0)


def drawn(seed: int, kinds: Mapping[str, Kind], count: int, gap_s: tuple[float, float]) -> Schedule:
    """So many strikes; one in six comes together with the one before it."""
    draw = random.Random(seed)
    found: list[Strike] = []
    while len(found) < count:
        open_ = [name for name, kind in kinds.items() if kind.most is None or _count(found, name, kinds) < kind.most]
        name = draw.choices(open_, [kinds[name].weight for name in open_])[0]
        after = 0.0 if found and draw.random() < 1 / 6 else round(draw.uniform(*gap_s), 1)
        found.append(Strike(after, name, draw.randrange(1000), round(draw.uniform(*kinds[name].lasts_s), 1)))
    return tuple(found)


def written(schedule: Sequence[Strike]) -> str:
    return ",".join(map(str, schedule))


def parse(text: str) -> Schedule:
    """Return the schedule that `written` wrote."""
    strikes = []
    for word in text.split(","):
        after, fault, target, lasts = word.split(":")
        strikes.append(Strike(float(after), fault, int(target), float(lasts)))
    return tuple(strikes)


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """A shorter schedule that still fails, from which no strike can be left out."""
    while (shorter := next((one for one in _shorter(schedule) if fails(one)), None)) is not None:
        schedule = shorter
    return schedule


def _shorter(schedule: Schedule) -> Iterator[Schedule]:
    """Return both halves of the schedule, then the schedule without each of its faults."""
    if len(schedule) < 2:
        return
    if len(schedule) > 2:
        half = len(schedule) // 2
        yield schedule[:half]
        yield schedule[half:]
    for index in range(len(schedule)):
        yield schedule[:index] + schedule[index + 1 :]


def _count(found: Sequence[Strike], name: str, kinds: Mapping[str, Kind]) -> int:
    """Return how many faults of this kind, or of its group, the schedule has."""
    group = kinds[name].group
    return sum(strike.fault == name or (group != "" and kinds[strike.fault].group == group) for strike in found)
