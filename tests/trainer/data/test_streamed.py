"""Streams: shared out over ranks, resumed exactly if they keep their place, and begun anew if they do not."""

import json
import logging
from functools import partial

import pytest
import torch
from sample_sets import PlacedStream, ShardingStream, Stream, UnplacedShards, WrappingStream, generator_states

from trainer.data import SharedPlace, TrainData
from trainer.errors import BadSettings, TrainerError

PLACED = [PlacedStream, WrappingStream]


def numbers(batches):
    return [int(row[0]) for batch in batches if batch.samples for row in batch.data]


def consumed(data, epochs):
    """Return the data of each batch and the state after it."""
    return [(batch, data.state_dict()) for _ in range(epochs) for batch in data.epoch_batches()]


def same(batches, others):
    assert len(batches) == len(others)
    for one, other in zip(batches, others, strict=True):
        assert torch.equal(one.data, other.data)
        assert (one.samples, one.scale, one.ends_step, one.step_samples) == (
            other.samples,
            other.scale,
            other.ends_step,
            other.step_samples,
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_item_i_goes_to_rank_i_modulo_world_size(workers, accumulate, world_size):
    for rank in range(world_size):
        data = TrainData(
            Stream(37), batch_size=8, rank=rank, world_size=world_size, accumulate=accumulate, workers=workers
        )
        batches = list(data.epoch_batches())
        data.close()
        assert numbers(batches) == list(range(rank, 37, world_size))
        assert [batch.step_samples for batch in batches if batch.ends_step] == [8, 8, 8, 8, 5]
        assert all(batch.indices == () for batch in batches)


def test_ranks_see_the_same_steps_and_fillers_count_nothing():
    ranks = [list(TrainData(Stream(9), batch_size=4, rank=r, world_size=3).epoch_batches()) for r in range(3)]
    assert len({tuple((b.ends_step, b.step_samples) for b in batches) for batches in ranks}) == 1
    last = [batches[-1] for batches in ranks]
    assert [(batch.samples, batch.scale) for batch in last] == [(0, 0.0), (0, 0.0), (1, 3.0)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_last_partial_step_can_be_dropped(workers):
    data = TrainData(Stream(37), batch_size=8, drop_last=True, workers=workers)
    for _ in range(2):
        assert numbers(data.epoch_batches()) == list(range(32))
    data.close()


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize(("workers", "later_workers"), [(0, 0), (2, 2), (0, 2), (2, 0)])
def test_a_stream_with_a_place_goes_on_exactly_where_it_was(kind, workers, later_workers):
    options = {"batch_size": 4, "accumulate": 2, "seed": 3}
    undisturbed = [batch for batch, _ in consumed(TrainData(kind(14), **options), 3)]
    dying = TrainData(kind(14), **options, workers=workers)
    states = consumed(dying, 3)
    dying.close()
    same([batch for batch, _ in states], undisturbed)
    for number in range(0, len(states), 1 if workers == later_workers == 0 else 3):
        state = states[number][1]
        kept = max((n + 1 for n in range(number + 1) if states[n][0].ends_step), default=0)
        resumed = TrainData(kind(14), **options, workers=later_workers)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        rest = [batch for batch, _ in consumed(resumed, 3 - resumed.epoch)]
        resumed.close()
        same(rest, undisturbed[kept:])


@pytest.mark.parametrize("kind", PLACED)
def test_the_next_epoch_is_the_same_after_a_resume_between_epochs(kind):
    undisturbed = TrainData(kind(10), batch_size=4)
    first, second = list(undisturbed.epoch_batches()), list(undisturbed.epoch_batches())
    data = TrainData(kind(10), batch_size=4)
    same(list(data.epoch_batches()), first)
    resumed = TrainData(kind(10), batch_size=4)
    resumed.load_state_dict(data.state_dict())
    assert (resumed.epoch, resumed.samples_done) == (1, 0)
    same(list(resumed.epoch_batches()), second)


@pytest.mark.parametrize("workers", [0, 2])
def test_each_once_over_2_4_1_3_ranks(workers):
    state, seen = None, []
    for lived, world_size in enumerate((2, 4, 1, 3), 1):
        ranks = [
            TrainData(PlacedStream(61), batch_size=6, rank=r, world_size=world_size, accumulate=lived, workers=workers)
            for r in range(world_size)
        ]
        running = []
        for data in ranks:
            if state is not None:
                data.load_state_dict(state)
            running.append(data.epoch_batches())
        done = 0
        while done < lived or world_size == 3:
            batches = [next(batches, None) for batches in running]
            if batches[0] is None:
                break
            seen += numbers(batches)
            done += batches[0].ends_step
        states = [data.state_dict() for data in ranks]
        assert all(other == states[0] for other in states)  # one rank's word is enough
        state = states[-1]
        for data in ranks:
            data.close()
    assert sorted(seen) == [1000 + number for number in range(61)]
    assert state["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_left_in_the_middle_goes_on_with_the_next_step(workers):
    data = TrainData(Stream(20), batch_size=4, accumulate=2, workers=workers)
    for number, _ in enumerate(data.epoch_batches()):
        if number == 4:
            break
    assert numbers(data.epoch_batches()) == list(range(8, 20))
    data.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PLACED)
def test_after_close_a_stream_with_a_place_goes_on(kind, workers):
    data = TrainData(kind(20), batch_size=4, workers=workers)
    batches = data.epoch_batches()
    seen = numbers([next(batches), next(batches)])
    data.close()
    seen += numbers(data.epoch_batches())
    data.close()
    assert seen == [1000 + number for number in range(20)]


@pytest.mark.parametrize("kind", [Stream, UnplacedShards])
def test_a_stream_without_a_place_says_so_at_start_and_begins_again(kind, caplog):
    with caplog.at_level(logging.WARNING, logger="trainer"):
        data = TrainData(kind(20), batch_size=4)
    assert f"{kind.__name__} has no state_dict() and load_state_dict()" in caplog.text
    batches = data.epoch_batches()
    first = [next(batches), next(batches)]
    resumed = TrainData(kind(20), batch_size=4)
    resumed.load_state_dict(data.state_dict())
    caplog.clear()
    again = list(resumed.epoch_batches())
    assert f"epoch 0 starts again: {kind.__name__}" in caplog.text
    assert numbers(again) == list(range(20))
    same(again[:2], first)


def test_a_stream_with_a_place_has_nothing_to_warn_of(caplog):
    TrainData(PlacedStream(20), batch_size=4)
    TrainData(Stream(20), batch_size=4, rank=1, world_size=2)  # the first rank has said it
    assert caplog.text == ""


def test_the_process_own_generators_are_never_touched():
    before = generator_states()
    for _ in TrainData(PlacedStream(20), batch_size=4).epoch_batches():
        assert generator_states() == before


def test_nothing_is_drawn_twice():
    data = TrainData(Stream(40), batch_size=4)
    rows = torch.cat([batch.data for _ in range(2) for batch in data.epoch_batches()])[:, 1:]
    assert all(len(column.unique()) == 80 for column in rows.t())


def test_steps_are_known_where_the_length_is():
    class Sized(Stream):
        def __len__(self):
            return self.length

    assert TrainData(Stream(9), batch_size=4).steps_per_epoch is None
    assert TrainData(Sized(9), batch_size=4).steps_per_epoch == 3
    assert TrainData(Sized(9), batch_size=4, drop_last=True).steps_per_epoch == 2


def test_set_epoch_is_called_with_each_epoch():
    class Epochs(Stream):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield from [torch.tensor([self.epoch])] * self.length

    data = TrainData(Epochs(4), batch_size=2)
    assert [numbers(data.epoch_batches()) for _ in range(3)] == [[0] * 4, [1] * 4, [2] * 4]


def test_anything_that_can_only_be_iterated_is_a_stream():
    class Plain:
        def __iter__(self):
            return iter(range(5))

    assert [batch.data.tolist() for batch in TrainData(Plain(), batch_size=2).epoch_batches()] == [[0, 1], [2, 3], [4]]


def test_an_empty_stream_is_an_error():
    with pytest.raises(TrainerError, match="epoch 0 before it gave a sample"):
        list(TrainData(Stream(0), batch_size=2).epoch_batches())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_stream_comes_through_and_the_place_is_kept(workers):
    class Tearing(PlacedStream):
        def __iter__(self):
            for row in super().__iter__():
                if self.at == 11:
                    raise ConnectionError("torn")
                yield row

    data = TrainData(Tearing(20), batch_size=4, workers=workers)
    with pytest.raises(ConnectionError, match="torn"):
        list(data.epoch_batches())
    assert data.samples_done == 8
    with pytest.raises(ConnectionError, match="torn"):
        list(data.epoch_batches())
    data.close()


# Streams that shard themselves


def world_of_shards(lengths, *, workers=0, states=None, batch_size=6, accumulate=1):
    """Return all ranks in one process, with the sum over ranks computed before each step."""
    ranks = []
    for rank in range(len(lengths)):
        data = TrainData(
            ShardingStream(lengths, rank),
            batch_size=batch_size,
            accumulate=accumulate,
            rank=rank,
            world_size=len(lengths),
            workers=workers,
            sum_over_ranks=lambda samples: samples,
        )
        if states:
            data.load_state_dict(json.loads(json.dumps(states[rank])))
        ranks.append(data)
    return ranks


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_sharding_stream_gives_each_of_its_samples_once_an_epoch(workers):
    data = TrainData(ShardingStream([29], 0), batch_size=4, workers=workers)
    assert data.per_rank
    for _ in range(2):
        assert sorted(numbers(data.epoch_batches())) == list(range(29))
    data.close()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_sharding_stream_goes_on_exactly_with_the_next_workers_turn(workers):
    options = {"batch_size": 4, "accumulate": 2, "workers": workers}
    data = TrainData(ShardingStream([29], 0), **options)
    states = consumed(data, 2)
    data.close()
    for number in range(1, len(states), 4):
        batch, state = states[number]
        assert batch.ends_step
        resumed = TrainData(ShardingStream([29], 0), **options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        rest = [batch for batch, _ in consumed(resumed, 2 - resumed.epoch)]
        resumed.close()
        same(rest, [batch for batch, _ in states[number + 1 :]])


def joined():
    """On a rank, return its number, and a function that sums over all ranks."""
    from trainer.loop.sums import sum_over_ranks
    from trainer.world import join

    world = join(device="cpu", timeout_s=60)
    return world.rank, partial(sum_over_ranks, world)


def unequal_ranks(workers, world_size=2):
    """On a rank, return what it saw of streams of unequal length."""
    rank, total = joined()
    data = TrainData(
        ShardingStream([5, 17], rank),
        batch_size=4,
        rank=rank,
        world_size=world_size,
        workers=workers,
        sum_over_ranks=total,
    )
    seen = []
    for _ in range(2):
        batches = list(data.epoch_batches())
        seen.append((numbers(batches), [(batch.samples, batch.scale, batch.step_samples) for batch in batches]))
    data.close()
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_with_unequal_parts_take_equally_many_steps(workers):
    from ranks import spawn_ranks

    short, long = spawn_ranks(unequal_ranks, 2, workers)
    for (few, few_batches), (many, many_batches) in zip(short, long, strict=True):
        assert sorted(few) == list(range(5))
        assert sorted(many) == [1000 + number for number in range(17)]
        assert len(few_batches) == len(many_batches)
        for one, other in zip(few_batches, many_batches, strict=True):
            assert one[2] == other[2] == one[0] + other[0]
            assert one[1] + other[1] == pytest.approx(2.0)
        assert few_batches[-1][:2] == (0, 0.0)


def rank_with_nothing(data_of):
    """On a rank, return how data ends of which the first rank has no part."""
    rank, total = joined()
    with pytest.raises(TrainerError) as caught:
        list(data_of(rank, batch_size=4, world_size=2, sum_over_ranks=total).epoch_batches())
    return str(caught.value)


def stream_of_rank(rank, **options):
    return TrainData(ShardingStream([0, 17], rank), rank=rank, **options)


def loader_of_rank(rank, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return TrainData(StatefulDataLoader(Stream(17 * rank), 2), rank=rank, **options)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # what torchdata calls
@pytest.mark.parametrize(
    ("data_of", "source"), [(stream_of_rank, "its part of the stream"), (loader_of_rank, "its StatefulDataLoader")]
)
def test_a_rank_that_never_got_a_sample_ends_all_ranks_by_one_word(data_of, source):
    from ranks import spawn_ranks

    one, other = spawn_ranks(rank_with_nothing, 2, data_of)
    assert one == other
    assert one.startswith(f"data: rank 0 got no sample from {source}, while other ranks have some\nhint: ")


def test_a_sharding_stream_goes_on_only_as_it_was_saved():
    data = TrainData(ShardingStream([20], 0), batch_size=4)
    batches = data.epoch_batches()
    next(batches)
    other = TrainData(ShardingStream([20], 0), batch_size=4, workers=2)
    with pytest.raises(BadSettings, match=r"readers_of_rank 1, got .*readers_of_rank 2"):
        other.load_state_dict(data.state_dict())
    list(batches)
    other.load_state_dict(data.state_dict())  # between epochs it may
    assert other.epoch == 1
    assert sorted(numbers(other.epoch_batches())) == list(range(20))
    other.close()


def test_another_number_of_ranks_learns_from_what_all_share_where_the_epoch_is():
    saving = world_of_shards([20, 20], batch_size=10)
    batches = [data.epoch_batches() for data in saving]
    for each in batches:
        next(each)
    place, own = SharedPlace(saving[0]).state_dict(), saving[1].state_dict()
    assert place == SharedPlace(saving[1]).state_dict()
    [alone] = world_of_shards([20])
    with pytest.raises(BadSettings, match=r"middle of epoch 0 .* expected world_size 2, .* got world_size 1, "):
        SharedPlace(alone).load_state_dict(place)
    [_, same_rank] = world_of_shards([20, 20], batch_size=10)
    SharedPlace(same_rank).load_state_dict(place)
    same_rank.load_state_dict(own)
    assert numbers(same_rank.epoch_batches()) == numbers(batches[1])
    list(batches[0])
    SharedPlace(alone).load_state_dict(json.loads(json.dumps(SharedPlace(saving[0]).state_dict())))
    assert alone.epoch == 1
    assert numbers(alone.epoch_batches()) == list(range(20))


def test_a_sharding_stream_without_a_place_begins_the_epoch_again_on_any_number_of_ranks(caplog):
    options = {"batch_size": 4, "world_size": 2, "sum_over_ranks": lambda samples: 2 * samples}
    saving = TrainData(UnplacedShards(8), **options)
    next(saving.epoch_batches())
    alone = TrainData(UnplacedShards(8), batch_size=4)
    SharedPlace(alone).load_state_dict(SharedPlace(saving).state_dict())
    assert numbers(alone.epoch_batches()) == list(range(8))
    assert "epoch 0 starts again" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs sum_over_ranks with 2 ranks"),
        ({"batch_size": 3, "accumulate": 2}, "batch_size: expected 4 or more for a stream that shards itself"),
    ],
)
def test_settings_that_cannot_work_with_a_sharding_stream_are_refused(options, said):
    with pytest.raises(BadSettings, match=said):
        TrainData(ShardingStream([5, 5], 0), **{"batch_size": 4, "rank": 0, "world_size": 2} | options)
