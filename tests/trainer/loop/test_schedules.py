"""Several optimizers with schedules of their own, told, saved and resumed."""

import pytest
import torch
from ranks import Ranks, spawn_ranks
from tiny_training import KILL, Noisy, Saved, history, loss_of, make_model, run_tiny, settings_for
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from trainer.errors import BadSettings
from trainer.loop import Trainer
from trainer.loop.schedules import Schedules
from trainer.world import World

pytestmark = pytest.mark.nightly

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def muon_and_adamw(parameters):
    matrices, others = parameters.split(lambda _, one: one.ndim == 2)
    return {
        "muon": torch.optim.Muon(matrices, lr=0.02),
        "adamw": torch.optim.AdamW(others.groups({"*.bias": {"weight_decay": 0.0}}), lr=0.01),
    }


def halved(optimizer, _):
    return ExponentialLR(optimizer, 0.5)


def run_two(folder, settings=None, disturb=()):
    schedule = {"muon": halved, "adamw": lambda one, _: LambdaLR(one, lambda step: 1 / (1 + step))}
    settings = {"max_steps": 8, **(settings or {})}
    return run_tiny(
        folder, settings, disturb, optimizer=muon_and_adamw, schedule=schedule, callbacks=[Saved(folder, 6)]
    )


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_killed_and_resumed_equals_undisturbed(tmp_path, strategy):
    settings = {"strategy": strategy}
    (undisturbed := tmp_path / "undisturbed").mkdir()
    (disturbed := tmp_path / "disturbed").mkdir()
    expected = spawn_ranks(run_two, 2, undisturbed, settings)
    outcomes = Ranks(run_two, 2, disturbed, settings, [{"number": KILL, "step": 7}]).outcomes()
    assert outcomes[0] == ("killed", -KILL)
    assert spawn_ranks(run_two, 2, disturbed, settings) == expected
    assert history(disturbed) == history(undisturbed)


@pytest.mark.daily
def test_the_rate_of_each_is_told(tmp_path):
    spawn_ranks(run_two, 1, tmp_path)
    lines = history(tmp_path)
    assert [line["lr_muon"] for line in lines[:3]] == [0.02, 0.01, 0.005]
    assert [line["lr_adamw"] for line in lines[:3]] == pytest.approx([0.01, 0.005, 0.01 / 3])
    assert [line["lr"] for line in lines] == [line["lr_muon"] for line in lines]


def several():
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    return {"a": torch.optim.SGD(weights[:1], lr=0.5), "b": torch.optim.SGD(weights[1:], lr=2.0)}


@pytest.mark.daily
def test_one_function_makes_a_schedule_for_each():
    schedules = Schedules(halved, several(), None)
    assert schedules.rates == {"lr": 0.5, "lr_a": 0.5, "lr_b": 2.0}
    schedules.step()
    assert schedules.rates == {"lr": 0.25, "lr_a": 0.25, "lr_b": 1.0}


@pytest.mark.daily
def test_who_has_none_keeps_its_rate_and_all_come_back():
    schedules, optimizers = Schedules({"b": halved}, several(), None), several()
    schedules.step()
    schedules.step()
    assert schedules.rates == {"lr": 0.5, "lr_a": 0.5, "lr_b": 0.5}
    again = Schedules({"b": halved}, optimizers, None)
    again.load_state_dict(schedules.state_dict())
    assert again.state_dict() == schedules.state_dict()
    assert again.state_dict()["b"]["last_epoch"] == 2


@pytest.mark.parametrize("named", [("a", "b"), ("optimizer",)])
def test_from_one_to_several_and_back_each_begins_anew_and_is_told_of(named, caplog):
    def one_without_a_name():
        return {"": several()["a"]}

    def by_name():
        return {name: several()["a"] for name in named}

    for before, after in ((one_without_a_name, by_name), (by_name, one_without_a_name)):
        saved, optimizers = Schedules(halved, before(), None), after()
        saved.step()
        begun, fresh = Schedules(halved, optimizers, None), Schedules(halved, optimizers, None).state_dict()
        begun.load_state_dict(saved.state_dict())
        assert begun.state_dict() == fresh
        begun.step()
        assert {one.param_groups[0]["lr"] for one in optimizers.values()} == {0.25}
    titles = [*(f"the schedule of '{name}'" for name in named), "the schedule"]
    assert [one.getMessage() for one in caplog.records] == [
        f"schedule: nothing was saved for {title}: it starts from step 0" for title in titles
    ]


def test_who_had_no_schedule_and_has_none_is_not_told_of(caplog):
    schedules = Schedules({"b": halved}, several(), None)
    schedules.load_state_dict(Schedules({"b": halved}, several(), None).state_dict())
    Schedules(None, several(), None).load_state_dict(schedules.state_dict())
    assert not caplog.records


@pytest.mark.daily
@pytest.mark.parametrize(
    ("optimizers", "known"),
    [(several(), "a, b"), ({"": several()["a"]}, "an optimizer without a name")],
)
def test_a_schedule_of_no_optimizer_is_refused(optimizers, known):
    with pytest.raises(BadSettings) as caught:
        Schedules({"c": halved}, optimizers, None)
    assert str(caught.value) == f"schedule: expected names of optimizers, got c, where there is {known}"


def trainer(folder, **changes):
    settings = settings_for(folder, max_epochs=1, strategy="none", **changes.pop("settings", {}))
    return Trainer(settings, **{"model": make_model, "loss": loss_of, "data": Noisy(), **changes})


def test_no_rate_is_looked_for_where_there_are_several(tmp_path):
    with pytest.raises(BadSettings, match="lr_find: expected one optimizer, got muon, adamw"):
        trainer(tmp_path, optimizer=muon_and_adamw, settings={"lr_find": True}).fit(ALONE)


def test_an_optimizer_of_which_nothing_was_saved_is_told(tmp_path, caplog):
    trainer(tmp_path, optimizer=torch.optim.AdamW, settings={"max_steps": 2}).fit(ALONE)
    trainer(tmp_path, optimizer=muon_and_adamw, settings={"max_steps": 4}).fit(ALONE)
    for name in ("muon", "adamw"):
        assert f"nothing was saved for the optimizer '{name}': it starts from step 0" in caplog.text
