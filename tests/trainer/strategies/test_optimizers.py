"""Several optimizers of one model, and groups of parameters by name."""

import logging
from contextlib import nullcontext

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, run, words
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import StrategySettings, build
from trainer.strategies.optimizers import refuse_offloaded
from trainer.strategies.parameters import parameters_of
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def muon_and_adamw(parameters):
    """Muon has the matrices of the blocks, AdamW the rest: biases without decay."""
    matrices, others = parameters.split(lambda name, one: one.ndim == 2 and name.startswith("blocks."))
    return {
        "muon": torch.optim.Muon(matrices, lr=0.02),
        "adamw": torch.optim.AdamW(others.groups({"*.bias": {"weight_decay": 0.0}}), lr=0.01, weight_decay=0.1),
    }


def built(make_optimizer, model=None, **settings):
    return build(model or words(), ALONE, StrategySettings(**{"strategy": "none", **settings}), make_optimizer)


def names_of(model, group):
    names = {id(one): name for name, one in model.named_parameters()}
    return [names[id(one)] for one in group["params"]]


def test_groups_go_by_patterns_of_names_and_the_first_that_fits_counts():
    model = words(blocks=1)
    parameters = parameters_of(model)
    rest, norms, biases = parameters.groups({"*.norm.*": {"lr": 0.5}, "*.bias": {"weight_decay": 0}})
    assert names_of(model, norms) == ["blocks.0.norm.weight", "blocks.0.norm.bias"]
    assert names_of(model, biases) == ["blocks.0.up.bias", "blocks.0.down.bias"]
    assert names_of(model, rest) == [
        "embedding.weight", "blocks.0.up.weight", "blocks.0.down.weight", "head.weight",
    ]  # fmt: skip
    assert (norms["lr"], biases["weight_decay"], set(rest)) == (0.5, 0, {"params"})
    assert len(parameters.groups({"*": {"lr": 1}})) == 1


def test_names_are_those_of_a_checkpoint_whatever_wraps_the_model():
    wrapped = nn.ModuleDict({"_orig_mod": words(blocks=1)})  # as torch.compile does it
    assert list(parameters_of(wrapped).named) == [name for name, _ in words(blocks=1).named_parameters()]


@pytest.mark.parametrize("choose", [lambda some: some.split("*.gamma"), lambda some: some.groups({"*.gamma": {}})])
def test_a_pattern_that_fits_nothing_is_a_mistake(choose):
    with pytest.raises(BadSettings) as caught:
        choose(parameters_of(words()))
    assert str(caught.value).startswith("optimizer: expected parameters that fit '*.gamma', got embedding.weight, ")
    assert str(caught.value).endswith("and 15 more")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda some: None, "optimizer: expected an optimizer, or several by name, got NoneType"),
        (lambda some: {}, "optimizer: expected an optimizer, or several by name, got dict"),
        (lambda some: {"a": 3}, "optimizer: expected an optimizer as 'a', got int"),
        (lambda some: {"a/b": torch.optim.SGD(some)}, "optimizer: expected names of letters, digits and _, got 'a/b'"),
        (
            lambda some: {"a": torch.optim.SGD(some), "b": torch.optim.SGD(some[:1])},
            "optimizer: embedding.weight is in both 'a' and 'b'",
        ),
        (
            lambda some: {"a": torch.optim.SGD(words().parameters())},
            "optimizer: 20 of its parameters are not the model's",
        ),
    ],
)
def test_what_cannot_train_the_model_is_refused(make, said):
    with pytest.raises(BadSettings) as caught:
        built(make)
    assert str(caught.value).splitlines()[0] == said


@pytest.mark.parametrize(
    "make",
    [
        lambda some: torch.optim.SGD(some[:-1]),
        lambda some: {"a": torch.optim.SGD(some[:1]), "b": torch.optim.SGD(some[1:-1])},
    ],
    ids=["one", "several"],
)
def test_what_no_optimizer_has_is_told(make, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        built(make)
    assert "optimizer: none has head.weight: nothing is learned there" in caplog.text


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_one_whose_step_meets_other_gpus_is_refused_with_offload(kind):
    world = World(0, 2, 0, 2, torch.device(kind))
    weight = nn.Parameter(torch.zeros(2, 2))
    for made in (torch.optim.Muon([weight]), torch.optim.Adafactor([weight])):
        refused = pytest.raises(BadSettings, match=f"offload: does not go with {type(made).__name__}")
        with refused if kind == "cuda" else nullcontext():
            refuse_offloaded({"": made}, world, 2)
        refuse_offloaded({"": made}, world, 1)
    refuse_offloaded({"": torch.optim.AdamW([weight])}, world, 2)


def test_one_infinity_leaves_out_the_step_of_all_with_fp16_too():
    model = nn.ModuleDict({"left": nn.Linear(2, 1, bias=False), "right": nn.Linear(2, 1, bias=False)})
    for precision in ("fp32", "fp16"):
        strategy = built(
            lambda some: {name: torch.optim.SGD(some.split(f"{name}.*")[0], lr=1.0) for name in ("left", "right")},
            model,
            precision=precision,
        )
        before = [one.detach().clone() for one in model.parameters()]
        x = torch.ones(1, 2)
        with strategy.forward_context(sync=True):
            sums = model["left"](x).float().sum() + model["right"](x).float().sum()
        strategy.backward(0.01 * sums)  # times the scale of fp16 it is finite
        model["right"].weight.grad.fill_(torch.inf)
        strategy.step()
        assert strategy.skips.read() == (1, 1)
        for one, was in zip(model.parameters(), before, strict=True):
            assert torch.equal(one, was)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_muon_beside_adamw_learns_the_same_with_every_strategy(strategy):
    trial = Trial(StrategySettings(strategy="none"), optimizer=muon_and_adamw, steps=2)
    begun, alone = dict(words().named_parameters()), run(trial).parameters
    for found in spawn_ranks(run, 2, trial.with_(strategy=strategy)):
        for name, parameter in found.parameters.items():
            # Muon calculates in bf16, and rounds otherwise where it is sharded; of half a matrix it would be another.
            assert (parameter - alone[name]).norm() < 0.2 * (alone[name] - begun[name]).norm(), name
