"""ZeRO stage 1 with the user's own optimizer, however it was made."""

import torch
from ranks import spawn_ranks
from strategy_trials import Trial, one_step, run, start, whole, words
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import StrategySettings, build
from trainer.world import join

ZERO1 = StrategySettings(strategy="zero1")


def _in_groups(parameters):
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0, "lr": 0.002}]
    return torch.optim.AdamW(groups, lr=0.01)


def _scheduled(trial):
    """The rate falls by a scheduler of the strategy's optimizer."""
    torch.set_num_threads(1)
    strategy, _ = start(trial)
    schedule = torch.optim.lr_scheduler.StepLR(strategy.optimizer, 1, gamma=0.5)
    for step in range(4):
        one_step(strategy, trial, step)
        strategy.step()
        schedule.step()
    return whole(strategy.module)


def test_groups_and_schedules_are_the_users():
    trial = Trial(ZERO1, optimizer=_in_groups)
    alone = _scheduled(trial.with_(strategy="none"))
    for found in spawn_ranks(_scheduled, 2, trial):
        for name, parameter in found.items():
            torch.testing.assert_close(parameter, alone[name], rtol=2e-4, atol=2e-5)


def _adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.05)


def _share_of_state(trial):
    strategy, _ = start(trial)
    state = strategy.optimizer.optim.state
    return {name for name, parameter in strategy.module.named_parameters() if parameter in state}


def test_state_that_is_made_at_once_is_shared_out_too():
    trial = Trial(ZERO1, optimizer=_adagrad)
    first, second = spawn_ranks(_share_of_state, 2, trial)
    assert first and second and not first & second
    assert first | second == {name for name, _ in words().named_parameters()}
    alone = run(trial.with_(strategy="none"))
    for found in spawn_ranks(run, 2, trial):
        for name, parameter in found.parameters.items():
            torch.testing.assert_close(parameter, alone.parameters[name], rtol=2e-4, atol=2e-5)


def _mixed_dtypes():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16))
    try:
        build(model, join(group=True, device="cpu"), ZERO1, _in_groups)
    except BadSettings as error:
        return str(error)


def test_parameters_of_two_dtypes_are_refused():
    said = "strategy: zero1 expected parameters of one dtype, got torch.bfloat16, torch.float32"
    assert spawn_ranks(_mixed_dtypes, 2) == [said, said]


def _formats():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last)
    build(model, join(group=True, device="cpu"), ZERO1, _in_groups)
    return model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_memory_format_stays():
    assert spawn_ranks(_formats, 2) == [True, True]
