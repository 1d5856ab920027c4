"""Whether a run's turn has come, as far as other runs and the clock go. Pure."""

from dataclasses import dataclass
from typing import assert_never

from launcher.plan.model import AwaitedRun
from launcher.words import State


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Another run as it is now; no state: its folder was taken away."""

    state: State | None
    text: str = ""  # its state and the cause of that, for people
    step: int | None = None

    @property
    def over(self) -> bool:
        return self.state is None or self.state.ended


def has_come_to_it(wish: AwaitedRun, other: OtherRun) -> bool:
    """What was waited for has happened. Who has succeeded with fewer steps than that has made all of its steps."""
    match wish.until:
        case "ended":
            return other.over
        case "step" if other.step is not None and other.step >= wish.step:
            return True
        case _:
            return other.state is State.SUCCEEDED


def never_will(wish: AwaitedRun, other: OtherRun) -> str:
    """Why it cannot happen any more; "": it can, or it has."""
    if has_come_to_it(wish, other) or not other.over:
        return ""
    how = "was taken away" if other.state is None else f"is {other.text}"
    return f"{wish.run_id}, which it was to follow, {how}"


def waits_for(wish: AwaitedRun, other: OtherRun) -> str:
    """For people."""
    wanted = {"ended": "to end", "step": f"to come to step {wish.step}"}.get(wish.until, "to succeed")
    match other.state:
        case State.RUNNING if wish.until == "step" and other.step is not None:
            how = f"at step {other.step}"
        case None:
            how = "gone"
        case (
            State.QUEUED | State.STARTING | State.RUNNING | State.REGROUPING | State.UNKNOWN
            | State.SUCCEEDED | State.FAILED | State.CANCELLED | State.LOST
        ):  # fmt: skip
            how = f"it is {other.text}"
        case _:
            assert_never(other.state)
    return f"waits for {wish.run_id} {wanted} ({how})"
