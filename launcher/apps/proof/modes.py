"""The ways in which a training is disturbed: a row each, and nothing else knows them by name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to disturb a run: what is killed, and the overrides of the run."""

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
