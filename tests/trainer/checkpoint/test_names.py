import pytest
import torch
from ranks import spawn_ranks
from small_trainings import Counted, Recipe, Rich, wrap
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from trainer.checkpoint.names import ModelNames, clean, unwrapped
from trainer.errors import TrainerError
from trainer.world import join


def bare():
    return ModelNames({"": Rich()})


def test_each_tensor_once_under_its_first_name():
    names = bare()
    parameters, buffers = names.parameters(), names.buffers()
    assert "model/embed.weight" in parameters and "model/head.weight" not in parameters  # tied
    assert set(buffers) == {f"model/body.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert "model/passing" not in parameters | buffers  # not persistent


def test_other_names_of_what_is_tied_are_known():
    assert bare().tied() == {"model/head.weight": "model/embed.weight"}
    assert ModelNames({"": nn.Linear(1, 1)}).tied() == {}


def test_several_models_have_names_of_their_own():
    names = ModelNames({"actor": nn.Linear(1, 1), "critic": nn.Linear(1, 1)})
    assert set(names.parameters()) == {
        f"model/{who}/{what}" for who in ("actor", "critic") for what in ("weight", "bias")
    }


def test_wrappers_do_not_show():
    model = Rich()
    model.body = checkpoint_wrapper(model.body)
    model.frozen = torch.compile(model.frozen)
    names = ModelNames({"": torch.compile(nn.DataParallel(model))})
    assert list(names.parameters()) == list(bare().parameters())
    assert list(names.buffers()) == list(bare().buffers())


def names_under(strategy):
    names = ModelNames({"": wrap(Rich(), Recipe(strategy), join(group=True))})
    return list(names.parameters()), list(names.buffers()), names.extra_state()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nor_do_strategies(strategy):
    assert spawn_ranks(names_under, 1, strategy) == [
        (list(bare().parameters()), list(bare().buffers()), bare().extra_state())
    ]


def test_extra_state_finds_its_module_through_a_wrapper():
    saved, loaded = nn.Sequential(Counted()), nn.Sequential(checkpoint_wrapper(torch.compile(Counted())))
    saved[0].calls = 7
    ModelNames({"a": loaded}).set_extra_state(ModelNames({"a": saved}).extra_state())
    assert ModelNames({"a": loaded}).extra_state() == {"a": {"0": {"calls": 7}}}


def test_a_module_that_has_no_extra_state_has_none():
    assert ModelNames({"": nn.Linear(1, 1)}).extra_state() == {}


def test_a_parameter_of_no_model_is_told_of():
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=1.0)
    with pytest.raises(TrainerError, match=r"SGD has a parameter of shape \(2, 3\) that is in no model"):
        bare().name_in(optimizer, optimizer.param_groups[0]["params"][0])


def test_unwrapped_is_what_the_user_gave():
    model = nn.Linear(1, 1)
    assert unwrapped(torch.compile(nn.DataParallel(model))) is model
    assert clean("a._orig_mod.b._checkpoint_wrapped_module.c") == "a.b.c"
