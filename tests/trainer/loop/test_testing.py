"""Trainer.test: the pass of a validation, over other data, of the checkpoint that is asked for."""

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import Noisy, history, hits, loss_of, make_model, settings_for
from torch import nn
from torch.utils.data import DataLoader

from trainer.errors import BadSettings, TrainerError
from trainer.loop import Callback, Trainer


class Heard(Callback):
    """A callback that records the results of tests."""

    def __init__(self):
        self.heard = []

    def on_test(self, training, values):
        self.heard.append((training.step, dict(values)))


def trainer_for(folder, heard=(), **settings):
    return Trainer(
        settings_for(folder, **{"max_epochs": 3, "keep_best": True, "mode": "max", "checkpoint_keep": 1, **settings}),
        model=make_model,
        loss=loss_of,
        data=Noisy(),
        validation=Noisy(33, noise=0.0),
        metrics=hits,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        callbacks=heard,
    )


def train_and_test(folder, strategy):
    tested, held_out = Heard(), Noisy(33, noise=0.0)
    trainer = trainer_for(folder, [tested], strategy=strategy)
    before = trainer.test(held_out)
    trainer.fit()
    newest, best = trainer.test(held_out), trainer.test(held_out, best=True)
    with pytest.raises(TrainerError, match="expected a checkpoint of step 5, found none"):
        trainer.test(held_out, step=5)
    return before, newest, best, trainer.test(held_out, step=18), tested.heard


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_checkpoint_that_is_asked_for_is_measured_as_in_a_validation(tmp_path, strategy):
    results = spawn_ranks(train_and_test, 2, tmp_path, strategy)
    assert results == [results[0]] * 2
    before, newest, best, of_step, heard = results[0]
    assert before.keys() == newest.keys() == {"test_loss", "test_accuracy"}
    lines = {line["step"]: line for line in history(tmp_path)}
    at_best = max((line for line in lines.values() if "val_loss" in line), key=lambda line: line["val_loss"])
    assert at_best["step"] < 18, "the worst value counts as the best here, so that it is not the newest"
    assert best == {f"test_{name}": at_best[f"val_{name}"] for name in ("loss", "accuracy")}
    assert newest == of_step == {f"test_{name}": lines[18][f"val_{name}"] for name in ("loss", "accuracy")}
    assert heard == [(0, before), (18, newest), (at_best["step"], best), (18, of_step)]
    noted = {step: line["test_loss"] for step, line in lines.items() if "test_loss" in line}
    assert noted == {step: values["test_loss"] for step, values in heard}


def test_what_cannot_be_tested_is_refused(tmp_path):
    with pytest.raises(BadSettings, match="data: expected a data set, got a DataLoader"):
        trainer_for(tmp_path).test(DataLoader(Noisy()))
    own = Trainer(
        settings_for(tmp_path),
        model=nn.Linear(4, 2),
        step=lambda model, batch, turns: None,
        data=Noisy(),
        optimizer=torch.optim.AdamW,
    )
    with pytest.raises(BadSettings, match="test: with a step of your own expected loss or metrics"):
        own.test(Noisy())
