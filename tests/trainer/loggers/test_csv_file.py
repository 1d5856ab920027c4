"""The table has each step once, whatever was killed and done again."""

import csv
import dataclasses

import pytest
import torch
from trainings import idle_training

from trainer.errors import BadSettings
from trainer.loggers import CsvLogger
from trainer.loop import Settings, Trainer


def log(logger, start, losses, values=None, **settings):
    """Log these losses from step `start` + 1 on, as one start does, and validation where there are `values`."""
    logger.on_start(idle_training(step=start, **settings))
    for step, loss in enumerate(losses, start + 1):
        line = {"step": step, "epoch": 0, "loss": loss, "seconds": {"data": 0.5}}
        logger.on_log(idle_training(step=step, **settings), line)
        if values and step in values:
            logger.on_validation(idle_training(step=step, **settings), {"val_loss": values[step]})
    logger.on_end(idle_training(step=start + len(losses), **settings))


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_step_is_one_row_with_all_that_is_known_of_it(tmp_path):
    path = tmp_path / "new" / "table.csv"
    losses = [0.1 + 0.2, 1 / 3, 5e-324]
    log(CsvLogger(path), 0, losses, {2: 0.7})
    rows = table(path)
    assert path.read_text().splitlines()[0] == "step,epoch,loss,seconds/data,val_loss"
    assert [(int(row["step"]), float(row["loss"]), row["val_loss"]) for row in rows] == [
        (1, losses[0], ""),
        (2, losses[1], "0.7"),
        (3, losses[2], ""),
    ]
    assert [name.name for name in path.parent.iterdir()] == ["table.csv"]


def test_steps_that_are_done_again_are_there_once(tmp_path):
    path = tmp_path / "table.csv"
    log(CsvLogger(path), 0, [1.0, 2.0, 3.0, 4.0], {2: 0.7, 4: 0.6})
    log(CsvLogger(path), 2, [3.5])
    assert [(row["step"], row["loss"], row["val_loss"]) for row in table(path)] == [
        ("1", "1.0", ""),
        ("2", "2.0", "0.7"),
        ("3", "3.5", ""),
    ]


def test_a_row_cut_short_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "table.csv"
    log(CsvLogger(path), 0, [1.0, 2.0])
    path.write_bytes(path.read_bytes()[:-3])
    log(CsvLogger(path), 2, [3.0])
    assert [row["step"] for row in table(path)] == ["1", "3"]


def test_a_test_is_noted_at_the_step_of_its_weights_and_no_row_is_lost(tmp_path):
    path = tmp_path / "table.csv"
    log(CsvLogger(path), 0, [1.0, 2.0, 3.0])
    CsvLogger(path).on_test(idle_training(step=2), {"test_loss": 0.25})
    assert [(row["step"], row["test_loss"]) for row in table(path)] == [("1", ""), ("2", "0.25"), ("3", "")]


def test_neither_other_ranks_nor_a_dev_run_write(tmp_path):
    path = tmp_path / "table.csv"
    log(CsvLogger(path), 0, [1.0], fast_dev_run=1)
    training = idle_training()
    training.world = dataclasses.replace(training.world, rank=1, size=2)
    other = CsvLogger(path)
    other.on_start(training)
    other.on_log(training, {"step": 1, "loss": 1.0})
    assert not path.exists()


@pytest.mark.parametrize("text", ["name,grade\nA,1\n", "name"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadSettings, match="expected a table with `step` as its first column, got 'name'"):
        CsvLogger(path).on_start(idle_training())
    assert path.read_text() == text


@pytest.mark.parametrize("row", ["1,2,3", "early,2", "-1,2"])
def test_rows_that_it_has_not_written_are_refused(tmp_path, row):
    path = tmp_path / "table.csv"
    path.write_text(text := f"step,loss\n{row}\n")
    with pytest.raises(BadSettings, match=r"table\.csv: expected rows of its own"):
        CsvLogger(path).on_start(idle_training())
    assert path.read_text() == text


def test_a_dev_run_writes_nothing_into_the_table_of_a_training_before_it(tmp_path):
    path = tmp_path / "table.csv"
    logger = CsvLogger(path)
    log(logger, 0, [1.0])
    before = path.read_text()
    trial = idle_training(step=1, fast_dev_run=1)
    logger.on_start(trial)
    logger.on_log(trial, {"epoch": 0, "loss": 9.0, "seconds": {}})
    assert path.read_text() == before


def test_a_disk_that_is_full_ends_the_rows_and_not_the_training(tmp_path, caplog):
    path = tmp_path / "table.csv"
    log(CsvLogger(path), 0, [1.0])
    logger = CsvLogger(path)
    logger.on_start(idle_training(step=1))
    path.unlink()
    path.symlink_to("/dev/full")
    for step in (2, 3):
        line = {"epoch": 0, "loss": 1.0, "seconds": {"data": 0.5}}
        logger.on_log(idle_training(step=step), line)
    assert caplog.text.count("CsvLogger: no further rows are written") == 1


def test_a_training_writes_it_beside_its_other_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = [(torch.ones(4), torch.tensor(1)) for _ in range(8)]
    Trainer(
        Settings(max_steps=3, batch_size=4, log_every=1, device="cpu"),
        model=torch.nn.Linear(4, 2),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        optimizer=torch.optim.AdamW,
        callbacks=[CsvLogger()],
    ).fit()
    assert [row["step"] for row in table(tmp_path / "metrics" / "metrics.csv")] == ["1", "2", "3"]
