"""First weights are not drawn where a checkpoint replaces them, and nothing else can tell."""

import copy
import dataclasses
import io
import random

import numpy as np
import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import loss_of, pixel_batch, pixels, sgd, whole, words
from torch import nn

from trainer.checkpoint import Checkpointer
from trainer.checkpoint.generators import seed_all
from trainer.checkpoint_files.layout import MANIFEST, folder_name
from trainer.loop import Settings, Trainer
from trainer.strategies import StrategySettings, build, is_deferred
from trainer.strategies.deferred_init import make_deferred
from trainer.world import World, join

pytestmark = pytest.mark.nightly

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def linear():
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def scaled():
    model = linear()
    with torch.no_grad():
        model[0].weight.mul_(0.1).clamp_(-1, 1)
        model[2].weight.copy_(torch.ones(2, 6))
    return model


def other_beginning():
    """Return a model whose first layer is made twice, the first one being dropped."""
    model = linear()
    model[0] = nn.Linear(6, 6)
    return model


@pytest.mark.daily
@pytest.mark.parametrize(
    "make", [linear, scaled, other_beginning, words, lambda: words(tied=True), pixels, lambda: nn.LSTM(6, 6)]
)
def test_nothing_is_drawn_that_a_checkpoint_has(make):
    torch.manual_seed(5)
    drawn = make()
    wanted = {name: value.clone() for name, value in drawn.state_dict().items()}
    torch.manual_seed(1)  # as some of them begin themselves
    before = torch.get_rng_state()
    model = make_deferred(make)
    assert torch.equal(torch.get_rng_state(), before)
    assert model is not None
    model.load_state_dict(wanted)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in wanted.items())
    assert not is_deferred()


def with_(act):
    """A model of which something is done with the weights, or after them, while it is made."""

    def make():
        model = linear()
        act(model)
        return model

    return make


def tabled(model):
    model.register_buffer("table", torch.randn(3), persistent=False)


def hidden(model):
    model.hidden = [nn.Linear(2, 2)]


def held(model):
    model.anchor = model[0].weight.detach()[:0].new_empty(4).normal_()


def by_own_generator(model):
    nn.init.normal_(model[0].weight, generator=model.__dict__.setdefault("generator", torch.Generator()))


def swallowed(model):
    try:
        model[0].weight.sum().item()
    except BaseException:
        model.spread = 1.0


READERS = {
    "a buffer that no checkpoint keeps": tabled,
    "a part that is not in the model": hidden,
    "a tensor that is no parameter": held,
    "a copy": lambda model: setattr(model, "teacher", [copy.deepcopy(model)]),
    "a copy of a tensor": lambda model: setattr(model, "anchor", model[0].weight.detach().clone()),
    "a number": lambda model: setattr(model, "spread", float(model[0].weight.std())),
    "an array": lambda model: setattr(model, "array", model[0].weight.detach().numpy()),
    "an array of a view": lambda model: setattr(model, "array", np.asarray(model[0].weight.detach()[1:])),
    "a list": lambda model: setattr(model, "list", model[0].weight.tolist()),
    "a text": lambda model: setattr(model, "text", str(model[0].weight)),
    "a function of each number": lambda model: model[0].weight.detach().apply_(abs),
    "an address": lambda model: setattr(model, "address", model[0].weight.data_ptr()),
    "a file": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "a condition": lambda model: setattr(model, "odd", bool((model[0].weight > 0).any())),
    "a generator of its own": by_own_generator,
    "another draw": lambda model: setattr(model, "seed", int(torch.randint(1000, ()))),
    "another draw in place": lambda model: setattr(model, "order", torch.randperm(7)),
    "a trial": lambda model: setattr(model, "width", model.eval()(torch.zeros(1, 6)).shape[1]),
    "who catches everything": swallowed,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_model_of_whose_first_weights_something_depends_is_not_made_without(reader):
    assert make_deferred(with_(READERS[reader])) is None
    assert not is_deferred()


def test_memory_that_others_have_is_not_left_as_it_is():
    array = np.zeros((2, 6), dtype=np.float32)

    def make():
        model = linear()
        model[2].weight = nn.Parameter(torch.from_numpy(array))
        nn.init.normal_(model[2].weight)
        return model

    assert make_deferred(make) is None


# -- on ranks


class Anchored(torch.optim.SGD):
    """Pulls each weight to where it began, which is in no state."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.anchors = [one.detach().clone() for group in self.param_groups for one in group["params"]]


def restored(strategy, hints, optimizer, folder):
    """Return a rank's weights after loading an announced checkpoint, and whether random weights were drawn."""
    torch.set_num_threads(1)
    world = join(group=True, device="cpu", timeout_s=150)
    settings = StrategySettings(strategy=strategy)
    seed_all(7)
    first = build(pixels, world, settings, optimizer)
    with Checkpointer(folder, model=first.model, optimizer=first.optimizers, world=world) as saver:
        saver.load()
        saver.save(1, wait=True)
    seed_all(7 + world.rank)  # drawn on each rank by itself they would differ
    draws = random.Random(world.rank)

    def other():
        torch.manual_seed(draws.randrange(1000))
        return type(first.module)()

    second = build(other, world, settings, optimizer, restored=hints[world.rank])
    began = whole(second.module)
    with Checkpointer(folder, model=second.model, optimizer=second.optimizers, world=world) as saver:
        assert saver.load() == 1
    batch = pixel_batch(1)
    losses = []
    for one in (first, second):
        seed_all(world.rank)
        with one.forward_context(sync=True):
            losses.append(loss_of(one.model, batch))
        one.backward(losses[-1])
        one.step()
    assert losses[0].item() == losses[1].item()
    wanted, found = whole(first.module), whole(second.module)
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    return second.deferred, {name: value.tolist() for name, value in began.items()}


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_ranks_go_on_alike_from_weights_that_were_never_drawn(tmp_path, strategy):
    found = spawn_ranks(restored, 2, strategy, (True, True), sgd, tmp_path)
    assert [deferred for deferred, _ in found] == [True, True]


@pytest.mark.parametrize(("hints", "optimizer"), [((True, False), sgd), ((False, True), sgd), ((True, True), Anchored)])
def test_where_one_rank_needs_them_all_draw_and_begin_with_those_of_rank_0(tmp_path, hints, optimizer):
    found = spawn_ranks(restored, 2, "ddp", hints, optimizer, tmp_path)
    assert [deferred for deferred, _ in found] == [False, False]
    assert found[0][1] == found[1][1]


def taken_over(make, optimizer):
    """Rank 0 stays, rank 1 is a new one in the place of its own: whether it drew its weights."""
    torch.set_num_threads(1)
    world = join(group=True, device="cpu", timeout_s=150)
    settings = StrategySettings(strategy="ddp")
    seed_all(7)
    first = build(make, world, settings, optimizer)
    anew = dataclasses.replace(world, rejoined=True)
    if world.is_first:
        first.rejoin(anew)
        return None
    seed_all(7)
    before = torch.get_rng_state()
    second = build(make, anew, settings, optimizer)
    if not second.deferred:
        assert all(torch.equal(value, whole(second.module)[name]) for name, value in whole(first.module).items())
    return second.deferred, not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make", "optimizer", "drawn"), [(linear, sgd, False), (with_(tabled), sgd, True), (linear, Anchored, True)]
)
def test_a_rank_that_is_new_among_others_draws_only_what_it_needs(make, optimizer, drawn):
    assert spawn_ranks(taken_over, 2, make, optimizer)[1] == (not drawn, drawn)


# -- in a training


def train(folder, steps, make, made=None):
    def model():
        if made is not None:
            made.append(is_deferred())
        return make()

    x = torch.linspace(-1, 1, 24 * 6).view(24, 6)
    trainer = Trainer(
        Settings(
            max_steps=steps,
            batch_size=4,
            seed=3,
            device="cpu",
            checkpoint_every="2 steps",
            checkpoint_dir=folder / "checkpoints",
            out=folder / "metrics",
            ema=0.5,
        ),
        model=model,
        loss=lambda model, batch: (model(batch[0]).sum(1) - batch[1]).square().mean(),
        data=torch.utils.data.TensorDataset(x, x.sum(1)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
    )
    assert trainer.fit(ALONE) == 0
    return trainer.fingerprint


class Tabled(nn.Module):
    """Draws a table that no checkpoint keeps after its weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        tabled(self)

    def forward(self, x):
        return self.layer(x) * self.table


@pytest.mark.parametrize(("make", "deferred"), [(linear, [True]), (Tabled, [True, False])])
def test_what_goes_on_ends_as_what_was_never_disturbed(tmp_path, make, deferred):
    undisturbed = train(tmp_path / "undisturbed", 9, make)
    train(tmp_path / "resumed", 5, make, first := [])
    assert first == [False]
    assert train(tmp_path / "resumed", 9, make, second := []) == undisturbed
    assert second == deferred


def test_where_what_seems_to_be_a_checkpoint_is_none_training_begins_with_weights_that_are_drawn(tmp_path):
    undisturbed = train(tmp_path / "undisturbed", 4, linear)
    broken = tmp_path / "broken" / "checkpoints" / folder_name(2)
    broken.mkdir(parents=True)
    (broken / MANIFEST).write_bytes(b"{")
    assert train(tmp_path / "broken", 4, linear, made := []) == undisturbed
    assert made == [True, False]
