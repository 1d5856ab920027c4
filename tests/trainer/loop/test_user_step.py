"""A training step of one's own: as the loop's where it does the same, as by hand where it does not, and resumed."""

import pytest
import torch
from ranks import Ranks, spawn_ranks
from tiny_training import KILL, Noisy, Saved, history, loss_of, make_model, run_tiny, settings_for
from torch import nn

from trainer.errors import BadSettings, TrainerError
from trainer.loop import Trainer, read_metrics
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def one_each(parameters):
    return {
        name: torch.optim.AdamW(parameters.split(f"{name}.*")[0], lr=0.02, betas=(0.5, 0.9))
        for name in ("maker", "critic")
    }


def losses_of(model, batch):
    """Return the critic's loss and a function for the maker's, which follows after the critic's step."""
    real, _ = batch
    made = model.maker(torch.randn(len(real), 3))
    critic = model.critic(made.detach()).mean() - model.critic(real).mean()
    return critic, lambda: -model.critic(made).mean()


def adversarial(model, batch, turns):
    critic, maker_of = losses_of(model, batch)
    turns.backward(critic, "critic")
    turns.step("critic")
    maker = maker_of()
    turns.backward(maker, "maker")
    if turns.number % 2 == 0:
        turns.step("maker")
    return critic + maker.detach(), {"critic": critic, "maker": maker}


def gap(model, batch):
    """Between what is real and what is made, to validate by."""
    real, _ = batch
    return model.critic(model.maker(real[:, :3])).mean() - model.critic(real).mean()


def spread(model, batch):
    return {"spread": model.maker(torch.zeros(len(batch[0]), 3)).square().sum()}


def run_gan(folder, settings=None, disturb=()):
    return run_tiny(
        folder,
        {"max_steps": 10, **(settings or {})},
        disturb,
        model=Gan,
        step=adversarial,
        loss=gap,
        metrics=spread,
        optimizer=one_each,
        schedule=None,
        callbacks=[Saved(folder, 6)],
    )


def trainer(folder, **changes):
    settings = settings_for(folder, max_epochs=None, max_steps=4, strategy="none", **changes.pop("settings", {}))
    given = {"model": make_model, "data": Noisy(), "optimizer": torch.optim.AdamW}
    return Trainer(settings, **{**given, **changes})


def plain(model, batch, turns):
    loss = loss_of(model, batch)
    turns.backward(loss)
    turns.step()
    return loss


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_one_that_does_what_the_loop_does_is_the_same_to_the_last_bit(tmp_path, precision):
    loops = trainer(tmp_path / "loop", loss=loss_of, settings={"precision": precision})
    own = trainer(tmp_path / "own", step=plain, settings={"precision": precision})
    assert (loops.fit(ALONE), own.fit(ALONE)) == (0, 0)
    assert history(tmp_path / "own") == history(tmp_path / "loop")
    assert own.fingerprint == loops.fingerprint


@pytest.mark.parametrize(("strategy", "clip"), [("ddp", 1.0), ("zero1", None)])
def test_killed_and_resumed_equals_undisturbed(tmp_path, strategy, clip):
    settings = {"strategy": strategy, "clip_norm": clip}
    (undisturbed := tmp_path / "undisturbed").mkdir()
    (disturbed := tmp_path / "disturbed").mkdir()
    expected = spawn_ranks(run_gan, 2, undisturbed, settings)
    assert expected[0] == expected[1]
    outcomes = Ranks(run_gan, 2, disturbed, settings, [{"number": KILL, "step": 7}]).outcomes()
    assert outcomes[0] == ("killed", -KILL)
    assert spawn_ranks(run_gan, 2, disturbed, settings) == expected
    assert history(disturbed) == history(undisturbed)
    assert {"val_spread", "val_loss"} <= set(history(disturbed)[-1])


class Held(Gan):
    """A GAN without dropout or batch statistics, so that a test can compute its steps by hand."""

    def __init__(self):
        super().__init__()
        self.maker[1], self.critic[2] = nn.Identity(), nn.Identity()


def held():
    torch.manual_seed(1)
    return Held()


def still(model, batch, turns):
    real, _ = batch
    made = model.maker(real[:, :3])
    critic = model.critic(made.detach()).mean() - model.critic(real).mean()
    turns.backward(critic, "critic")
    turns.step("critic")
    maker = -model.critic(made).mean()
    turns.backward(maker, "maker")
    if turns.number % 2 == 0:
        turns.step("maker")
    return critic, {"weights": model.maker[0].weight.detach().square().mean()}


def steep(parameters):
    return {name: torch.optim.SGD(parameters.split(f"{name}.*")[0], lr=0.5) for name in ("maker", "critic")}


def train_still(folder, settings=None):
    given = {"data": Noisy(32, noise=0.0), "optimizer": steep, "step": still, "model": held}
    run_tiny(folder, {"max_steps": 5, "shuffle": False, **(settings or {})}, validation=None, schedule=None, **given)
    return [line[name] for name in ("loss", "weights") for line in read_metrics(folder / "metrics")]


def by_hand(precision):
    """The same steps without accumulation, in a loop as people write it."""
    model, data = held(), Noisy(32, noise=0.0)
    optimizers = {name: torch.optim.SGD(getattr(model, name).parameters(), lr=0.5) for name in ("maker", "critic")}

    def low():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")

    losses, weights = [], []
    for step in range(5):
        real = data.x[16 * (step % 2) : 16 * (step % 2) + 16]
        with low():
            made = model.maker(real[:, :3])
            critic = model.critic(made.detach()).mean() - model.critic(real).mean()
        losses.append(critic.item())
        optimizers["critic"].zero_grad()
        critic.backward()
        optimizers["critic"].step()
        with low():
            maker = -model.critic(made).mean()
        optimizers["maker"].zero_grad()
        maker.backward()
        if step % 2:
            optimizers["maker"].step()
        weights.append(model.maker[0].weight.square().mean().item())
    return losses + weights


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gan_learns_what_it_learns_by_hand(tmp_path, precision):
    settings = {"accumulate": 1, "clip_norm": None, "precision": precision}
    [found] = spawn_ranks(train_still, 1, tmp_path, settings)
    assert found == pytest.approx(by_hand(precision), rel=1e-5)


def test_two_ranks_learn_what_one_learns(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    [alone] = spawn_ranks(train_still, 1, tmp_path / "one", {"accumulate": 1})
    for found in spawn_ranks(train_still, 2, tmp_path / "two", {"accumulate": 1}):
        assert found == pytest.approx(alone, rel=1e-4)


def test_a_step_that_is_not_finite_is_left_out_and_counted(tmp_path):
    def torn(model, batch, turns):
        loss = loss_of(model, batch) * (torch.nan if turns.number == 2 else 1.0)
        turns.backward(loss)
        turns.step()
        return loss

    assert trainer(tmp_path, step=torn).fit(ALONE) == 0
    assert [line.get("skipped", 0) for line in history(tmp_path)] == [0, 1, 1, 1]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_optimizer_without_gradients_is_stepped_by_nothing(tmp_path, precision):
    def critic_alone(model, batch, turns):
        critic, _ = losses_of(model, batch)
        if turns.number == 2:
            turns.backward(1e-6 * critic.float(), "critic")  # times the scale of fp16 it is finite
        turns.step("maker")
        turns.step("critic")
        return critic

    given = {"optimizer": one_each, "model": Gan, "step": critic_alone}
    assert trainer(tmp_path, settings={"precision": precision}, **given).fit(ALONE) == 0
    assert [line["norm"] > 0 for line in history(tmp_path) if "norm" in line] == [True]


def test_stepped_twice_is_told_without_gradients_too(tmp_path):
    def nothing_twice(model, batch, turns):
        turns.step()
        turns.step()

    with pytest.raises(TrainerError, match="was stepped twice"):
        trainer(tmp_path, step=nothing_twice, settings={"accumulate": 1}).fit(ALONE)


def twice(model, batch, turns):
    plain(model, batch, turns)
    return plain(model, batch, turns)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (twice, "step: the optimizer was stepped twice in one step"),
        (lambda model, batch, turns: turns.step("critic"), "step: expected the name of an optimizer, '', got 'critic'"),
        (lambda model, batch, turns: None, "loss: expected a tensor"),
    ],
)
def test_what_a_step_does_wrong_is_told(tmp_path, step, said):
    with pytest.raises(TrainerError) as caught:
        trainer(tmp_path, step=step).fit(ALONE)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"spike_factor": 3.0}}, "spike_factor: does not go with a training step of your own"),
        ({"settings": {"lr_find": True}}, "lr_find: does not go with a training step of your own"),
        ({"validation": Noisy(8)}, "validation: with a step of your own expected loss or metrics to validate by"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path, changes, said):
    with pytest.raises(BadSettings, match=said):
        trainer(tmp_path, step=plain, **changes)


def test_sharded_strategies_are_refused(tmp_path):
    with pytest.raises(BadSettings) as caught:
        Trainer(settings_for(tmp_path, strategy="fsdp"), model=Gan, step=plain, data=Noisy(), optimizer=one_each)
    assert str(caught.value) == "step: expected with strategy none, ddp, zero1 only, got it with fsdp"


def test_without_a_loss_metrics_alone_are_validated(tmp_path):
    given = {"optimizer": one_each, "model": Gan, "validation": Noisy(8), "metrics": spread}
    assert trainer(tmp_path, step=adversarial, **given).fit(ALONE) == 0
    assert {name for name in history(tmp_path)[-1] if name.startswith("val_")} == {"val_spread"}
    with pytest.raises(BadSettings, match="monitor: expected one of val_spread, got 'val_loss'"):
        trainer(tmp_path / "other", step=adversarial, settings={"keep_best": True}, **given).fit(ALONE)
