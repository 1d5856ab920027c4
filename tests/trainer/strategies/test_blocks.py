"""Which parts of a model are sharded and recomputed each by itself."""

import pytest
from strategy_trials import pixels, words
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies.blocks import blocks_of, without_shared_parameters


def _names(module, blocks):
    names = {id(part): name for name, part in module.named_modules()}
    return [names[id(block)] for block in blocks]


def _found(module, *wanted):
    return _names(module, blocks_of(module, wanted))


class _Net(nn.Module):
    """Stages of blocks that have layers in a Sequential of their own, as a ResNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.stage1 = nn.Sequential(_Residual(), _Residual())
        self.stage2 = nn.Sequential(nn.Sequential(_Residual()), _Residual())
        self.head = nn.Linear(8, 2)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def test_children_of_containers_are_blocks():
    assert _found(words()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert _found(_Net()) == ["stage1.0", "stage1.1", "stage2.0.0", "stage2.1"]


def test_layers_that_a_sequential_puts_together_are_one_block():
    assert _found(pixels()) == ["layers.0", "layers.1"]


def test_a_model_of_layers_alone_has_layers_as_blocks():
    assert _found(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == ["0", "2"]
    assert _found(nn.Linear(4, 4)) == []


def test_what_is_small_beside_the_largest_is_left_to_the_root():
    assert _found(nn.Sequential(nn.Linear(40, 40), nn.LayerNorm(8), nn.Linear(40, 40))) == ["0", "2"]


def test_a_block_that_is_used_twice_counts_once():
    block = _Residual()
    assert len(blocks_of(nn.ModuleList([block, block, _Residual()]))) == 2


def test_blocks_can_be_named_by_class_and_by_pattern():
    assert _found(_Net(), "_Residual") == ["stage1.0", "stage1.1", "stage2.0.0", "stage2.1"]
    assert _found(_Net(), "stage1.*", "head") == ["stage1.0", "stage1.1", "head"]
    assert _found(_Net(), "stage1", "_Residual") == ["stage1", "stage2.0.0", "stage2.1"], "the outer one has the inner"


def test_a_rule_chooses_blocks():
    net = _Net()
    found = blocks_of(net, lambda name, part: isinstance(part, _Residual) and name != "stage1.1")
    assert _names(net, found) == ["stage1.0", "stage2.0.0", "stage2.1"]
    with pytest.raises(BadSettings, match="blocks: expected a rule that chooses parts of _Net, it chose none"):
        blocks_of(net, lambda *_: False)


def test_names_that_mean_nothing_are_refused():
    with pytest.raises(
        BadSettings, match=r"blocks: expected names or classes of parts of _Net, got 'Nothing', 'stagge1"
    ):
        _found(_Net(), "stage1.*", "stagge1", "Nothing")
    with pytest.raises(BadSettings, match=r"blocks: blocks is a list of modules, not one to call\nhint: blocks\.\*"):
        _found(words(), "blocks")


def test_blocks_with_tied_parameters_are_not_sharded_alone():
    model = words()
    model.blocks[2].up.weight = model.blocks[0].up.weight
    assert _names(model, without_shared_parameters(model, blocks_of(model))) == ["blocks.1"]
    within = words()
    within.blocks[1].other = within.blocks[1].up
    assert _names(within, without_shared_parameters(within, blocks_of(within))) == ["blocks.0", "blocks.1", "blocks.2"]
