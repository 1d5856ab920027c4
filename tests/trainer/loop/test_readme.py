"""Test that the code on the users' pages works as it is shown."""

import os
import re
from pathlib import Path

import torch
from ranks import Ranks
from strategy_trials import words
from tiny_training import Noisy, make_model, run_tiny, settings_for
from torch import nn

from trainer.loop import Callback, Trainer, read_metrics
from trainer.strategies.parameters import parameters_of
from trainer.world import World

PAGES = Path(__file__).parents[3] / "trainer" / "loop"
EXAMPLE, SEVERAL, STEP, LOGGER = (
    re.findall(r"```python\n(.*?)```", (PAGES / name).read_text(), re.DOTALL)[0]
    for name in ("README.md", "OPTIMIZERS.md", "OWN_STEP.md", "CALLBACKS.md")
)


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


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.critic = nn.Linear(64, 4), nn.Linear(4, 1)


def test_a_step_of_ones_own_steps_both(tmp_path):
    names = {"torch": torch}
    exec(STEP, names)
    trainer = Trainer(
        settings_for(tmp_path, max_epochs=None, max_steps=5, strategy="none"),
        model=Gan,
        step=names["step"],
        data=[torch.ones(4) * number for number in range(48)],
        optimizer=lambda some: {name: torch.optim.SGD(some.split(f"{name}.*")[0]) for name in ("critic", "maker")},
    )
    assert trainer.fit(World(0, 1, 0, 1, torch.device("cpu"))) == 0
    assert {"loss", "maker_loss"} < set(read_metrics(tmp_path / "metrics")[-1])


def run_with_logger(folder):
    names = {"Callback": Callback}
    exec(LOGGER, names)
    return run_tiny(folder, {"max_epochs": 1}, callbacks=[names["LossLogger"](folder / "log.csv")])


def test_the_logger_of_ten_lines_logs(tmp_path):
    assert len(LOGGER.splitlines()) <= 10
    Ranks(run_with_logger, 2, tmp_path).results()
    rows = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()]
    lines = read_metrics(tmp_path / "metrics")
    assert [(int(step), float(loss), float(lr)) for step, loss, lr in rows] == [
        (line["step"], line["loss"], line["lr"]) for line in lines
    ]
