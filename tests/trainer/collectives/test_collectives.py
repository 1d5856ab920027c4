"""Each operation on real gloo ranks: its result is checked, and a wrong one is noticed."""

import pytest
import torch
import torch.distributed as dist
from ranks import spawn_ranks

from trainer.collectives import operations
from trainer.collectives.measuring import members, repetitions, rounded, timed
from trainer.collectives.pairs import pairs
from trainer.world import join, leave


def measure(names, sizes, lie=None):
    world = join()
    if lie is not None and world.rank == world.size - 1:
        lie()
    found = [*timed(names, sizes, tuple(range(world.size)), dist.group.WORLD, world)]
    leave(world)
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_operations_are_right_and_timed_by_the_slowest_rank(ranks):
    each = spawn_ranks(measure, ranks, list(operations.OPERATIONS), [4, 4096])
    assert all(found == each[0] for found in each), "all ranks say the same"
    sizes = [(one.operation, one.size_bytes) for one in each[0]]
    names = [name for name in operations.OPERATIONS if name != "barrier"]
    assert sizes == [*((name, size) for name in names for size in (4 * ranks, 4096)), ("barrier", 0)]
    assert all(one.wrong == 0 and not one.lacking and len(one.times_s) == 20 for one in each[0])


def lie_all_reduce():
    honest = dist.all_reduce

    def off_by_one(data, *words, **more):
        honest(data, *words, **more)
        if data.dtype == torch.float32:
            data[3] += 1

    dist.all_reduce = off_by_one


def lie_all_to_all():
    honest = dist.all_to_all_single

    def swapped(got, own, **more):
        honest(got, own, **more)
        got.copy_(got.flip(0))

    dist.all_to_all_single = swapped


def test_a_wrong_number_on_one_rank_is_told_by_all():
    for found in spawn_ranks(measure, 2, ["all-reduce", "broadcast"], [4096], lie_all_reduce):
        assert [one.wrong for one in found] == [20, 0], "in each repetition"


def lie_once():
    honest, calls = dist.all_reduce, []

    def off_by_one(data, *words, **more):
        honest(data, *words, **more)
        calls.append(data)
        if len(calls) == 7:
            data[3] += 1

    dist.all_reduce = off_by_one


def test_a_number_that_is_wrong_in_one_repetition_alone_is_told():
    for found in spawn_ranks(measure, 2, ["all-reduce"], [4096], lie_once):
        assert [one.wrong for one in found] == [1]


def test_parts_in_another_order_are_wrong():
    for found in spawn_ranks(measure, 2, ["all-to-all"], [4096], lie_all_to_all):
        assert found[0].wrong > 0


def refuse_scatter():
    def lacking(*words, **more):
        raise RuntimeError("ProcessGroupNone does not support scatter")

    dist.scatter = lacking


def measure_without_scatter():
    refuse_scatter()
    return measure(["scatter", "gather"], [4096, 8192])


def test_what_the_backend_lacks_is_said_and_the_rest_goes_on():
    for found in spawn_ranks(measure_without_scatter, 2):
        assert [(one.operation, one.lacking) for one in found] == [
            ("scatter", "ProcessGroupNone does not support scatter"), ("gather", ""), ("gather", "")
        ]  # fmt: skip


def ways():
    world = join()
    found = [*pairs(world, world.size // world.local_size, world.local_size, dist.group.WORLD)]
    leave(world)
    return found


def test_every_pair_of_nodes_is_measured_by_torch_and_by_a_plain_connection():
    for found in spawn_ranks(ways, 3, local_size=1):
        assert [(one.one, one.other) for one in found] == [(0, 1), (0, 2), (1, 2)]
        assert all(one.bytes_per_s > 0 and one.round_trip_s > 0 and one.plain_bytes_per_s > 0 for one in found)


def test_who_takes_part():
    assert members(4, 2, 4) == (0, 1, 4, 5), "equally many of each node"
    assert members(3, 2, 4) == (0, 1, 2), "which cannot be"
    assert members(2, 1, 4) == (0, 1)
    assert (rounded(1024, 3), rounded(1, 4)) == (255, 4)
    assert repetitions(2**30) < repetitions(2**20) < repetitions(2**10)
