"""Plan the kills of a proof at random, repeatably from a seed, and define the ways to disturb a run. Pure."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import BadInput

_UNTIL = 0.85  # of all steps: who is killed later may have ended before it is hit


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """A kill that is made as soon as `step` is done. `pick`, from 0 to 1, selects the victim among the ranks that exist
    then.
    """

    step: int
    pick: float  # from 0 to 1

    def among(self, count: int) -> int:
        """Return the index of the victim among `count` ranks."""
        return min(count - 1, int(self.pick * count))


def planned(seed: int, mode: str, kills: int, steps: int, saved: int = 0) -> tuple[PlannedKill, ...]:
    """Return one kill, drawn by `seed` and `mode`, in each of `kills` equal stretches of a training of `steps` steps,
    in order.

    The last steps get none, because a rank may have ended before it is hit. If there is room, all kills come after
    `saved`, the step of the first checkpoint (0: none), because a training killed before that only starts again. Raise
    BadInput if there are more kills than steps for them.
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
    """Return text for the trainer such as `20@1,40@0`, STEP@RANK: after which steps which ranks have to wait, in order
    to be killed. `ranks` is the number of ranks of the run, among which each kill selects its victim.
    """
    return ",".join(f"{one.step}@{one.among(ranks)}" for one in kills)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to disturb a run: `whole_node` kills everything of the run on a node, else one rank; the run is started
    with `overrides`. If the user names no modes, those whose `usual_for` has the spec's recovery mode are used, with
    `usual_overrides` unless that is None.
    """

    says: str  # describes a kill to the user
    whole_node: bool  # kill everything of the run on a node; else one rank
    overrides: tuple[str, ...]
    usual_overrides: tuple[str, ...] | None = None  # if the user names no modes; None: `overrides`
    usual_for: tuple[str, ...] = ("auto", "warm", "hot")  # with these `recovery.mode` if the user names no modes


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
