"""Test that data sent through a pipe arrives unchanged."""

import pickle

import pytest
import torch

from trainer.data.workers import pickled


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor(3.5),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    ],
    ids=["matrix", "scalar", "transposed", "bool", "bfloat16"],
)
def test_a_small_tensor_goes_by_value(tensor):
    came = pickle.loads(pickled({"tensor": [tensor]}))["tensor"][0]
    assert torch.equal(came, tensor)
    assert came.dtype == tensor.dtype and not came.is_shared()
    came.zero_()  # and can be written to


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(100_000),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j]),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["big", "empty", "complex", "parameter"],
)
def test_any_other_tensor_goes_as_torch_sends_it(tensor):
    came = pickle.loads(pickled(tensor))
    assert torch.equal(came, tensor)
    assert type(came) is type(tensor)
