"""A run whose metrics take long to read is seen in outline first, and then exactly."""

import threading
from itertools import pairwise

import pytest

from launcher import api
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.measured.reading import MeasuredRun, ReadingLimits, glimpse
from launcher.status.series import read_rows
from tests.apps.board.conftest import opened
from tests.apps.board.test_server import reported

STEPS = 5000
# Of a table nothing is read: nothing but what is asked for.
LIMITS = ReadingLimits(long_bytes=1, row_bytes=0, places=32, place_bytes=400)


@pytest.fixture
def long(house):
    """It counts as one."""
    return measured(house, [{"loss": 1 / (step + 1), "acc": step} for step in range(STEPS)])


def measured(house, values):
    folder = house.run().succeeded()
    reported(folder, values)
    return folder


def test_it_is_of_lines_from_all_over_the_file(long):
    rows, seen = read_rows(long.run), glimpse(long.run, LIMITS)
    points = [*seen.points("loss")]
    assert 32 < len(points) < STEPS / 10
    assert all(rows[step]["loss"] == value for step, _, value in points)
    steps = [step for step, _, _ in points]
    assert steps[0] == min(rows) and steps[-1] == max(rows)
    assert max(after - before for before, after in pairwise(steps)) < STEPS / 25


def test_what_is_short_is_read_whole(house):
    folder = measured(house, [{"loss": 0.5}, {"loss": 0.25}])
    assert [*glimpse(folder.run).points("loss")] == [*whole(folder).points("loss")]


def whole(folder):
    run = MeasuredRun(folder.run)
    run.renew()
    return run


@pytest.mark.parametrize("text", ["", "x" * 10_000, "\n" * 10_000, "{}\n" * 5000, "x" * 5000 + "\n{}"])
def test_where_there_is_nothing_to_see_all_is_read(long, text):
    long.run.reported(1, 0).write_text(text)
    with MeasuredRuns(LIMITS).glimpsed(api.run("job-abcd")) as seen:
        assert seen is None


def test_a_page_is_given_the_outline_once_and_then_all(long):
    asked = "/api/runs/job-abcd/curves?px=16&glimpse=1"
    with opened(measured=MeasuredRuns(LIMITS)) as board:
        first = board.get(asked).json()
        assert first["glimpse"] and not first["exact"] and set(first["curves"]) == {"loss", "acc"}
        exact = board.get("/api/runs/job-abcd/curves?px=16").json()
        assert not exact["glimpse"] and exact["curves"]["loss"]["max"][0] == 1.0
        assert board.get(asked).json() == exact


def test_who_reads_the_whole_waits_for_who_only_has_a_look(long):
    runs, read = MeasuredRuns(LIMITS), threading.Event()

    def renew():
        with runs.renewed(api.run("job-abcd")):
            read.set()

    with runs.glimpsed(api.run("job-abcd")) as seen:
        thread = threading.Thread(target=renew)
        thread.start()
        assert seen.names == ["loss", "acc"]
        assert not read.wait(0.2)
    thread.join(60)
    assert read.is_set()
