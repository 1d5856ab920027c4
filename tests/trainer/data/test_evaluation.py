"""Each sample once over all ranks, in order, in every pass the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_sets import Augmented, Numbers, ShardingStream, Stream, generator_states

from trainer.data import EvalData
from trainer.errors import BadSettings, TrainerError


@given(length=st.integers(1, 60), batch_size=st.integers(1, 20), world_size=st.integers(1, 5), start=st.integers(0, 60))
def test_each_sample_once_over_all_ranks(length, batch_size, world_size, start):
    seen = []
    for rank in range(world_size):
        data = EvalData(Numbers(length), batch_size=batch_size, rank=rank, world_size=world_size)
        own = [index for batch in data.batches(start) for index in batch.indices]
        assert own == sorted(own)
        seen += own
    assert sorted(seen) == list(range(start, length))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_have_their_samples(workers):
    data = EvalData(Numbers(10), batch_size=4, rank=1, world_size=2, workers=workers)
    for _ in range(2):
        batches = list(data.batches())
        assert [batch.indices for batch in batches] == [(1, 3), (5, 7), (9,)]
        assert [tuple(batch.data.tolist()) for batch in batches] == [(1, 3), (5, 7), (9,)]
        assert [batch.samples for batch in batches] == [2, 2, 1]
    data.close()


@pytest.mark.parametrize("dataset", [Numbers(9), Stream(9)])
def test_ranks_get_equally_many_batches_only_with_fillers(dataset):
    def counts(**options):
        ranks = [EvalData(dataset, batch_size=4, rank=rank, world_size=3, **options) for rank in range(3)]
        return [[batch.samples for batch in data.batches()] for data in ranks]

    assert counts() == [[2, 1], [1, 2], [1, 1, 1]]
    assert counts(fillers=True) == [[2, 1, 0], [1, 2, 0], [1, 1, 1]]


@pytest.mark.parametrize("dataset", [Augmented(12), Stream(12)])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_pass_draws_the_same(dataset, workers):
    before = generator_states()
    data = EvalData(dataset, batch_size=4, workers=workers)
    one, other = ([batch.data for batch in data.batches()] for _ in range(2))
    data.close()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert generator_states() == before


def test_a_stream_that_shards_itself_is_read_to_each_end():
    seen = []
    for rank in range(2):
        data = EvalData(ShardingStream([5, 0], rank), batch_size=4, rank=rank, world_size=2)
        seen.append([int(row[0]) for batch in data.batches() for row in batch.data])
    assert seen == [[0, 1, 2, 3, 4], []]


@pytest.mark.parametrize("dataset", [Numbers(9), Stream(9)])
def test_a_pass_that_another_has_overtaken_is_refused(dataset):
    data = EvalData(dataset, batch_size=4, workers=1)
    old, new = data.batches(), data.batches()
    next(old)
    next(new)
    with pytest.raises(TrainerError, match="another pass"):
        next(old)
    assert [batch.samples for batch in new] == [4, 1]
    data.close()


def test_a_stream_cannot_be_begun_in_the_middle():
    with pytest.raises(BadSettings, match="from its beginning, got start 3"):
        list(EvalData(Stream(9), batch_size=4).batches(3))


def test_fillers_need_to_know_of_the_other_ranks():
    with pytest.raises(BadSettings, match="fillers"):
        EvalData(ShardingStream([5, 5], 0), batch_size=4, world_size=2, fillers=True)
