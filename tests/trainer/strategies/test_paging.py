"""A model that no rank holds whole is the one that it would be anywhere else."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, loss_of, start, whole, word_batch
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import StrategySettings, build
from trainer.world import join

pytestmark = pytest.mark.nightly

WIDTH = 2**14  # what has so many numbers, or more, is put away


class _Drawn(nn.Module):
    """A model whose weights are made in many ways: by layers, drawn again, scaled, in part, from others, tied."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH, padding_idx=3)
        blocks = [nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH)) for _ in range(3)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.scale.decays = False
        self.register_buffer("table", torch.rand(WIDTH), persistent=False)
        for block in blocks:
            nn.init.trunc_normal_(block[0].weight, std=0.2)
            nn.init.orthogonal_(block[2].weight[:20])
        with torch.no_grad():
            blocks[1][0].weight.mul_(0.5).add_(blocks[0][0].weight)
            blocks[2][0].weight[1:3] = blocks[0][0].weight[:2]
            torch._foreach_mul_([blocks[0][2].bias, blocks[1][2].bias], 2.0)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) * self.scale + self.table
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


def _drawn():
    torch.manual_seed(5)
    return _Drawn()


def _trial(make, strategy, by_parts):
    shard_size = 2 if strategy == "hsdp" else None
    return Trial(
        StrategySettings(strategy=strategy, shard_size=shard_size, by_parts=by_parts), model=make, optimizer=adamw
    )


def _begins(trial):
    """The weights that it begins with, and the state of the generator after it was made."""
    if trial.settings.by_parts:
        strategy = build(trial.model, join(group=True, device="cpu"), trial.settings, trial.optimizer)
    else:
        strategy, _ = start(trial)
    drawn = torch.rand(1).item()
    weights = whole(strategy.module)
    tied = strategy.module.head.weight is strategy.module.embedding.weight
    loss = loss_of(strategy.model, word_batch(0))
    strategy.backward(loss)
    strategy.step()
    return weights, drawn, tied, getattr(strategy.module.scale, "decays", None), whole(strategy.module)


@pytest.mark.parametrize(("strategy", "ranks"), [("fsdp", 3), ("hsdp", 4)])
def test_a_model_made_by_parts_has_the_same_weights(strategy, ranks):
    wanted = {name: value.detach() for name, value in _drawn().named_parameters(remove_duplicate=False)}
    drawn = torch.rand(1).item()
    [(_, _, _, _, trained)] = spawn_ranks(_begins, 1, _trial(_drawn, "none", by_parts=False))
    for found, then, tied, _, after in spawn_ranks(_begins, ranks, _trial(_drawn, strategy, by_parts=True)):
        assert then == drawn, "random numbers go on as they would have"
        assert tied
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name
        for name, value in trained.items():
            assert torch.allclose(after[name], value, atol=1e-5), name


def _refused(model_of):
    """Return the error if ranks make different models, or none."""
    world = join(group=True, device="cpu")
    with pytest.raises(BadSettings) as caught:
        build(model_of(world.rank), world, StrategySettings(strategy="fsdp", by_parts=True), adamw)
    return str(caught.value)


def _of_its_own(rank):
    def make():
        torch.manual_seed(rank)
        return _Drawn()

    return make


def test_ranks_that_make_different_models_are_told():
    for said in spawn_ranks(_refused, 2, _of_its_own):
        assert said.startswith("model: expected the same weights on all ranks, got others on some\nhint: ")


def test_a_model_that_is_there_already_cannot_be_made_by_parts():
    [said] = spawn_ranks(_refused, 1, lambda _: _drawn())
    assert said.startswith("by_parts: expected a function that makes the model, got the model\nhint: ")
