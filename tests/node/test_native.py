"""The native stack of a rank, by tools that say what the real ones say."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.node.ranks.native import with_native
from launcher.run.hangs import RankLook
from launcher.run.identity import stat_fields

PY_SPY = """Process $4: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread $4 (idle): "MainThread"
    pthread_mutex_lock (libc.so.6)
    <module> (train.py:7)
Thread 32000 (idle): "Thread-1 (wait)"
    Condition.wait (threading.py:327)
"""
GDB = """[New LWP 4595]
#0  futex_wait (private=0) at ../futex-internal.h:146
#1  0x00007f85258aa482 in ___pthread_mutex_lock (mutex=0x7f8525621270) at ./pthread_mutex_lock.c:93
#2  0x00007ffc7f375a90 in ?? ()
#3  0x00007f8525798a60 in _PyRuntime () from libpython3.11.so.1.0
"""


@pytest.fixture
def rank() -> Iterator[RankLook]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield RankLook(0, 0, process.pid, "S")
        process.kill()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which tools are looked for, besides that of the interpreter."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def saying(text: str) -> str:
    return f"/bin/cat <<END\n{text}END"


def test_py_spy_tells_of_the_main_thread(rank: RankLook, tools: Path) -> None:
    install(tools, "py-spy", saying(PY_SPY))
    (look,) = with_native([rank])
    assert look.native == ("pthread_mutex_lock (libc.so.6)", "<module> (train.py:7)")


def test_gdb_tells_of_a_rank_that_does_not_answer(rank: RankLook, tools: Path) -> None:
    install(tools, "gdb", saying(GDB))
    (look,) = with_native([rank])
    assert [frame.split(" (")[0] for frame in look.native] == ["futex_wait", "___pthread_mutex_lock"]


def test_a_rank_that_answers_is_not_stopped_for_as_long_as_gdb_takes(rank: RankLook, tools: Path) -> None:
    install(tools, "gdb", saying(GDB))
    (look,) = with_native([RankLook(0, 0, rank.pid, "S", answered=True)])
    assert look.native == ()


@pytest.mark.parametrize("state", ["T", "t", "D", "Z", ""])
def test_a_process_that_is_stopped_or_in_the_kernel_is_not_traced(rank: RankLook, tools: Path, state: str) -> None:
    install(tools, "py-spy", saying(PY_SPY))
    assert with_native([RankLook(0, 0, rank.pid, state)])[0].native == ()


def test_without_a_tool_there_is_none(rank: RankLook, tools: Path) -> None:
    assert with_native([rank])[0].native == ()


def test_where_tracing_is_not_allowed_the_tool_says_so(rank: RankLook, tools: Path) -> None:
    install(tools, "py-spy", "echo 'Error: Permission Denied: Try again with elevated permissions' >&2; exit 1")
    (look,) = with_native([rank])
    assert look.native == ("py-spy: Error: Permission Denied: Try again with elevated permissions",)


def test_a_tool_that_takes_too_long_is_ended_with_its_children_and_the_rank_goes_on(
    rank: RankLook, tools: Path
) -> None:
    install(tools, "py-spy", "kill -STOP $4; /bin/sleep 600 & exec /bin/sleep 600")
    began = time.monotonic()
    (look,) = with_native([rank], bound_s=0.5)
    [said] = look.native
    assert said.startswith("py-spy: took longer than 0.")
    assert time.monotonic() - began < 30
    while stat_fields(rank.pid)[0] == b"T":
        time.sleep(0.01)


def test_all_ranks_share_the_time_and_those_that_do_not_answer_come_first(rank: RankLook, tools: Path) -> None:
    install(tools, "py-spy", "exec /bin/sleep 600")
    answered = [RankLook(number, 0, rank.pid, "S", answered=True) for number in range(1, 40)]
    began = time.monotonic()
    looks = with_native([*answered, rank], bound_s=0.5)
    assert time.monotonic() - began < 30
    assert [look.rank for look in looks] == [*range(1, 40), 0]
    [said] = looks[-1].native  # of which time starting it takes a part
    assert said.startswith("py-spy: took longer than 0.")
    assert looks[-2].native == ()
