import msgspec
import pytest
from run_folder import plan_of

from launcher.errors import LaunchError, Refused
from launcher.run.attempts import attempts, new_attempt, newest, read_intent, read_plan, remains
from launcher.run.durable import write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.states import Cause


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def test_a_run_without_attempts(run):
    assert attempts(run) == [] and newest(run) is None


def test_the_intent_of_an_attempt_is_on_disk(run):
    attempt, intent = new_attempt(run, "local", "submit", None)
    assert attempt.number == 1 and attempt.path == run.path / "attempts" / "0001"
    assert read_intent(attempt) == intent
    assert (intent.cluster, intent.reason, intent.cause) == ("local", "submit", None)
    assert intent.created_by == this_process()


def test_attempts_are_counted_and_tokens_differ(run):
    first, second = (new_attempt(run, "local", "requeue", Cause.NODE_LOST) for _ in range(2))
    assert (first[0].number, second[0].number) == (1, 2)
    assert first[1].token != second[1].token
    assert second[1].cause is Cause.NODE_LOST
    assert newest(run) == second[0]


def test_the_newest_is_by_number_beyond_four_digits(run):
    for number in (9999, 10000):
        (run.attempts / f"{number}").mkdir(parents=True)
    assert [attempt.number for attempt in attempts(run)] == [9999, 10000]
    assert new_attempt(run, "local", "resume", None)[0].number == 10001


def test_the_lowest_number_holds_where_there_are_fewer_attempts(run):
    numbers = [new_attempt(run, "local", "requeue", None, first=first)[0].number for first in (3, 3, 2, 9)]
    assert numbers == [3, 4, 5, 9]


def test_a_number_whose_maker_was_killed_is_not_given_again(run):
    (run.attempts / "0001").mkdir(parents=True)
    assert newest(run) is None
    assert new_attempt(run, "local", "resume", None)[0].number == 2


def test_foreign_names_are_no_attempts(run):
    run.attempts.mkdir()
    for name in ("x", "\N{SUPERSCRIPT TWO}", ".tmp-1"):
        (run.attempts / name).mkdir()
    assert attempts(run) == []


def test_racers_never_get_the_same_number(run, race):
    got = race(lambda number: new_attempt(run, "local", "resume", None)[0].number, rounds=10)
    numbers = [number for results in got for number in results]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(read_intent(attempt).attempt == attempt.number for attempt in attempts(run))


def test_what_is_missing_is_named(run):
    with pytest.raises(LaunchError, match=r"token\.json: is missing"):
        read_intent(run.attempt(1))
    with pytest.raises(LaunchError, match=r"plan\.json: is missing"):
        read_plan(run, 1)


def test_of_those_that_follow_the_same_attempt_one_gets_a_number(run, race):
    def follow(after):
        try:
            return new_attempt(run, "local", "resume", None, after=after)[0].number
        except Refused:
            return None

    for after in range(5):
        [got] = race(lambda _, after=after: follow(after), rounds=1)
        assert sorted(filter(None, got)) == [after + 1]
        with pytest.raises(Refused, match=f"was resumed meanwhile, as attempt {after + 1}"):
            new_attempt(run, "local", "resume", None, after=after)
    assert not list(run.attempts.glob(".tmp-*"))


def test_a_number_of_which_nothing_came_is_in_nobodys_way(run):
    new_attempt(run, "local", "submit", None)
    (run.attempts / "0002").mkdir()
    assert new_attempt(run, "local", "resume", None, after=1)[0].number == 3


@pytest.mark.parametrize("damaged", ["plan", "intent"])
def test_a_run_that_moved_ends_where_it_is_though_a_record_of_it_is_damaged(run, damaged):
    plans = {kind: msgspec.structs.replace(plan_of(run.path), cluster_kind=kind) for kind in ("slurm", "ssh")}
    write_record(run.plan, plans["slurm"])
    new_attempt(run, "slurm", "submit", None, kind="slurm")
    moved, _ = new_attempt(run, "ssh", "resume", None, plans["ssh"], kind="ssh")
    getattr(moved, damaged).write_text("{")
    left = remains(run)
    assert (left.attempt, left.kind) == (moved, "ssh")
    assert left.plan == (None if damaged == "plan" else plans["ssh"])


def test_on_a_host_of_a_pool_an_attempt_is_local_and_has_the_pools_plan(run):
    plan = msgspec.structs.replace(plan_of(run.path), cluster_kind="ssh")
    write_record(run.plan, plan)
    new_attempt(run, "pool", "submit", None)
    assert (remains(run).kind, remains(run).plan) == ("local", plan)
