"""W&B (offline) and MLflow (in files) themselves: after a kill and another start each step is there once, as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.loop import read_metrics

pytestmark = pytest.mark.nightly

SCRIPT = Path(__file__).with_name("killed_and_again.py")
QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=sys.argv[1])
[run] = client.search_runs(["0"])
history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
print(json.dumps({name: [[one.step, one.value] for one in found] for name, found in history.items()}))
"""


def run(*words, expected=0):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env={**os.environ, **QUIET})
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Killed after step 8, with the service of W&B, and begun again from a step before."""
    folder = tmp_path_factory.mktemp("training")
    run(sys.executable, SCRIPT, folder, 10, 8, expected=-9)
    run(sys.executable, SCRIPT, folder, 10)
    return folder


def rows_of(folder, name):
    return [[row["step"], row[name]] for row in read_metrics(folder / "metrics") if name in row]


def test_the_newest_folder_of_wandb_is_the_whole_run(folder):
    folders = sorted((folder / "metrics" / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and len({one.name.rpartition("-")[2] for one in folders}) == 1  # the id
    said = run(Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", folders[-1])
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [row["_step"] for row in rows] == list(range(1, 11))
    for name in ("loss", "val_loss", "lr"):
        assert [[row["_step"], row[name]] for row in rows if name in row] == rows_of(folder, name)


def test_the_run_of_mlflow_has_each_step_once(folder):
    found = json.loads(run(sys.executable, "-W", "ignore", "-c", READ_MLFLOW, f"file:{folder}/mlruns"))
    assert [step for step, _ in found["step"]] == list(range(1, 11))
    for name in ("loss", "val_loss", "lr"):
        assert found[name] == rows_of(folder, name)
