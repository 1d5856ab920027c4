import os

import pytest

from launcher.errors import Fenced, LaunchError
from launcher.run.fence import check_fence, fence, raise_fence
from launcher.run.layout import RunDir


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def test_without_a_fence_everybody_may_write(run):
    assert fence(run) == 0
    check_fence(run, 1)


def test_an_older_attempt_is_fenced(run):
    raise_fence(run, 2)
    check_fence(run, 2)
    check_fence(run, 3)
    with pytest.raises(Fenced, match=r"attempt 1 .* attempt 2 took over"):
        check_fence(run, 1)


def test_the_fence_is_never_lowered(run):
    raise_fence(run, 3)
    raise_fence(run, 3)
    with pytest.raises(Fenced):
        raise_fence(run, 2)
    assert fence(run) == 3


def test_racers_end_with_the_newest(run, race):
    def climb(number):
        attempt = number * 10 + os.getpid() % 7 + 1
        try:
            raise_fence(run, attempt)
        except Fenced:
            return fence(run) > attempt
        return fence(run) >= attempt

    assert all(result is True for results in race(climb, rounds=40) for result in results)


def test_a_damaged_fence_is_no_fence_to_climb_over(run):
    run.fence.write_text("two\n")
    with pytest.raises(LaunchError, match="FENCE: expected the number of an attempt"):
        check_fence(run, 9)
