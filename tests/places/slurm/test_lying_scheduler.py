"""A run whose job has started, and a Slurm that then answers anything: a word or one error, and nothing is ended."""

import random
import time

import msgspec
import pytest

from launcher.errors import LaunchError
from launcher.places.batch.look import look
from launcher.places.slurm.queries.values import FIELD, ROW
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.records import ClusterAnswer
from tests.sizes import NIGHTLY, SCALE, SEED

MANY = 300 * SCALE if NIGHTLY else 25  # of each program's answers
MOST_S = 30.0
ROWS = f"7{FIELD}7{FIELD}RUNNING{FIELD}0{FIELD}N/A{FIELD}n0{FIELD}n0{FIELD}n0{FIELD}None{FIELD}launch:mine{ROW}\n"
ACCOUNT = f"7{FIELD}7{FIELD}COMPLETED{FIELD}0:0{FIELD}n0{FIELD}launch:mine{ROW}\n"
CONFIG = "Configuration data as of 2026-11-22T02:00:00\nClusterName             = here\n"
ODD = [
    *("", FIELD, ROW, "\n", "\0", "\x1b[2J", "\u202e", "-1", "9" * 5000, "7_[0-99]", "7_[0-9999999]", "RUNNING", "8"),
    *("PENDING", "COMPLETED", "CANCELLED by 0", "launch:other", "launch:", "-u root", "n[0-9999999]", "CONFIGURING"),
]


@pytest.fixture
def running(clients, submitted):
    """A job that runs, as Slurm says of it honestly."""
    run, attempt, _ = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "RUNNING", "launch:mine"))
    (word,) = look(SlurmSystem(), [(run, attempt)])
    assert word.phase == "running"
    return run, attempt


def damages(name, whole):
    print("seed", SEED)
    draw = random.Random(f"{SEED} {name}")
    for _ in range(MANY):
        text = whole
        for _ in range(draw.randrange(1, 4)):
            at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
            text = text[:at] + draw.choice([*ODD, text[at:end], text[at:end] * 2]) + text[draw.choice([at, end]) :]
        yield text, draw.choice([0, 0, 0, 1])


@pytest.mark.parametrize(("program", "whole"), [("squeue", ROWS), ("sacct", ACCOUNT), ("scontrol", CONFIG)])
def test_any_answer_is_a_word_or_one_error(clients, tmp_path, running, program, whole):
    run, attempt = running
    plan, handle = run.plan.read_bytes(), attempt.handle.read_bytes()
    if program == "sacct":  # it is asked once the queue has forgotten the job
        clients.rows()
    said, told = tmp_path / "said", set()
    for text, code in damages(program, whole):
        said.write_text(text)
        clients.program(program, f"cat '{said}'; exit {code}")
        began = time.monotonic()
        try:
            (word,) = look(SlurmSystem(), [(run, attempt)])
            told.add(None if word is None else word.silent or word.phase)
            assert word is None or msgspec.convert(msgspec.to_builtins(word), ClusterAnswer) == word
        except LaunchError as error:
            told.add(str(error))
            assert error.lines and len(str(error)) < 2_000, text
        assert time.monotonic() - began < MOST_S, text
        assert (run.plan.read_bytes(), attempt.handle.read_bytes()) == (plan, handle), text
    assert program == "scontrol" or len(told) > 1, "what it says counts"
    assert clients.ended == [], "nothing is ended by a look"
    assert {path.name for path in tmp_path.iterdir()} <= {
        "bin",
        "rows",
        "ended",
        "config",
        "left",
        "said",
        "train-aaaa",
    }
