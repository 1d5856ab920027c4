"""One attempt as its keeper sees it: the coordinator's agent and the others, until the coordinator's last word."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.run.durable import create_record, readable
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.attempt_end import (
    pass_on_stop,
    write_failure,
    write_known_end,
)
from launcher.supervisor.messenger import LINGER_S, Messenger
from launcher.supervisor.wakeup import Wakeup

_FAREWELL_S = 5.0
_SURE_S = 8.0  # beyond the spec's grace, before a stop is made sure


class EndRequests(Protocol):
    """Who may want the attempt to end before its time."""

    def next_look(self) -> float | None:
        """The moment at which to ask again, if nothing wakes the keeper before."""

    def to_end(self) -> bool:
        """True once somebody wants it to end; why is then on disk, where the agents read it."""


class StopSignal:
    """SIGTERM ends the attempt; its sender has written down why, for this attempt or for the one before."""

    def __init__(self, wakeup: Wakeup, attempt: AttemptDir, before: AttemptDir | None) -> None:
        self._wakeup, self._attempt, self._before = wakeup, attempt, before

    def next_look(self) -> float | None:
        return None

    def to_end(self) -> bool:
        if self._wakeup.stop_asked:
            pass_on_stop(self._before, self._attempt)
        return self._wakeup.stop_asked


def claim_attempt(marker: Path) -> bool:
    """True for the one keeper that may carry out the attempt whose marker this is."""
    try:
        create_record(marker, this_process())
    except FileExistsError:
        return False
    return True


class Allocation:
    """`carry_out` returns how the attempt ended, with everything of it that was on this machine gone."""

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        plan: Plan,
        wakeup: Wakeup,
        requests: EndRequests,
        agents: Sequence[AgentProcess],  # node 0's, which coordinates, comes first
        *,
        prepare: Callable[[], AttemptEnd | None] = lambda: None,  # before agents; how it ended, where that was all
        told_within_s: float = 0.0,  # what ends everything here when the run has ended waits so long for the messenger
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._plan = plan
        self._requests = requests
        self._prepare = prepare
        self._told_within_s = told_within_s
        self._messenger = Messenger(run, attempt, told_within_s or LINGER_S)
        self._agents = AgentProcesses(agents, wakeup, spared=self._messenger.pids)
        self._sure_at: float | None = None

    def carry_out(self) -> AttemptEnd:
        wait_s = 0.0
        try:
            end = self._carried_out()
            wait_s = self._told_within_s if end.state.ended else 0.0
            return end
        finally:
            self._messenger.close(wait_s)

    def _carried_out(self) -> AttemptEnd:
        end = self._prepare()
        if end is not None:
            return end
        self._agents.start()
        status = self._watch()
        if readable(self._attempt.end, AttemptEnd) is not None:
            self._agents.wait_for_others(_FAREWELL_S)
        self._agents.end()
        return self._last_word(status)

    def _watch(self) -> int | None:
        """Until node 0's agent, the coordinator, has ended; gives its wait status, or None where it was cut short."""
        while True:
            stopping = self._sure_at is not None
            status = self._agents.watch(self._sure_at or self._requests.next_look(), bring_back=not stopping)
            if status is not None:
                return status
            if not stopping and self._requests.to_end():
                self._sure_at = time.monotonic() + self._plan.spec.recovery.grace_s + _SURE_S
                self._agents.signal_first()
            if self._sure_at is not None and time.monotonic() >= self._sure_at:
                return None

    def _last_word(self, status: int | None) -> AttemptEnd:
        """Return the coordinator's, or write for it what happened, and what follows."""
        fenced = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == Exit.FENCED
        if fenced and not self._attempt.end.exists():
            text = "a newer attempt took over"
            return AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.FENCED, time.time(), text)
        end = write_known_end(self._run, self._attempt, self._plan)
        if end is not None:
            return end
        lost = status is None or os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == Exit.LOST
        log = self._attempt.agent_log(0).relative_to(self._run.path)
        how = "was ended" if status is None else _how(status)
        text = f"the agent of node 0, which coordinates, {how}" + ("" if lost else f"; see {log}")
        cause = Cause.NODE_LOST if lost else Cause.LAUNCHER_FAULT
        evidence = "" if status is None else f"wait status {status}"
        return write_failure(self._run, self._attempt, self._plan, cause, text, evidence=evidence)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    if os.WEXITSTATUS(status) == Exit.LOST:
        return "stood still for longer than its lease"
    return f"left with exit code {os.WEXITSTATUS(status)}"
