"""Test the names by which older versions start programs: from a running submitter, and from queued scripts."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from launcher.errors import Exit


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


def test_a_job_of_an_older_version_finds_its_batch_process(tmp_path):
    words = [sys.executable, "-P", "-m", "launcher.clusters.batch.job.batch_process", "unknown-kind", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == Exit.BAD_INPUT and "there is no kind of cluster 'unknown-kind'" in done.stderr


def test_a_supervisor_of_an_older_version_finds_the_agent():
    assert find_spec("launcher.agent.__main__").origin == find_spec("launcher.node.__main__").origin
