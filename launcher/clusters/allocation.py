"""One attempt on this machine: an agent process per node, watched until the coordinator has had its last word."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from launcher.agent.environment import cleaned
from launcher.agent.processes import TAG, become_subreaper, descendants, end_all, orphans
from launcher.clusters.bell import Bell
from launcher.clusters.last_word import write_end
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.recovery.policy import decide
from launcher.rundir.durable import append_line, make_dir, read_record, write_record
from launcher.rundir.events import read_events
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Event, Failure, RunState, StopRequest
from launcher.words import Action, Cause, State, exit_of

_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
_FAREWELL_S = 5.0
_SURE_S = 8.0  # beyond the spec's grace, before a stop is made sure
_RETURN_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(slots=True)
class _Node:
    index: int
    pid: int | None = None
    deaths: int = 0
    returns_at: float | None = None


class Allocation:
    """`carry_out` returns how the attempt ended, with everything that belonged to it gone."""

    def __init__(self, run: RunDir, attempt: AttemptDir, before: AttemptDir | None, plan: Plan, bell: Bell) -> None:
        self._run = run
        self._attempt = attempt
        self._before = before  # the attempt that this one continues, where the same keeper carried it out
        self._plan = plan
        self._bell = bell
        self._nodes = [_Node(node.index) for node in plan.nodes]
        self._sure_at: float | None = None

    def carry_out(self) -> AttemptEnd:
        become_subreaper()
        for node in self._nodes:
            self._start(node)
        status = self._watch()
        self._say_farewell()
        end_all(lambda: descendants(os.getpid()))
        self._reap()
        return read_record(self._attempt.end, AttemptEnd) or self._speak_for_the_dead(status)

    def _start(self, node: _Node) -> None:
        make_dir(self._attempt.node(node.index))
        log = os.open(self._attempt.agent_log(node.index), _LOG, 0o600)
        argv = [sys.executable, "-P", "-m", "launcher.agent", self._plan.run_dir]
        try:
            child = subprocess.Popen(
                [*argv, str(self._attempt.number), str(node.index)],
                env={**cleaned(os.environ), TAG: self._plan.run_dir},
                cwd=self._run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        child.returncode = 0  # reaped below, by pid, like the orphans
        node.pid, node.returns_at = child.pid, None

    def _watch(self) -> int | None:
        """Until node 0's agent, the coordinator, has ended; gives its wait status, or None where it was cut short."""
        while True:
            self._bell.ring(self._next_moment())
            for pid, status in self._reap():
                if pid == self._nodes[0].pid:
                    return status
                self._lost(pid, status)
            if self._bell.stop_asked and self._sure_at is None:
                self._ask_to_stop()
            now = time.monotonic()
            if self._sure_at is not None and now >= self._sure_at:
                return None
            for node in self._nodes:
                if node.returns_at is not None and now >= node.returns_at and self._sure_at is None:
                    self._start(node)

    def _ask_to_stop(self) -> None:
        self._sure_at = time.monotonic() + self._plan.spec.recovery.grace_s + _SURE_S
        late = read_record(self._before.stop, StopRequest) if self._before is not None else None
        if late is not None and not self._attempt.stop.exists():
            write_record(self._attempt.stop, late)  # it was meant for the run, and we had just moved on
        self._signal(self._nodes[0], signal.SIGTERM)

    def _next_moment(self) -> float | None:
        moments = [node.returns_at for node in self._nodes if node.returns_at is not None]
        if self._sure_at is not None:
            moments = [self._sure_at]
        return min(moments) - time.monotonic() if moments else None

    def _reap(self) -> list[tuple[int, int]]:
        dead: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return dead
            if pid == 0:
                return dead
            dead.append((pid, status))

    def _lost(self, pid: int, status: int) -> None:
        """A node's agent is gone: end what it left; the node comes back after a while, like one that rebooted."""
        node = next((node for node in self._nodes if node.pid == pid), None)
        if node is None:
            return  # an orphan that we inherited
        node.pid = None
        end_all(lambda: orphans(os.getpid(), {other.pid for other in self._nodes if other.pid is not None}))
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (Exit.OK, Exit.FENCED):
            node.returns_at = time.monotonic() + _RETURN_S[min(node.deaths, len(_RETURN_S) - 1)]
            node.deaths += 1

    def _signal(self, node: _Node, number: int) -> None:
        if node.pid is not None:
            os.kill(node.pid, number)  # our own child, not reaped yet: the pid cannot be another's

    def _say_farewell(self) -> None:
        """The other agents were told to leave, or lost their coordinator: give them a moment to tidy up."""
        if read_record(self._attempt.end, AttemptEnd) is None:
            return
        waiting = {node.pid for node in self._nodes[1:] if node.pid is not None}
        deadline = time.monotonic() + _FAREWELL_S
        while waiting and time.monotonic() < deadline:
            self._bell.ring(deadline - time.monotonic())
            waiting -= {pid for pid, _ in self._reap()}

    def _speak_for_the_dead(self, status: int | None) -> AttemptEnd:
        """The coordinator is gone without a last word: say for it what happened, and what follows."""
        now = time.time()
        request = read_record(self._attempt.stop, StopRequest)
        if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == Exit.FENCED:
            return AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.FENCED, now, "a newer attempt took over")
        if request is not None and request.kind == "cancel":
            end = AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, now, "cancelled")
            write_end(self._run, self._attempt, end, self._plan)
            return end
        event = self._death_of_the_coordinator(status, now)
        history = read_events(self._run)
        append_line(self._run.events, event)
        decision = decide(event, history, self._plan.spec.recovery, can_regroup=False)
        queued = decision.action is not Action.END
        end = AttemptEnd(
            state=State.QUEUED if queued else State.FAILED,
            cause=decision.cause,
            exit_code=exit_of(decision.cause),
            ended_at=now,
            message=decision.reason,
            delay_s=decision.delay_s,
        )
        failure = Failure(decision.cause, event.text, event.attempt, event.generation, node=0, at=now)
        write_end(self._run, self._attempt, end, self._plan, failure)
        return end

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
