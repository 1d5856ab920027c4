"""Test what a submit to a login node prints about runs that exist although it failed, and what it leaves."""

import pytest

from launcher import api
from launcher.errors import BadInput, Exit, LaunchError, NotStarted, Unreachable
from launcher.places.clusters_file import ClusterEntry, as_reached_now
from launcher.places.login import cluster, handover
from launcher.places.login.messages import AttemptNews, RunNews
from launcher.plan.facts import Machine
from launcher.remote.rpc.wire import Made, Outcome
from launcher.run import registry
from launcher.run.durable import read_record, write_record
from launcher.run.layout import RunDir
from launcher.run.locks import locked
from launcher.run.records import Handle
from launcher.states import State
from launcher.supervisor.handover import Handover


@pytest.fixture
def specs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text("hpc: {kind: slurm, login: me@login}\n")
    clusters.chmod(0o600)
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(clusters))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").touch()
    found = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for spec in found:
        spec.write_text(f"name: {spec.stem}\nrun: {{script: train.py}}\nenv: {{A: {spec.stem}}}\n")
    return found


def submitted(specs, monkeypatch, *answers):
    """The error of a submit that is answered so."""
    left = list(answers)

    def answered(_address, work, **_):
        if not left:
            raise AssertionError("one question more than was expected")
        answer = left.pop(0)
        if isinstance(answer, LaunchError):
            if isinstance(answer, Unreachable):
                work(Line())  # the question is on its way
            raise answer
        return answer

    monkeypatch.setattr(cluster, "persistently", lambda *_, **__: Machine(4, ()))
    monkeypatch.setattr(handover, "persistently", answered)
    with pytest.raises(LaunchError) as raised:
        api.submit_many(specs, on="hpc", repeat=2)
    return raised.value


class Line:
    """A connection of which no answer comes."""

    def ask(self, request, kind, **_):
        return kind()


def made(*names):
    return tuple(Made(name, f"/far/{name}") for name in names)


def states():
    return {run.id.partition("-")[0]: run.status().state for run in api.runs()}


def test_runs_that_were_made_before_others_were_refused(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Outcome(made("a-2222"), ("Slurm refuses",), Exit.REFUSED))
    assert error.exit_code == Exit.REFUSED
    assert len(error.runs) == 4, "they were asked for together"
    ends = [api.run(run).path / "attempts" / "0001" / "exit.json" for run, _ in error.runs]
    assert [end.exists() for end in ends] == [False, True, True, True]
    assert api.run(error.runs[1][0]).status().message == "not started there: Slurm refuses"
    assert api.run(error.runs[1][0]).status().state is State.FAILED


def test_what_was_refused_there_is_not_here(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Outcome(error=("a.yaml:1:1: no",), exit_code=Exit.BAD_INPUT))
    assert isinstance(error, NotStarted)
    assert (error.lines, error.runs) == (("a.yaml:1:1: no", "  said by login node me@login of hpc"), ())
    assert registry.registered() == []


def test_what_was_never_asked_is_not_here(specs, monkeypatch):
    error = submitted(specs, monkeypatch, BadInput("the tree"))
    assert isinstance(error, NotStarted)
    assert registry.registered() == []


def test_what_may_have_been_begun_is_here_and_handed_over_later(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Unreachable("hung up"))
    assert isinstance(error, Unreachable)
    assert [run for run, _ in error.runs] == [run for run, _ in error.runs if registry.is_registered(run)]
    assert len(error.runs) == 4
    assert error.lines[0] == "hung up"
    assert "`launch status` hands them over" in error.lines[1]


@pytest.fixture
def left(specs, monkeypatch):
    """A run of which nobody knows whether the login node has it."""
    left = [Unreachable("hung up")]

    def answered(_address, work, **_):
        work(Line())
        raise left[0]

    monkeypatch.setattr(cluster, "persistently", lambda *_, **__: Machine(4, ()))
    monkeypatch.setattr(handover, "persistently", answered)
    with pytest.raises(Unreachable) as raised:
        api.submit_many(specs[:1], on="hpc")
    run = RunDir(api.run(raised.value.runs[0][0]).path)
    return Handover.of(run, run.attempt(1))


def refuses(*_, **__):
    raise LaunchError("the disk there is full")


def test_what_was_heard_is_not_given_up_because_of_what_comes_later(left, monkeypatch):
    ((_, attempt),) = left.members
    submit_token = left.intent.submit_token
    monkeypatch.setattr(handover, "persistently", refuses)
    monkeypatch.setattr(handover, "ask", lambda *_, **__: {submit_token: Outcome(made("a-2222"))})
    handover.finish(left)
    assert (read_record(attempt.handle, Handle).run, attempt.end.exists()) == ("a-2222", False)


def test_what_was_never_heard_and_never_can_be_gets_its_end(left, monkeypatch):
    ((_, attempt),) = left.members
    monkeypatch.setattr(handover, "persistently", refuses)
    monkeypatch.setattr(handover, "ask", lambda *_, **__: {})
    handover.finish(left)
    assert (attempt.handle.exists(), attempt.end.exists()) == (False, True)


def test_whoever_looks_waits_for_nobody_who_hands_over(left, monkeypatch):
    monkeypatch.setattr(handover, "persistently", refuses)
    with locked(left.lock, wait=True):
        handover.finish(left)
    assert left.is_open()


def test_interrupted_before_the_login_node_has_heard_of_it_nothing_is_left(specs, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "persistently", lambda *_, **__: Machine(4, ()))
    monkeypatch.setattr(handover, "persistently", interrupted)
    with pytest.raises(NotStarted) as raised:
        api.submit_many(specs, on="hpc")
    assert raised.value.exit_code == Exit.INTERRUPTED
    assert registry.registered() == []


def test_a_damaged_run_keeps_nobody_else_from_being_looked_at(left, monkeypatch):
    ((run, attempt),) = left.members
    attempt.handle.write_text("{")
    [word] = cluster.LoginCluster().look([(run, attempt)])
    assert "handle.json" in word.silent


def test_a_login_node_that_has_moved_is_got_to_as_the_clusters_file_says_now(left, specs):
    file = specs[0].parent / "clusters.yaml"
    file.write_text("hpc: {kind: slurm, login: me@new, defaults: {partition: gpu}}\n")
    before = ClusterEntry("login", "hpc", (("login.node", "me@login"), ("slurm.partition", "cpu")))
    now = dict(as_reached_now(before).defaults)
    assert (now["login.node"], now["slurm.partition"]) == ('"me@new"', "cpu")


def test_two_runs_that_are_said_to_be_one_are_both_told_of(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Unreachable("hung up"))
    runs = [RunDir(api.run(run).path) for run, _ in error.runs[:2]]
    for run in runs:
        write_record(run.attempt(1).handle, Handle("login", run="a-2222"))
    news = RunNews(State.RUNNING, "", None, None, (AttemptNews(1, "submit", None, 5.0, None, None),), None, (), 0, b"")
    monkeypatch.setattr(cluster, "ask_all", lambda questions, *_: {one: {"a-2222": news} for one in questions})
    words = cluster.LoginCluster().look([(run, run.attempt(1)) for run in runs])
    assert [word and word.phase for word in words] == ["running", "running"]
