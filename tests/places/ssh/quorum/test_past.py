"""Rules of a quorum that are broken in a copy of the launcher, some as they once were: its tests notice each."""

from pathlib import Path

import pytest

import launcher
from tests.inner_pytest import assert_can_be_made, assert_noticed

CORE, BALLOT = "places/ssh/quorum/core.py", "places/ssh/host/ballot.py"
TESTS, HOST_TESTS = "places/ssh/quorum", "places/ssh/host"
PAST = {
    "four hosts go on as two halves": (
        CORE, "return 2 * there > len(self.voters) or (candidate == self.leader and 2 * there ==",
        "return 2 * there > len(self.voters) or (2 * there ==", f"{TESTS}/test_core.py", "a_leader_needs_half",
    ),
    "a take-over loses history": (
        CORE, "if not self.is_as_new(asked.records, mine):", "if False:",
        f"{TESTS}/test_exploration.py", "no_state_breaks",
    ),
    "a host votes for two in one attempt": (
        CORE, "if asked.attempt < self.next_number:", "if asked.attempt < self.newest.attempt:",
        f"{TESTS}/test_exploration.py", "no_state_breaks",
    ),
    "a vote is written over the one before": (
        "run/durable.py", "patiently(lambda: _replace(path, data, fsync=fsync))", "path.write_bytes(data)",
        f"{HOST_TESTS}/test_ballot.py", "power_cut",
    ),
    "a host that cannot read its votes votes anew": (
        BALLOT, "kept = read_sealed(self.path, Voter) if on_disk else None",
        "try:\n            kept = read_sealed(self.path, Voter)\n        except Exception:\n            kept = None",
        f"{HOST_TESTS}/test_ballot.py", "does_not_come_back",
    ),
    "an attempt is accepted without its history": (
        CORE, 'return "" if mine.digest == said.records.digest else "it lacks some of the leader\'s history"',
        'return ""', f"{TESTS}/test_core.py", "attempt_is_accepted_once",
    ),
    "a leader counts a host that has voted for another": (
        CORE, "return self.has_vote and self.voted[0] == self.newest.attempt", "return self.has_vote",
        f"{TESTS}/test_core.py", "not_counted_as_heard",
    ),
    "ranks start while silent ones run": (
        CORE, "return opened_at if all_ended else opened_at + lease_s", "return opened_at",
        f"{TESTS}/test_exploration.py", "no_state_breaks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAST)
def test_it_can_be_brought_back(name):
    assert_can_be_made(PAST[name], Path(launcher.__file__).parent)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAST)
def test_it_is_found_again(name, tmp_path):
    assert_noticed(PAST[name], tmp_path, timeout_s=120)
