"""What the page for users shows works as it stands there."""

import os
import re
from pathlib import Path

import torch
from ranks import Ranks
from strategy_trials import words
from tiny_training import Noisy, make_model, run_tiny

from trainer.loop import Callback, read_metrics
from trainer.strategies.parameters import parameters_of

PAGE = Path(__file__).parents[3] / "trainer" / "loop" / "README.md"
EXAMPLE, SEVERAL, LOGGER = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_example(folder):
    os.chdir(folder)
    exec(EXAMPLE, {"make_model": make_model, "train_set": Noisy(), "validation_set": Noisy(33)})


def test_the_example_trains(tmp_path):
    assert Ranks(run_example, 2, tmp_path).outcomes() == [("exited", 0)] * 2
    last = read_metrics(tmp_path / "metrics")[-1]
    assert (last["step"], set(last) & {"val_loss", "val_accuracy"}) == (10, {"val_loss", "val_accuracy"})


def test_several_optimizers_share_the_parameters():
    names = {"torch": torch}
    exec(SEVERAL, names)
    made = names["optimizer"](parameters_of(words(blocks=1)))
    assert {name: [len(group["params"]) for group in one.param_groups] for name, one in made.items()} == {
        "muon": [2],
        "adamw": [3, 3],
    }


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
