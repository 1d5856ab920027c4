"""The keeper of a local run: what slurmctld is to a Slurm job. One small process, parent of all agents of an attempt.

    python -m launcher.clusters.local.keeper RUN_DIR UP_FD GO_FD

It boots while the submitter still freezes code, says so on UP_FD, and waits on GO_FD. A submitter that dies closes
GO_FD; the keeper then looks whether the attempt's intent is on disk and, if so, carries it out all the same. So from
the moment a run exists there is exactly one keeper for it, and before that moment none that does anything.
"""

import contextlib
import os
import sys
from pathlib import Path

from launcher.agent.memory_tier import close_tier
from launcher.clusters.keeping.agent_processes import agent_process
from launcher.clusters.keeping.allocation import Allocation
from launcher.clusters.keeping.attempt_end import cut_short, write_end
from launcher.clusters.keeping.own_log import log_to
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.errors import Fenced
from launcher.rundir.attempts import new_attempt, newest, read_plan
from launcher.rundir.durable import create_record, read_record, write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle, StopRequest
from launcher.words import State


def main() -> int:
    """Detach, report, wait for the word, keep the run."""
    run, up_fd, go_fd = RunDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    os.umask(0o077)
    if os.fork():
        os._exit(0)  # so that the submitter has no child left that it would have to wait for
    _silence()
    with contextlib.suppress(BrokenPipeError):  # the submitter has died: what it left on disk decides
        os.write(up_fd, b"up\n")
    os.close(up_fd)
    with open(go_fd, "rb") as file:
        word = file.read()
    attempt = _named(run, word) or _left_behind(run)
    if attempt is not None:
        try:
            keep(run, attempt)
        except Fenced as fenced:
            print(fenced, file=sys.stderr)
            return fenced.exit_code
    return 0


class _Signals:
    """SIGTERM ends a local attempt; its sender has written down why, for this attempt or the one before."""

    def __init__(self, bell: Wakeup, attempt: AttemptDir, before: AttemptDir | None) -> None:
        self._bell, self._attempt, self._before = bell, attempt, before

    def next_look(self) -> float | None:
        return None

    def to_end(self) -> bool:
        if not self._bell.stop_asked:
            return False
        late = read_record(self._before.stop, StopRequest) if self._before is not None else None
        if late is not None and not self._attempt.stop.exists():
            write_record(self._attempt.stop, late)  # it was meant for the run, and we had just moved on
        return True


def keep(run: RunDir, attempt: AttemptDir) -> None:
    """Carry out this attempt, and those that must follow it, until the run has ended."""
    bell = Wakeup()
    before = None
    while _claim(attempt):
        log_to(attempt.keeper_log)
        write_record(attempt.handle, Handle("local", keeper=this_process()))
        raise_fence(run, attempt.number)
        plan = read_plan(run, attempt.number)
        posts = [agent_process(plan, attempt, node.index) for node in plan.nodes]
        end = Allocation(run, attempt, plan, bell, _Signals(bell, attempt, before), posts).carry_out()
        if end.state is not State.QUEUED:
            close_tier(Path(plan.run_dir), attempt.number)  # of agents that were killed
            return
        bell.wait(end.delay_s)
        if bell.stop_asked:
            write_end(run, attempt, cut_short(attempt, "it was to start again", end.ended_at), plan)
            close_tier(Path(plan.run_dir), attempt.number)
            return
        before = attempt
        attempt, _ = new_attempt(run, plan.cluster, "requeue", end.cause)


def _named(run: RunDir, word: bytes) -> AttemptDir | None:
    return run.attempt(int(word)) if word.strip().isdigit() else None


def _left_behind(run: RunDir) -> AttemptDir | None:
    """The attempt whose submitter died between writing the intent and giving the word."""
    attempt = newest(run) if run.plan.exists() else None
    return attempt if attempt is not None and attempt.intent.exists() and not attempt.started.exists() else None


def _claim(attempt: AttemptDir) -> bool:
    """True for the one keeper that may carry this attempt out."""
    try:
        create_record(attempt.started, this_process())
    except FileExistsError:
        return False
    return True


def _silence() -> None:
    """Let go of the submitter's pipe; until there is an attempt there is nowhere to complain to."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
