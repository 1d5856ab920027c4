"""Inspect what the ranks of a node are doing, without disturbing them: by asking each, and from /proc."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.errors import said_by_the_system
from launcher.run.durable import readable
from launcher.run.hangs import FlightRecord, RankLook, RankTimes
from launcher.run.identity import stat_fields
from launcher.run.processes import io_counts, is_stopped

ANSWER_S = 2.0  # a rank whose process runs answers in milliseconds; on a loaded machine in a second
NO_ANSWER = "did not answer"
_SEEN_S = 0.5  # over which processor time and bytes are counted, at least
_POLL_S = 0.02
_MOST_BYTES = 4 << 20
_Said = TypeVar("_Said", FlightRecord, RankTimes)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Subject:
    """A rank to be inspected; questions and answers are files beside `progress`, its FIFO of reports. `step` is its
    newest step and `idle_s` the time since it last showed activity.
    """

    rank: int
    node: int
    pid: int
    progress: Path
    step: int | None = None
    idle_s: float = 0.0

    @property
    def question(self) -> Path:
        """Return the path of the FIFO over which the rank is asked."""
        return self.progress.with_suffix(".look")

    @property
    def answer(self) -> Path:
        """Return the path of the file in which the rank writes what it is doing."""
        return self.progress.with_suffix(".flight")

    @property
    def times(self) -> Path:
        """Return the path of the file in which the rank writes when it entered its newest collectives."""
        return self.progress.with_suffix(".entered")


@dataclass(frozen=True, slots=True)
class _Use:
    """The kernel's counters of a process: its state letter, its processor time in seconds (`cpu_s`), and the bytes that
    it read and wrote (`moved_bytes`).
    """

    state: str = ""
    cpu_s: float = 0.0
    moved_bytes: int = 0


def look_at(
    subjects: Sequence[Subject], answer_s: float = ANSWER_S, clock: Callable[[], float] = time.monotonic
) -> list[RankLook]:
    """Ask the ranks in `subjects` all at once and return what each is doing, after at most `answer_s` seconds by
    `clock`.

    A rank that does not answer is described from /proc, with the reason in `problem`.
    """
    began, number = clock(), time.time_ns() >> 10
    before = {one.rank: _use_of(one.pid) for one in subjects}
    problems = {one.rank: _ask(one, number) for one in subjects}
    answers = dict[int, FlightRecord]()
    while True:
        for one in subjects:
            if (
                one.rank not in answers
                and not problems[one.rank]
                and (found := _answer(one.answer, number, FlightRecord)) is not None
            ):
                answers[one.rank] = found
        waited_s = clock() - began
        silent = [one for one in subjects if one.rank not in answers and not problems[one.rank]]
        awaited = any(not is_stopped(one.pid) for one in silent)
        if waited_s >= (answer_s if awaited else _SEEN_S):
            break
        time.sleep(_POLL_S)
    return [
        _look(one, before[one.rank], clock() - began, answers.get(one.rank), problems[one.rank]) for one in subjects
    ]


def times_of(
    subjects: Sequence[Subject], answer_s: float = ANSWER_S, clock: Callable[[], float] = time.monotonic
) -> dict[int, RankTimes]:
    """Return when each rank in `subjects` entered its newest collectives, by rank number. Ranks that do not answer
    within `answer_s` seconds by `clock` are left out.
    """
    until, number, found = clock() + answer_s, time.time_ns() >> 10, dict[int, RankTimes]()
    awaited = [one for one in subjects if not _ask(one, number, "times ")]
    while awaited and clock() < until:
        time.sleep(_POLL_S)
        said = {one.rank: _answer(one.times, number, RankTimes) for one in awaited}
        found |= {rank: times for rank, times in said.items() if times is not None}
        awaited = [one for one in awaited if one.rank not in found]
    return found


def _ask(subject: Subject, number: int, only: str = "") -> str:
    """Ask the rank `subject` what it is doing, by writing `number`, the number of this question, to the FIFO from which
    a thread of the rank reads questions. Return why the rank cannot be asked, or "".

    `only` is put before the number and restricts the question, such as `"times "`; "" asks for everything. A question
    that does not fit into a full FIFO is dropped, so no answer comes.
    """
    try:
        fd = os.open(subject.question, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return "has no process group of torch's"
    except OSError as error:
        return f"cannot be asked: {said_by_the_system(error)}"
    try:
        os.write(fd, f"{only}{number}\n".encode())
    except BlockingIOError:
        pass  # it has not taken thousands of earlier questions either: no answer is the answer
    finally:
        os.close(fd)
    return ""


def _answer(path: Path, number: int, kind: type[_Said]) -> _Said | None:
    """Return the content of the answer file, decoded as a `kind`, if it answers question `number` or a later one; else
    None.
    """
    try:
        if path.lstat().st_size > _MOST_BYTES:
            return None
        found = readable(path, kind)
    except OSError:
        return None  # there is none yet
    return found if found is not None and found.number >= number else None


def _look(subject: Subject, before: _Use, took_s: float, said: FlightRecord | None, problem: str) -> RankLook:
    """Return the description of a rank, from its answer `said` and from the kernel's counters of its process.

    The processor time and bytes are those since the counters were `before`, `took_s` seconds ago. `said` is None if the
    rank did not answer; `problem` says why it could not be asked, or is "" if it was asked.
    """
    now = _use_of(subject.pid)
    look = RankLook(
        rank=subject.rank,
        node=subject.node,
        pid=subject.pid,
        state=now.state,
        busy=round(max(0.0, now.cpu_s - before.cpu_s) / max(took_s, _POLL_S), 2),
        moved_bytes=max(0, now.moved_bytes - before.moved_bytes),
        problem=problem or ("" if said is not None else NO_ANSWER),
        step=subject.step,
        idle_s=round(subject.idle_s, 1),
    )
    if said is None:
        return look
    return msgspec.structs.replace(
        look,
        answered=True,
        groups=said.groups,
        stack=said.stack,
        threads=said.threads,
        problem=said.problem,
    )


def _use_of(pid: int) -> _Use:
    """Return a process's state, processor time, and bytes read and written, from /proc; if it has ended, a _Use with
    state "" and zeros.
    """
    try:
        fields, counts = stat_fields(pid), io_counts(pid)
    except OSError:
        return _Use()
    moved = counts[b"rchar"] + counts[b"wchar"]
    return _Use(fields[0].decode(), (int(fields[11]) + int(fields[12])) / _TICKS, moved)
