"""Breadth-first exploration of a world: every state within its bounds, and the shortest way to a broken invariant."""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True)
class Explored(Generic[S]):
    states: int
    depth: int  # of the last state
    seconds: float
    complete: bool  # all states within the world's bounds were visited
    problem: str  # the first invariant that was broken, "" if none was
    trace: tuple[str, ...]  # the shortest way there

    def __str__(self) -> str:
        all_ = "all" if self.complete else "the first"
        head = f"{all_} {self.states:,} states, {self.depth} steps deep, {self.seconds:.1f} s"
        return "\n".join(
            [head, *([f"  broken: {self.problem}"] if self.problem else []), *map("    {}".format, self.trace)]
        )


def explore(
    first: S,
    following: Callable[[S], Iterable[tuple[str, S]]],
    problem_of: Callable[[S], str],
    most_states: int | None = None,
) -> Explored[S]:
    """Visit each state once, nearest first, until one breaks an invariant or none is left."""
    began_at = time.monotonic()
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    layer, depth = [first], 0

    def done(*, complete: bool, problem: str = "", at: S | None = None) -> Explored[S]:
        steps: list[str] = []
        while at is not None and (before := came_from[at]) is not None:
            at, step = before
            steps.append(step)
        return Explored(len(came_from), depth, time.monotonic() - began_at, complete, problem, tuple(reversed(steps)))

    while layer:
        after: list[S] = []
        for state in layer:
            for step, new in following(state):
                if new in came_from:
                    continue
                came_from[new] = (state, step)
                if problem := problem_of(new):
                    depth += 1
                    return done(complete=False, problem=problem, at=new)
                after.append(new)
            if most_states is not None and len(came_from) >= most_states:
                return done(complete=False)
        layer, depth = after, depth + bool(after)
    return done(complete=True)
