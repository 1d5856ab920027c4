"""What a submit to a login node says of runs that exist although it failed."""

import pytest

from launcher.clusters.clusters_file import ClusterEntry
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.remote import known, sending
from launcher.remote.wire import Made, Outcome

HPC = ClusterEntry("login", "hpc", (("login.node", "me@login"), ("login.cluster", "slurm")))


@pytest.fixture
def specs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").touch()
    found = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for spec in found:
        spec.write_text(f"name: {spec.stem}\nrun: {{script: train.py}}\n")
    return found


def submitted(specs, monkeypatch, *answers):
    """The error of a submit that is answered so."""
    left = list(answers)

    def answered(*_):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sending, "_persistently", answered)
    with pytest.raises(LaunchError) as raised:
        sending.submit(HPC, specs, repeat=2)
    return raised.value


def made(*names):
    return tuple(Made(name, f"/far/{name}") for name in names)


def test_runs_that_were_made_before_others_were_refused(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Outcome(made("a-2222"), ("Slurm refuses",), Exit.REFUSED))
    assert (error.exit_code, error.runs) == (Exit.REFUSED, (("a-2222", "me@login:/far/a-2222"),))


def test_runs_of_a_spec_before_the_one_that_failed(specs, monkeypatch):
    error = submitted(specs, monkeypatch, Outcome(made("a-2222", "a-3333")), Unreachable("hung up"))
    assert isinstance(error, Unreachable)
    assert [run for run, _ in error.runs] == ["a-2222", "a-3333"] == sorted(run.run for run in known.runs())
    assert error.lines == ("hung up", "hint: 2 of 4 runs exist all the same: do not submit them again")
