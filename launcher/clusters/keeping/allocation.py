"""One attempt as its keeper sees it: the coordinator's agent and the others, until the coordinator's last word."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Protocol

from launcher.clusters.keeping.agent_processes import AgentProcess, AgentProcesses
from launcher.clusters.keeping.attempt_end import cancelled, is_cancelled, write_end, write_failure
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Event, RunState
from launcher.words import Cause, State

_FAREWELL_S = 5.0
_SURE_S = 8.0  # beyond the spec's grace, before a stop is made sure


class Wishes(Protocol):
    """Who may want the attempt to end before its time."""

    def next_look(self) -> float | None:
        """The moment at which to ask again, if no bell rings before."""

    def to_end(self) -> bool:
        """True once somebody wants it to end; why is then on disk, where the agents read it."""


class Allocation:
    """`carry_out` returns how the attempt ended, with everything of it that was on this machine gone."""

    def __init__(
        self, run: RunDir, attempt: AttemptDir, plan: Plan, bell: Wakeup, wishes: Wishes, posts: Sequence[AgentProcess]
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._plan = plan
        self._wishes = wishes
        self._crew = AgentProcesses(posts, bell)  # the first one is node 0's agent
        self._sure_at: float | None = None

    def carry_out(self) -> AttemptEnd:
        self._crew.start()
        status = self._watch()
        if read_record(self._attempt.end, AttemptEnd) is not None:
            self._crew.wait_for_others(_FAREWELL_S)
        self._crew.end()
        return read_record(self._attempt.end, AttemptEnd) or self._speak_for_the_dead(status)

    def _watch(self) -> int | None:
        """Until node 0's agent, the coordinator, has ended; gives its wait status, or None where it was cut short."""
        while True:
            stopping = self._sure_at is not None
            status = self._crew.watch(self._sure_at or self._wishes.next_look(), bring_back=not stopping)
            if status is not None:
                return status
            if not stopping and self._wishes.to_end():
                self._sure_at = time.monotonic() + self._plan.spec.recovery.grace_s + _SURE_S
                self._crew.signal_first()
            if self._sure_at is not None and time.monotonic() >= self._sure_at:
                return None

    def _speak_for_the_dead(self, status: int | None) -> AttemptEnd:
        """The coordinator is gone without a last word: say for it what happened, and what follows."""
        now = time.time()
        if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == Exit.FENCED:
            return AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.FENCED, now, "a newer attempt took over")
        if is_cancelled(self._attempt):
            end = cancelled()
            write_end(self._run, self._attempt, end, self._plan)
            return end
        return write_failure(self._run, self._attempt, self._plan, self._death_of_the_coordinator(status, now))

    def _death_of_the_coordinator(self, status: int | None, now: float) -> Event:
        by_signal = status is None or os.WIFSIGNALED(status)
        last = read_record(self._run.state, RunState)
        known = last if last is not None and last.attempt == self._attempt.number else None
        how = "was ended" if status is None else _how(status)
        log = self._attempt.agent_log(0).relative_to(self._run.path)
        return Event(
            at=now,
            attempt=self._attempt.number,
            kind="failure",
            text=f"the agent of node 0, which coordinates, {how}" + ("" if by_signal else f"; see {log}"),
            generation=known.generation if known else 0,
            node=0,
            cause=Cause.NODE_LOST if by_signal else Cause.LAUNCHER_FAULT,
            step=last.step if last else None,
            checkpoint=last.checkpoint if last else None,
            evidence="" if status is None else f"wait status {status}",
        )


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"left with exit code {os.WEXITSTATUS(status)}"
