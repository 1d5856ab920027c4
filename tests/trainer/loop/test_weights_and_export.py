"""Where a training starts from, and what it leaves for others."""

import pytest
import torch
from ranks import spawn_ranks
from safetensors.torch import load_file, save_file
from tiny_training import Noisy, loss_of, make_model, settings_for
from torch import nn

from trainer import load_weights
from trainer.errors import TrainerError
from trainer.loop import Trainer


def training(folder, given, make=make_model, **more):
    return Trainer(
        settings_for(folder, **{"max_steps": 2, "strategy": "fsdp", **more}),
        model=make,
        loss=loss_of,
        data=Noisy(),
        validation=Noisy(33),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),  # what it starts with is what it ends with
        start_from=given,
    )


def start_and_hand_over(folder):
    begun = training(folder, folder / "given.safetensors")
    worth = begun.validate()["val_loss"]
    begun.fit()
    written = begun.export(folder / "left", dtype="float64")
    with pytest.raises(TrainerError, match="is there already"):  # on every rank
        begun.export(folder / "left")
    again = training(folder, lambda model: pytest.fail("read although there is a checkpoint"), max_steps=4)
    again.fit()
    return worth, written.step, again.validate()["val_loss"]


def test_it_starts_from_given_weights_and_hands_over_what_it_has(tmp_path):
    torch.manual_seed(7)
    model = make_model()
    save_file({name: one.clone() for name, one in model.state_dict().items()}, tmp_path / "given.safetensors")
    (worth, step, after), other = spawn_ranks(start_and_hand_over, 2, tmp_path)
    assert (worth, step, after) == other
    assert step == 2
    left = load_file(tmp_path / "left" / "model.safetensors")
    assert torch.equal(left["0.weight"], model[0].weight.double())
    assert left.keys() == model.state_dict().keys()
    copy = make_model()
    load_weights(copy, tmp_path / "left")
    assert torch.equal(copy[4].weight, model[4].weight)


def make_wide():
    """Return a model whose parameters are put away while others are made."""
    width = 2**14
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 2))


def hand_over_what_was_made_by_parts(folder):
    begun = training(folder, folder / "given.safetensors", make_wide, by_parts=True, offload=True)
    begun.fit()
    begun.export(folder / "left.safetensors")


def test_what_no_rank_has_whole_is_handed_over_whole(tmp_path):
    torch.manual_seed(7)
    model = make_wide()
    save_file(model.state_dict(), tmp_path / "given.safetensors")
    spawn_ranks(hand_over_what_was_made_by_parts, 2, tmp_path)
    left = load_file(tmp_path / "left.safetensors")
    assert left.keys() == model.state_dict().keys()
    assert all(torch.equal(left[name], parameter) for name, parameter in model.named_parameters())
    assert left["1.num_batches_tracked"] > 0, "buffers are those of the training"
