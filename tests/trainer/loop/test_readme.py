"""What the page for users shows works as it stands there."""

import os
import re
from pathlib import Path

from ranks import Ranks
from tiny_training import Noisy, make_model, run_tiny

from trainer.loop import Callback, read_metrics

PAGE = Path(__file__).parents[3] / "trainer" / "loop" / "README.md"
EXAMPLE, LOGGER = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_example(folder):
    os.chdir(folder)
    exec(EXAMPLE, {"make_model": make_model, "train_set": Noisy(), "validation_set": Noisy(33)})


def test_the_example_trains(tmp_path):
    assert Ranks(run_example, 2, tmp_path).outcomes() == [("exited", 0)] * 2
    last = read_metrics(tmp_path / "metrics")[-1]
    assert (last["step"], set(last) & {"val_loss", "val_accuracy"}) == (10, {"val_loss", "val_accuracy"})


def run_with_logger(folder):
    names = {"Callback": Callback}
    exec(LOGGER, names)
    return run_tiny(folder, {"max_epochs": 1}, callbacks=[names["CsvLogger"](folder / "log.csv")])


def test_the_logger_of_ten_lines_logs(tmp_path):
    assert len(LOGGER.splitlines()) <= 10
    Ranks(run_with_logger, 2, tmp_path).results()
    rows = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()]
    lines = read_metrics(tmp_path / "metrics")
    assert [(int(step), float(loss), float(lr)) for step, loss, lr in rows] == [
        (line["step"], line["loss"], line["lr"]) for line in lines
    ]
