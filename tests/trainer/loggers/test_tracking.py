"""Into the right run, each step once, whatever was killed and done again, and whether the server is there or not."""

import dataclasses
import re
import threading
from pathlib import Path

import pytest
import stand_ins
import torch
from trainings import idle_training

from trainer.errors import BadSettings
from trainer.extras import install_hint
from trainer.loggers import MlflowLogger, WandbLogger
from trainer.loggers.tracking import training_id
from trainer.loop import Settings, Trainer
from trainer.loop.callbacks import Callbacks
from trainer.loop.metrics import JsonLines

LONG_S = 120.0  # nothing that works needs it


@pytest.fixture(params=["wandb", "mlflow"])
def service(request, monkeypatch):
    """A server, and what makes a logger for it."""
    monkeypatch.delenv("LAUNCH_RUN_ID", raising=False)
    make = {"wandb": WandbLogger, "mlflow": MlflowLogger}[request.param]
    server = getattr(stand_ins, request.param)(monkeypatch)
    return server, lambda patience_s=LONG_S, **words: make(patience_s=patience_s, **words)


def log(callbacks, steps, values=None):
    for step in steps:
        callbacks.on_log(idle_training(step=step), {"step": step, "loss": 1 / step, "seconds": {"data": 0.5}})
        if values and step in values:
            callbacks.on_validation(idle_training(step=step), {"val_loss": values[step]})


def finish(callbacks, step):
    callbacks.on_done(idle_training(step=step))
    callbacks.on_end(idle_training(step=step))


def start(make, state, step):
    """A new process that goes on from a checkpoint: its logger, and what writes metrics down in every training."""
    callbacks = Callbacks([make(), JsonLines(Path("metrics"))])
    callbacks.load_state_dict(state or {})
    callbacks.on_start(idle_training(step=step))
    return callbacks


def rows(server):
    """Return the rows of the only run by step, as people see them."""
    [run] = server.runs.values()
    assert not run.again
    return {step: (row["loss"], row.get("val_loss")) for step, row in run.rows.items()}


def test_a_step_is_written_with_all_that_is_known_of_it(service):
    server, make = service
    logger = start(make, None, 0)
    log(logger, [1, 2, 3], {2: 0.7})
    finish(logger, 3)
    assert rows(server) == {1: (1.0, None), 2: (0.5, 0.7), 3: (1 / 3, None)}
    [run] = server.runs.values()
    assert run.rows[1]["seconds/data"] == 0.5
    assert run.ended in ([0], ["FINISHED"])


def test_what_goes_on_after_a_kill_writes_into_the_same_run_and_no_step_twice(service):
    server, make = service
    logger = start(make, None, 0)
    log(logger, [1, 2])
    state = logger.state_dict()
    log(logger, [3, 4, 5], {4: 0.6})
    logger.on_end(idle_training(step=5))
    logger = start(make, state, 2)
    log(logger, [3, 4, 5, 6], {4: 0.6})
    finish(logger, 6)
    assert rows(server) == {step: (1 / step, 0.6 if step == 4 else None) for step in range(1, 7)}
    [run] = server.runs.values()
    assert run.starts == 2 and run.ended in ([1, 0], ["KILLED", "FINISHED"])


def test_what_a_server_that_was_away_has_missed_comes_with_the_start_after_a_kill(service):
    server, make = service
    server.away = True
    logger = start(make, None, 0)
    log(logger, [1, 2, 3], {3: 0.7})
    state = logger.state_dict()
    log(logger, [4])
    logger.on_end(idle_training(step=4))
    assert not server.runs
    server.away = False
    logger = start(make, state, 3)
    log(logger, [4])
    finish(logger, 4)
    assert rows(server) == {1: (1.0, None), 2: (0.5, None), 3: (1 / 3, 0.7), 4: (0.25, None)}


def test_what_was_lost_on_its_way_comes_also_where_nothing_is_left_to_do(service):
    server, make = service
    logger = start(make, None, 0)
    log(logger, [1, 2, 3], {3: 0.7})
    state = logger.state_dict()
    logger.on_end(idle_training(step=3))  # the last row waits for more of its step, and goes with the process
    logger = start(make, state, 3)
    finish(logger, 3)
    assert rows(server) == {1: (1.0, None), 2: (0.5, None), 3: (1 / 3, 0.7)}


def test_a_step_that_is_validated_by_the_next_start_is_sent_with_what_was_known_of_it(service):
    server, make = service
    logger = start(make, None, 0)
    log(logger, [1, 2])
    state = logger.state_dict()
    logger.on_end(idle_training(step=2))
    logger = start(make, state, 2)
    logger.on_validation(idle_training(step=2), {"val_loss": 0.7})
    log(logger, [3])
    finish(logger, 3)
    assert rows(server) == {1: (1.0, None), 2: (0.5, 0.7), 3: (1 / 3, None)}


def test_a_server_that_is_away_is_told_of_once_and_gets_all_when_it_is_back(service, caplog):
    server, make = service
    server.away = True
    logger = start(make, None, 0)
    log(logger, range(1, 61))
    assert server.refused.wait(LONG_S)
    server.away = False
    log(logger, [61])
    finish(logger, 61)
    assert rows(server) == {step: (1 / step, None) for step in range(1, 62)}
    assert len(caplog.records) == 1 and "will be tried again; the training continues: nobody there" in caplog.text


def test_a_server_that_stays_away_is_told_of_once_and_at_the_end(service, caplog):
    server, make = service
    server.away = True
    logger = start(make, None, 0)
    log(logger, range(1, 61))
    finish(logger, 60)
    assert not server.runs and caplog.text.count("sending failed and will be tried again") == 1
    assert "the values of 60 steps were not sent" in caplog.text


def test_a_server_that_goes_away_between_two_steps_holds_nothing_up(service, caplog):
    server, make = service
    server.away = True
    logger = start(make, None, 0)
    assert server.refused.wait(LONG_S)
    server.away = False
    log(logger, [1, 2])
    server.away = True
    log(logger, [3])
    finish(logger, 3)
    assert caplog.text.count("sending failed and will be tried again") == 1
    assert not any(run.again for run in server.runs.values())


def test_the_end_waits_for_no_server_that_does_not_answer(service, caplog):
    server, make = service
    server.holds = threading.Event()
    logger = make(patience_s=0.01)
    logger.on_start(idle_training())
    thread = logger._sender._thread
    log(logger, [1, 2])
    finish(logger, 2)
    assert "the values of 2 steps were not sent" in caplog.text
    server.holds.set()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_test_is_written_at_the_step_of_its_weights(service):
    server, make = service
    logger = start(make, None, 0)
    log(logger, [1, 2, 3])
    finish(logger, 3)
    logger.on_test(idle_training(step=2), {"test_loss": 0.25})
    assert rows(server) == {step: (1 / step, None) for step in (1, 2, 3)}
    [run] = server.runs.values()
    assert run.summary == {"test_loss": 0.25} or run.rows[2]["test_loss"] == 0.25


def test_another_training_has_a_run_of_its_own_with_the_same_logger_too(service):
    server, make = service
    logger = make()
    for _ in range(2):
        logger.on_start(idle_training())
        log(logger, [1])
        finish(logger, 1)
    assert [list(run.rows) for run in server.runs.values()] == [[1], [1]]


def test_neither_other_ranks_nor_a_dev_run_write(service):
    server, make = service
    training = idle_training()
    training.world = dataclasses.replace(training.world, rank=1, size=2)
    for one in (training, idle_training(fast_dev_run=1)):
        logger = make()
        logger.on_start(one)
        log(logger, [1])
        finish(logger, 1)
        logger.on_test(one, {"test_loss": 0.25})
    assert not server.runs


def test_a_missing_package_is_told_of_at_once(monkeypatch):
    monkeypatch.setattr("trainer.loggers.tracking.find_spec", lambda name: None)
    with pytest.raises(BadSettings, match=re.escape(install_hint("mlflow"))):
        MlflowLogger()


def test_under_launch_each_training_of_a_run_is_known_before_it_has_a_checkpoint(tmp_path):
    launched = {"LAUNCH_RUN_ID": "mine-1"}
    assert training_id(Settings(max_steps=1), launched) == "mine-1"
    one, other = (Settings(max_steps=1, checkpoint_dir=tmp_path / name) for name in ("one", "other"))
    assert training_id(one, launched) == training_id(one, launched) != training_id(other, launched)
    assert training_id(one, {}) != training_id(one, {})


def train(make, folder, steps):
    data = [(torch.ones(4), torch.tensor(1)) for _ in range(8)]
    Trainer(
        Settings(
            max_steps=steps, batch_size=4, log_every=1, validate_every=2, device="cpu",
            checkpoint_dir=folder, out=folder / "out",
        ),
        model=torch.nn.Linear(4, 2),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        validation=data,
        optimizer=torch.optim.AdamW,
        callbacks=[make()],
    ).fit()  # fmt: skip


def test_a_training_and_what_goes_on_from_its_checkpoint_are_one_run(service, tmp_path):
    server, make = service
    train(make, tmp_path, 3)
    train(make, tmp_path, 5)
    assert {step: val is not None for step, (_, val) in rows(server).items()} == {
        1: False, 2: True, 3: True, 4: True, 5: True,
    }  # fmt: skip
