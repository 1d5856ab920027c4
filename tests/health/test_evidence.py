"""From what a check has printed, and how it ended, to what is said of the device: unknown is not unfit."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.health.evidence import Ending, Fitness, devices_of, judge

BEGUN = {"device": "cuda:0", "name": "H100"}, {"begins": "memory"}
WRONG = {"part": "memory", "fit": False, "expected": "1", "seen": "2; 1 of 9 words are wrong", "seconds": 0.5}


def as_lines(*lines):
    """Return the values as lines of bytes: bytes as they are, others as JSON."""
    return [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]


def test_a_fit_device_says_what_was_tried_and_how_long_it_took():
    whole = {"part": "memory", "fit": True, "note": "9 MB kept", "seconds": 0.01234}, {"done": True, "seconds": 0.3}
    found = judge("cuda:0", as_lines(*BEGUN, b"UserWarning: \xff old", b"17", *whole), Ending(code=0))
    assert (found.fitness, found.seconds) == (Fitness.FIT, 0.3)
    assert found.text == "cuda:0 (H100): memory 9 MB kept in 0.012 s; 0.30 s"


def test_what_was_expected_and_seen_is_the_evidence():
    found = judge("cuda:0", as_lines(*BEGUN, WRONG, {"done": False, "seconds": 0.6}), Ending(code=1))
    assert found.fitness is Fitness.UNFIT
    assert found.text == "cuda:0 (H100): memory: expected 1, got 2; 1 of 9 words are wrong"


def test_what_was_seen_counts_though_the_rest_hung():
    assert judge("cuda:0", as_lines(*BEGUN, WRONG), Ending(after_s=20)).fitness is Fitness.UNFIT


@pytest.mark.parametrize(
    ("ending", "fitness", "words"),
    [
        (Ending(after_s=20.0), Fitness.UNFIT, "memory: nothing came of it within 20 s"),
        (Ending(signal=signal.SIGSEGV), Fitness.UNFIT, "memory: its process was ended by SIGSEGV"),
        (Ending(signal=signal.SIGBUS), Fitness.UNFIT, "memory: its process was ended by SIGBUS"),
        (Ending(signal=signal.SIGKILL), Fitness.UNKNOWN, "memory: its process was ended by SIGKILL"),
        (Ending(signal=signal.SIGTERM), Fitness.UNKNOWN, "memory: its process was ended by SIGTERM"),
        (Ending(signal=50), Fitness.UNKNOWN, "memory: its process was ended by signal 50"),
        (Ending(code=1), Fitness.UNKNOWN, "memory: its process left with exit code 1"),
    ],
)
def test_how_it_ended_in_the_midst_of_a_part(ending, fitness, words):
    found = judge("cuda:0", as_lines(*BEGUN), ending)
    assert (found.fitness, found.text) == (fitness, f"cuda:0 (H100): {words}")


@pytest.mark.parametrize("ending", [Ending(after_s=9), Ending(code=125), Ending(signal=signal.SIGSEGV), Ending(code=0)])
def test_what_had_not_begun_says_nothing_of_the_device(ending):
    """A disk that is full or hangs, a torch that crashes as it is imported."""
    assert judge("cpu", as_lines(b"Killed"), ending).fitness is Fitness.UNKNOWN


def test_who_is_unable_says_why():
    found = judge("cuda:0", as_lines({"unable": "torch cannot be imported: no"}), Ending(code=0))
    assert (found.fitness, found.text) == (Fitness.UNKNOWN, "cuda:0: torch cannot be imported: no")


@given(st.lists(st.binary(max_size=60)), st.sampled_from([Ending(code=0), Ending(after_s=1.0), Ending(signal=9)]))
def test_whatever_is_printed_there_is_an_answer(lines, ending):
    assert judge("cpu", lines, ending).text.startswith("cpu")


def test_devices_of_a_node():
    assert devices_of(0) == ("cpu",)
    assert devices_of(2) == ("cpu", "cuda:0", "cuda:1")
