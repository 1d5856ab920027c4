"""Rules of a quorum that are broken in a copy of the launcher, some as they once were: its tests notice each."""

import shutil
from pathlib import Path

import pytest

import launcher
from tests.inner_pytest import run_tests

TESTS = Path(__file__).parent
PAST = {
    "four hosts go on as two halves": (
        "core.py", "return 2 * there > len(self.voters) or (candidate == self.leader and 2 * there ==",
        "return 2 * there > len(self.voters) or (2 * there ==", "test_core.py", "a_leader_needs_half",
    ),
    "a take-over loses history": (
        "core.py", "if not self.is_as_new(asked.records, mine):", "if False:", "test_exploration.py", "no_state_breaks",
    ),
    "a host votes for two in one attempt": (
        "core.py", "if asked.attempt < self.next_number:", "if asked.attempt < self.newest.attempt:",
        "test_exploration.py", "no_state_breaks",
    ),
    "an attempt is accepted without its history": (
        "core.py", 'return "" if mine.digest == said.records.digest else "it lacks some of the leader\'s history"',
        'return ""', "test_core.py", "attempt_is_accepted_once",
    ),
    "a leader counts a host that has voted for another": (
        "core.py", "return self.has_vote and self.voted[0] == self.newest.attempt", "return self.has_vote",
        "test_core.py", "not_counted_as_heard",
    ),
    "ranks start while silent ones run": (
        "core.py", "return opened_at if all_ended else opened_at + lease_s", "return opened_at",
        "test_exploration.py", "no_state_breaks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAST)
def test_it_can_be_brought_back(name):
    file, sound, _, tests, _ = PAST[name]
    assert (_quorum(Path(launcher.__file__).parent) / file).read_text().count(sound) == 1
    assert (TESTS / tests).exists()


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAST)
def test_it_is_found_again(name, tmp_path):
    file, sound, broken, tests, which = PAST[name]
    copy = tmp_path / "launcher"
    shutil.copytree(Path(launcher.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = _quorum(copy) / file
    path.write_text(path.read_text().replace(sound, broken))
    done = run_tests("-x", "--timeout", "120", str(TESTS / tests), "-k", which, path=[tmp_path])
    assert done.returncode == 1, done.stdout


def _quorum(package: Path) -> Path:
    return package / "places/ssh/quorum"
