"""Hand attempts to a place exactly once, whichever process dies at whatever moment. A place is where a run goes: this
machine, an SSH pool, a batch system or a login node. An intent is the record of an attempt that is written before its
place is asked to start it, and a handle the record by which the place is asked about it afterwards.

intent with its submit token (fsync) ─ lock ─ the place is asked to start it ─ handle (fsync) ─ marked as done ─ unlock

An attempt that has an intent, and neither a handle nor an end, is open. A process that finds an open one with no live
submitter takes its lock and asks the place for the submit token. If the place has the token, its handle is written; if
not, the attempt is submitted now or gets an end. Each place finds a token in its own way: a batch system by a mark on
its jobs, a pool by the run's folder on its hosts, a login node by what it keeps of each token.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import Exit, Refused
from launcher.run.attempts import read_intent, read_plan
from launcher.run.durable import read_record
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, BatchDir, NamedFile, RunDir
from launcher.run.locks import locked
from launcher.run.records import AttemptEnd, Intent
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import cancelled, write_end

_GIVEN_UP_S = 60.0  # a submitter on another machine, whose state is unknown here, is done by then


def is_open(run: RunDir, attempt: AttemptDir) -> bool:
    """Return whether it is not recorded if the attempt's place has received it: the run has a plan, and the attempt has
    neither a handle nor an end.
    """
    return not attempt.handle.exists() and not attempt.end.exists() and run.plan.exists()


def give_up(run: RunDir, attempt: AttemptDir, why: str) -> None:
    """Write the end of an attempt that was never started and never will be: failed by a fault of the launcher, with the
    message `why`.

    Raise Fenced if a newer attempt exists, Damaged if the plan cannot be read, and OSError if the end cannot be
    written.
    """
    end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), why)
    write_end(run, attempt, end, read_plan(run, attempt.number))


@dataclass(frozen=True, slots=True)
class Handover:
    """A request to a place to start attempts: one attempt, or the first attempts of runs submitted together."""

    path: Path  # the attempt's folder, or the folder that runs submitted together share
    intent: Intent  # the intent of the attempt by which the handover was found
    members: tuple[tuple[RunDir, AttemptDir], ...]

    lock = NamedFile(".job-lock")  # locked while a process may be handing the attempts over
    site = NamedFile("site.json")  # names the cluster that the attempts are handed to
    script = NamedFile("job.sh")  # the script that a batch system gets

    @classmethod
    def of(cls, run: RunDir, attempt: AttemptDir) -> "Handover":
        """Return the handover to which an attempt belongs; raise Damaged if its records cannot be read."""
        intent = read_intent(attempt)
        if not intent.batch:
            return cls(attempt.path, intent, ((run, attempt),))
        folder = BatchDir(Path(intent.batch))
        runs = [RunDir(Path(path)) for path in read_record(folder.runs, list[str]) or [str(run.path)]]
        return cls(folder.path, intent, tuple((one, one.attempt(attempt.number)) for one in runs))

    def is_open(self) -> bool:
        """Return whether any of the handover's attempts has neither a handle nor an end."""
        return any(is_open(run, attempt) for run, attempt in self.members)

    def is_in_hand(self) -> bool:
        """Return whether the attempts' submitter lives and has not finished handing them over, or some process has
        the lock for that. Return False if the submitter is known to be dead, even if the lock is taken.

        While it is unknown whether it lives, as on another machine, it counts as alive for a minute after the attempt
        was opened.
        """
        lives = alive(self.intent.created_by)
        if lives is False:
            return False
        # A free lock means nothing while the submitter lives: its file exists before it is locked.
        is_recent = time.time() - self.intent.created_at < _GIVEN_UP_S
        return (not self._was_left() and (lives or is_recent)) or self.is_locked()

    def is_locked(self) -> bool:
        """Return whether a process is handing the attempts over or withdrawing them now."""
        if not self.lock.exists():
            return False
        with locked(self.lock) as free:
            return free is None

    @contextlib.contextmanager
    def held(self, *, wait: bool = False) -> Iterator[int | None]:
        """Hold the lock of the process that hands the attempts over, and yield its descriptor, or None if another
        process has it; with `wait`, wait for the lock.

        A child that inherits the descriptor holds the lock as long as it lives. If this call held it, the lock file
        records afterwards that the submitter is done, whether it succeeded or not.
        """
        with locked(self.lock, wait=wait) as lock:
            try:
                yield lock
            finally:
                if lock is not None:
                    os.ftruncate(lock, 1)  # works on a full disk too

    def withdraw(self) -> None:
        """Write that all the handover's attempts were cancelled before they began, so that no process hands them over
        later.

        Raise Fenced if one has a newer attempt, Damaged if a plan cannot be read, and OSError if an end cannot be
        written.
        """
        for run, attempt in self.members:
            write_end(run, attempt, cancelled("cancelled before it began"), read_plan(run, attempt.number))

    def give_up(self, why: str) -> None:
        """Write the end, with the reason `why`, of each of its attempts that has neither a handle nor an end yet. Raise
        Fenced if a newer attempt exists, Damaged if a plan cannot be read, and OSError if an end cannot be written.
        """
        for run, attempt in self.members:
            if is_open(run, attempt):
                give_up(run, attempt, why)

    def _was_left(self) -> bool:
        """Return whether the lock file records that the submitter has finished handing the attempts over, whether it
        succeeded or not. A submitter that was killed leaves no such record.
        """
        try:
            return self.lock.stat().st_size > 0
        except FileNotFoundError:
            return False


def handover_error(run: RunDir, to: str) -> Refused:
    """Return the error for a cancel that comes while the submitter is handing the run over; `to` names the place."""
    hint = f"hint: launch cancel {run.path.name} again, in a moment"
    return Refused(f"{run.path.name} is being handed to {to}: nothing was ended", hint)
