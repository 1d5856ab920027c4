"""A rank's part of a training: kept where it lies, given to another rank, put into a model that was made anew."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoint.contents import Subjects
from trainer.recovery import shard_states
from trainer.recovery.replica import Snapshot
from trainer.recovery.shard_states import ShardState, Source
from trainer.world import World


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + step)).sum().backward()
        optimizer.step()


def part_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> tuple[ShardState, Subjects]:
    subjects = Subjects({"": model}, {"": optimizer}, {}, {})
    return Source.of(subjects).part(Snapshot.of(step, {}, subjects.optimizers, {"steps": step})), subjects


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def assert_alike(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_model_that_was_made_anew_has_it_all_again_and_again(steps: int) -> None:
    model, optimizer = made(1)
    train(model, optimizer, steps)
    part, _ = part_of(model, optimizer, steps)
    wanted = state_of(model, optimizer)
    for seed in (2, 3):  # what was put back can be put back again: nothing of it is shared with the new model
        new, its = made(seed)
        train(new, its, 1)
        part.put_back(Subjects({"": new}, {"": its}, {}, {}))
        assert_alike(state_of(new, its), wanted)
        train(new, its, 1)
    assert part.step == steps


def test_it_is_its_own_in_the_middle_of_a_pass_too_and_as_new_as_the_last_update() -> None:
    """When a module has what ranks have gathered in the place of its parameters."""
    model, optimizer = made(1)
    subjects = Subjects({"": model}, {"": optimizer}, {}, {})
    source = Source.of(subjects)
    train(model, optimizer, 2)
    wanted = state_of(model, optimizer)
    next(model.children()).weight = nn.Parameter(torch.zeros(8, 3))
    part = source.part(Snapshot.of(2, {}, subjects.optimizers, {}))
    new, its = made(2)
    part.put_back(Subjects({"": new}, {"": its}, {}, {}))
    assert_alike(state_of(new, its), wanted)


def test_another_rank_takes_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made(1)
    train(model, optimizer, 2)
    part, _ = part_of(model, optimizer, 2)
    wire: list[Any] = []
    monkeypatch.setattr(dist, "send_object_list", lambda reports, **_: wire.append(reports[0]))
    monkeypatch.setattr(dist, "recv_object_list", lambda reports, **_: reports.__setitem__(0, wire.pop(0)))
    monkeypatch.setattr(shard_states, "send", lambda outgoing, *_: wire.append([one.clone() for one in outgoing[0][1]]))
    monkeypatch.setattr(shard_states, "receive", lambda incoming, *_: [*map(Tensor.copy_, incoming[0], wire.pop(0))])
    alone = World(0, 1, 0, 1, torch.device("cpu"))
    part.give([1], alone)
    taken = ShardState.take(0, alone)
    assert not wire
    new, its = made(2)
    taken.put_back(Subjects({"": new}, {"": its}, {}, {}))
    assert_alike(state_of(new, its), state_of(model, optimizer))
