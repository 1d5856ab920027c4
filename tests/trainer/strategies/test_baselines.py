"""A parameter master, and layers placed on several devices by hand, train as one process does."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, one_step, pixel_batch, pixels, run, start, whole, word_batch, words
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import StrategySettings, baselines
from trainer.strategies.baselines import place_layers
from trainer.strategies.replicas import replicated
from trainer.world import World


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def same(found, expected):
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name], parameter, rtol=1e-4, atol=1e-5)


def beside_a_master(trial):
    """The weights after the last step, and how many parameters this rank's optimizer has something of."""
    strategy, _ = start(trial)
    for step in range(trial.steps):
        one_step(strategy, trial, step)
        strategy.step()
    return whole(strategy.module), len(strategy.optimizer.state)


@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 1), (3, 2)])
def test_a_master_trains_as_one_process_does_and_updates_alone(ranks, accumulate):
    trial = Trial(StrategySettings("ddp", clip_norm=0.5), optimizer=adamw, accumulate=accumulate)
    alone = run(trial.with_(strategy="none"))
    each = spawn_ranks(beside_a_master, ranks, trial, env={baselines.VARIABLE: "master"})
    for weights, _ in each:
        same(weights, alone.parameters)
        assert all(torch.equal(weights[name], each[0][0][name]) for name in weights), "as the first rank sent them"
    assert [count > 0 for _, count in each] == [True] + [False] * (ranks - 1)


@pytest.mark.parametrize("make", [(pixels, pixel_batch), (words, word_batch)])
def test_layers_laid_out_by_hand_train_as_one_device_does(monkeypatch, four_threads, make):
    model, batch = make
    trial = Trial(StrategySettings("none", clip_norm=0.5), model=model, batch=batch, optimizer=adamw, accumulate=2)
    alone = run(trial)
    monkeypatch.setenv(baselines.VARIABLE, "mp=2")
    torch.set_num_threads(4)
    strategy, _ = start(trial)
    assert torch.get_num_threads() == 2
    for step in range(trial.steps):
        one_step(strategy, trial, step)
        strategy.step()
    same(whole(strategy.module), alone.parameters)


class Tied(nn.Module):
    """A model whose head has the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, data):
        data = self.embedding(data)
        for block in self.blocks:
            data = block(data)
        return self.head(self.norm(data))


def test_layers_go_to_devices_in_turn_and_what_goes_into_them_too():
    """To one that has no numbers: where a tensor is can be seen there all the same."""
    model, seen = Tied(), []
    place_layers(model, [*model.blocks], [torch.device("cpu"), torch.device("meta")])
    homes = {name: parameter.device.type for name, parameter in model.named_parameters()}
    assert homes["embedding.weight"] == homes["blocks.1.0.weight"] == "cpu"
    assert homes["blocks.2.0.weight"] == homes["norm.weight"] == "meta"
    for part in (*model.blocks, model.norm):
        part.register_forward_hook(lambda _part, given, _found: seen.append(given[0].device.type))
    with pytest.raises(NotImplementedError, match="copy out of meta"):  # the head is where the embedding is
        model(torch.arange(5))
    assert seen == ["cpu", "cpu", "meta", "meta", "meta"]


def test_more_devices_than_layers_are_refused():
    with pytest.raises(BadSettings, match="expected at least 5 layers for 5 devices, found 4"):
        place_layers(Tied(), [*Tied().blocks], [torch.device("cpu")] * 5)


def test_a_master_takes_no_fp16(monkeypatch):
    monkeypatch.setenv(baselines.VARIABLE, "master")
    with pytest.raises(BadSettings, match="fp16 does not go with a master"):
        replicated(words(), World(0, 2, 0, 2, torch.device("cpu")), StrategySettings("ddp", precision="fp16"))


@pytest.mark.parametrize("asked", ["dp", "mp", "mp=0", "mp=dp=3", "dp=0", "dp=two", "dp=-1", "slave", "master=2"])
def test_what_is_no_baseline_is_refused(asked):
    with pytest.raises(BadSettings, match=f"expected master, or dp= or mp= and a number above 0, got '{asked}'"):
        baselines.has_master({baselines.VARIABLE: asked})


def test_nobody_asks_for_one_in_a_training():
    assert not baselines.has_master({}) and baselines.gpus({}) is None
    assert baselines.gpus({baselines.VARIABLE: "dp=3"}) == 3
