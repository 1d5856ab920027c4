"""Test that arguments of the wrong kind are refused before anything starts, in one sentence that names them."""

import logging

import pytest
import torch
from tiny_training import Noisy, loss_of, make_model, settings_for
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from trainer.errors import BadSettings, TrainerError
from trainer.loop import Callback, Trainer
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def trainer_of(folder, **changes):
    settings = changes.pop("settings", None) or settings_for(folder, max_epochs=1, strategy="none")
    parts = {
        "model": make_model,
        "loss": loss_of,
        "data": Noisy(),
        "optimizer": lambda some: SGD(some, 0.05),
        **changes,
    }
    return Trainer(settings, **parts)


def sgd():
    return SGD(make_model().parameters(), 0.1)


class Misspelt(Callback):
    def on_epoch_end(self, training): ...


class Duck:
    def on_step(self, training): ...


REFUSED = {
    "an optimizer": (
        lambda: {"optimizer": sgd()},
        r"^optimizer: expected a function that makes one of parameters, got a SGD\nhint: optimizer=lambda parameters: ",
    ),
    "no optimizer": (lambda: {"optimizer": "adam"}, "^optimizer: expected a function .* got a str\n"),
    "a schedule": (
        lambda: {"schedule": StepLR(sgd(), 3)},
        "^schedule: expected a function that makes one of optimizer and number of steps, got a StepLR\n",
    ),
    "a schedule of several": (lambda: {"schedule": {"a": 0.1}}, "^schedule: expected a function .* got a float\n"),
    "a criterion": (
        lambda: {"loss": nn.CrossEntropyLoss()},
        "^loss: expected a function of model and batch, got a CrossEntropyLoss, which is one of outputs and targets\n",
    ),
    "no loss": (lambda: {"loss": "mse"}, "^loss: expected a function of model and batch, got a str$"),
    "no metrics": (lambda: {"metrics": {"a": 1}}, "^metrics: expected a function of model and batch, got a dict$"),
    "no model": (lambda: {"model": "resnet"}, "^model: expected a module or a function that makes one, got a str$"),
    "no settings": (lambda: {"settings": {"max_epochs": 3}}, "^settings: expected Settings, got a dict\n"),
    "a dict of data": (
        lambda: {"data": {"train": Noisy(), "test": Noisy()}},
        "^data: expected one data set, got a dict of train, test\nhint: choose one",
    ),
    "no data": (lambda: {"data": 3}, "^data: expected a data set, got an int$"),
    "no validation sets": (
        lambda: {"validation": {}},
        "^validation: expected a data set, or several by name, got an empty",
    ),
    "a validation set's name": (lambda: {"validation": {"a b": Noisy()}}, "^validation: expected names of letters"),
    "a loader among them": (
        lambda: {"validation": {"a": DataLoader(Noisy())}},
        r"^validation\['a'\]: expected a data set, got a DataLoader, whose batches",
    ),
    "a callback's class": (lambda: {"callbacks": [Callback]}, "^callbacks: expected objects, got the class Callback\n"),
    "no callback": (
        lambda: {"callbacks": [Duck()]},
        "^callbacks: expected a Callback, got a Duck, which has no on_start\n",
    ),
    "a misspelt hook": (
        lambda: {"callbacks": [Misspelt()]},
        r"^callbacks: Misspelt.on_epoch_end is no hook, and is never called\nhint: did you mean on_epoch\?$",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_as_the_trainer_is_made(tmp_path, what):
    given, said = REFUSED[what]
    with pytest.raises(BadSettings, match=said):
        trainer_of(tmp_path, **given())
    assert list(tmp_path.iterdir()) == []


def test_a_test_set_is_one_or_several_by_name(tmp_path):
    with pytest.raises(BadSettings, match=r"^data: expected a data set, got a float$"):
        trainer_of(tmp_path).test(0.5)


def test_a_hook_that_is_like_none_is_told_of(tmp_path, caplog):
    class Talks(Callback):
        def on_message(self, text): ...

    with caplog.at_level(logging.WARNING, "trainer"):
        trainer_of(tmp_path, callbacks=[Talks()])
    assert (
        "callbacks: Talks.on_message is no hook, and is never called\nhint: hooks are on_start, on_step" in caplog.text
    )


class SAM(SGD):
    """An optimizer like SAM, whose step fails without a closure."""

    def first_step(self): ...

    def second_step(self): ...

    def step(self, closure=None):
        assert closure is not None, "requires closure"


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, SAM])
def test_an_optimizer_that_calls_the_model_again_is_refused_by_name(tmp_path, kind):
    said = f"^optimizer: {kind.__name__} calls the model again in each step, which a Trainer does not do\nhint: AdamW"
    with pytest.raises(BadSettings, match=said):
        trainer_of(tmp_path, optimizer=lambda some: kind(some, lr=0.1)).fit(ALONE)


@pytest.mark.parametrize("made", [False, True])
def test_a_lazy_module_is_refused_by_name(tmp_path, made):
    def lazy():
        return nn.Sequential(nn.Linear(4, 8), nn.LazyLinear(2))

    said = "^model: 1 is a LazyLinear, whose weights have no shape before a first batch\nhint: Linear with its sizes"
    with pytest.raises(BadSettings, match=said):
        trainer_of(tmp_path, model=lazy() if made else lazy).fit(ALONE)


def test_a_lazy_module_that_has_seen_a_batch_trains(tmp_path):
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
    model(torch.rand(2, 4))
    assert trainer_of(tmp_path, model=model, optimizer=AdamW).fit(ALONE) == 0


LOSSES = {
    "a vector": (
        lambda m, b: m(b[0]).sum(1),
        r"^loss: expected one number, got a tensor of shape \(8,\)\nhint: the mean",
    ),
    "loss and outputs": (
        lambda m, b: (loss_of(m, b), m(b[0])),
        r"^loss: expected a number of samples or tokens after the loss, got a tensor of shape \(8, 2\)\nhint: return",
    ),
    "a list": (lambda m, b: [loss_of(m, b), "x"], r"^loss: expected a tensor, .* got a tensor of shape \(\), str\n"),
    "a number": (lambda m, b: 0.5, "^loss: expected a tensor, .* got float\n"),
    "a vector by name": (
        lambda m, b: (loss_of(m, b), {"each": m(b[0]).sum(1)}),
        r"^loss: each: expected one number, or a sum and a count, got a tensor of shape \(8,\)\n",
    ),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_of_the_wrong_kind_is_refused_in_its_first_step(tmp_path, what):
    loss, said = LOSSES[what]
    with pytest.raises(TrainerError, match=said):
        trainer_of(tmp_path, loss=loss).fit(ALONE)


def test_a_schedule_function_that_makes_none_is_refused(tmp_path):
    said = "^schedule: expected a scheduler from the function, got a float\nhint: LambdaLR"
    with pytest.raises(BadSettings, match=said):
        trainer_of(tmp_path, schedule=lambda optimizer, steps: 0.1).fit(ALONE)
