"""Test when a start resumes from a checkpoint, what it takes from it, and what it logs."""

import signal

import pytest
import torch
from tiny_training import Noisy, history, hits, loss_of, settings_for
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from trainer import load_model
from trainer.checkpoint_files import catalog
from trainer.errors import BadSettings, TrainerError
from trainer.loop import EarlyStopping, Trainer
from trainer.loop.schedules import Schedule
from trainer.loop.settings import Settings
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
STEPS_OF_EPOCH = 6


def train(folder, lr=0.1, schedule=None, **changes):
    """Train once in this process, and return the trainer."""
    parts = {name: changes.pop(name) for name in ("metrics", "callbacks", "data", "optimizer") if name in changes}
    given = {
        "data": Noisy(noise=0.0),
        "metrics": hits,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=lr),
        **parts,
    }
    trainer = Trainer(
        settings_for(folder, **{"max_epochs": 2, "accumulate": 1, "checkpoint_every": "1000 steps", **changes}),
        model=lambda: nn.Linear(4, 2),
        loss=loss_of,
        validation=Noisy(33, noise=0.0),
        schedule=schedule,
        **given,
    )
    assert trainer.fit(ALONE) == 0
    return trainer


def rates(folder):
    return [line["lr"] for line in history(folder)]


def steps(folder):
    return history(folder)[-1]["step"]


def test_never_means_that_nothing_is_there(tmp_path):
    train(tmp_path, resume="never")
    with pytest.raises(BadSettings, match=r"has a checkpoint of step 12\nhint: another checkpoint_dir"):
        train(tmp_path, resume="never", max_epochs=3)


def test_what_launch_starts_again_goes_on_all_the_same(tmp_path, monkeypatch):
    train(tmp_path, resume="never")
    monkeypatch.setenv("LAUNCH_ATTEMPT", "2")
    train(tmp_path, resume="never", max_epochs=3)
    assert steps(tmp_path) == 18


def test_must_means_that_something_is_there(tmp_path):
    with pytest.raises(BadSettings, match=r"resume: must, but .* has no checkpoint"):
        train(tmp_path, resume="must")
    train(tmp_path)
    train(tmp_path, resume="must", max_epochs=3)
    assert steps(tmp_path) == 18


def test_what_no_optimizer_has_changes_nothing_by_a_resume(tmp_path):
    for name, ends in (("straight", [2]), ("resumed", [1, 2])):
        for end in ends:
            trainer = train(
                tmp_path / name,
                max_epochs=end,
                clip_norm=0.01,
                optimizer=lambda parameters: torch.optim.SGD(parameters.split("weight")[0], lr=0.1),
            )
        if name == "straight":
            expected = trainer.fingerprint
    assert trainer.fingerprint == expected


def test_a_resume_says_from_where_and_what_is_other_now(tmp_path, capsys):
    train(tmp_path, schedule=lambda optimizer, _: StepLR(optimizer, 6, 0.5))
    capsys.readouterr()
    train(tmp_path, lr=0.2, batch_size=8, max_epochs=3, schedule=lambda optimizer, _: StepLR(optimizer, 6, 0.1))
    said = capsys.readouterr().out.splitlines()
    kept = "that of the checkpoint is used (hyperparameters=given takes the new one)"
    assert said[1] == f"resumes from {tmp_path / 'checkpoints' / 'step-00000012'}"
    assert said[2:5] == [
        "batch_size: 16 when it was saved, now 8: the new one is used",
        f"optimizer.lr: 0.1 when it was saved, now 0.2: {kept}",
        f"schedule.gamma: 0.5 when it was saved, now 0.1: {kept}",
    ]
    assert rates(tmp_path)[12] == 0.1 * 0.5**2
    capsys.readouterr()
    train(tmp_path, lr=0.2, batch_size=8, max_epochs=4, schedule=lambda optimizer, _: StepLR(optimizer, 6, 0.1))
    assert f"optimizer.lr: 0.1 when it was saved, now 0.2: {kept}" in capsys.readouterr().out, "as it still is"


def test_the_scripts_hyperparameters_win_where_that_is_wished(tmp_path, capsys):
    train(tmp_path, schedule=lambda optimizer, _: StepLR(optimizer, 6, 0.5))
    train(
        tmp_path,
        lr=0.2,
        max_epochs=3,
        hyperparameters="given",
        schedule=lambda optimizer, _: StepLR(optimizer, 6, 0.1),
    )
    assert rates(tmp_path)[12] == pytest.approx(0.2 * 0.1**2)
    assert "optimizer.lr: 0.1 when it was saved, now 0.2: the new one is used" in capsys.readouterr().out


def test_a_cycle_grows_longer_with_its_limit(tmp_path):
    def one_cycle(optimizer, total_steps):
        return OneCycleLR(optimizer, 0.1, total_steps=total_steps)

    train(tmp_path / "short", schedule=one_cycle)
    train(tmp_path / "short", schedule=one_cycle, max_epochs=3, hyperparameters="given")
    train(tmp_path / "long", schedule=one_cycle, max_epochs=3)
    assert rates(tmp_path / "short")[12:] == pytest.approx(rates(tmp_path / "long")[12:])


def test_an_end_for_lack_of_patience_is_none_with_more_of_it(tmp_path):
    settings = {"max_epochs": 6, "min_delta": 100.0}
    train(tmp_path, patience=1, **settings)
    assert steps(tmp_path) == 2 * STEPS_OF_EPOCH
    train(tmp_path, patience=1, **settings)
    assert steps(tmp_path) == 2 * STEPS_OF_EPOCH, "it was over, and stays so"
    train(tmp_path, patience=3, **settings)
    assert steps(tmp_path) == 4 * STEPS_OF_EPOCH
    train(tmp_path, **settings)
    assert steps(tmp_path) == 6 * STEPS_OF_EPOCH


class Fails:
    """Metrics with an error in the validation of so many samples already seen."""

    def __init__(self, after):
        self.calls, self.after = 0, after

    def __call__(self, model, batch):
        self.calls += 1
        if self.calls > self.after:
            raise ZeroDivisionError("a mistake")
        return hits(model, batch)


@pytest.mark.parametrize("ends", [{"max_epochs": 2}, {"max_steps": 10}, {"max_epochs": 2, "validate_every": 6}])
def test_an_error_in_the_last_validation_loses_nothing(tmp_path, ends):
    whole = train(tmp_path / "whole", schedule=falling, **{"max_epochs": None, **ends})
    last = steps(tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "torn", schedule=falling, **{"max_epochs": None, **ends}, metrics=Fails(3))
    [entry] = catalog.entries(tmp_path / "torn" / "checkpoints")
    assert entry.step == last
    assert "val_loss" not in catalog.read_manifest(entry).info, "it is of an earlier step"
    again = train(tmp_path / "torn", schedule=falling, **{"max_epochs": None, **ends})
    assert again.fingerprint == whole.fingerprint
    assert history(tmp_path / "torn") == history(tmp_path / "whole")


def test_after_an_error_a_signal_does_what_it_did_before(tmp_path):
    """A script that catches the error, and goes on with something else, can be ended."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, metrics=Fails(0))
    assert signal.getsignal(signal.SIGTERM) == before


def falling(optimizer, _total_steps):
    return StepLR(optimizer, 3, 0.5)


def test_a_limit_that_is_raised_finds_the_validation_that_came_after_the_last_save(tmp_path):
    """Of a schedule that goes by values, too."""

    def plateau(optimizer, _):
        return ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)

    for every in (6, "epoch"):
        folder = tmp_path / str(every)
        train(folder / "whole", schedule=plateau, max_epochs=4, validate_every=every)
        train(folder / "parts", schedule=plateau, max_epochs=2, validate_every=every)
        train(folder / "parts", schedule=plateau, max_epochs=4, validate_every=every)
        assert history(folder / "parts") == history(folder / "whole")


def test_a_value_that_nobody_reports_is_told_before_the_first_step(tmp_path):
    for wanted in ({"patience": 2, "monitor": "val_acuracy"}, {"callbacks": [EarlyStopping(2, "val_acuracy")]}):
        with pytest.raises(BadSettings, match="monitor: expected one of val_accuracy, val_loss, got 'val_acuracy'"):
            train(tmp_path, **wanted)
    assert not (tmp_path / "metrics").exists()


def test_a_rate_that_would_not_be_used_is_not_looked_for(tmp_path):
    with pytest.raises(BadSettings, match="lr_find: the schedule has a learning rate of its own"):
        train(tmp_path, lr_find=True, schedule=lambda optimizer, steps: OneCycleLR(optimizer, 0.1, total_steps=steps))
    assert not (tmp_path / "metrics").exists()


def test_a_cycle_that_goes_by_the_optimizers_rate_follows_a_found_one():
    def make(optimizer, _):
        return OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], total_steps=9)

    def groups():
        weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
        return torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.3}], lr=0.1)

    for kind in (make, lambda optimizer, _: LambdaLR(optimizer, lambda step: step / 9), None):
        schedule = Schedule(kind, groups(), 9)
        assert schedule.follows_the_rate
        assert [group["lr"] for group in schedule.groups] == [0.1, 0.3]
    assert not Schedule(lambda optimizer, _: OneCycleLR(optimizer, 0.1, total_steps=9), groups(), 9).follows_the_rate


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 17

    def __getitem__(self, index):
        return torch.ones(4) * index, index % 2


def test_a_batch_of_one_and_batchnorm_are_told_with_a_way_out(tmp_path):
    def trainer(**changes):
        return Trainer(
            Settings(max_epochs=1, batch_size=16, checkpoint_dir=tmp_path / "c", out=tmp_path, **changes),
            model=lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            loss=loss_of,
            data=Numbers(),
            optimizer=torch.optim.AdamW,
        )

    with pytest.raises(TrainerError, match=r"a micro-batch of 1 sample: BatchNorm(.|\n)*hint: drop_last=True"):
        trainer().fit(ALONE)
    assert trainer(drop_last=True).fit(ALONE) == 0


def test_weights_are_loaded_from_a_folder_by_its_name(tmp_path):
    train(tmp_path)
    assert load_model(nn.Linear(4, 2), str(tmp_path / "checkpoints")) == 12


@pytest.mark.parametrize(("dtype", "told"), [(torch.bfloat16, True), (torch.float32, False)])
def test_weights_in_bf16_are_warned_of(tmp_path, caplog, dtype, told):
    Trainer(
        Settings(max_steps=2, checkpoint_dir=tmp_path / "c", out=tmp_path),
        model=lambda: nn.Linear(4, 2, dtype=dtype),
        loss=lambda model, batch: model(batch[0].to(dtype)).float().square().mean(),
        data=Noisy(),
        optimizer=torch.optim.AdamW,
    ).fit(ALONE)
    assert sum("hint: keep them in float32 and set precision to bf16" in said for said in caplog.messages) == told


def test_a_schedule_waits_for_fp16_to_find_its_scale(tmp_path):
    Trainer(
        Settings(max_steps=24, precision="fp16", checkpoint_dir=tmp_path / "c", out=tmp_path / "metrics", log_every=1),
        model=lambda: nn.Linear(4, 2),
        loss=lambda model, batch: 1e3 * loss_of(model, batch),
        data=Noisy(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=lambda optimizer, _: LambdaLR(optimizer, lambda step: 1 + step),
    ).fit(ALONE)
    lines = history(tmp_path)
    skipped = [line.get("skipped", 0) for line in lines]
    assert skipped[-1] > 0, "the scale that it begins with is too large for such a loss"
    assert [line["lr"] for line in lines] == pytest.approx(
        [0.1 * (step - before) for step, before in zip(range(1, 25), [0, *skipped], strict=False)]
    )
