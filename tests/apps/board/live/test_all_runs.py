"""Test that a look at all runs reads what may have changed, and nothing else."""

import time

import pytest
from run_folder import dead_process

from launcher import api
from launcher.apps.board.live import all_runs
from launcher.apps.board.live.all_runs import AllRuns, ListedRuns
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.run import registry
from launcher.states import State

SETTLED_NS = 10**10


class Hands:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def looking(house, monkeypatch):
    """Return all runs, a clock, and the ids of the runs read since the last call."""
    read, whole = [], api.status_so_far
    monkeypatch.setattr(api, "status_so_far", lambda one: read.append(one.id) or whole(one))
    clock = Hands()
    runs = AllRuns(MeasuredRuns(), clock)
    yield runs, clock, lambda: [read.pop() for _ in range(len(read))]
    runs.close()


def states(changes):
    return {row.id: row.state for row in changes.runs}


def test_the_list_is_read_again_where_it_has_changed(house, monkeypatch):
    house.run("job-aaaa")
    clock, later = Hands(), lambda: time.time_ns() + SETTLED_NS
    listed = ListedRuns(clock, later)
    first = listed.now()
    assert [*first] == ["job-aaaa"] and listed.now() is first
    house.run("job-bbbb")
    assert sorted(listed.now()) == ["job-aaaa", "job-bbbb"]
    registry.forget("job-aaaa")
    assert [*listed.now()] == ["job-bbbb"]
    clock.now += 60  # where a change leaves no trace, too
    monkeypatch.setattr(registry, "changed_ns", lambda: 1)
    house.run("job-cccc")
    assert sorted(listed.now()) == ["job-bbbb", "job-cccc"]


def test_of_many_runs_the_newest_are_there_first_and_all_come_though_many_folders_are_gone(house, looking):
    runs, _, read = looking
    for name in ("job-aaaa", "job-bbbb"):
        house.run(name)
    for number in range(1000):
        registry.register(f"gone-{number}", house.root / f"gone-{number}", fsync=False)
    assert states(runs.look()) == {} and len(read()) == 1000 and not runs.complete
    assert sorted(states(runs.look())) == ["job-aaaa", "job-bbbb"] and runs.complete


def test_a_list_of_the_same_names_is_not_read_again(house, monkeypatch):
    house.run("job-aaaa")
    clock, later, read = Hands(), lambda: time.time_ns() + SETTLED_NS, []
    whole = api.runs
    monkeypatch.setattr(api, "runs", lambda: read.append(clock.now) or whole())
    listed = ListedRuns(clock, later)
    for clock.now in range(0, 100, 10):
        assert [*listed.now()] == ["job-aaaa"]
    assert read == [0]


def test_a_list_that_has_just_changed_may_change_again_within_its_time(house, monkeypatch):
    house.run("job-aaaa")
    stamp = registry.changed_ns()
    monkeypatch.setattr(registry, "changed_ns", lambda: stamp)
    listed = ListedRuns(Hands(), lambda: stamp + 1)
    listed.now()
    house.run("job-bbbb")
    assert sorted(listed.now()) == ["job-aaaa", "job-bbbb"]


def test_a_run_of_which_all_is_known_here_is_not_read_because_a_page_is_at_it(house, looking, monkeypatch):
    runs, _, _ = looking
    house.run("job-aaaa").running()
    runs.look()
    read = []
    monkeypatch.setattr(api, "read_facts", read.append)
    runs.fetch_files("job-aaaa")
    assert read == []


def test_runs_that_have_ended_are_read_once_until_they_change(house, looking):
    runs, clock, read = looking
    for number in range(20):
        house.run(f"job-{number:04x}").succeeded()
    assert len(states(runs.look())) == 20 and len(read()) == 20
    for _ in range(20):
        clock.now += 1
        assert not runs.look().runs
    assert read() == []
    folder = house.root / "runs" / "job-0003"
    again = registry.RunDir(folder).state
    again.write_bytes(again.read_bytes().replace(b'"succeeded"', b'"failed"'))
    clock.now += 60
    assert states(runs.look()) == {"job-0003": State.FAILED}
    assert read() == ["job-0003"]


def test_a_run_that_goes_on_is_read_as_it_changes_and_now_and_then_for_its_processes(house, looking):
    runs, clock, read = looking
    folder = house.run().running(step=1)
    runs.look()
    assert read() == ["job-abcd"]
    runs.look()
    assert read() == []
    folder.running(step=2)
    assert [row.step for row in runs.look().runs] == [2]
    read()
    before = folder.run.state.stat().st_mtime_ns
    folder.attempt(supervisor=dead_process())  # nobody is left to write a word of it
    assert folder.run.state.stat().st_mtime_ns == before
    clock.now += 5
    assert states(runs.look()) == {"job-abcd": State.LOST}


def test_a_run_that_is_gone_is_let_go_of_at_once(house, looking):
    runs, _, _ = looking
    house.run("job-aaaa").running()
    house.run("job-bbbb").running()
    assert len(runs.look().runs) == 2
    registry.forget("job-aaaa")
    assert runs.look().gone == ["job-aaaa"]
    assert [*runs.rows] == ["job-bbbb"] and not runs.draw(1.0).gone


def test_what_is_written_while_a_run_is_read_is_seen_by_the_next_look(house, monkeypatch):
    """Of one that had seemed to have ended nothing is looked at but when its records were changed."""
    folder = house.run("job-aaaa").plan().intent(by=dead_process())
    whole = api.status_so_far

    def read_as_it_begins(one):
        found = whole(one)
        folder.running()
        return found

    clock = Hands()
    runs = AllRuns(MeasuredRuns(), clock)
    with monkeypatch.context() as patch:
        patch.setattr(api, "status_so_far", read_as_it_begins)
        assert states(runs.look()) == {"job-aaaa": State.LOST}
    clock.now += 5
    assert states(runs.look()) == {"job-aaaa": State.RUNNING}
    runs.close()


def test_a_run_whose_row_cannot_be_made_holds_up_no_other(house, looking, monkeypatch):
    runs, _, _ = looking
    whole = all_runs.board_row

    def one_fails(status, *words):
        if status.run == "job-aaaa":
            raise ValueError("no row")
        return whole(status, *words)

    monkeypatch.setattr(all_runs, "board_row", one_fails)
    for name in ("job-aaaa", "job-bbbb"):
        house.run(name)
    assert [*states(runs.look())] == [*runs.rows] == ["job-bbbb"]
