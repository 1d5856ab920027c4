"""The supervisor of a local run: one small process that is the parent of all agents of an attempt, and opens the next
attempt. An attempt is one start of the run, and its intent the record that is written before anything is started.

A submitter that dies closes the pipe GO_FD. The supervisor then checks whether the attempt's intent is on disk, and if
so runs the attempt. From the moment a run exists it therefore has exactly one supervisor; before that, a supervisor
changes nothing.
"""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from launcher.copies.memory_tier import close_tier
from launcher.errors import BadInput, Exit
from launcher.plan.model import Plan
from launcher.plan.queueing import may_wait_here
from launcher.run.attempts import new_attempt, newest, read_plan
from launcher.run.durable import write_record
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import patiently
from launcher.run.records import AttemptEnd, Handle
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AgentPlace, agent_process
from launcher.supervisor.allocation import Allocation, StopSignal, claim_attempt
from launcher.supervisor.attempt_end import cut_short, write_end
from launcher.supervisor.messenger import Messenger
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.places.local.queue import TurnHere
    from launcher.run.code.listing import CodeFile


class LocalSupervisor(Strategy):
    """The supervisor of one run's attempts on this machine. Its submitter names the attempt to begin with. If the
    submitter dies before that, the supervisor begins with the newest attempt, provided that its intent is on disk and
    no process has started it.
    """

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        super().__init__(folder, words)
        place = AgentPlace.taken_from(os.environ)
        self.detached = place is not None
        self._places: Sequence[AgentPlace | None] = (place,)  # what waits to become the agents, by node
        self._before: AttemptDir | None = None
        self._turn: TurnHere | None = None  # it holds the run's slots as long as it is there

    def supervise(self, go: BinaryIO) -> int:
        """Run the attempt that is named over the pipe `go`, and those that follow it; return the exit code.

        If the pipe is closed without a name, run the attempt that a dead submitter left, if there is one.
        """
        self._places = (AgentPlace.booting(self.run.path, os.environ, self._places[0]),)
        with go:
            attempt = _named(self.run, go.read()) or _left_behind(self.run)
        self._wakeup = Wakeup()
        return self.carry(attempt if attempt is not None and claim_attempt(attempt.started) else None)

    def carry_out(self, attempt: AttemptDir) -> AttemptEnd:
        """Run the attempt until its end is written, and return that end.

        Before the run's first attempt here, wait for what the spec's `queue` names and for the GPUs that the run takes
        on this machine. If the run ends meanwhile, such as by a stop, nothing is started.
        """
        run, places, self._places = self.run, self._places, ()
        write_record(attempt.handle, Handle("local", supervisor=this_process()))
        plan = read_plan(run, attempt.number)
        if self._before is None and may_wait_here(plan):
            from launcher.places.local.queue import TurnHere  # late: 20 ms that most runs without GPUs do not need

            self._turn = TurnHere(run, attempt, plan, self._wakeup, os.environ)
            first = places[0]
            leave = first.leave if first is not None and not first.warm else None  # the wait might be for days
            come = self._turn.wait(leave)
            if isinstance(come, AttemptEnd):
                Messenger(run, attempt).close()  # no allocation has one
                return come
            plan = come
        slots = self._turn.fds if self._turn is not None else ()
        agents = [agent_process(plan, attempt, node.index, keep=slots) for node in plan.nodes]
        for agent, place in zip(agents, places, strict=False):
            agent.place = place
        self._plan, stop = plan, StopSignal(self._wakeup, attempt, self._before)
        prepare = partial(have_code, run, attempt, plan, stop)
        allocation = Allocation(run, attempt, plan, self._wakeup, stop, agents, prepare=prepare)
        end = allocation.carry_out()
        self._places = [agent.place for agent in agents]
        return end

    def follow(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptDir | None:
        """Open the next attempt after the delay in `end` and return it. Return None if another process has the next
        attempt. If a stop is requested during the delay, write the run's end and return None.
        """
        self._wakeup.wait(end.delay_s)
        self._before = attempt
        if self._wakeup.stop_asked:
            write_end(self.run, attempt, cut_short(attempt, "it was to start again", end.ended_at), self._plan)
            close_tier(self.run.path, attempt.number)
            return None
        following, _ = new_attempt(self.run, self._plan.cluster, "requeue", end.cause)
        return following if claim_attempt(following.started) else None


class _StopAsked(Exception):
    """Raised when a stop is requested while the code is being copied."""


def have_code(run: RunDir, attempt: AttemptDir, plan: Plan, stop: StopSignal) -> AttemptEnd | None:
    """Copy the run's code from the store of frozen code into the run's folder, unless the submitter has done so. Return
    None, or, if the copy fails or `stop` interrupts it, the attempt's end, which is then also on disk.
    """
    if run.code.is_dir():
        return None
    from launcher.run.code.freezing import bring_code  # late: few runs have so much code

    def until_stopped(files: "Sequence[CodeFile]") -> "Iterator[CodeFile]":
        """Yield the files, and raise _StopAsked once a stop is requested."""
        for file in files:
            if stop.to_end():
                raise _StopAsked
            yield file

    try:
        patiently(lambda: bring_code(run, plan.code.digest, until_stopped))
    except _StopAsked:
        end = cut_short(attempt, "its code was being copied", time.time())
    except (BadInput, OSError) as error:
        end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), str(error))
    else:
        return None
    write_end(run, attempt, end, plan)
    return end


def _named(run: RunDir, message: bytes) -> AttemptDir | None:
    """Return the attempt whose number the submitter's message `message` holds, or None if it holds no number."""
    return run.attempt(int(message)) if message.strip().isdigit() else None


def _left_behind(run: RunDir) -> AttemptDir | None:
    """Return the run's newest attempt if its intent was written and it was not started, as its submitter died in
    between; else None.
    """
    attempt = newest(run) if run.plan.exists() else None
    return attempt if attempt is not None and attempt.intent.exists() and not attempt.started.exists() else None
