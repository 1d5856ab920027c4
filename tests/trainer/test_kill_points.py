"""Where a rank waits to be killed, as `launch prove` has it."""

import os

from trainer.kill_points import KillPoints
from trainer.wire import Wire


def holds_of(tmp_path, rank, words="4@1,9@0,12@1"):
    return KillPoints.from_environment({"TRAINER_HOLDS": words, "RANK": rank, "LAUNCH_RUN_DIR": str(tmp_path)})


def steps_held(kill_points, steps):
    return [step for step in steps if kill_points.is_reached(step)]


def test_each_rank_waits_at_its_own_steps_and_once(tmp_path):
    assert steps_held(holds_of(tmp_path, "1"), range(1, 10)) == [4]
    assert steps_held(holds_of(tmp_path, "1"), range(3, 20)) == [12], "the start after the kill passes step 4"
    assert steps_held(holds_of(tmp_path, "0"), range(1, 20)) == [9]
    assert holds_of(tmp_path, "2") is None
    assert KillPoints.from_environment({}) is None


def test_a_step_that_was_not_reported_is_not_passed_over(tmp_path):
    assert steps_held(holds_of(tmp_path, "1"), range(1, 20, 5)) == [6, 16]


def test_the_step_is_reported_before_the_rank_waits_and_the_wait_ends(tmp_path):
    os.mkfifo(tmp_path / "progress")
    reader = os.open(tmp_path / "progress", os.O_RDWR | os.O_NONBLOCK)
    clock, read = [0.0], []

    def sleep(seconds):
        read.append(os.read(reader, 4096) if not read else b"")
        clock[0] += seconds

    kill_points = KillPoints(tmp_path, [2], most_s=3.0, now=lambda: clock[0], sleep=sleep)
    wire = Wire(tmp_path / "progress", now=lambda: 0.0, kill_points=kill_points)
    wire.report_step(1)
    assert read == []
    wire.report_step(2, 9, loss=0.5)
    assert read[0] == b'{"step": 1}\n{"step": 2, "total_steps": 9, "loss": 0.5}\n'
    assert 3.0 <= clock[0] < 3.2
    wire.close()
    os.close(reader)
