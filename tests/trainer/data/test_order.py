"""Positions, steps, micro-batches and shares: all of an epoch, each sample once, whoever counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.order import Sharing, epoch_order, micro_batches, steps_in
from trainer.errors import BadSettings

sizes = st.integers(1, 40)


@st.composite
def sharings(draw, batch_size=sizes):
    world_size = draw(st.integers(1, 7))
    return Sharing(draw(batch_size), draw(st.integers(1, 6)), world_size, draw(st.integers(0, world_size - 1)))


def of_rank(sharing, rank):
    return Sharing(sharing.batch_size, sharing.accumulate, sharing.world_size, rank)


@given(length=st.integers(0, 300), seed=st.integers(0, 2**64), epoch=st.integers(0, 10**6), shuffle=st.booleans())
def test_an_order_has_every_index_once_and_is_always_the_same(length, seed, epoch, shuffle):
    order = epoch_order(length, seed, epoch, shuffle=shuffle)
    assert sorted(order.tolist()) == list(range(length))
    assert np.array_equal(order, epoch_order(length, seed, epoch, shuffle=shuffle))


def test_orders_differ_by_epoch_and_by_seed():
    orders = {tuple(epoch_order(50, seed, epoch, shuffle=True)) for seed in (0, 1, 2**40) for epoch in range(5)}
    assert len(orders) == 15


def test_the_order_of_a_given_epoch_never_changes():
    """A run may be resumed after an update of anything. If this fails, its epoch would change under it."""
    assert epoch_order(10, 7, 3, shuffle=True).tolist() == [2, 7, 1, 4, 5, 0, 6, 3, 8, 9]


def test_without_shuffle_the_order_is_that_of_the_data_set():
    assert epoch_order(5, 1, 2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(sharing=sharings(), length=st.integers(1, 200), drop_last=st.booleans())
def test_steps_take_the_order_in_pieces_of_the_batch_size(sharing, length, drop_last):
    micros = list(micro_batches(0, length, sharing, drop_last=drop_last))
    steps = sorted({(micro.start, micro.stop) for micro in micros})
    usable = length - length % sharing.batch_size if drop_last else length
    assert steps == [(at, min(at + sharing.batch_size, usable)) for at in range(0, usable, sharing.batch_size)]
    assert len(steps) == steps_in(length, sharing.batch_size, drop_last=drop_last)
    assert [position for micro in micros for position in range(micro.lo, micro.hi)] == list(range(usable))


@given(sharing=sharings(), length=st.integers(1, 200), done=st.integers(0, 200))
def test_the_rest_of_an_epoch_is_what_was_not_done(sharing, length, done):
    positions = [
        position
        for micro in micro_batches(done, length, sharing, drop_last=False)
        for rank in range(sharing.world_size)
        for position in of_rank(sharing, rank).share(micro.lo, micro.hi)
    ]
    assert sorted(positions) == list(range(done, length))


@given(sharing=sharings())
def test_a_whole_step_has_as_many_micro_batches_as_asked_for_and_even_shares(sharing):
    micros = sharing.micro_batches(0, sharing.batch_size)
    assert len(micros) == min(sharing.accumulate, sharing.batch_size)
    sizes_of_micros = [hi - lo for lo, hi in micros]
    assert max(sizes_of_micros) - min(sizes_of_micros) <= 1
    for lo, hi in micros:
        shares = [len(of_rank(sharing, rank).share(lo, hi)) for rank in range(sharing.world_size)]
        assert sum(shares) == hi - lo
        assert max(shares) - min(shares) <= 1


@given(sharing=sharings(), count=sizes)
def test_a_partial_step_has_no_micro_batch_that_is_empty_everywhere(sharing, count):
    stop = min(count, sharing.batch_size)
    assert all(lo < hi for lo, hi in sharing.micro_batches(0, stop))


def test_a_position_belongs_to_the_rank_that_it_leaves_as_remainder():
    assert list(Sharing(32, 1, 4, 1).share(8, 16)) == [9, 13]
    assert list(Sharing(32, 1, 4, 1).share(10, 12)) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0, 1, 1, 0), "batch_size: expected 1 or more, got 0"),
        ((8, 0, 1, 0), "accumulate: expected 1 or more, got 0"),
        ((8, 1, 0, 0), "world_size: expected 1 or more, got 0"),
        ((8, 1, 2, 2), r"rank: expected one of 0\.\.1, got 2"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(words, said):
    with pytest.raises(BadSettings, match=said):
        Sharing(*words)
