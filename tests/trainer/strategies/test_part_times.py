"""Parts of a model measured one by one: what they are called with, and what is left of it."""

import weakref
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies.part_times import part_times
from trainer.strategies.pipeline_cutting import Sample

CPU = torch.device("cpu")


class Watched(nn.Linear):
    """Notes what it is called with, and that no other part's weights are there meanwhile."""

    there: ClassVar[list] = []

    def __init__(self, width, device=None):
        super().__init__(width, width, device=device)
        self.register_buffer("calls", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.seen.append((x.requires_grad, self.weight.device.type, tuple(x.shape)))
        mine = self.weight
        assert all(one() is None or one() is mine for one in Watched.there), "another part's weights are still there"
        Watched.there.append(weakref.ref(mine))
        self.calls.add_(1)
        return torch.dropout(super().forward(x), 0.5, train=True)


def row(*parts):
    return [(str(place), part) for place, part in enumerate(parts)]


def sample(shape=(2, 3), loss_of=torch.sum):
    return Sample(torch.ones(*shape), loss_of)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_one_part_is_there_at_a_time_and_none_is_changed(device, recomputed):
    parts = [Watched(3, device) for _ in range(3)]
    for part in parts:
        part.calls = torch.zeros(())
    drawn = torch.get_rng_state()
    Watched.there.clear()
    seconds = part_times(row(*parts), sample(), CPU, nullcontext, parts if recomputed else ())
    assert len(seconds) == 3 and min(seconds) > 0
    for part in parts:
        assert part.weight.grad is None and part.calls == 0 and part.weight.device.type == device
        assert len(part.seen) == (2 if recomputed else 1) * 6 and set(part.seen) == {(True, "cpu", (2, 3))}
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_loss_is_a_part_of_the_last_one_and_words_have_no_gradient():
    asked = []

    def loss_of(output):
        asked.append(tuple(output.shape))
        output.register_hook(lambda gradient: asked.append(float(gradient[0, 0])))
        return 2 * output.sum()

    words = Sample(torch.tensor([1, 0]), loss_of)
    assert len(part_times(row(nn.Embedding(2, 4), nn.ReLU(), nn.Linear(4, 5)), words, CPU, nullcontext)) == 3
    assert asked == [(2, 5), 2.0] * 6


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((nn.Linear(3, 3), nn.Linear(4, 4)), "1 could not be measured: RuntimeError: "),
        ((nn.LSTM(3, 3), nn.Linear(3, 3)), "0 gives a tuple, and only tensors go from stage to stage\nhint: pp_cut: "),
    ],
)
def test_what_cannot_be_measured_is_told(parts, said):
    with pytest.raises(BadSettings) as refused:
        part_times(row(*parts), sample(), CPU, nullcontext)
    assert f"pp_cut: time: {said}" in str(refused.value) and "hint: pp_cut: layers" in str(refused.value)
