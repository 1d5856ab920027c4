"""Test the names by which older versions start programs: from a running process, a queued script or a crontab."""

import os
import subprocess
import sys
from importlib import import_module

import pytest
from older import OLDER, unpack

from launcher.errors import Exit
from launcher.places.ssh.comeback.there import IN_ALL_VERSIONS
from launcher.programs import PROGRAMS


def test_each_name_is_of_a_program():
    for module in PROGRAMS.values():
        assert callable(import_module(module).main)


@pytest.mark.parametrize("module", ["launcher.clusters.local.keeper", "launcher.submission.carrier"])
def test_a_submitter_of_an_older_version_finds_a_supervisor(tmp_path, module):
    up_read, up_write = os.pipe()
    go_read, go_write = os.pipe()
    words = [sys.executable, "-P", "-m", module, str(tmp_path), str(up_write), str(go_read)]
    starter = subprocess.Popen(words, pass_fds=(up_write, go_read))
    os.close(up_write)
    os.close(go_read)
    with os.fdopen(up_read, "rb") as up:
        assert up.readline() == b"up\n"
    os.close(go_write)  # there was no submit after all
    assert starter.wait() == 0


def run(tmp_path, *words, **env):
    return subprocess.run(
        [sys.executable, "-P", "-m", *words], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True
    )


@pytest.mark.parametrize("package", ["clusters", "places"])
@pytest.mark.parametrize("module", ["batch_process", "guard", "on_node"])
def test_a_job_of_an_older_version_finds_its_programs(tmp_path, package, module):
    attempt = ["1"] if module == "on_node" else []
    done = run(tmp_path, f"launcher.{package}.batch.job.{module}", "unknown-kind", str(tmp_path), *attempt)
    assert done.returncode == Exit.BAD_INPUT or module == "on_node"
    assert "there is no kind of cluster 'unknown-kind'" in done.stderr


@pytest.mark.parametrize("module", ["clusters.batch.job.environment", "places.batch.environment"])
def test_a_job_of_an_older_version_gets_the_environment_of_its_user(tmp_path, module):
    saved = tmp_path / "saved"
    saved.write_text('{"OF_THE_USER": "it"}')
    words = (sys.executable, "-c", "import os; print(os.environ['OF_THE_USER'])")
    assert run(tmp_path, f"launcher.{module}", *words, JOB_LAUNCH_ENVIRONMENT=str(saved)).stdout == "it\n"


def test_a_supervisor_of_an_older_version_finds_the_agent_and_what_notifies(tmp_path):
    agent = run(tmp_path, "launcher.agent", str(tmp_path), "1", "0")
    assert agent.stderr == run(tmp_path, "launcher.node", str(tmp_path), "1", "0").stderr
    assert f"{tmp_path}/plan.json: is missing" in agent.stderr
    for module in ("launcher.notify", "launcher.supervisor.notify"):
        done = run(tmp_path, module, str(tmp_path), "1", "0")
        assert (done.returncode, done.stderr) == (0, ""), "the run has nobody to notify"


def test_a_crontab_of_an_older_version_finds_what_restarts_supervisors(tmp_path):
    for name in (IN_ALL_VERSIONS, "launcher.places.ssh.comeback.there"):
        done = run(tmp_path, name, str(tmp_path))
        assert (done.returncode, done.stderr) == (Exit.OK, ""), "no run was here"


@pytest.mark.parametrize("version", OLDER)
def test_a_host_restarts_a_supervisor_with_its_own_older_version(tmp_path, version):
    """After a reboot no run of 0.1.0 came back on a host that had a newer version as well."""
    done = run(tmp_path, IN_ALL_VERSIONS, str(tmp_path), "train-7k3f", **unpack(version, tmp_path / "older"))
    assert (done.returncode, done.stderr) == (Exit.OK, ""), "the run was never here"


def test_a_program_without_a_name_is_refused(tmp_path):
    done = run(tmp_path, "launcher.programs", "unknown")
    assert done.returncode == 1 and "launcher.programs has no 'unknown', only " in done.stderr
