"""Test a validation: its batches, passes and sets, and the meaning of its values."""

import logging

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import Noisy, history, hits, loss_of, make_model, settings_for
from torch import nn
from torch.utils.data import default_collate

from trainer.checkpoint_files import catalog
from trainer.errors import BadSettings, TrainerError
from trainer.loop import Trainer
from trainer.loop.progress import Progress
from trainer.loop.shared_forward import SharedForward, sharing_forward
from trainer.loop.sums import sum_of
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
HELD_OUT = Noisy(33, noise=0.0)


def trainer_of(folder, **changes):
    settings = {"max_epochs": 1, "strategy": "none", **changes.pop("settings", {})}
    parts = {"model": make_model, "loss": loss_of, "data": Noisy(), "validation": HELD_OUT, **changes}
    return Trainer(settings_for(folder, **settings), optimizer=lambda some: torch.optim.SGD(some, 0.05), **parts)


def validated(folder, **changes):
    return trainer_of(folder, **changes).validate(ALONE)


class Mixing:
    """A collate function that mixes each sample with the next one, as MixUp does."""

    def __init__(self):
        self.batches = 0

    def __call__(self, samples):
        self.batches += 1
        x, y = default_collate(samples)
        return 0.5 * x + 0.5 * x.roll(1, 0), y


def test_what_mixes_training_samples_leaves_validation_samples_alone(tmp_path):
    plain = validated(tmp_path)
    assert validated(tmp_path, collate=Mixing()) != plain, "without one of its own validation has the same"
    assert validated(tmp_path, collate=Mixing(), validation_collate=default_collate) == plain
    trains, validates = Mixing(), Mixing()
    trainer = trainer_of(tmp_path, collate=trains, validation_collate=validates)
    trainer.fit(ALONE)
    assert (trains.batches, validates.batches) == (11, 5)
    trainer.test(HELD_OUT, world=ALONE)
    assert (trains.batches, validates.batches) == (11, 10)


def test_several_sets_have_their_names_in_those_of_their_values(tmp_path):
    sets = {"clean": HELD_OUT, "noisy": Noisy(20)}
    found = validated(tmp_path, validation=sets, metrics=hits)
    assert list(found) == ["val_clean_loss", "val_clean_accuracy", "val_noisy_loss", "val_noisy_accuracy"]
    alone = validated(tmp_path, metrics=hits)
    assert (found["val_clean_loss"], found["val_clean_accuracy"]) == (alone["val_loss"], alone["val_accuracy"])
    settings = {"keep_best": True, "monitor": "val_noisy_accuracy", "mode": "max", "patience": 3}
    trainer = trainer_of(tmp_path / "trained", validation=sets, metrics=hits, settings=settings)
    assert trainer.fit(ALONE) == 0
    assert set(found) < set(history(tmp_path / "trained")[-1])
    assert list(trainer.test(sets, world=ALONE)) == [name.replace("val_", "test_") for name in found]
    [best] = [one for one in catalog.entries(tmp_path / "trained" / "checkpoints") if one.kind == "best"]
    assert best.step == 6


def test_of_several_sets_the_one_to_go_by_is_named(tmp_path):
    trainer = trainer_of(tmp_path, validation={"a": HELD_OUT}, settings={"patience": 1})
    with pytest.raises(BadSettings, match="monitor: expected one of val_a_loss, got 'val_loss'"):
        trainer.fit(ALONE)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 2), 0

    def forward(self, x):
        if not self.training:
            self.passes += 1
        return self.layer(x)


def test_loss_and_metrics_share_a_forward_pass(tmp_path):
    model = Counting()
    once = validated(tmp_path, model=model)
    assert model.passes == 5, "33 samples, 8 at once"
    model.passes = 0
    both = validated(tmp_path, model=model, metrics=hits)
    assert model.passes == 5
    assert both["val_loss"] == once["val_loss"]
    assert both["val_accuracy"] == sum(hits(model.eval(), HELD_OUT[:])["accuracy"].item() for _ in [0]) / 33
    assert "forward" not in vars(model), "the model is as it was"


def test_who_asks_for_other_tensors_or_changes_what_was_given_has_a_pass_of_its_own():
    model, x = Counting().eval(), torch.rand(3, 4)
    with torch.no_grad(), sharing_forward(model) as shared:
        first = model(x)
        shared.next_function()
        assert model(x) is first, "the same"
        assert model(x) is not first, "asked twice by one function: to draw twice, perhaps"
        assert model.passes == 2
        shared.next_function()
        assert torch.equal(model(x[:2]), first[:2])
        shared.next_function()
        model(x[:2]).zero_()
        shared.next_function()
        assert torch.equal(model(x[:2]), first[:2]), "the output was changed"
        shared.next_function()
        x.add_(1.0)
        assert not torch.equal(model(x[:2]), first[:2]), "the input was changed"
    assert model.passes == 5
    assert isinstance(shared, SharedForward)


def test_a_pass_that_fails_leaves_the_model_as_it_was():
    model = Counting()
    with pytest.raises(RuntimeError), sharing_forward(model):
        model(torch.rand(3, 5))
    assert "forward" not in vars(model)


def error(model, batch):
    """Return the error in three ways: as a mean, with a number of samples, and as a sum with its count."""
    x, y = batch
    wrong = model(x).argmax(1) != y
    return {"mean": wrong.float().mean(), "number": wrong.sum(), "pair": (wrong.float().sum(), len(x)), "python": 0.25}


def test_means_numbers_of_samples_and_pairs_come_to_the_same(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        found = validated(tmp_path, metrics=error)
    assert found["val_number"] == found["val_pair"] == pytest.approx(found["val_mean"])
    assert found["val_python"] == 0.25
    assert 0 < found["val_number"] < 1, "the last batch is smaller: a mean of means would be another"
    told = [one for one in caplog.messages if one.startswith("metrics: ")]
    assert [one.split(":")[1] for one in told] == [" mean", " python"], "once each"
    assert "is read as the mean over the batch, no longer a sum" in told[0]


@pytest.mark.parametrize(
    ("value", "mean", "before"),
    [
        (torch.tensor(6), (6, 8), (6, 8)),
        (5, (5, 8), (5, 8)),
        (torch.tensor(True), (True, 8), (True, 8)),
        (torch.tensor(0.5), (4.0, 8), (0.5, 8)),
        (0.5, (4.0, 8), (0.5, 8)),
        ((torch.tensor(3.0), 4), (3.0, 4), (3.0, 4)),
    ],
)
def test_what_a_value_stands_for(value, mean, before):
    assert sum_of(value, 8) == mean
    assert sum_of(value, 8, floats_are_sums=True) == before


def float_sum(model, batch):
    return {"off": (model(batch[0]).argmax(1) - batch[1]).abs().float().sum()}


def test_a_training_that_began_when_floats_were_sums_goes_on_with_sums(tmp_path, monkeypatch, caplog):
    """As a checkpoint of launch 0.1 has it, which says nothing of it."""
    now = Progress.state_dict
    with monkeypatch.context() as patched:
        patched.setattr(
            Progress, "state_dict", lambda self: {k: v for k, v in now(self).items() if k != "float_metrics"}
        )
        trainer_of(tmp_path, metrics=hits, settings={"max_epochs": None, "max_steps": 6}).fit(ALONE)
    with caplog.at_level(logging.WARNING, "trainer"):
        trainer_of(tmp_path, metrics=float_sum, settings={"max_epochs": 2}).fit(ALONE)
    last = history(tmp_path)[-1]
    assert last["val_off"] == pytest.approx(round(33 * last["val_off"]) / 33), "the mean over samples"
    assert "metrics: off: this number is read as a sum, as it was when this training began" in caplog.text
    trainer_of(tmp_path, metrics=float_sum, settings={"max_epochs": 3}).fit(ALONE)
    assert history(tmp_path)[-1]["val_off"] <= 1.0, "and so does the start after it"
    fresh = validated(tmp_path / "fresh", metrics=lambda model, batch: {"off": 5.0})
    assert fresh["val_off"] == 5.0


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            lambda model, batch: {"hit": model(batch[0]).argmax(1) == batch[1]},
            r"metrics: hit: expected one number, or a sum",
        ),
        (lambda model, batch: {"hit": "much"}, "metrics: hit: expected one number, or a sum and a count, got str"),
        (lambda model, batch: {"hit": (torch.ones(3), 3)}, r"metrics: hit: .* got a tensor of shape \(3,\)"),
        (
            lambda model, batch: torch.tensor(0.5),
            r"metrics: expected a dict of values by name, got a tensor of shape \(\)",
        ),
        (lambda model, batch: None, "metrics: expected a dict of values by name, got NoneType"),
    ],
)
def test_a_metric_of_the_wrong_kind_is_refused_by_name(tmp_path, metrics, said):
    with pytest.raises(TrainerError, match=said):
        validated(tmp_path, metrics=metrics)


def test_predictions_come_in_the_order_of_the_data(tmp_path):
    trainer = trainer_of(tmp_path)
    before = torch.cat(trainer.predict(HELD_OUT, world=ALONE))
    assert before.shape == (33, 2)
    trainer.fit(ALONE)
    after = torch.cat(trainer.predict(HELD_OUT, world=ALONE))
    with torch.no_grad():
        expected = trainer.model.eval()(HELD_OUT.x)
    assert torch.allclose(after, expected) and not torch.allclose(after, before)
    found = trainer.predict(HELD_OUT, lambda model, batch: (model(batch[0]).argmax(1), len(batch[1])), world=ALONE)
    assert [count for _, count in found] == [8, 8, 8, 8, 1]
    assert torch.equal(torch.cat([best for best, _ in found]), expected.argmax(1))


def test_the_model_is_the_trained_one(tmp_path):
    trainer = trainer_of(tmp_path)
    with pytest.raises(TrainerError, match=r"model: there is none before fit\(\)"):
        _ = trainer.model
    trainer.fit(ALONE)
    assert isinstance(trainer.model, nn.Sequential)
    given = make_model()
    assert trainer_of(tmp_path, model=given).model is given


def predict_on_ranks(folder, strategy):
    trainer = trainer_of(folder, settings={"strategy": strategy})
    trainer.fit()
    return torch.cat(trainer.predict(HELD_OUT)).tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_have_all_predictions(tmp_path, strategy):
    found = spawn_ranks(predict_on_ranks, 2, tmp_path, strategy)
    assert found[0] == found[1]
    assert len(found[0]) == 33
    alone = trainer_of(tmp_path).predict(HELD_OUT, world=ALONE)
    assert torch.allclose(torch.tensor(found[0]), torch.cat(alone), atol=1e-5)
