"""The average of the weights: what it is, who uses it, and that a resumed training has the same one."""

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import Noisy, hits, loss_of, make_model, settings_for
from torch import nn

from trainer.checkpoint.models import load_model
from trainer.errors import BadSettings
from trainer.loop import Callback, Trainer, average, read_metrics
from trainer.loop.average import Average
from trainer.world import World

pytestmark = pytest.mark.nightly

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def one_weight():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 0.0)
    return module, Average(module, 0.5)


@pytest.mark.daily
def test_an_older_step_counts_less_each_time():
    module, average = one_weight()
    nn.init.constant_(module.weight, 1.0)
    [mean] = average.tensors.values()
    for step, expected in ((100, 0.5), (101, 0.75), (102, 0.875)):
        average.update(step, learned=True)
        assert mean.item() == expected


@pytest.mark.daily
def test_the_first_steps_count_more_than_the_decay_says():
    module, average = one_weight()
    nn.init.constant_(module.weight, 11.0)
    average.update(1, learned=True)
    assert average.tensors["average/weight"].item() == pytest.approx(9.0)


@pytest.mark.daily
@pytest.mark.parametrize("learned", [False, torch.tensor(False)])
def test_a_step_that_was_left_out_changes_nothing(learned):
    module, average = one_weight()
    nn.init.constant_(module.weight, 1.0)
    average.update(100, learned)
    assert average.tensors["average/weight"].item() == 0.0
    average.update(100, torch.tensor(True))
    assert average.tensors["average/weight"].item() == 0.5


@pytest.mark.daily
def test_the_model_has_the_average_for_a_while_and_then_its_own():
    module, average = one_weight()
    nn.init.constant_(module.weight, 1.0)
    with average.in_place():
        assert module.weight.item() == 0.0
    assert (module.weight.item(), average.tensors["average/weight"].item()) == (1.0, 0.0)


def test_an_exchange_that_fails_on_its_way_leaves_the_model_as_it_was(monkeypatch):
    module = nn.Linear(1, 1)
    both = module.weight, module.bias
    before = [one.item() for one in both]
    taken = Average(module, 0.5)
    for one in both:
        nn.init.constant_(one, 7.0)
    exchange, turns = average._exchange, iter([True, False, True])

    def of_the_first_alone(mean, weight):
        if not next(turns):
            raise MemoryError
        exchange(mean, weight)

    monkeypatch.setattr(average, "_exchange", of_the_first_alone)
    with pytest.raises(MemoryError), taken.in_place():
        pass
    assert [one.item() for one in both] == [7.0, 7.0]
    assert [mean.item() for mean in taken.tensors.values()] == before


@pytest.mark.daily
def test_weights_of_sixteen_bits_are_refused():
    with pytest.raises(BadSettings, match="ema: expected weights of 32 bits, average/weight is bfloat16"):
        Average(nn.Linear(1, 1, dtype=torch.bfloat16), 0.9)


class ByHand(Callback):
    """The average, made from the weights after each step."""

    def on_step(self, training):
        weights = [one.detach().clone() for one in training.strategy.module.parameters()]
        self.mean = getattr(self, "mean", None) or [one.clone() for one in self.first]
        share = 1 - min(0.9, (1 + training.step) / (10 + training.step))
        for mean, weight in zip(self.mean, weights, strict=True):
            mean.lerp_(weight, share)

    def on_start(self, training):
        self.first = [one.detach().clone() for one in training.strategy.module.parameters()]


def trainer_in(folder, *callbacks, **settings):
    settings = settings_for(folder, **{"ema": 0.9, "max_epochs": None, "max_steps": 10, **settings})
    return Trainer(
        settings, model=make_model, loss=loss_of, data=Noisy(), validation=Noisy(33, noise=0.0), metrics=hits,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.02), callbacks=callbacks,
    )  # fmt: skip


def test_it_is_what_is_validated_loaded_and_exported(tmp_path):
    by_hand = ByHand()
    trainer = trainer_in(tmp_path, by_hand)
    assert trainer.fit(ALONE) == 0
    load_model(model := make_model(), tmp_path / "checkpoints")
    for one, mean in zip(model.parameters(), by_hand.mean, strict=True):
        assert torch.equal(one, mean)
    data = Noisy(33, noise=0.0)
    loss = loss_of(model.eval(), (data.x, data.y)).item()
    last = read_metrics(tmp_path / "metrics")[-1]["val_loss"]
    assert last == pytest.approx(loss, rel=1e-5)
    assert trainer.validate(ALONE)["val_loss"] == last
    trainer.export(tmp_path / "model.pt", world=ALONE)
    written = torch.load(tmp_path / "model.pt", weights_only=True)
    for name, one in model.state_dict().items():
        assert torch.equal(one, written[name])
    trainer.export(tmp_path / "trained.pt", averaged=False, world=ALONE)
    assert not torch.equal(torch.load(tmp_path / "trained.pt", weights_only=True)["0.weight"], written["0.weight"])


def test_it_changes_nothing_of_what_is_trained(tmp_path):
    def weights(folder):
        load_model(model := make_model(), folder)
        return model.state_dict()

    plain, averaged = trainer_in(tmp_path / "a", ema=None), trainer_in(tmp_path / "b")
    assert (plain.fit(ALONE), averaged.fit(ALONE)) == (0, 0)
    averaged.export(tmp_path / "b.pt", averaged=False, world=ALONE)
    written = torch.load(tmp_path / "b.pt", weights_only=True)
    assert all(torch.equal(one, written[name]) for name, one in weights(tmp_path / "a" / "checkpoints").items())


@pytest.mark.daily
def test_who_goes_on_has_the_average_that_he_would_have_had(tmp_path):
    alone, twice = trainer_in(tmp_path / "a"), trainer_in(tmp_path / "b", max_steps=6)
    assert (alone.fit(ALONE), twice.fit(ALONE)) == (0, 0)
    again = trainer_in(tmp_path / "b")
    assert again.fit(ALONE) == 0
    assert again.fingerprint == alone.fingerprint, "of the average, too"


def test_where_none_was_saved_it_begins_from_the_weights_and_says_so(tmp_path, capsys):
    assert trainer_in(tmp_path, ema=None, max_steps=6).fit(ALONE) == 0
    by_hand = ByHand()
    assert trainer_in(tmp_path, by_hand).fit(ALONE) == 0
    assert "ema: the checkpoint has no average of the weights, so it starts from them now" in capsys.readouterr().out
    load_model(model := make_model(), tmp_path / "checkpoints")
    for one, mean in zip(model.parameters(), by_hand.mean, strict=True):
        assert torch.equal(one, mean)


def _stopped_and_not(folder, strategy):
    settings = {"strategy": strategy, "validate_every": 3}
    alone, twice = trainer_in(folder / "a", **settings), trainer_in(folder / "b", **settings, max_steps=5)
    assert (alone.fit(), twice.fit()) == (0, 0)
    again = trainer_in(folder / "b", **settings)
    assert again.fit() == 0
    load_model(model := make_model(), folder / "a" / "checkpoints")
    return alone.fingerprint, again.fingerprint, [one.tolist() for one in model.parameters()]


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_ranks_have_it_as_they_have_the_parameters(tmp_path, strategy):
    found = spawn_ranks(_stopped_and_not, 2, tmp_path, strategy)
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]
