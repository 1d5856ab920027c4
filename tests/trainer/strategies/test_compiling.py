"""torch.compile changes neither results beyond rounding nor names."""

import logging

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import SAMPLES, Trial, mean_losses, run, start, word_batch, words
from torch import nn
from torch._dynamo import config
from torch._dynamo.utils import counters

from trainer.strategies import StrategySettings

# torch hides this warning of its own by a hook that a filter of "error" comes before
_ITS_OWN = "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings(_ITS_OWN)]


def _tiny():
    return words(blocks=1)


def _smaller_at_last(step):
    return word_batch(step, SAMPLES if step == 0 else SAMPLES // 2)


def _compiled(trial, kernels):
    """Return the training's result, the number of graphs, and the names of the model's state."""
    if not kernels and hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("aot_eager")  # the same graphs without a C++ compiler, which takes a minute
    found = run(trial)
    return found, counters["stats"]["unique_graphs"], list(start(trial)[0].module.state_dict())


@pytest.mark.parametrize(
    ("strategy", "ranks", "recomputed", "batch"),
    [
        ("none", 1, {}, word_batch),
        ("ddp", 2, {"activation_checkpointing": True}, _smaller_at_last),
        ("fsdp", 2, {"activation_checkpointing": True, "recompute_keeps": ("matmul", "attention")}, _smaller_at_last),
    ],
)
def test_compiled_training_is_the_same(strategy, ranks, recomputed, batch):
    settings = StrategySettings(strategy=strategy, compile=True, **recomputed)
    trial = Trial(settings, model=_tiny, batch=batch, steps=2)
    eager = run(Trial(StrategySettings(strategy="none"), model=_tiny, batch=batch, steps=2))
    found = spawn_ranks(_compiled, ranks, trial, strategy == "none")
    assert mean_losses([one for one, _, _ in found]) == pytest.approx(eager.losses, rel=1e-4)
    for one, graphs, names in found:
        assert graphs == len({len(batch(step)[0]) for step in range(2)}), "one for each size, and none for any size"
        assert names == list(_tiny().state_dict())
        for name, parameter in one.parameters.items():
            assert parameter.numpy() == pytest.approx(eager.parameters[name].numpy(), rel=2e-4, abs=2e-5)


class _Placed(nn.Module):
    """A block that knows which one it is, as many do."""

    def __init__(self, index):
        super().__init__()
        self.index = index
        self.layer = nn.Linear(10, 10)

    def forward(self, x):
        return x + self.layer(x) / (1 + self.index)


class _Speaking(_Placed):
    def forward(self, x):
        print("what no graph can say")
        return super().forward(x)


def _model_of(kind, count):
    model = words(blocks=count)
    model.blocks = nn.ModuleList(kind(index) for index in range(count))
    return model


def _said_while_compiling(kind, count):
    """How many graphs were made for blocks that differ, with two sizes of batches, for how many there was room, and
    what the user was told.
    """
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trainer").addHandler(handler)
    config.recompile_limit, config.accumulated_recompile_limit = 1, 3
    settings = StrategySettings(strategy="none", compile=True, blocks=(kind.__name__,))
    trial = Trial(settings, model=lambda: _model_of(kind, count), batch=_smaller_at_last, steps=3)
    if hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("eager")
    run(trial)
    return counters["stats"]["unique_graphs"], config.recompile_limit, said


def test_each_of_many_blocks_that_differ_is_compiled_for_each_size():
    [(graphs, room, said)] = spawn_ranks(_said_while_compiling, 1, _Placed, 5)
    assert (graphs, room, said) == (2 * 5, 64 * 5, [])


def test_the_user_is_told_once_of_what_stays_eager():
    [(_, _, said)] = spawn_ranks(_said_while_compiling, 1, _Speaking, 2)
    [told] = said
    assert "compile: not everything could be compiled" in told and "print" in told
