import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR

from trainer.errors import BadSettings
from trainer.loop.schedules import Schedule


def optimizer(rate=0.1):
    groups = [
        {"params": [torch.zeros(1, requires_grad=True)]},
        {"params": [torch.zeros(1, requires_grad=True)], "lr": 1.0},
    ]
    return torch.optim.SGD(groups, lr=rate)


def warm_cosine(optimizer, total_steps):
    warm, cosine = LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, total_steps - 2)
    return SequentialLR(optimizer, [warm, cosine], [2])


def rates(schedule, optimizer, steps):
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return found


def test_without_a_scheduler_the_rate_stays():
    sgd = optimizer()
    schedule = Schedule(None, sgd, 10)
    assert rates(schedule, sgd, 3) == [[0.1, 1.0]] * 3
    assert schedule.state_dict() == {}
    schedule.load_state_dict({})


def test_a_found_rate_is_where_the_schedule_starts():
    found, plain = optimizer(), optimizer(0.5)
    plain.param_groups[1]["lr"] = 5.0
    schedule = Schedule(warm_cosine, found, 8)
    schedule.start_from(0.5)
    expected = rates(Schedule(warm_cosine, plain, 8), plain, 8)
    for one, other in zip(rates(schedule, found, 8), expected, strict=True):
        assert one == pytest.approx(other)


def test_it_goes_on_where_it_was():
    whole, first, second = optimizer(), optimizer(), optimizer()
    expected = rates(Schedule(warm_cosine, whole, 8), whole, 8)
    before = Schedule(warm_cosine, first, 8)
    begun = rates(before, first, 3)
    after = Schedule(warm_cosine, second, 8)
    after.load_state_dict(before.state_dict())
    second.load_state_dict(first.state_dict())
    assert begun + rates(after, second, 5) == expected


def test_a_plateau_goes_by_what_is_monitored():
    sgd = optimizer()
    schedule = Schedule(lambda one, _: ReduceLROnPlateau(one, patience=1, factor=0.5), sgd, None)
    assert schedule.needs_validation
    found = []
    for loss in (1.0, 1.0, 1.0, 0.5):
        sgd.step()
        schedule.step()
        schedule.validated({"val_loss": loss, "val_accuracy": 9.0}, "val_loss")
        found.append(sgd.param_groups[0]["lr"])
    assert found == [0.1, 0.1, 0.05, 0.05]
    again = Schedule(lambda one, _: ReduceLROnPlateau(one, patience=1, factor=0.5), sgd, None)
    again.load_state_dict(schedule.state_dict())
    assert again.state_dict() == schedule.state_dict()
    with pytest.raises(BadSettings, match="monitor: expected one of val_loss, got 'loss'"):
        schedule.validated({"val_loss": 1.0}, "loss")
