"""One run for one token: however often it is sent, and wherever the one who starts it is killed."""

import json
import multiprocessing
import os
import time

import pytest

from launcher.errors import BadInput, Exit, Unreachable
from launcher.remote.rpc import once
from launcher.remote.rpc.once import Token
from launcher.remote.rpc.wire import Made, Outcome
from launcher.run import registry

TOKEN = "ab" * 8


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Runs:
    """Makes runs as a submitter does: named, registered, and there with one rename."""

    def __init__(self, folder, *, die_after=""):
        self.folder = folder / "runs"
        self.folder.mkdir(exist_ok=True)
        self._die_after = die_after

    def start(self, choose, count=1):
        first = len(os.listdir(self.folder))
        runs = [(name, self.folder / name) for name in (f"job-{first + index:04d}" for index in range(count))]
        self._maybe_die("nothing")
        choose(runs)
        self._maybe_die("chosen")
        for run_id, path in runs:
            registry.register(run_id, path)
            self._maybe_die("registered")
            path.mkdir()
            self._maybe_die("made")
        return runs

    def _maybe_die(self, stage):
        if stage == self._die_after:
            os._exit(9)

    def made(self):
        return sorted(os.listdir(self.folder))


def names(outcome):
    return [made.run for made in outcome.runs]


def never(_):
    raise AssertionError("a run was started a second time")


def in_a_process(target):
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join(150)
    assert process.exitcode is not None
    return process.exitcode


def test_the_same_token_starts_one_run(tmp_path):
    runs = Runs(tmp_path)
    first = Token(tmp_path, TOKEN).redeem(runs.start)
    assert first == Outcome((Made("job-0000", str(tmp_path / "runs" / "job-0000")),))
    assert Token(tmp_path, TOKEN).redeem(never) == first
    assert Token(tmp_path, TOKEN).void() == first
    assert Token(tmp_path, "cd" * 8).redeem(runs.start).runs[0].run == "job-0001"


@pytest.mark.parametrize("stage", ["nothing", "chosen", "registered", "made"])
def test_killed_at_any_stage_and_asked_again(tmp_path, stage):
    dying = Runs(tmp_path, die_after=stage)
    assert in_a_process(lambda: Token(tmp_path, TOKEN).redeem(dying.start)) == 9
    runs = Runs(tmp_path)
    outcome = Token(tmp_path, TOKEN).redeem(never if stage == "made" else runs.start)
    assert runs.made() == names(outcome) == ["job-0000"]
    assert outcome.error == ()
    assert [run_id for run_id, _ in registry.registered()] == ["job-0000"]


@pytest.mark.parametrize("stage", ["nothing", "chosen", "registered", "made"])
def test_killed_at_any_stage_and_given_up(tmp_path, stage):
    dying = Runs(tmp_path, die_after=stage)
    assert in_a_process(lambda: Token(tmp_path, TOKEN).redeem(dying.start)) == 9
    outcome = Token(tmp_path, TOKEN).void()
    made = Runs(tmp_path).made()
    assert made == (["job-0000"] if stage == "made" else [])
    assert names(outcome) == made
    assert outcome.exit_code == (0 if made else Exit.REFUSED)
    assert Token(tmp_path, TOKEN).redeem(never) == outcome, "a connection that comes late starts nothing"
    assert [run_id for run_id, _ in registry.registered()] == made


def test_of_several_runs_those_that_exist_are_named(tmp_path):
    dying = Runs(tmp_path, die_after="made")
    assert in_a_process(lambda: Token(tmp_path, TOKEN).redeem(lambda choose: dying.start(choose, 3))) == 9
    outcome = Token(tmp_path, TOKEN).redeem(never)
    assert names(outcome) == Runs(tmp_path).made() == ["job-0000"]
    assert outcome.error == ("2 of 3 runs were not started: launch there was killed",)
    whole = Token(tmp_path, "cd" * 8).redeem(lambda choose: Runs(tmp_path).start(choose, 3))
    assert names(whole) == ["job-0001", "job-0002", "job-0003"]


def test_runs_that_are_chosen_in_two_steps(tmp_path):
    """More than fit into one array: the second part is killed, the first is there."""
    first, second = Runs(tmp_path), Runs(tmp_path, die_after="chosen")
    assert in_a_process(lambda: Token(tmp_path, TOKEN).redeem(lambda go: first.start(go, 2) + second.start(go, 2))) == 9
    outcome = Token(tmp_path, TOKEN).void()
    assert names(outcome) == Runs(tmp_path).made() == ["job-0000", "job-0001"]
    assert outcome.error[0].startswith("2 of 4 runs were not started")


def test_given_up_before_it_came(tmp_path):
    outcome = Token(tmp_path, TOKEN).void()
    assert "given up" in outcome.error[0]
    assert Token(tmp_path, TOKEN).redeem(never) == outcome


def test_two_at_once_start_one_run(tmp_path):
    runs = Runs(tmp_path)
    calls = tmp_path / "calls"

    def slow(choose):
        with calls.open("a") as file:
            file.write("x")
        while len(os.listdir(tmp_path / "waiting")) < 4:  # all have asked
            time.sleep(0.01)
        return runs.start(choose)

    (tmp_path / "waiting").mkdir()

    def ask(number):
        (tmp_path / "waiting" / str(number)).touch()
        outcome = Token(tmp_path, TOKEN).redeem(slow)
        (tmp_path / f"answer-{number}").write_text(*names(outcome))

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=ask, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
    assert calls.read_text() == "x"
    assert {(tmp_path / f"answer-{number}").read_text() for number in range(4)} == {"job-0000"}


def test_a_refusal_is_the_outcome_too(tmp_path):
    def refuse(choose):
        raise BadInput("job.yaml:1:1: name: missing", "hint: write name: job")

    outcome = Token(tmp_path, TOKEN).redeem(refuse)
    assert outcome.error == ("job.yaml:1:1: name: missing", "hint: write name: job")
    assert (outcome.runs, outcome.exit_code) == ((), Exit.BAD_INPUT)
    assert Token(tmp_path, TOKEN).redeem(never) == outcome


def test_a_run_that_exists_is_named_though_something_went_wrong(tmp_path):
    runs = Runs(tmp_path)

    def fails_late(choose):
        runs.start(choose)
        raise Unreachable("the cluster does not answer")

    outcome = Token(tmp_path, TOKEN).redeem(fails_late)
    assert (names(outcome), outcome.error) == (["job-0000"], ("the cluster does not answer",))


def test_what_is_not_ours_to_judge_leaves_the_token_as_it_was(tmp_path):
    def full(choose):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Token(tmp_path, TOKEN).redeem(full)
    assert Token(tmp_path, TOKEN).redeem(Runs(tmp_path).start).runs[0].run == "job-0000"


@pytest.mark.parametrize("token", ["", "..", "a" * 15, "a" * 63, "A" * 64, "../" * 21 + "a", "g" * 64])
def test_a_token_is_never_a_path(tmp_path, token):
    with pytest.raises(BadInput):
        Token(tmp_path, token)


def test_what_is_kept_is_private_and_not_for_ever(tmp_path):
    Token(tmp_path, TOKEN).redeem(Runs(tmp_path).start)
    kept = tmp_path / "requests" / TOKEN
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    assert kept.stat().st_mode & 0o777 == 0o700
    assert json.loads((kept / "outcome.json").read_text())["runs"][0]["run"] == "job-0000"
    (tmp_path / "requests" / "notes").mkdir()
    once.tidy(tmp_path, time.time() + 29 * 86_400)
    assert kept.exists()
    once.tidy(tmp_path, time.time() + 31 * 86_400)
    assert os.listdir(tmp_path / "requests") == ["notes"]
    once.tidy(tmp_path / "missing", 0.0)
