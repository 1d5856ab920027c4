"""The state of a run whose keeper waits before anything is started."""

import time

import msgspec

from launcher.rundir.attempts import used_s_of
from launcher.rundir.durable import readable, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import RunState
from launcher.words import State


def say_queued(run: RunDir, attempt: AttemptDir, why: str) -> None:
    """It waits, and why; written once for each reason."""
    _say(run, attempt, State.QUEUED, why)


def say_starting(run: RunDir, attempt: AttemptDir) -> None:
    """It waits no more."""
    _say(run, attempt, State.STARTING, "starting agents")


def _say(run: RunDir, attempt: AttemptDir, state: State, text: str) -> None:
    last = readable(run.state, RunState)
    if last is None or (last.attempt, last.state, last.message) == (attempt.number, state, text):
        return
    used_s = used_s_of(run, attempt, last)
    said = msgspec.structs.replace(last, attempt=attempt.number, state=state, message=text, used_s=used_s)
    if last.attempt != attempt.number:  # how the one before ended is not how this one is
        said = msgspec.structs.replace(said, cause=None, exit_code=None, ended_at=None)
    write_record(run.state, msgspec.structs.replace(said, updated_at=time.time()))
