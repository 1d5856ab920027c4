"""Looking at ranks: the questions and answers beside their FIFOs, and what the kernel tells of their processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.coordinator.hang import judge
from launcher.coordinator.stragglers import NodeClock, last_rank
from launcher.node import ZYGOTE
from launcher.node.ranks.looking import Subject, look_at, times_of
from launcher.run.hangs import Frame, HangKind

SCRIPT = Path(__file__).parent / "scripts/hangs.py"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def subject(process: subprocess.Popen[bytes], folder: Path) -> Subject:
    return Subject(0, 0, process.pid, folder / "progress-000", step=5, idle_s=3.0)


def answering(one: Subject, words: bytes) -> threading.Thread:
    """A rank that answers the first question so; its number is put for NUMBER."""
    os.mkfifo(one.question)
    questions = os.open(one.question, os.O_RDWR)

    def answer() -> None:
        number = os.read(questions, 64).strip()
        one.answer.write_bytes(words.replace(b"NUMBER", number))
        os.close(questions)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_rank_answers_where_it_is(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    one = subject(sleeper, tmp_path)
    thread = answering(one, b'{"number": NUMBER, "stack": [["/job/a.py", 3, "f"]]}')
    (look,) = look_at([one], answer_s=60)
    thread.join()
    assert (look.answered, look.stack, look.state, look.step, look.problem) == (
        True,
        (Frame("/job/a.py", 3, "f"),),
        "S",
        5,
        "",
    )


def test_a_rank_without_process_groups_is_seen_from_outside_alone(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (look,) = look_at([subject(sleeper, tmp_path)])
    assert (look.answered, look.state, look.problem) == (False, "S", "has no process group of torch's")


@pytest.mark.parametrize("words", [b"", b"not JSON", b'{"number": 1}', b'{"number": NUMBER, "groups": 7}'])
def test_an_answer_that_is_none_is_no_answer(sleeper: subprocess.Popen[bytes], tmp_path: Path, words: bytes) -> None:
    one = subject(sleeper, tmp_path)
    thread = answering(one, words)
    (look,) = look_at([one], answer_s=0.2)
    thread.join()
    assert (look.answered, look.problem) == (False, "did not answer")


def test_a_stopped_process_is_seen_as_one_and_not_waited_for(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    one, began = subject(sleeper, tmp_path), time.monotonic()
    os.mkfifo(one.question)
    questions = os.open(one.question, os.O_RDWR)
    (look,) = look_at([one], answer_s=600)
    assert time.monotonic() - began < 300
    assert (look.state, look.problem) == ("T", "did not answer")
    os.close(questions)


def test_one_that_has_ended_tells_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert look_at([subject(process, tmp_path)])[0].state == ""


def test_ranks_of_a_plain_script_tell_in_which_collective_they_are(tmp_path: Path) -> None:
    """Two real ranks, of which one has gone another way."""
    ranks = [start(tmp_path, rank) for rank in range(2)]
    try:
        while True:
            found = judge(look_at([Subject(rank, 0, one.pid, fifo) for rank, (one, fifo) in enumerate(ranks)]))
            if found.kind is HangKind.DIFFERENT_COLLECTIVES:
                break
            assert all(one.poll() is None for one, _ in ranks)
        assert found.ranks == (1,)
        assert "rank 1 on node 0 in broadcast at hangs.py:" in found.text
    finally:
        for one, _ in ranks:
            one.kill()
            one.wait()


def test_ranks_of_a_plain_script_tell_which_is_last_into_its_collectives(tmp_path: Path) -> None:
    ranks = [start(tmp_path, rank, "slow") for rank in range(2)]
    try:
        subjects = [Subject(rank, 0, one.pid, fifo) for rank, (one, fifo) in enumerate(ranks)]
        found = None
        while found is None or found.rank != 1:  # until the first steps, in which either may be slow, count no more
            assert all(one.poll() is None for one, _ in ranks)
            found = last_rank(
                {(rank, 0): said.groups for rank, said in times_of(subjects).items()}, {0: NodeClock(0, 0)}
            )
        assert found.by_s > 0.03
    finally:
        for one, _ in ranks:
            one.kill()
            one.wait()


def start(folder: Path, rank: int, kind: str = "order") -> tuple[subprocess.Popen[bytes], Path]:
    fifo = folder / f"progress-{rank:03d}"
    os.mkfifo(fifo)
    os.open(fifo, os.O_RDWR)  # as the agent does, for as long as this process runs
    environment = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "LAUNCH_PROGRESS": str(fifo), "OMP_NUM_THREADS": "1", "HANGS_STORE": str(folder / "store"),
    }  # fmt: skip
    order = {
        "kind": "script", "target": str(SCRIPT), "args": [kind, "hand"], "cwd": str(folder), "env": environment,
        "log": str(folder / f"{rank}.log"), "progress": str(fifo),
    }  # fmt: skip
    read, write = os.pipe()
    argv = [sys.executable, str(ZYGOTE), "run", str(read), str(os.getpid())]
    process = subprocess.Popen(argv, pass_fds=[read])
    os.close(read)
    with open(write, "wb") as pipe:
        pipe.write(json.dumps(order).encode() + b"\n")
    return process, fifo
