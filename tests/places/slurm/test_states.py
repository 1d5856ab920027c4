"""Slurm's words for states: all documented ones are known, whatever form they come in; no other word is."""

import random

import pytest

from launcher.places.batch.batch import Phase
from launcher.places.slurm.queries.states import WORDS, end_of, read_state
from launcher.states import Cause, State
from tests.sizes import SEED

QUEUED, RUNNING, ENDING, ENDED, UNKNOWN = Phase


DOCUMENTED = {
    "BOOT_FAIL": ENDED,
    "CANCELLED": ENDED,
    "COMPLETED": ENDED,
    "DEADLINE": ENDED,
    "FAILED": ENDED,
    "NODE_FAIL": ENDED,
    "OUT_OF_MEMORY": ENDED,
    "PREEMPTED": ENDED,
    "TIMEOUT": ENDED,
    "PENDING": QUEUED,
    "CONFIGURING": QUEUED,
    "POWER_UP_NODE": QUEUED,
    "REQUEUED": QUEUED,
    "EXPEDITING": QUEUED,
    "REQUEUE_FED": QUEUED,
    "REQUEUE_HOLD": QUEUED,
    "RESV_DEL_HOLD": QUEUED,
    "SPECIAL_EXIT": QUEUED,
    "RUNNING": RUNNING,
    "RESIZING": RUNNING,
    "SIGNALING": RUNNING,
    "STOPPED": RUNNING,
    "SUSPENDED": RUNNING,
    "COMPLETING": ENDING,
    "STAGE_OUT": ENDING,
    "REVOKED": UNKNOWN,
    "LAUNCH_FAILED": UNKNOWN,
    "RECONFIG_FAIL": UNKNOWN,
    "UPDATE_DB": UNKNOWN,
}


@pytest.mark.parametrize(("word", "phase"), DOCUMENTED.items())
def test_every_documented_state_has_a_phase(word, phase):
    for text in (word, word.lower(), f" {word}\n", f"{word}+"):
        assert read_state(text).word == word
        assert read_state(text).phase is phase


def test_no_state_is_known_that_is_not_documented():
    assert set(WORDS) == set(DOCUMENTED)


COMPACT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING", "SO": "STAGE_OUT",
    "ST": "STOPPED", "TO": "TIMEOUT",
}  # fmt: skip


@pytest.mark.parametrize(("compact", "word"), COMPACT.items())
def test_compact_forms_are_the_same_words(compact, word):
    assert read_state(compact) == read_state(compact.lower()) == read_state(word)


@pytest.mark.parametrize(
    ("text", "word", "phase", "by"),
    [
        ("CANCELLED by 1000", "CANCELLED", ENDED, "1000"),
        ("cancelled by alice", "CANCELLED", ENDED, "alice"),
        ("CANCELLED+", "CANCELLED", ENDED, None),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", ENDED, None),
        ("NODE_F+", "NODE_FAIL", ENDED, None),
        ("RUNNING,COMPLETING", "COMPLETING", ENDING, None),
        ('["PENDING","REQUEUED"]', "REQUEUED", QUEUED, None),
        ("['COMPLETED', 'COMPLETING']", "COMPLETING", ENDING, None),
        ("COMPLETED COMPLETING", "COMPLETING", ENDING, None),
        ('["PENDING", "COMPLETING", "REQUEUED"]', "COMPLETING", ENDING, None),
        ("PENDING,EXPEDITING", "EXPEDITING", QUEUED, None),
        ("COMPLETING,EXPEDITING", "COMPLETING", ENDING, None),
        ("RUNNING,CONFIGURING,POWER_UP_NODE", "POWER_UP_NODE", QUEUED, None),
        ("RUNNING,SIGNALING", "SIGNALING", RUNNING, None),
        ("RUNNING,UPDATE_DB", "RUNNING", RUNNING, None),
        ("PENDING,LAUNCH_FAILED", "PENDING", QUEUED, None),
        ("FAILED,LAUNCH_FAILED", "LAUNCH_FAILED", ENDED, None),
        ('["FAILED", "RECONFIG_FAIL"]', "RECONFIG_FAIL", ENDED, None),
        ("COMPLETED,REVOKED", "REVOKED", UNKNOWN, None),
        ('["COMPLETED"]', "COMPLETED", ENDED, None),
    ],
)
def test_forms(text, word, phase, by):
    state = read_state(text)
    assert (state.word, state.phase, state.by) == (word, phase, by)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "+",
        "C+",
        "COMPLET+",
        "REQUEUE_+",
        "COMPLETE",
        "RUNNING,NEW_FLAG",
        "RUNNING,PENDING",
        "COMPLETED by accident, FAILED",
        "None",
        "UNKNOWN",
        "x" * 10_000,
    ],
)
def test_what_is_not_listed_is_unknown(text):
    assert read_state(text).phase is UNKNOWN
    assert len(read_state(text).word) <= 60


def test_a_word_that_is_not_known_is_shown_but_moves_no_cursor():
    assert read_state("MELTING\x1b[2J").word == "MELTING 2J"


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("COMPLETED", (State.LOST, None)),
        ("FAILED", (State.LOST, None)),
        ("CANCELLED", (State.CANCELLED, Cause.CANCELLED)),
        ("TIMEOUT", (State.FAILED, Cause.TIME_LIMIT)),
        ("DEADLINE", (State.FAILED, Cause.TIME_LIMIT)),
        ("NODE_FAIL", (State.FAILED, Cause.NODE_LOST)),
        ("BOOT_FAIL", (State.FAILED, Cause.NODE_LOST)),
        ("LAUNCH_FAILED", (State.FAILED, Cause.NODE_LOST)),
        ("RECONFIG_FAIL", (State.FAILED, Cause.NODE_LOST)),
        ("PREEMPTED", (State.FAILED, Cause.PREEMPTED)),
        ("OUT_OF_MEMORY", (State.FAILED, Cause.OUT_OF_MEMORY)),
        ("RUNNING", (State.UNKNOWN, None)),
        ("REVOKED", (State.UNKNOWN, None)),
        ("", (State.UNKNOWN, None)),
    ],
)
def test_how_a_run_without_a_record_ended(word, end):
    assert end_of(word) == end


def test_every_word_of_an_ended_job_has_an_end_and_none_is_success():
    for word, phase in DOCUMENTED.items():
        state, cause = end_of(word)
        assert state is not State.SUCCEEDED
        assert state.ended or phase is not ENDED
        assert (cause is not None) == (state in (State.FAILED, State.CANCELLED))


def test_garbage_is_unknown_or_made_of_known_words():
    seed = SEED
    print(f"seed {seed}")
    draw = random.Random(seed)
    pieces = [*WORDS, "PD", "R", "by", "1000", ",", "+", " ", "[", "]", '"', "\n", "\x1f", "\0", "é", "²", "by by", "_"]
    known = 0
    for _ in range(5_000):
        text = "".join(draw.choices(pieces, k=draw.randint(0, 6)))
        state = read_state(text)
        end_of(state.word)
        known += state.phase is not UNKNOWN
        assert state.phase is UNKNOWN or state.word in WORDS
    assert known > 100
