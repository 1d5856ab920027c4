"""A step whose loss is far above those before is left out, or the training goes back and past it."""

import math

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import history
from torch import nn
from torch.utils.data import Dataset

from trainer.errors import NotFinite
from trainer.loop import Settings, Trainer
from trainer.loop.spikes import Spikes
from trainer.world import World, join

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
BATCH, STEPS = 4, 40
TORN = 31  # the step whose samples are far off


class Line(Dataset):
    """Points of a line, but for those of some steps."""

    def __init__(self, torn=(TORN,)):
        self.x = torch.linspace(-1, 1, BATCH * STEPS).unsqueeze(1)
        self.y = 3 * self.x + 2.0
        for step in torn:
            self.y[(step - 1) * BATCH : step * BATCH] = 1e4

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).square().mean() + 1.0


def train(folder, world=ALONE, torn=(TORN,), model=None, **changes):
    def zeros():
        made = nn.Linear(1, 1)
        nn.init.zeros_(made.weight)
        nn.init.zeros_(made.bias)
        return made

    settings = {"spike_factor": 20.0, "max_epochs": 1, "checkpoint_every": "9 steps", **changes}
    trainer = Trainer(
        Settings(
            batch_size=BATCH,
            shuffle=False,
            log_every=1,
            device="cpu",
            checkpoint_dir=folder / "checkpoints",
            out=folder / "metrics",
            **settings,
        ),
        model=model or zeros,
        loss=loss_of,
        data=Line(torn),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )
    assert trainer.fit(world) == 0
    return trainer


def losses(folder):
    return [line["loss"] for line in history(folder)]


def test_the_median_is_what_a_spike_is_measured_by():
    spikes = Spikes(3.0)
    assert not any(spikes.take(loss) for loss in [100.0, *[1.0] * 18])
    assert not spikes.take(50.0), "too little is known"
    assert not spikes.take(2.9)
    assert [spikes.take(loss) for loss in (3.1, 50.0, math.inf, math.nan, 1.0)] == [True, True, True, False, False]
    assert (spikes.total, spikes.in_a_row) == (3, 0)
    again = Spikes(3.0)
    again.load_state_dict(spikes.state_dict())
    assert again.state_dict() == spikes.state_dict()


def test_a_loss_below_zero_has_no_times():
    spikes = Spikes(3.0)
    assert not any(spikes.take(-1.0) for _ in range(30))
    assert not spikes.take(5.0)


def test_a_spike_is_left_out(tmp_path):
    train(tmp_path / "with", spike_action="skip")
    lines = history(tmp_path / "with")
    assert [line["step"] for line in lines if line.get("spikes") == 1] == list(range(TORN, STEPS + 1))
    assert lines[TORN - 1]["loss"] > 1e6
    assert max(losses(tmp_path / "with")[TORN:]) < 20, "nothing was learned from it"
    train(tmp_path / "without", spike_factor=None)
    assert max(losses(tmp_path / "without")[TORN:]) > 1e3


def test_a_training_goes_back_and_past_it(tmp_path, capsys):
    train(tmp_path, spike_action="rewind")
    lines = history(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 37)), "from 27, and without the samples of 28 to 31"
    assert max(losses(tmp_path)[27:]) < 20
    assert "back to the last checkpoint and past these samples" in capsys.readouterr().out


def test_a_model_that_was_given_goes_back_too(tmp_path):
    train(tmp_path / "made", spike_action="rewind")
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    train(tmp_path / "given", spike_action="rewind", model=model)
    assert history(tmp_path / "given") == history(tmp_path / "made")


def test_without_a_checkpoint_to_go_back_to_it_is_left_out(tmp_path):
    train(tmp_path, spike_action="rewind", checkpoint_every="1000 steps")
    assert history(tmp_path)[-1]["step"] == STEPS
    assert max(losses(tmp_path)[TORN:]) < 20


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_a_training_that_was_interrupted_after_a_spike_ends_alike(tmp_path, action):
    whole = train(tmp_path / "whole", spike_action=action)
    train(tmp_path / "parts", spike_action=action, max_steps=33)
    parts = train(tmp_path / "parts", spike_action=action)
    assert parts.fingerprint == whole.fingerprint
    assert history(tmp_path / "parts") == history(tmp_path / "whole")


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_too_many_in_a_row_are_none_but_a_loss_that_has_gone(tmp_path, action):
    with pytest.raises(NotFinite, match="the loss was over 20 times its running median"):
        train(tmp_path, spike_action=action, torn=range(29, STEPS + 1), skip_limit=3)


def on_two_ranks(folder):
    world = join(group=True, device="cpu")
    for action, strategy in (("skip", "ddp"), ("rewind", "ddp"), ("rewind", "fsdp")):
        train(folder / f"{action}-{strategy}", world, spike_action=action, strategy=strategy)


def test_ranks_decide_alike(tmp_path):
    spawn_ranks(on_two_ranks, 2, tmp_path)
    for action, strategy, last in (("skip", "ddp", 40), ("rewind", "ddp", 36), ("rewind", "fsdp", 36)):
        train(tmp_path / "alone" / f"{action}-{strategy}", spike_action=action)
        lines = losses(tmp_path / f"{action}-{strategy}")
        assert len(lines) == last
        assert lines == pytest.approx(losses(tmp_path / "alone" / f"{action}-{strategy}"), rel=1e-4)
