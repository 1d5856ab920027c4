"""What a submit to a login node says of runs that exist although it failed, and what it leaves."""

import pytest

from launcher import api
from launcher.clusters.login import cluster, handover
from launcher.errors import BadInput, Exit, LaunchError, NotStarted, Unreachable
from launcher.hostlink.rpc.wire import Made, Outcome
from launcher.plan.facts import Machine
from launcher.rundir import registry
from launcher.words import State


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
    assert (error.lines, error.runs) == (("a.yaml:1:1: no",), ())
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
