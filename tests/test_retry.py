"""`.ci/retry.py`: at most two failed tests run once more; what fails again, or is more, stays a failure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "retry.py"


@pytest.fixture
def retry(tmp_path):
    def run(*failed):
        cache = tmp_path / ".pytest_cache" / "v" / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
        return subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    return run


GOOD, BAD = "test_it.py::test_good", "test_it.py::test_bad"


def test_a_test_that_passes_by_itself_is_printed_as_flaky_at_the_end(retry):
    done = retry(GOOD)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"FLAKY {GOOD}: failed beside other tests, passed by itself"


def test_a_test_that_fails_again_fails_the_run(retry):
    done = retry(GOOD, BAD)
    assert done.returncode == 1
    assert "FLAKY" not in done.stdout


def test_more_than_two_are_not_tried_again(retry):
    done = retry(GOOD, BAD, "test_it.py::test_other")
    assert done.returncode == 1
    assert done.stdout == "3 tests failed, more than 2: none is tried again\n"
