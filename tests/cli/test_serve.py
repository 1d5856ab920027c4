"""`launch serve` as a user starts it: the address answers, and SIGTERM ends all of it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import until

sys.path.insert(0, str(Path(__file__).parents[1] / "apps" / "serving"))

from answering import processes_of
from served_job import asked, check_watched, trained, write_app

from launcher.apps.serving.as_job import served_in_job
from launcher.errors import BadInput

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_a_model_of_ones_own_as_the_page_shows_it(lab):
    """Trained by a script with a `Checkpointer`, and served by the file of the page."""
    run, expected = trained(lab)
    write_app(lab)
    command = [sys.executable, "-m", "launcher.cli.main", "serve", run, "--app", "serving.py", "--port", "0"]
    with subprocess.Popen(
        command, env=lab.env, cwd=lab.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), server.stderr.read()
            said = ""
            while not (curl := server.stderr.readline()).startswith("curl "):
                assert curl, said
                said += curl
            assert "Bearer" not in curl, "a command line is for everybody to see"
            header = Path(re.search(r"-H @(\S+)", curl)[1])
            assert (header.stat().st_mode & 0o777, header.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            # As it is pasted.
            told = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True).stdout
            assert [*json.loads(told)] == ["y"]
            token = header.read_text().split()[-1]
            assert asked(address, token) == (pytest.approx(expected, abs=1e-4), "3")
            workers = processes_of(os.path.realpath(lab.run_dir(run) / "code"))
            assert len(workers) == 3, "a worker pool and two workers"
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
        said += server.stderr.read()
    assert f"{run}: 2 workers have the checkpoint of step 3" in said
    assert "Traceback" not in said
    until("the end of all processes", lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.timeout(600)
def test_a_job_that_watches_takes_over_what_the_run_saves(lab):
    write_app(lab)
    run, expected = trained(lab)
    check_watched(lab, lab.run_dir(run) / "code" / "checkpoints", run, expected, "--on", "local")


@pytest.mark.parametrize(("folder", "why"), [("", "this node sees no"), ("there", "")])
def test_a_job_that_watches_looks_where_the_run_saves_and_goes_back_to_its_own(tmp_path, monkeypatch, folder, why):
    (tmp_path / "there").mkdir()
    (tmp_path / "own" / "step-00000003").mkdir(parents=True)
    monkeypatch.setenv("LAUNCH_CHECKPOINT_DIR", str(tmp_path / "own"))
    watched = tmp_path / (folder or "gone")
    if why:
        with pytest.raises(BadInput, match=f"--watch: {why} {watched}, where newer checkpoints of mine come"):
            served_in_job("mine", app="app", args="[]", best=False, watched=watched)
        return
    found = served_in_job("mine", app="app", args="[]", best=False, watched=watched)
    assert [one.path for one in found.choices()] == [tmp_path / "own" / "step-00000003"]
    (watched / "step-00000009").mkdir()
    assert [one.step for one in found.choices()] == [9, 3]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "expected --app: the run's own program is no module that says how it is asked"),
        (("--app", "nothing.py"), "--app: expected a Python file, found none at nothing.py"),
        (("--app", "app.py", "--best"), "has kept no checkpoint apart as the best"),
        (("--app", "app.py", "--wait", "5"), "expected a duration such as"),
        (("--app", "app.py", "--port", "70000"), "expected a port, 0 to 65535, got '70000'"),
        (("--app", "app.py", "--workers", "0"), "expected at least 1"),
        (("--app", "app.py", "--token-file", "app.py"), "--token-file: expected at least 16 characters"),
        (("--app", "app.py", "--checkpoint", "nowhere"), "has no checkpoints here"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_started(desk, words, why):
    folder = desk.run().succeeded()
    (folder.path / "code").mkdir(exist_ok=True)
    (folder.path / "checkpoints").mkdir(exist_ok=True)
    (desk.root / "app.py").write_text("")
    said = desk.launch("serve", "job-abcd", *words, check=None)
    assert said.returncode in (2, 4)
    assert why in said.stderr
