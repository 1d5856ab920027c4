"""Test which values MLflow accepts, and what is sent beside the metrics."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import stand_ins
from trainings import idle_training

from trainer.loggers import MlflowLogger
from trainer.loggers.mlflow_run import name_for_mlflow


@pytest.mark.parametrize(
    ("name", "there"),
    [("seconds/data", "seconds/data"), ("val_acc@1", "val_acc_1"), ("a//../b", "a/b"), ("x" * 300, "x" * 250)],
)
def test_no_name_is_refused(name, there):
    assert name_for_mlflow(name) == there


def test_the_run_has_the_settings_of_its_first_start(monkeypatch):
    server = stand_ins.mlflow(monkeypatch)
    monkeypatch.setenv("LAUNCH_RUN_ID", "mine-1")
    for size in (8, 16):
        logger = MlflowLogger()
        logger.on_start(idle_training(batch_size=size))
        logger.on_end(idle_training())
    [run] = server.runs.values()
    assert run.words == {"training_id": "mine-1"} and run.starts == 2
    assert run.params.items() >= {"batch_size": "8", "world_size": "1"}.items()


def test_a_run_that_is_given_is_the_one_whatever_the_checkpoint_says(monkeypatch):
    server = stand_ins.mlflow(monkeypatch)
    server.runs["given"] = stand_ins.Run({"training_id": "of another"})
    logger = MlflowLogger(run_id="given")
    logger.load_state_dict({"training": "another"})
    logger.on_start(idle_training())
    logger.on_log(idle_training(step=1), {"loss": 0.5})
    logger.on_done(idle_training())
    logger.on_end(idle_training())
    assert list(server.runs) == ["given"] and server.runs["given"].rows == {1: {"loss": 0.5, "step": 1}}


def test_many_numbers_go_in_requests_that_a_server_takes(monkeypatch):
    server = stand_ins.mlflow(monkeypatch)
    logger = MlflowLogger()
    logger.on_start(idle_training())
    names = [f"layer{number}" for number in range(1500)]
    logger.on_log(idle_training(step=1), dict.fromkeys(names, 1.0))
    logger.on_done(idle_training())
    logger.on_end(idle_training())
    [run] = server.runs.values()
    assert list(run.rows[1]) == [*names, "step"]


def test_steps_of_a_start_before_whose_answer_is_lost_are_there_once(monkeypatch):
    server = stand_ins.mlflow(monkeypatch)
    server.loses = True
    monkeypatch.setattr("trainer.loggers.tracking.time", SimpleNamespace(time=count(1).__next__))
    Path("metrics").mkdir()
    lines = (json.dumps({"step": step, "loss": 1 / step}) for step in (1, 2))
    Path("metrics/metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    logger = MlflowLogger()
    logger.on_start(idle_training(step=2))
    for step in (3, 4):
        logger.on_log(idle_training(step=step), {"loss": 1 / step})
    assert server.refused.wait(120)
    logger.on_done(idle_training(step=4))
    logger.on_end(idle_training(step=4))
    [run] = server.runs.values()
    assert list(run.rows) == [1, 2, 3, 4] and not run.again
