"""What a training on GPUs needs to go on in place, and that it asks before each update what its gradients are."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trainer.connections import made_here
from trainer.loop.can_stay import reasons
from trainer.loop.settings import Settings
from trainer.loop.staying import Stay
from trainer.strategies.settings import StrategySettings
from trainer.wire import Launched
from trainer.world import World


def why_not(monkeypatch, strategy, heeds="0", device="cuda"):
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if heeds is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", heeds)
    world = World(0, 2, 0, 2, torch.device(device), backend="nccl" if device == "cuda" else "gloo")
    loop = SimpleNamespace(
        training=SimpleNamespace(world=world),
        strategy=SimpleNamespace(
            settings=StrategySettings(strategy=strategy), pipeline=None, module=torch.nn.Linear(2, 2)
        ),
        own_step=None,
    )
    launched = Launched.from_environment({})
    return list(reasons(loop, Settings(max_steps=1), [1, 2], launched, met_once=True, loads=False, made=True))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
def test_what_goes_on_in_place_on_gpus(monkeypatch, strategy):
    assert why_not(monkeypatch, strategy) == []


@pytest.mark.parametrize("strategy", ["zero1", "hsdp"])
def test_what_does_not(monkeypatch, strategy):
    assert why_not(monkeypatch, strategy) == [
        f"strategy {strategy} on cuda: expected ddp, zero2 or fsdp, or CPUs",
    ]
    assert why_not(monkeypatch, strategy, device="cpu") == []


@pytest.mark.parametrize("heeds", [None, "1", "2", "3"])
def test_not_where_torch_itself_acts_on_the_end_of_another_rank(monkeypatch, heeds):
    """It would end this one, or let it go on with numbers that mean nothing."""
    assert why_not(monkeypatch, "ddp", heeds) == [
        f"TORCH_NCCL_ASYNC_ERROR_HANDLING={heeds or ''}: expected 0, or torch acts on another rank's end"
    ]
    assert why_not(monkeypatch, "ddp", heeds, device="cpu") == []


def test_gradients_that_were_cut_off_make_no_update(monkeypatch):
    keeping = SimpleNamespace(copied=lambda: None, updating=False)
    member = SimpleNamespace(world=World(0, 2, 0, 2, torch.device("cpu")))
    stay = Stay(None, member, arrives=False, keeping=keeping)
    monkeypatch.setattr(made_here, "_given_up", True)
    with pytest.raises(dist.DistNetworkError):
        stay.updating()
    assert not keeping.updating
    monkeypatch.setattr(made_here, "_given_up", False)
    stay.updating()
    assert keeping.updating
