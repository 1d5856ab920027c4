"""torch.compile changes neither results beyond rounding nor names."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import SAMPLES, Trial, mean_losses, run, start, word_batch, words
from torch._dynamo.utils import counters

from trainer.strategies import StrategySettings

pytestmark = pytest.mark.dealt(3)


def _tiny():
    return words(blocks=1)


def _smaller_at_last(step):
    return word_batch(step, SAMPLES if step == 0 else SAMPLES // 2)


def _compiled(trial, kernels):
    """What the training found, how many graphs were made for it, and the names of the model's state."""
    if not kernels and hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("aot_eager")  # the same graphs without a C++ compiler, which takes a minute
    found = run(trial)
    return found, counters["stats"]["unique_graphs"], list(start(trial)[0].module.state_dict())


# torch hides this warning of its own by a hook that a filter of "error" comes before
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("strategy", "ranks", "recomputed", "batch"),
    [("none", 1, False, word_batch), ("ddp", 2, True, _smaller_at_last), ("fsdp", 2, True, _smaller_at_last)],
)
def test_compiled_training_is_the_same(strategy, ranks, recomputed, batch):
    settings = StrategySettings(strategy=strategy, compile=True, activation_checkpointing=recomputed)
    trial = Trial(settings, model=_tiny, batch=batch, steps=2)
    eager = run(Trial(StrategySettings(strategy="none"), model=_tiny, batch=batch, steps=2))
    found = spawn_ranks(_compiled, ranks, trial, strategy == "none")
    assert mean_losses([one for one, _, _ in found]) == pytest.approx(eager.losses, rel=1e-4)
    for one, graphs, names in found:
        assert graphs == len({len(batch(step)[0]) for step in range(2)}), "one for each size, and none for any size"
        assert names == list(_tiny().state_dict())
        for name, parameter in one.parameters.items():
            assert parameter.numpy() == pytest.approx(eager.parameters[name].numpy(), rel=2e-4, abs=2e-5)
