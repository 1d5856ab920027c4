"""The keeper of a local run: what slurmctld is to a Slurm job. One small process, parent of all agents of an attempt.

    python -m launcher.clusters.local.keeper RUN_DIR UP_FD GO_FD

It boots while the submitter still freezes code, says so on UP_FD, and waits on GO_FD. A submitter that dies closes
GO_FD; the keeper then looks whether the attempt's intent is on disk and, if so, carries it out all the same. So from
the moment a run exists there is exactly one keeper for it, and before that moment none that does anything.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.memory.tier import close_tier
from launcher.errors import BadInput, Exit, LaunchError
from launcher.plan.model import Plan
from launcher.plan.queueing import may_wait_here
from launcher.rundir.attempts import new_attempt, newest, read_plan
from launcher.rundir.durable import Damaged, write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.patience import patiently, waiting_for_disks
from launcher.rundir.records import AttemptEnd, Handle
from launcher.supervisor.agent_processes import AgentPlace, agent_process
from launcher.supervisor.allocation import Allocation, StopSignal, claim_attempt
from launcher.supervisor.attempt_end import cut_short, say_damage, write_end
from launcher.supervisor.messenger import Messenger
from launcher.supervisor.own_log import log_to
from launcher.supervisor.standby import detach, report
from launcher.supervisor.wakeup import Wakeup
from launcher.words import Cause, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.rundir.code.listing import CodeFile


def main() -> int:
    """Detach, report, wait for the word, keep the run."""
    run, up_fd, go_fd = RunDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    place = AgentPlace.taken_from(os.environ)
    detach(already=place is not None)
    report(up_fd, b"up\n")
    place = AgentPlace.booting(run.path, os.environ, place)
    with open(go_fd, "rb") as file:
        word = file.read()
    attempt = _named(run, word) or _left_behind(run)
    if attempt is not None:
        try:
            with waiting_for_disks():
                kept(run, attempt, place)
        except LaunchError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    return 0


def kept(run: RunDir, attempt: AttemptDir, place: AgentPlace | None = None) -> None:
    """Where a record is damaged without which the run cannot go on, its last word says which."""
    try:
        keep(run, attempt, place)
    except Damaged as error:
        say_damage(run, error)
        raise


def keep(run: RunDir, attempt: AttemptDir, place: AgentPlace | None) -> None:
    """Carry out this attempt, and those that must follow it, until the run has ended."""
    wakeup = Wakeup()
    before, slots = None, tuple[int, ...]()
    while claim_attempt(attempt.started):
        log_to(attempt.keeper_log)
        write_record(attempt.handle, Handle("local", keeper=this_process()))
        raise_fence(run, attempt.number)
        plan = read_plan(run, attempt.number)
        if before is None and may_wait_here(plan):
            from launcher.clusters.local.queue import TurnHere  # late: 20 ms that most runs without GPUs do not need

            turn = TurnHere(run, attempt, plan, wakeup, os.environ)
            waits = place.leave if place is not None and not place.warm else None  # that might be for days
            come = turn.come(waits)
            if come is None:
                Messenger(run, attempt).close()  # no allocation has one
                return
            plan, slots = come, turn.fds
        agents = [agent_process(plan, attempt, node.index, keep=slots) for node in plan.nodes]
        agents[0].place, place = place, None
        stop = StopSignal(wakeup, attempt, before)
        prepare = partial(have_code, run, attempt, plan, stop)
        end = Allocation(run, attempt, plan, wakeup, stop, agents, prepare=prepare).carry_out()
        if end.state is State.QUEUED:
            wakeup.wait(end.delay_s)
            if wakeup.stop_asked:
                end = cut_short(attempt, "it was to start again", end.ended_at)
                write_end(run, attempt, end, plan)
        if end.state is not State.QUEUED:
            close_tier(Path(plan.run_dir), attempt.number)  # of agents that were killed
            return
        before = attempt
        attempt, _ = new_attempt(run, plan.cluster, "requeue", end.cause)


class _StopAsked(Exception):
    """While the code was being copied."""


def have_code(run: RunDir, attempt: AttemptDir, plan: Plan, stop: StopSignal) -> AttemptEnd | None:
    """Copy the code, where the submit left that to us; gives how the attempt has ended where that cannot be."""
    if run.code.is_dir():
        return None
    from launcher.rundir.code.freezing import bring_code  # late: few runs have so much code

    def until_stopped(files: "Sequence[CodeFile]") -> "Iterator[CodeFile]":
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


def _named(run: RunDir, word: bytes) -> AttemptDir | None:
    return run.attempt(int(word)) if word.strip().isdigit() else None


def _left_behind(run: RunDir) -> AttemptDir | None:
    """The attempt whose submitter died between writing the intent and giving the word."""
    attempt = newest(run) if run.plan.exists() else None
    return attempt if attempt is not None and attempt.intent.exists() and not attempt.started.exists() else None


if __name__ == "__main__":
    sys.exit(main())
