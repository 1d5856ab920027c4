"""`launch resume --code`: a run goes on with the code as it is now, from its newest checkpoint."""

import json
import re
import shlex
import subprocess

import pytest

pytestmark = pytest.mark.nightly

BUG = """
import json, os, pathlib
steps = pathlib.Path("steps.json")  # beside its code
done = json.loads(steps.read_text()) if steps.exists() else 0
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
for step in range(done + 1, 7):
    if step == 4:
        raise KeyError("lable")
    steps.write_text(json.dumps(step))
    wire.write(json.dumps({"step": step, "checkpoint": step}) + chr(10))
    print("did", step, flush=True)
"""


def failed(lab):
    """A run that a bug ended at step 4."""
    lab.script("train.py", BUG)
    lab.script("gone.py", "")
    run = "run: {script: train.py}\nresources: {ranks_per_node: 1}\nrecovery: {user_error: 0}\n"
    one = lab.submit(lab.spec(f"name: bug\n{run}"))
    lab.wait(one, check=10)
    return one


@pytest.mark.daily
def test_a_mended_bug_is_resumed_from_the_newest_checkpoint(lab):
    run = failed(lab)
    status = lab.status(run)
    assert (status["state"], status["next"]) == ("failed", f"mend train.py:8, then launch resume {run} --code")
    lab.script("train.py", BUG.replace("step == 4", "step == 40"))
    lab.script("new.py", "")
    (lab.project / "gone.py").unlink()
    said = lab.launch("resume", run, "--code").stderr
    assert "code as it is now: gone.py: gone, new.py: new, train.py: changed" in said
    assert "-    if step == 4:\n+    if step == 40:\n" in said
    assert lab.wait(run)["step"] == 6
    assert re.findall(r"did (\d)", lab.rank_logs(run)) == list("123456")
    folder = lab.run_dir(run)
    assert "step == 40" in (folder / "code" / "train.py").read_text()
    assert "step == 4:" in (folder / "attempts" / "0001" / "code" / "train.py").read_text()
    assert not (folder / "code" / "gone.py").exists()
    plans = [
        json.loads(path.read_text()) for path in (folder / "plan.json", folder / "attempts" / "0002" / "plan.json")
    ]
    assert plans[0]["code"]["digest"] != plans[1]["code"]["digest"]
    assert [event["attempt"] for event in lab.events(run, "code")] == [2]
    found = [json.loads((folder / "metrics" / f"environment.n000.a000{one}.jsonl").read_bytes()) for one in (1, 2)]
    assert found[0] == found[1]
    assert found[0]["python"] == plans[0]["entry"]["python"]


def test_which_files_are_code_is_said_with_other_code_alone(lab):
    run = failed(lab)
    refused = lab.launch("resume", run, "--set", "code.include=[job.yaml]", check=2)
    assert f"hint: launch resume {run} --code takes the code as it is now" in refused.stderr
    assert lab.status(run)["attempt"] == 1


def test_a_submitter_that_was_killed_over_the_swap_leaves_a_run_that_goes_on(lab):
    run = failed(lab)
    folder = lab.run_dir(run)
    lab.launch("resume", run)
    lab.wait(run, check=10)
    ready = folder / "attempts" / "0002" / "code"
    (folder / "code").rename(ready)
    (ready / "train.py").write_text("print('went on')\n")
    lab.launch("resume", run)
    lab.wait(run)
    assert "went on" in lab.rank_logs(run)


def test_data_that_git_ignores_is_named_and_can_be_taken_along(lab):
    subprocess.run(["git", "init", "-q", lab.project], check=True)
    (lab.project / ".gitignore").write_text("data/\n.launch/\n")
    (lab.project / "data").mkdir()
    (lab.project / "data" / "words.txt").write_text("hello")
    lab.script("train.py", "print('read', open('data/words.txt').read())\n")
    spec = lab.spec("name: data\nrun: {script: train.py}\nresources: {ranks_per_node: 1}\n")
    run = lab.submit(spec)
    lab.wait(run, check=10)
    assert lab.events(run, "regroup") == []
    (ended,) = lab.events(run, "ended")
    assert "data/words.txt was not frozen with the code: it would be missed again" in ended["text"]
    page = lab.launch("status", run).stdout
    assert f"it ran in {lab.run_dir(run)}/code, a copy of {lab.project} as it was at submit" in page
    assert f"next  launch resume {run} --code --set 'code.include+=[data/words.txt]'\n" in page
    assert f"data/words.txt is in {lab.project} and was not frozen" in page
    way_out = f"launch resume {run} --code --set 'code.include+=[data/words.txt]'"
    assert f"hint: {way_out} freezes it too" in page
    lab.launch(*shlex.split(way_out)[1:])
    lab.wait(run)
    assert "read hello" in lab.rank_logs(run)


def test_a_file_that_is_nowhere_is_no_matter_of_what_was_frozen(lab):
    lab.script("train.py", "open('nowhere.txt')\n")
    run = lab.submit(lab.spec("name: data\nrun: {script: train.py}\nrecovery: {user_error: 0}\n"))
    lab.wait(run, check=10)
    assert "was not frozen" not in lab.launch("status", run).stdout
