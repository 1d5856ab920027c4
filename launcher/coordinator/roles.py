"""Decide which parts of a run start when, and what the end of one means for the run. A part is a role that starts as a
whole, or one rank of a role whose ranks restart alone. Pure.

A run of one program has one role, which starts at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from launcher.errors import Exit
from launcher.run.records import AttemptEnd
from launcher.spec.model import Role
from launcher.spec.order import needed_by
from launcher.states import State


@dataclass(slots=True)
class _Part:
    """A role that starts as a whole, or one rank of a role whose ranks restart alone."""

    role: str
    starts_at: float = 0.0  # the earliest time of its next start, by the caller's clock; 0.0: at once
    is_there: bool = False  # it was started and has not ended
    is_ready: bool = False  # other parts may start that wait for it
    is_done: bool = False  # it is not started again


class Roles:
    """The roles of a run. `due` returns the names of the parts to start now; the caller starts them, and calls `ready`
    when one of them is ready, so that parts which wait for it may start, and `ended` when one has ended. All times are
    by one clock of the caller's.

    If no role is the main one, the run ends once all have ended: as failed if one has failed, else as succeeded.
    """

    def __init__(self, roles: Mapping[str, Role], parts: Mapping[str, str]) -> None:
        """Take the spec's roles, and for each part the name of its role."""
        self._roles = roles
        self._parts = {name: _Part(role) for name, role in parts.items()}
        self._ends_with_all = bool(roles) and not any(role.main for role in roles.values())
        self._failed: AttemptEnd | None = None  # the first failure, kept while the run continues
        self.culprit = ""  # the part because of which the run, or this attempt of it, ends

    def due(self, now: float) -> list[str]:
        """Return the names of the parts to start now, and mark these as started: parts that are neither running
        nor done, whose delay before a restart is over, and which wait for no role that is not ready yet.
        """
        found = [name for name, part in self._parts.items() if self._may_start(part, now)]
        for name in found:
            self._parts[name].is_there = True
        return found

    def next_start(self) -> float | None:
        """Return the time at which the next part is to be restarted, or None if no part waits for a restart."""
        away = [part.starts_at for part in self._parts.values() if not (part.is_there or part.is_done)]
        soonest = min((at for at in away if at), default=inf)
        return None if soonest == inf else soonest

    def awaited(self) -> list[str]:
        """Return the names of the running parts that other parts wait for and that are not ready yet."""
        waiting = [part for part in self._parts.values() if not (part.is_there or part.is_done)]
        names = {name for part in waiting for name in self._after(part)}
        return [
            name for name, part in self._parts.items() if part.role in names and part.is_there and not part.is_ready
        ]

    def ready(self, name: str) -> None:
        """Record that a part has become ready, so that the parts that wait for it may start."""
        self._parts[name].is_ready = True

    def followed(self) -> list[str]:
        """Return the names of the running parts whose restart also restarts other parts."""
        roles = {name for role in self._roles.values() for name in role.follows}
        return [name for name, part in self._parts.items() if part.is_there and part.role in roles]

    def restarted(self, name: str) -> list[str]:
        """Return the names of the running parts that restart because part `name` has restarted: those of the roles that
        follow its role (`follows` in the spec), directly or through others. Mark all of them and `name` as not ready.
        """
        follows, role = {name: role.follows for name, role in self._roles.items()}, self._parts[name].role
        roles = {follower for follower in follows if role in needed_by(follower, follows)}
        found = [name for name, part in self._parts.items() if part.is_there and part.role in roles]
        for one in (name, *found):
            self._parts[one].is_ready = False
        return found

    def ended(self, name: str, end: AttemptEnd, now: float) -> AttemptEnd | None:
        """Record that part `name` has ended; return the end of the whole attempt if this end decides it, else None.

        A part that ended to be started again (QUEUED) is due after the delay in `end`; but if the spec's `restart` of
        its role is `all`, the attempt ends, for all roles to start again. If the spec marks a role as main, the attempt
        also ends once any part has failed; that it ends when the main role succeeds is the caller's decision. If none
        is marked, it ends once all parts have succeeded, have failed, or wait for a part that can never be ready.
        """
        part = self._parts[name]
        part.is_there = False
        if end.state is State.QUEUED and end.cause is not None and self._roles[part.role].restart == "all":
            self.culprit = name
            text = f"all roles start again, because of {name}: {end.message}"
            return AttemptEnd(State.QUEUED, end.cause, end.exit_code, end.ended_at, text, end.delay_s)
        if end.state is State.QUEUED:
            part.starts_at = now + end.delay_s
            return None
        part.is_done = True
        if end.state is State.SUCCEEDED:
            part.is_ready = True
        else:
            text = f"role {part.role} has failed: {end.message}"
            self.culprit = self.culprit or name
            self._failed = self._failed or AttemptEnd(State.FAILED, end.cause, end.exit_code, end.ended_at, text)
        if not self._ends_with_all:
            return self._failed
        self._give_up_waiting()
        if not all(part.is_done for part in self._parts.values()):
            return None
        return self._failed or AttemptEnd(State.SUCCEEDED, None, Exit.OK, end.ended_at, "all roles have finished")

    def _give_up_waiting(self) -> None:
        """Mark each part as done that can never start, because a part of a role that it waits for has ended without
        having been ready; also those that wait for a part marked so.
        """
        while stuck := [part for part in self._parts.values() if self._waits_in_vain(part)]:
            for part in stuck:
                part.is_done = True

    def _waits_in_vain(self, part: _Part) -> bool:
        """Return whether the part has not started and never can: it waits for a role of which a part has ended without
        having been ready.
        """
        before = [other for other in self._parts.values() if other.role in self._after(part)]
        away = not (part.is_there or part.is_done)
        return away and any(other.is_done and not other.is_ready for other in before)

    def _may_start(self, part: _Part, now: float) -> bool:
        """Return whether the part may start at the time `now`: it does not run, it has not ended for good, its delay
        before a restart is over, and all roles that it waits for are ready.
        """
        return (
            not (part.is_there or part.is_done)
            and part.starts_at <= now
            and all(map(self._is_ready, self._after(part)))
        )

    def _after(self, part: _Part) -> Collection[str]:
        """Return the roles that have to be ready before this part starts."""
        return self._roles[part.role].after if part.role in self._roles else ()

    def _is_ready(self, role: str) -> bool:
        """Return whether all parts of the role were reported as ready, so that roles that wait for it may start."""
        return all(part.is_ready for part in self._parts.values() if part.role == role)
