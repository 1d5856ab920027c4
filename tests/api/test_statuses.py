"""Asking clusters about runs: once for all of a kind, and no oftener than the asker wants."""

import pytest
from run_folder import RunFolder, of_another_machine

from launcher import api
from launcher.cli.looking.follow import follow
from launcher.errors import Exit
from launcher.run.layout import RunDir
from launcher.run.records import ClusterAnswer, Handle, Intent
from launcher.states import Cause, State

RUNNING = ClusterAnswer("running", "RUNNING", 2000.0, "7")
CANCELLED = ClusterAnswer("ended", "CANCELLED by 0", 2000.0, "7", ended_as=State.CANCELLED, cause=Cause.CANCELLED)


SOON_ASKED_AGAIN = "login"  # twice a second, by who follows


@pytest.fixture
def asked_clusters(monkeypatch):
    """Return the list of questions that were put to clusters, which all answer RUNNING."""
    return clusters_that_say(monkeypatch, lambda: RUNNING)


def clusters_that_say(monkeypatch, word):
    questions = []

    class Asked:
        remote = False

        def __init__(self, kind):
            self.kind = kind

        def mend(self, attempts):
            pass

        def look(self, attempts):
            questions.append((self.kind, [run.path.name for run, _ in attempts]))
            return [word() for _ in attempts]

    monkeypatch.setattr(api, "of_kind", Asked)
    api._answered.clear()
    return questions


def run_on(kind, folder):
    made = RunFolder(folder).plan()
    attempt = made.run.attempt(1)
    made.write(attempt.intent, Intent(1, "0" * 64, kind, "submit", None, 1000.0, of_another_machine(), kind, "t"))
    made.write(attempt.handle, Handle(kind, supervisor=of_another_machine(), job_id="7"))
    return api.Run(folder.name, folder)


def ended(folder):
    RunFolder(folder).plan().intent().state(State.SUCCEEDED)
    return api.Run(folder.name, folder)


def test_one_question_for_all_that_have_not_ended(tmp_path, asked_clusters):
    runs = [run_on("slurm", tmp_path / f"s-{index}") for index in range(3)]
    runs += [ended(tmp_path / "done"), run_on("local", tmp_path / "here")]
    states = [status.state for status in api.statuses(runs)]
    assert asked_clusters == [("slurm", ["s-0", "s-1", "s-2"])]
    assert states == [State.STARTING] * 3 + [State.SUCCEEDED, State.UNKNOWN]


def test_who_watches_is_content_with_a_word_of_a_moment_ago(tmp_path, asked_clusters):
    run = run_on("slurm", tmp_path / "s-0")
    for _ in range(10):
        run.status(fresh_s=60.0)
    assert len(asked_clusters) == 1
    run.status()
    assert len(asked_clusters) == 2


@pytest.mark.timeout(120)
def test_following_ends_when_only_the_cluster_knows_of_the_end(tmp_path, monkeypatch):
    """A pending job that its owner has cancelled with the cluster's own tools: no process of ours was ever there."""
    said = iter([RUNNING, RUNNING])
    clusters_that_say(monkeypatch, lambda: next(said, CANCELLED))
    run = run_on(SOON_ASKED_AGAIN, tmp_path / "s-0")
    log = RunDir(run.path).rank_log(1, 1, 0)
    log.parent.mkdir(parents=True)
    log.write_text("the only line\n")
    assert [line.text for line in run.logs(follow=True)] == ["the only line"]
    assert run.status().state is State.CANCELLED


@pytest.mark.timeout(120)
def test_a_person_who_follows_sees_the_end_too(tmp_path, monkeypatch, capsys):
    said = iter([RUNNING])
    clusters_that_say(monkeypatch, lambda: next(said, CANCELLED))
    assert follow(run_on(SOON_ASKED_AGAIN, tmp_path / "s-0")) == Exit.CANCELLED
    assert "cancelled" in capsys.readouterr().err
