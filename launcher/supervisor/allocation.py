"""Supervise one attempt: node 0's agent with the coordinator, and the others, until the attempt's end is written."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from launcher.plan.model import Plan
from launcher.run.durable import create_record, readable
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Failure
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses, agent_process
from launcher.supervisor.attempt_end import pass_on_stop, settle_end, write_end, write_known_end
from launcher.supervisor.messenger import LINGER_S, Messenger
from launcher.supervisor.roles import AgentsOf, RolesOfRun
from launcher.supervisor.wakeup import Wakeup

_FAREWELL_S = 5.0
SURE_S = 8.0  # beyond the spec's grace, before a stop is made sure


class EndRequests(Protocol):
    """A source of requests to end the attempt early: a signal, or what a batch system or a user asks for."""

    def next_check(self) -> float | None:
        """Return the time, by time.monotonic, at which to call `to_end` again if nothing wakes the supervisor earlier,
        or None if something always will.
        """

    def to_end(self) -> bool:
        """Return at once whether an end of the attempt was requested; if so, the reason is on disk, where the agents
        read it.
        """


class StopSignal:
    """A request to end the attempt, made by SIGTERM.

    The sender has written the reason into the folder of this attempt or, if this one had not begun yet, of the one
    before.
    """

    def __init__(self, wakeup: Wakeup, attempt: AttemptDir, before: AttemptDir | None) -> None:
        self._wakeup, self._attempt, self._before = wakeup, attempt, before

    def next_check(self) -> float | None:
        """Return None: the time of the next check need not be set, because SIGTERM wakes the supervisor."""
        return None

    def to_end(self) -> bool:
        """Return True once SIGTERM has come. First, if its sender wrote its reason into the folder of the attempt
        before, because this attempt had not begun yet, copy that to this attempt's folder; raise OSError if that fails.
        """
        if self._wakeup.stop_asked:
            pass_on_stop(self._before, self._attempt)
        return self._wakeup.stop_asked


def claim_attempt(marker: Path) -> bool:
    """Return True if this process may run the attempt; only the first that creates the marker file may.

    Raise OSError if the file cannot be written.
    """
    try:
        create_record(marker, this_process())
    except FileExistsError:
        return False
    return True


def _agents_here(keep: Sequence[int], plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
    """Return an agent process, not yet started, on this machine for each node of the plan; each inherits the
    descriptors `keep`.
    """
    return [agent_process(plan, attempt, node.index, keep=keep) for node in plan.nodes]


class Allocation:
    """An attempt, supervised from this machine; `carry_out` returns how the attempt ended, once all its processes on
    this machine have exited.

    If another attempt follows, the standby (a process with finished imports) that an agent here has left stays alive.
    The agent's AgentProcess has it in its field `place`, and turns it into the next agent.
    """

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
        agents_of: AgentsOf | None = None,  # of a role beside the main one; None: they are all on this machine
        write: Callable[[AttemptEnd, Failure | None], AttemptEnd] | None = None,  # instead of `write_end`
        told_within_s: float = 0.0,  # what ends everything here when the run has ended waits so long for the messenger
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._plan = plan
        self._requests = requests
        self._prepare = prepare
        self._write = write or self._write_at_once
        self._told_within_s = told_within_s
        self._messenger = Messenger(run, attempt, told_within_s or LINGER_S)
        self._own = agents
        self._agents = AgentProcesses(agents, wakeup, spared=self._messenger.pids)
        agents_of = agents_of or partial(_agents_here, agents[0].keep if agents else ())
        self._roles = RolesOfRun(run, attempt, plan, self._agents, agents, agents_of)
        self._by_roles: AttemptEnd | None = None  # how the run ends because of another role than the main one
        self._sure_at: float | None = None

    def carry_out(self) -> AttemptEnd:
        """Run the attempt until all its processes here have exited, end the input of the process that sends its
        notifications, and return how the attempt ended.
        """
        wait_s = 0.0
        try:
            end = self._carried_out()
            wait_s = self._told_within_s if end.state.ended else 0.0
            return end
        finally:
            self._messenger.close(wait_s)

    def _carried_out(self) -> AttemptEnd:
        """Run the attempt until all its processes here have exited, and return how it ended. Raise Fenced if a newer
        attempt exists, and OSError if the end cannot be written.
        """
        end = self._prepare()
        if end is not None:
            return end
        status = self._watch()
        if self._by_roles is not None:
            self._agents.end_now(self._own)  # its ranks would fail, or finish, while the other roles stop
        known = readable(self._attempt.end, AttemptEnd)
        if known is not None:
            self._agents.wait_for_others(self._own, _FAREWELL_S)
        goes_on = State.QUEUED in {one.state for one in (self._by_roles, known) if one}
        is_lost = self._plan.elects and (known.cause is Cause.NODE_LOST if known else self._by_roles is None)
        self._roles.stop(SURE_S, goes_on=goes_on or is_lost, at_once=is_lost)
        self._agents.end(standbys_of=self._own)
        self._roles.close()
        if self._by_roles is not None and write_known_end(self._run, self._attempt, self._plan) is None:
            end = self._write(self._by_roles, self._roles.failure(self._by_roles))
        else:
            end = settle_end(self._run, self._attempt, self._plan, status, self._write)
        if end.state is not State.QUEUED:
            self._agents.end()
        return end

    def _write_at_once(self, end: AttemptEnd, failure: Failure | None) -> AttemptEnd:
        """Write how the attempt ended, with the failure that the run's state then shows (None: keep an earlier one),
        and return `end`. Raise Fenced if a newer attempt exists, and OSError if it cannot be written.

        This is used unless the caller gave another function, such as one that first waits for other hosts.
        """
        write_end(self._run, self._attempt, end, self._plan, failure)
        return end

    def _watch(self) -> int | None:
        """Wait until node 0's agent, with the coordinator, has ended, and return its wait status. Return None if a
        role's end decides how the run ends, or if a stop was requested and the agent has not ended within the ranks'
        grace period and a few seconds more.
        """
        while True:
            stopping = self._sure_at is not None
            if not stopping:
                self._by_roles = self._roles.update()
                if self._by_roles is not None:
                    return None
            looks = (self._sure_at or self._requests.next_check(), self._roles.next_update())
            soonest = min((one for one in looks if one is not None), default=None)
            status = self._agents.watch(soonest, bring_back=not stopping)
            if status is not None:
                end = readable(self._attempt.role_end, AttemptEnd)
                if end is None:
                    return status
                self._by_roles = self._roles.main_ended(end)
                if self._by_roles is not None or stopping:
                    return None
            if not stopping and self._requests.to_end():
                self._sure_at = time.monotonic() + self._plan.spec.recovery.grace_s + SURE_S
                if self._own[0].pid is None:
                    return None
                self._agents.signal_first()
            if self._sure_at is not None and time.monotonic() >= self._sure_at:
                return None
