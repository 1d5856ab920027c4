import itertools
import json
import os
import threading

import pytest

from trainer.errors import BadSettings
from trainer.wire import Every, Launched, Wire

PIPE_BYTES = 1 << 16


@pytest.fixture
def pipe(tmp_path):
    """A FIFO and the agent's end of it."""
    path = tmp_path / "progress"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def lines_of(reader):
    text = b""
    while True:
        try:
            text += os.read(reader, PIPE_BYTES)
        except BlockingIOError:
            return [json.loads(line) for line in text.splitlines()]


def test_reports_arrive_as_lines(pipe):
    path, reader = pipe
    wire = Wire(path)
    assert wire.has_reader
    wire.report(step=3, total_steps=10, loss=0.5)
    wire.report(checkpoint=2)
    wire.report(fingerprint="ab", done=True)
    assert lines_of(reader) == [
        {"step": 3, "total_steps": 10, "loss": 0.5}, {"checkpoint": 2}, {"fingerprint": "ab", "done": True},
    ]  # fmt: skip
    wire.close()


def test_steps_are_told_at_most_twenty_times_a_second(pipe):
    path, reader = pipe
    clock = [100.0]
    wire = Wire(path, lambda: clock[0])
    for step in range(1, 101):
        clock[0] += 0.01
        wire.report_step(step, 100, loss=step / 2)
    said = lines_of(reader)
    assert said[0] == {"step": 1, "total_steps": 100, "loss": 0.5}
    assert 17 <= len(said) <= 20
    clock[0] += 1
    wire.report_step(101)
    assert lines_of(reader) == [{"step": 101}]
    wire.close()


def test_what_is_reported_outright_is_never_held_back(pipe):
    path, reader = pipe
    wire = Wire(path, lambda: 0.0)
    wire.report_step(1)
    wire.report(checkpoint=1)
    wire.report(step=2)
    assert lines_of(reader) == [{"step": 1}, {"checkpoint": 1}, {"step": 2}]
    wire.close()


def test_a_full_pipe_holds_nobody_up_and_tears_no_line(pipe):
    path, reader = pipe
    clock = itertools.count()
    wire = Wire(path, now=lambda: float(next(clock)))
    for step in range(10_000):
        wire.report_step(step)
    said = lines_of(reader)
    assert 100 < len(said) < 10_000
    assert [line["step"] for line in said] == list(range(len(said)))
    wire.report(step=10_000)
    assert lines_of(reader) == [{"step": 10_000}]
    wire.close()


def test_what_is_said_once_waits_for_room(pipe):
    path, reader = pipe
    clock = itertools.count()
    wire = Wire(path, now=lambda: float(next(clock)), patience_s=30.0)
    for step in range(10_000):
        wire.report_step(step)
    thread = threading.Thread(target=lambda: wire.report(done=True))
    thread.start()
    heard = []
    while {"done": True} not in heard:
        heard += lines_of(reader)
    thread.join()
    wire.close()


def test_a_reader_that_goes_away_is_no_reason_to_stop(tmp_path):
    path = tmp_path / "progress"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    wire = Wire(path)
    os.close(reader)
    wire.report(step=1)
    assert not wire.has_reader
    wire.report(step=2)
    wire.report_step(3)
    wire.close()


def test_without_a_reader_or_a_pipe_it_is_silent(tmp_path):
    os.mkfifo(tmp_path / "nobody")
    for path in (None, tmp_path / "nobody", tmp_path / "missing"):
        wire = Wire(path)
        wire.report(step=1)
        wire.report_step(1)
        assert not wire.has_reader
        wire.close()
    assert not Wire.from_environment({}).has_reader


def test_it_may_be_closed_while_another_thread_reports(pipe):
    path, _ = pipe
    wire, raised = Wire(path), []

    def report():
        try:
            for step in range(20_000):
                wire._send(0.0, step=step)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=report)
    thread.start()
    wire.close()
    thread.join()
    assert raised == []


def test_a_line_that_could_be_torn_is_refused(pipe):
    wire = Wire(pipe[0])
    with pytest.raises(ValueError, match="expected at most 4096"):
        wire.report(note="x" * 5000)
    wire.close()


def test_numbers_that_json_does_not_know_reach_a_reader_that_does(pipe):
    path, reader = pipe
    wire = Wire(path)
    wire.report(step=1, loss=float("inf"))
    assert lines_of(reader) == [{"step": 1, "loss": float("inf")}]
    wire.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Every()), ("1 step", Every(steps=1)), ("500 steps", Every(steps=500)), ("90 s", Every(seconds=90.0)),
        ("0.5 s", Every(seconds=0.5)), ("1e2 seconds", Every(seconds=100.0)),
    ],
)  # fmt: skip
def test_every(text, expected):
    assert Every.parse(text) == expected


@pytest.mark.parametrize("text", ["5", "steps", "0 steps", "-1 s", "1.5 steps", "inf s", "nan s", "3 minutes", "0 s"])
def test_what_every_does_not_understand(text):
    with pytest.raises(BadSettings, match=f"here: expected something like '500 steps' or '90 s', got '{text}'"):
        Every.parse(text, "here")


def test_what_launch_says(tmp_path):
    launched = Launched.from_environment(
        {
            "LAUNCH_RUN_DIR": str(tmp_path), "LAUNCH_ATTEMPT": "3", "LAUNCH_GENERATION": "2",
            "LAUNCH_CHECKPOINT_DIR": "/c", "LAUNCH_CHECKPOINT_EVERY": "5 steps", "LAUNCH_CHECKPOINT_KEEP": "4",
            "LAUNCH_CHECKPOINT_MEMORY_DIR": "/m", "LAUNCH_CHECKPOINT_MEMORY_EVERY": "1 step",
            "LAUNCH_CHECKPOINT_MEMORY_LIMIT": "1000", "LAUNCH_PROGRESS": "/p", "LAUNCH_CHECKPOINT_COPY_LAG": "90 s",
        }
    )  # fmt: skip
    assert (launched.run_dir, launched.attempt, launched.generation) == (tmp_path, 3, 2)
    assert (str(launched.checkpoint_dir), launched.checkpoint_every, launched.checkpoint_keep) == ("/c", "5 steps", 4)
    assert (str(launched.memory_dir), launched.memory_every, launched.memory_limit_bytes) == ("/m", "1 step", 1000)
    assert (str(launched.progress), launched.checkpoint_copy_lag) == ("/p", "90 s")


def test_outside_of_launch_nothing_is_said():
    assert Launched.from_environment({}) == Launched()
    assert Launched.from_environment({"LAUNCH_CHECKPOINT_DIR": "", "LAUNCH_ATTEMPT": "x"}) == Launched()
