"""Ranks import the project's own packages from the frozen code, whatever is edited and resumed afterwards."""

import shutil

import package_layouts as layouts
import pytest

from launcher.places.local.cluster import LocalCluster
from launcher.places.local.local_supervisor import have_code
from launcher.places.local.shared_zygote import supervisor_of
from launcher.run.attempts import new_attempt, newest, read_plan
from launcher.run.layout import RunDir
from launcher.states import State

pytestmark = pytest.mark.nightly

WAITS = """
import os, sys, time
while os.path.exists(sys.argv[1]):
    time.sleep(0.01)
import imgproj
print("from", imgproj.__file__, imgproj.WORD)
sys.exit("fails")
"""


@pytest.mark.daily
def test_what_is_edited_after_submit_reaches_neither_a_start_nor_a_resume(lab):
    made = layouts.uv_package(lab.project)
    lab.script("scripts/train.py", WAITS)
    run_as = f"script: scripts/train.py\n  python: .venv/bin/python\n  args: [{lab.brake}]"
    lab.spec(f"name: own\nrun:\n  {run_as}\nresources: {{ranks_per_node: 1}}\nrecovery: {{user_error: 0}}\n")
    lab.brake.touch()
    run = lab.submit("job.yaml")
    made.edit()
    lab.brake.unlink()
    lab.wait(run, check=10)
    lab.launch("resume", run)
    lab.wait(run, check=10)
    source = f"from {lab.run_dir(run)}/code/src/imgproj/__init__.py as submitted"
    assert lab.rank_logs(run).count(source) == 2, lab.rank_logs(run)


def test_a_package_that_cannot_be_frozen_is_named_at_submit(lab, tmp_path):
    made = layouts.uv_app(lab.project)
    theirs = tmp_path / "elsewhere" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").touch()
    made.path_file("theirs.pth", theirs.parent)
    lab.script("scripts/train.py", "import theirs\n")
    lab.spec("name: own\nrun: {script: scripts/train.py, python: .venv/bin/python}\nresources: {ranks_per_node: 1}\n")
    said = lab.launch("submit", "job.yaml", "--dry-run").stderr
    assert said.startswith(f"warning: theirs would be imported from {theirs}, which is not frozen")


SAYS = "import lib.f7, pathlib\nprint('says', lib.f7.value, len(list(pathlib.Path('lib').glob('*.py'))))\n"


def of_many_files(lab):
    """A run of a project with more files than a submit copies itself; what it imports is edited at once."""
    (lab.project / "lib").mkdir()
    for number in range(LocalCluster.most_files_at_once + 1):
        (lab.project / "lib" / f"f{number}.py").write_text(f"value = {number}\n")
    lab.script("train.py", SAYS)
    run = lab.submit(lab.spec("name: many\nrun: {script: train.py, preload: []}\nresources: {ranks_per_node: 1}\n"))
    with (lab.project / "lib" / "f7.py").open("r+") as file:
        file.write("value = 'edited'\n")
    return run


def begun_by_a_supervisor(lab, run):
    """Start the run's next attempt by a new supervisor."""
    supervisor = supervisor_of(lab.run_dir(run))
    attempt, _ = new_attempt(RunDir(lab.run_dir(run)), "local", "resume", None)
    supervisor.start(attempt.number)
    found = lab.until(
        "its end", lambda: (now := lab.status(run))["attempt"] == 2 and now["exit_code"] is not None and now
    )
    lab.until("its processes to go", lambda: not lab.processes())
    return found


def test_the_code_of_many_files_is_copied_before_the_ranks_start_and_is_that_of_the_submit(lab):
    run = of_many_files(lab)
    assert lab.wait(run)["state"] == "succeeded"
    shutil.rmtree(lab.run_dir(run) / "code")
    assert begun_by_a_supervisor(lab, run)["state"] == "succeeded"
    assert lab.rank_logs(run).count("says 7 2001") == 2, lab.rank_logs(run)


def test_a_run_whose_code_was_tampered_with_before_it_was_copied_ends_before_its_ranks_start(lab):
    run = of_many_files(lab)
    lab.wait(run)
    shutil.rmtree(lab.run_dir(run) / "code")
    [stored] = lab.run_dir(run).parent.glob(".code/*/lib/f7.py")
    stored.chmod(0o600)
    stored.write_text("value = 'bad'\n")
    found = begun_by_a_supervisor(lab, run)
    assert (found["state"], found["cause"]) == ("failed", "launcher_fault")
    assert "is not the code any more that was frozen for" in found["message"]
    assert lab.rank_logs(run).count("says") == 1
    assert "is not the code any more" in lab.launch("resume", run, check=2).stderr


class Stopped:
    def to_end(self):
        return True


def test_a_run_that_is_stopped_while_its_code_is_copied_can_be_resumed(lab):
    run = of_many_files(lab)
    lab.wait(run)
    folder = RunDir(lab.run_dir(run))
    shutil.rmtree(folder.code)
    attempt, _ = new_attempt(folder, "local", "resume", None)
    end = have_code(folder, attempt, read_plan(folder, 2), Stopped())
    assert (end.state, end.message) == (State.FAILED, "stopped from outside while its code was being copied")
    assert newest(folder).end.exists() and not folder.code.exists() and not list(folder.path.glob(".tmp-*"))
    lab.launch("resume", run)
    assert lab.wait(run)["state"] == "succeeded"
    assert lab.rank_logs(run).count("says 7 2001") == 2
