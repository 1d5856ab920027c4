import itertools
import math

import pytest
import torch
from ranks import spawn_ranks
from small_trainings import Recipe, Training

from trainer.checkpoint.contents import gather
from trainer.checkpoint.planning import local_part, make_plan, signature
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint_files.manifest import ITEM_BYTES, chunk_bytes
from trainer.errors import TrainerError

ALONE = SaveGroup(None, (0,), 0)


def team_of(world):
    return SaveGroup(world.control, tuple(range(world.size)), world.rank)


def plan_of(recipe):
    training = Training.begin(recipe)
    training.step(1)
    tensors = gather(training.checkpointer("unused")._subjects, training.world).tensors
    plan = make_plan(tensors, team_of(training.world))
    return plan, {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}


def assert_covered(plans):
    """Every byte of every tensor has one place, in one file, and nobody's place is anybody else's."""
    tensors = plans[0].tensors
    assert all(plan.tensors == tensors for plan in plans)
    for entry in tensors.values():
        whole = math.prod(entry.shape) * ITEM_BYTES[entry.dtype]
        assert sum(chunk_bytes(entry, chunk) for chunk in entry.chunks) == whole
    for number, plan in enumerate(plans):
        mine = sorted(
            (chunk.at, chunk_bytes(entry, chunk))
            for entry in tensors.values()
            for chunk in entry.chunks
            if chunk.file == number
        )
        assert [place for place in mine if place[1]] == sorted((part.at, part.size) for part in plan.parts if part.size)
        assert all(at + size <= following for (at, size), (following, _) in itertools.pairwise(mine))
        assert all(at % 64 == 0 for at, _ in mine)
        assert all(at + size <= plan.size for at, size in mine)


@pytest.mark.parametrize(("strategy", "size"), [("none", 1), ("ddp", 3), ("zero1", 2), ("fsdp", 4), ("hsdp", 4)])
def test_each_byte_has_one_place(strategy, size):
    results = spawn_ranks(plan_of, size, Recipe(strategy))
    assert_covered([plan for plan, _ in results])


def test_what_all_have_is_shared_out_evenly():
    results = spawn_ranks(plan_of, 3, Recipe("ddp"))
    sizes = [sum(part.size for part in plan.parts) for plan, _ in results]
    whole = sum(results[0][1].values())
    assert sum(sizes) == whole
    assert max(sizes) < 0.45 * whole


def test_a_tensor_that_changes_its_shape_or_type_or_joins_makes_a_plan_stale():
    tensors = {"a": torch.zeros(2), "b": torch.zeros(3)}
    before = signature(tensors)
    assert signature({"a": torch.ones(2), "b": torch.ones(3)}) == before
    for other in (
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2), "b": torch.zeros(4)},
        {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.float64)},
        {"a": torch.zeros(2), "c": torch.zeros(3)},
    ):
        assert signature(other) != before


def test_empty_and_single_values_have_their_place():
    plan = make_plan({"none": torch.zeros(0, 3), "one": torch.tensor(2.0), "two": torch.zeros(2, 0)}, ALONE)
    assert [len(entry.rows) for entry in plan.tensors.values()] == [1, 1, 1]
    assert plan.size == 64


def test_a_part_that_is_not_what_was_planned_is_an_error():
    plan = make_plan({"a": torch.zeros(2)}, ALONE)
    with pytest.raises(ValueError, match=r"a: planned for \(2,\), but it is \(3,\) here"):
        local_part(torch.zeros(3), plan.parts[0])


def test_a_type_that_cannot_be_kept_is_told_of():
    with pytest.raises(TrainerError, match="a tensor of type float4_e2m1fn_x2 cannot be saved"):
        make_plan({"a": torch.empty(2, dtype=torch.float4_e2m1fn_x2)}, ALONE)
