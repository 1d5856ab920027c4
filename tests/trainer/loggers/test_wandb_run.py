"""Test what is sent to W&B beside the metrics."""

import stand_ins
from trainings import idle_training

from trainer.loggers import WandbLogger


def test_the_run_has_the_settings_and_what_the_user_says(monkeypatch):
    server = stand_ins.wandb(monkeypatch)
    monkeypatch.setenv("LAUNCH_RUN_ID", "mine-1")
    logger = WandbLogger("project", patience_s=10.0, tags=["a"], config={"note": 1, "seed": 7})
    logger.on_start(idle_training(batch_size=8))
    logger.on_end(idle_training())
    words = server.runs["mine-1"].words
    assert (words["project"], words["tags"], words["reinit"]) == ("project", ["a"], "create_new")
    assert words["config"].items() >= {"batch_size": 8, "world_size": 1, "note": 1, "seed": 7}.items()
    assert words["settings"] == {"finish_timeout": 8.0}


def test_a_run_that_is_given_is_the_one_whatever_the_checkpoint_says(monkeypatch):
    server = stand_ins.wandb(monkeypatch)
    logger = WandbLogger(run_id="given")
    logger.load_state_dict({"training": "another"})
    logger.on_start(idle_training())
    logger.on_end(idle_training())
    assert list(server.runs) == ["given"]
