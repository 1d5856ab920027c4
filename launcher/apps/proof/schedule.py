"""Draw the schedule of kills from a seed. Pure."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import BadInput

_UNTIL = 0.85  # of all steps: who is killed later may have ended before it is hit


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """A kill that is made as soon as a step is done; `pick` selects the victim among the ranks that are present
    then.
    """

    step: int
    pick: float  # from 0 to 1

    def among(self, count: int) -> int:
        """Return the index of the victim among `count` ranks."""
        return min(count - 1, int(self.pick * count))


def planned(seed: int, mode: str, kills: int, steps: int, saved: int = 0) -> tuple[PlannedKill, ...]:
    """Return one kill in each of `kills` equal stretches of the training, in order; raise BadInput if the training has
    too few steps.

    `saved` is the step of the first checkpoint. A training killed before it starts from the beginning and resumes
    nothing, so kills come later where there is room.
    """
    last = int(steps * _UNTIL)
    if last < kills:
        hint = "hint: fewer --kills, or a longer training: --steps"
        raise BadInput(f"--kills: expected at most {last} of a training of {steps} steps, got {kills}", hint)
    draw = random.Random(f"{seed} {mode}")  # noqa: S311 - a lottery that can be repeated
    first = min(saved, last - kills)
    edges = [first + (last - first) * number // kills for number in range(kills + 1)]
    return tuple(
        PlannedKill(draw.randint(before + 1, after), draw.random()) for before, after in itertools.pairwise(edges)
    )


def held_at(kills: Sequence[PlannedKill], ranks: int) -> str:
    """Return the text that tells the trainer at which steps which ranks wait to be killed, such as `20@1,40@0`."""
    return ",".join(f"{one.step}@{one.among(ranks)}" for one in kills)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to disturb a run: what is killed, and the overrides with which the run is started."""

    says: str  # of one kill, for people
    whole_node: bool  # all that is of the run on a node; else one of its ranks
    overrides: tuple[str, ...]
    usual_overrides: tuple[str, ...] | None = None  # where nobody says which modes; None: as where somebody does
    usual_for: tuple[str, ...] = ("auto", "warm", "hot")  # for specs of which `recovery.mode` where nobody says which


MODES = {
    "warm": Mode(
        "kill -9 of a rank; all ranks are replaced, and load the newest checkpoint",
        whole_node=False,
        overrides=("recovery.mode=warm",),
    ),
    "power": Mode(
        "kill -9 of all that there is of the run on a node, as when the power goes; then it is resumed",
        whole_node=True,
        overrides=("recovery.mode=warm",),
    ),
    "hot": Mode(
        "kill -9 of a rank; the others stay, and give the new one the state of the last step",
        whole_node=False,
        overrides=("recovery.mode=hot",),
        usual_overrides=(),  # as in the spec, whose ranks stay or may
        usual_for=("auto", "hot"),
    ),
}
