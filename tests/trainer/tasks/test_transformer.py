"""The transformer."""

import pytest
import torch

from trainer.errors import BadSettings
from trainer.tasks.transformer import Shape, Transformer, _rotate, continue_text, decay_groups

SMALL = {"context": 16, "layers": 2, "heads": 2, "width": 32}


def small(**more):
    torch.manual_seed(0)
    return Transformer(Shape(**SMALL, **more))


def test_no_token_sees_those_after_it():
    model = small().eval()
    tokens = torch.randint(256, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = torch.randint(256, (2, 7))
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def test_the_order_of_tokens_matters():
    model = small().eval()
    tokens = torch.tensor([[5, 9, 7]])
    turned = torch.tensor([[9, 5, 7]])
    assert not torch.allclose(model(tokens)[0, 2], model(turned)[0, 2], atol=1e-5)


def test_only_how_far_apart_tokens_are_matters():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, 12, 16)
    scores = (_rotate(query) @ _rotate(key).transpose(-1, -2))[0, 0]
    for apart in range(1, 12):
        same = scores.diagonal(-apart)
        assert torch.allclose(same, same[:1].expand_as(same), atol=1e-4)
    assert scores[:, 0].std() > 0.1


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_the_embedding(tied):
    model = small(tied=tied)
    assert (model.head.weight is model.embedding.weight) is tied
    assert len(list(model.parameters())) == len({id(parameter) for parameter in model.parameters()})


def test_dropout_only_in_training():
    model = small(dropout=0.5)
    tokens = torch.randint(256, (1, 16))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_nothing_but_parameters_is_kept():
    assert not list(small().buffers()), "buffers would be sent to all ranks before each step"


def test_matrices_decay_and_the_rest_does_not():
    model = small()
    decayed, rest = decay_groups(model.parameters(), 0.1)
    assert decayed["weight_decay"] == 0.1 and rest["weight_decay"] == 0.0
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all("norm" in names[id(parameter)] for parameter in rest["params"])
    assert len(decayed["params"]) + len(rest["params"]) == len(names)


def test_text_goes_on_as_the_model_expects():
    model = small().eval()
    model.head.weight = torch.nn.Parameter(torch.zeros(256, 32))
    model.norm.bias.data.fill_(1.0)
    model.head.weight.data[65] = 10.0  # nothing else is likely
    tokens = continue_text(model, torch.tensor([10]), 40, context=16, generator=torch.Generator().manual_seed(1))
    assert tokens.tolist() == [10] + [65] * 40


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 30, "heads": 4}, "--width: expected a multiple of 8 for 4 heads, got 30"),
        ({"layers": 0}, "--layers: expected at least 1, got 0"),
        ({"dropout": 1.0}, "--dropout: expected a number from 0 to below 1"),
    ],
)
def test_shapes_that_cannot_be(wrong, says):
    with pytest.raises(BadSettings, match=says):
        Shape(**wrong)
