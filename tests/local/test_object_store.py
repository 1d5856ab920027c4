"""A real run whose checkpoints are copied to a real S3 server: what comes back from there, and what is shown of it."""

import shutil
import tarfile

import pytest
from object_stores import ACCESS, SECRET, S3Server

from launcher.errors import Exit


@pytest.fixture
def server(tmp_path):
    one = S3Server(tmp_path / "server")
    one.start("bucket")
    yield one
    one.kill()


@pytest.fixture
def saver(lab, server):
    """A run that checkpoints at every fifth step of twenty, and copies them; its credentials are its secrets."""
    lab.script("saver.py")
    lab.env.update(AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET)
    variables = "".join(f"  {name}: {value!r}\n" for name, value in server.env.items())
    return lab.spec(
        "name: saver\nresources: {ranks_per_node: 1}\n"
        "run: {script: saver.py, preload: [], args: {steps: 20, pause: 0}}\n"
        "checkpoint: {copy_to: s3://bucket/prefix, copy_to_keep: 2}\n"
        f"secrets: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]\nenv:\n{variables}"
    )


def without_credentials(lab):
    """Remove the credentials from the environment, so that commands have them only from the run's secrets."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        lab.env.pop(name)


def holding(folder):
    """The files that hold a credential, but the one that is there for it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "secrets.json")
    return [path for path in found if SECRET in (text := path.read_text(errors="replace")) or ACCESS in text]


def test_a_run_whose_checkpoints_are_lost_goes_on_from_the_store(lab, saver):
    straight = lab.wait(lab.submit(saver, "--set", "run.args.steps=40"))["fingerprint"]
    run = lab.submit(saver)
    lab.wait(run)
    without_credentials(lab)
    assert "the checkpoint of step 20 is in s3://bucket/prefix" in (lab.run_dir(run) / "events.jsonl").read_text()
    shutil.rmtree(lab.run_dir(run) / "checkpoints")
    lab.launch("resume", run, "--set", "run.args.steps=40")
    assert lab.wait(run)["fingerprint"] == straight
    assert "starts at step 20" in lab.rank_logs(run)

    shutil.rmtree(lab.run_dir(run) / "checkpoints")
    assert "checkpoint of step 40 from s3://bucket/prefix" in lab.launch("fetch", run).stdout
    shown = [lab.launch(*words).stdout for words in (("status", run, "--json"), ("logs", run), ("debug-archive", run))]
    assert not any(SECRET in text or ACCESS in text for text in shown)
    assert holding(lab.run_dir(run)) == []
    listed = lab.launch("debug-archive", run, "--list", "--json").stdout
    assert "events.jsonl" in listed and SECRET not in listed
    with tarfile.open(lab.project / f"{run}-debug.tar.gz") as archive:
        archive.extractall(lab.project / "archive", filter="data")
    assert holding(lab.project / "archive") == []


def test_a_store_whose_package_is_missing_is_refused_before_anything_starts(lab, saver):
    refused = lab.launch("submit", saver, "--set", "checkpoint.copy_to=gs://bucket", check=Exit.BAD_INPUT).stderr
    assert "checkpoint.copy_to: gcsfs is not installed, which gs:// needs\n" in refused
    assert "-m pip install gcsfs" in refused
    assert (
        "fsspec does not support zz://"
        in lab.launch("submit", saver, "--set", "checkpoint.copy_to=zz://b", check=2).stderr
    )


def test_a_cancel_waits_for_no_copy_and_a_resume_says_that_the_store_is_gone(lab, saver, server):
    server.kill()
    run = lab.submit(saver, "--set", f"env.AWS_ENDPOINT_URL=http://127.0.0.1:1/{SECRET}")
    lab.until("the failure", lambda: "no copy in the store" in (lab.run_dir(run) / "events.jsonl").read_text())
    assert lab.status(run)["state"] == "running"
    assert "their last checkpoint gets its copies" in lab.status(run)["message"]
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled"
    assert holding(lab.run_dir(run) / "attempts") == []
    shutil.rmtree(lab.run_dir(run) / "checkpoints")
    assert "s3://bucket/prefix" in lab.launch("resume", run, check=Exit.UNREACHABLE).stderr
