"""Test the cluster's operations with small programs in place of Grid Engine's clients."""

import os

import pytest

from launcher.errors import LaunchError, NotStarted, Unreachable
from launcher.places.gridengine.gridengine import GridEngineSystem

DENIED = "echo 'denied: host \"node0\" is neither submit nor admin host' >&2; exit 1"
SILENT = "echo 'error: commlib error: got select error (Connection refused)' >&2; exit 1"


@pytest.fixture
def qsub(tmp_path, monkeypatch):
    """A qsub that does this."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(body):
        program = tmp_path / "qsub"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    return write


def test_only_a_refusal_is_one(qsub, tmp_path):
    def submit():
        return GridEngineSystem().submit(tmp_path / "job.sh", dict(os.environ), 1)

    qsub("echo a banner; echo 12")
    assert submit() == "12"
    qsub("echo 'Unable to run job: no such queue.' >&2; exit 1")
    with pytest.raises(NotStarted, match="refuses the job: no such queue"):
        submit()
    for said in ("echo a banner", "echo 12; echo 13"):
        qsub(said)
        with pytest.raises(LaunchError, match="expected the number of a job") as caught:
            submit()
        assert not isinstance(caught.value, NotStarted)


def test_an_execution_host_need_not_be_a_submit_host(qsub):
    qsub("exit 0")
    assert GridEngineSystem().may_submit()
    qsub("echo 'Unable to run job: no suitable queues' >&2; exit 1")  # of that job; ours may be another matter
    assert GridEngineSystem().may_submit()
    qsub(DENIED)
    assert not GridEngineSystem().may_submit()
    qsub(SILENT)
    with pytest.raises(Unreachable):
        GridEngineSystem().may_submit()


def test_a_site_is_called_as_its_cell_is(tmp_path, monkeypatch):
    for name in ("SGE_CLUSTER_NAME", "SGE_CELL", "SGE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert GridEngineSystem().site() == ""
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    assert GridEngineSystem().site() == ""
    (tmp_path / "default" / "common").mkdir(parents=True)
    (tmp_path / "default" / "common" / "cluster_name").write_text("p6444\n")
    assert GridEngineSystem().site() == "p6444"
    monkeypatch.setenv("SGE_CLUSTER_NAME", "big")
    assert GridEngineSystem().site() == "big"


def test_hosts_without_the_file_of_another_job(tmp_path, monkeypatch):
    monkeypatch.setenv("JOB_LAUNCH_HOST", "localhost")
    monkeypatch.setenv("PE_HOSTFILE", str(tmp_path / "gone"))
    assert list(GridEngineSystem().hosts()) == ["localhost"]
