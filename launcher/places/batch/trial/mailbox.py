"""Ask a node of the trial job (of `launch doctor --try`) through a shared folder: a file for each question, and one for
its answer.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from launcher.errors import Unreachable
from launcher.health.session import read_answer
from launcher.places.batch.trial.checks import read_stopped
from launcher.places.batch.trial.trial_jobs import ASK_S, LOOK_S, JobOnTrial
from launcher.run.durable import write_record

T = TypeVar("T")
AT_WORK = "at-work"  # as long as it is there nodes wait for questions; the interface that they are asked about
LOG = "steps.log"
LATE_S = (
    40.0  # how late file systems that cache may show an answer; a node that has just died seems to run the job, too
)
_MOST_BYTES = 1_000_000


class Mailbox:
    """The questions to one node of the trial job, and its answers."""

    def __init__(self, name: str, folder: Path, job: JobOnTrial) -> None:
        self.name, self._folder, self._job, self._numbers = name, folder, job, count()

    def ask(self, words: Mapping[str, object] | None, answer: type[T], limit_s: float) -> T:
        """Write the question `words` and return the node's answer, decoded as `answer`. With None as `words` return the
        report that each node sends first, without a question.

        Raise Unreachable after `limit_s`, if the job has ended or restarted or the node's part of it has stopped, and
        for an answer that cannot be decoded.
        """
        file = file_of(self.name, next(self._numbers))
        if words is not None:
            write_record(self._folder / f"{file}.asked", words)
        until = time.monotonic() + limit_s
        while True:
            state = self._job.look(every_s=ASK_S)  # what the node wrote before is read once more
            if (said := read_end(self._folder / f"{file}.said")) is not None:
                with contextlib.suppress(ValueError):
                    return read_answer(said, answer)
                raise Unreachable(f"{self.name} gives an unexpected answer")
            now = time.monotonic()
            if now >= until or state.restarts or self.name in read_stopped(trial_output(self._folder)):
                raise Unreachable(f"nothing more came from {self.name}")
            if state.has_ended:
                until = min(until, now + (LATE_S if state.exit_code == 0 and state.nodes else 0.0))
            time.sleep(LOOK_S)


def trial_output(folder: Path) -> str:
    """Return the text that the trial job has printed."""
    return (read_end(folder / LOG) or b"").decode(errors="replace")


def file_of(node: str, number: int) -> str:
    """Return the common name, without a suffix, of the two files with question `number` to a node and its answer:
    `NAME.asked` and `NAME.said`.
    """
    return f"{quote(node, safe='')}-{number}"


def read_end(path: Path) -> bytes | None:
    """Return the last million bytes of a file, or None if it does not exist. Its folder is listed first, because a
    network disk then shows new files.
    """
    try:
        if path.name not in os.listdir(path.parent):
            return None
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
