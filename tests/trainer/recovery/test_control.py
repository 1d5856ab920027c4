"""Launch's word to a rank, and what the rank does with it."""

import json
import os
import select
import subprocess
import sys

import pytest

from trainer.recovery.control import Control

WORD = {"generation": 3, "log": "/new", "log_before": "/old", "environment": {"MASTER_PORT": "21034"}}


@pytest.fixture
def fifo(tmp_path):
    """Create the FIFO for urgent messages, and beside it that for messages that can wait for the end of a step."""
    path = tmp_path / "control"
    ends = []
    for one in (path, tmp_path / "control.step-end"):
        os.mkfifo(one)
        ends.append(os.open(one, os.O_RDWR | os.O_NONBLOCK))
    yield path, ends[0]
    for end in ends:
        os.close(end)


def say_for_step_end(path, generation):
    end = os.open(f"{path}.step-end", os.O_WRONLY | os.O_NONBLOCK)
    os.write(end, json.dumps(WORD | {"generation": generation}).encode() + b"\n")
    os.close(end)


def test_a_word_that_can_wait_is_seen_by_who_looks_and_wakes_nobody(fifo):
    path, _ = fifo
    control = Control(path)
    assert not control.has_message_for_step_end
    say_for_step_end(path, 3)
    assert control.has_message_for_step_end
    assert not select.select([control], [], [], 0)[0]
    assert control.wait(5).generation == 3
    assert not control.has_message_for_step_end


def test_of_both_kinds_the_newest_word_counts_and_the_other_is_gone(fifo):
    path, end = fifo
    control = Control(path)
    say_for_step_end(path, 3)
    os.write(end, json.dumps(WORD | {"generation": 4}).encode() + b"\n")
    assert control.wait(5).generation == 4
    assert not control.has_message_for_step_end
    assert control.wait(0.01) is None


def test_a_word_that_came_before_anybody_waited_is_heard(fifo):
    path, end = fifo
    os.write(end, json.dumps(WORD).encode() + b"\n")
    message = Control(path).wait(5)
    assert (message.generation, message.environment) == (3, {"MASTER_PORT": "21034"})


def test_of_several_words_the_newest_counts(fifo):
    path, end = fifo
    control = Control(path)
    for generation in (3, 4, 5):
        os.write(end, json.dumps(WORD | {"generation": generation}).encode() + b"\n")
    assert control.wait(5).generation == 5
    assert control.wait(0.01) is None


def test_no_word_is_none(fifo):
    path, _ = fifo
    assert Control(path).wait(0.01) is None


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b"[1]\n", b"\xff\n", b'{"generation": "x"}\n'])
def test_nonsense_is_none(fifo, line):
    path, end = fifo
    os.write(end, line)
    assert Control(path).wait(5) is None


def test_what_is_printed_goes_on_in_the_new_log_and_only_what_went_into_the_old_one(tmp_path):
    script = (
        "import sys\nfrom trainer.recovery.control import RejoinMessage, become_rank\n"
        "print('before', flush=True)\nold, new = sys.argv[1:]\n"
        "become_rank(RejoinMessage(2, new, old, {'X': '1'}))\nprint('after', flush=True)\n"
        "import os\nprint('aside', os.environ['X'], file=sys.stderr)\n"
    )
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    with old.open("w") as out:
        words = [sys.executable, "-c", script, str(old), str(new)]
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    assert (old.read_text(), new.read_text(), done.stderr) == ("before\n", "after\n", "aside 1\n")
