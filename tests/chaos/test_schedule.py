"""Schedules: what a seed draws, as a line and back, and the shortest one that still fails."""

from tests.chaos.schedule import Kind, drawn, parse, shrunk, written

KINDS = {"kill": Kind(3), "power": Kind(1, most=1, lasts_s=(5.0, 20.0))}


def test_a_seed_draws_one_schedule():
    assert drawn(7, KINDS, 20, (1.0, 5.0)) == drawn(7, KINDS, 20, (1.0, 5.0)) != drawn(8, KINDS, 20, (1.0, 5.0))


def test_no_more_than_a_run_can_stand_and_some_at_once():
    schedules = [drawn(seed, KINDS, 12, (1.0, 5.0)) for seed in range(50)]
    assert all(sum(one.fault == "power" for one in schedule) <= 1 for schedule in schedules)
    assert all(5 <= one.lasts_s <= 20 for schedule in schedules for one in schedule if one.fault == "power")
    assert all(schedule[0].after_s >= 1 for schedule in schedules)
    assert any(one.after_s == 0 for schedule in schedules for one in schedule)


def test_of_a_group_no_more_than_of_one():
    kinds = {"kill": Kind(), "power": Kind(most=1, group="host"), "supervisor": Kind(most=1, group="host")}
    for seed in range(50):
        assert sum(one.fault != "kill" for one in drawn(seed, kinds, 12, (1.0, 5.0))) <= 1


def test_a_line_and_back():
    schedule = drawn(3, KINDS, 10, (1.0, 5.0))
    assert parse(written(schedule)) == schedule


def test_the_shortest_that_fails():
    """Two of twenty are needed, in their order."""
    schedule = drawn(5, {"kill": Kind()}, 20, (1.0, 5.0))
    needed = {schedule[3], schedule[17]}
    assert shrunk(schedule, lambda one: needed <= set(one)) == (schedule[3], schedule[17])
    assert shrunk(schedule, lambda one: True) in [(one,) for one in schedule]
