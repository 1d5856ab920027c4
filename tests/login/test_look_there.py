"""Test what a login node reports about the runs on it."""

import pytest
from run_folder import RunFolder

from launcher.apps import remote_api as far
from launcher.copies.mirror import tails
from launcher.places.login.messages import AskOutputs, KnownRun, LogNews
from launcher.run import registry
from launcher.run.code import outputs
from launcher.states import State


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes ended runs that are known there, each with so many bytes of events."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def made(name, size=0):
        folder = RunFolder(tmp_path / name).plan().attempt().end(State.SUCCEEDED).state(State.SUCCEEDED)
        folder.run.events.write_bytes(b'{"x": 1}\n' * (size // 9))
        registry.register(name, folder.path)
        return folder.run

    return made


def fill_an_answer(path):
    """A file of which there is as much as one answer holds."""
    with path.open("wb") as file:
        file.truncate(tails.LIMITS.answer_bytes)


def test_who_is_told_of_an_end_knows_whether_there_are_more_events(run):
    run("job-aaaa", 90), run("job-bbbb", 90)
    told = far._look((KnownRun("job-aaaa", 1, 0, ""), KnownRun("job-bbbb", 1, 0, "")), events_bytes=100)
    assert [(len(one.events), one.more) for one in told.values()] == [(90, False), (9, True)]
    assert all(one.attempts[0].end is not None for one in told.values())


def test_a_damaged_run_keeps_no_other_from_being_told_of(run):
    """All runs of a login node fell silent."""
    run("job-aaaa").state.write_text("{")
    run("job-bbbb").attempt(1).intent.write_text("{")
    run("job-cccc")
    told = far._look(tuple(KnownRun(name, 1, 0, "") for name in ("job-aaaa", "job-bbbb", "job-cccc")))
    assert told["job-aaaa"].last is None
    assert told["job-bbbb"].state is State.UNKNOWN and "not a record" in told["job-bbbb"].message
    assert told["job-cccc"].state is State.SUCCEEDED and told["job-cccc"].last is not None


def test_what_ranks_wrote_is_listed_once_for_all_answers(run, monkeypatch):
    """Each answer looked at all of the run's code again."""
    wrote = run("job-aaaa")
    wrote.code.mkdir()
    for number in range(3):
        fill_an_answer(wrote.code / f"{number}.txt")
    listed = []
    monkeypatch.setattr(outputs, "written", lambda *asked, look=outputs.written: listed.append(1) or look(*asked))
    for times in (1, 2):
        known, more = {}, True
        while more:
            answer = far.answer(AskOutputs("job-aaaa", dict(known)))
            known |= {tail.name: len(tail.content) for tail in answer.tails}
            more = answer.more
        assert len(known) == 3 * times and len(listed) == times
        for number in range(3, 6):  # there for who asks anew
            (wrote.code / f"{number}.txt").write_text("x")


def test_the_runs_whose_outputs_are_half_told_are_few(run):
    for name in ("job-aaaa", "job-bbbb", "job-cccc", "job-dddd", "job-eeee"):
        wrote = run(name)
        wrote.code.mkdir()
        fill_an_answer(wrote.code / "0.txt")
        assert far.answer(AskOutputs(name, {})).more
    assert len(far._listed) == 4
    assert far.answer(AskOutputs("job-aaaa", {"code/0.txt": tails.LIMITS.answer_bytes})) == LogNews((), False)
