"""Tensors from one rank to others: of one node by reading, over the network where that is forbidden, or far."""

import pytest
import torch
from ranks import Ranks

from trainer.recovery import sending
from trainer.world import join

SHAPES = ((3,), (700, 1000), (0,), (513, 7), (1000, 500))  # of float32: the second and the last are large


def tensors_of(rank):
    draw = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


def shards_sent(forbidden, small=False):
    """Ranks 0 and 3 take what 1 and 2 give. Gives what each has had of whom, whether whole, and how many ranks read."""
    world, read, count = join(), sending.read, []

    def reads(places, into):
        if world.rank in forbidden:
            raise PermissionError("Operation not permitted")
        read(places, into)
        count.append(len(into))

    sending.read = reads
    pick = slice(0, 1) if small else slice(None)
    if world.rank in (1, 2):
        given = tensors_of(world.rank)[pick]
        if not small:
            given[1] = given[1].t().contiguous().t()  # it does not lie in order
        sending.send([([0], given), ([3], given)], world)
        return [], 0
    taken = {rank: [torch.full_like(one, 9.0) for one in tensors_of(rank)[pick]] for rank in (1, 2)}
    sending.receive(taken, world)
    wrong = [rank for rank in taken if not all(map(torch.equal, taken[rank], tensors_of(rank)[pick]))]
    return wrong, len(count)


@pytest.mark.parametrize(
    ("local_size", "forbidden", "read"),
    [(4, (), [2, 2]), (4, (3,), [2, 0]), (4, (0, 3), [0, 0]), (2, (), [1, 1]), (1, (), [0, 0])],
)
def test_each_has_all_of_it_however_it_comes(local_size, forbidden, read):
    first, *_, last = Ranks(shards_sent, 4, forbidden, local_size=local_size, stay=True).results()
    assert [first, last] == [([], count) for count in read]


def test_a_few_bytes_are_not_worth_the_words():
    first, *_, last = Ranks(shards_sent, 4, (), True, local_size=4, stay=True).results()
    assert [first, last] == [([], 0)] * 2
