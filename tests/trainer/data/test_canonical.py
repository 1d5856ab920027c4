"""Streams in canonical shards: the same steps on any number of ranks, also from the middle of an epoch on."""

import json

import pytest
from sample_sets import InShards

from trainer.data import EvalData, TrainData
from trainer.errors import BadSettings, TrainerError

LENGTHS, BATCH = [13, 4, 9, 12, 0, 7], 8


def opened(world_size, steps, state=None, *, lengths=LENGTHS, **options):
    """The data of each rank, which learns from the steps of one that is alone how many samples all ranks have."""
    ranks = []
    for rank in range(world_size):
        totals = iter([total for _, total in steps])
        data = TrainData(
            InShards(lengths), batch_size=BATCH, seed=5, rank=rank, world_size=world_size,
            sum_over_ranks=lambda _, totals=totals: next(totals, 0), **options,
        )  # fmt: skip
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        ranks.append(data)
    return ranks


def taken(running, count=None):
    """So many steps of all ranks: of each its samples with what was drawn for them, and their number."""
    steps = []
    while count is None or len(steps) < count:
        rows, scale, total = [], 0.0, 0
        for batches in running:
            for batch in batches:
                rows += [tuple(row.tolist()) for row in batch.data[: batch.samples]]
                scale, total = scale + batch.scale, batch.step_samples
                if batch.ends_step:
                    break
            else:
                assert all(next(others, None) is None for others in running), "all end together"
                return steps
        assert len(rows) == total
        assert scale == pytest.approx(len(running)), "the mean is one over all samples"
        steps.append((sorted(rows), total))
    return steps


def alone(epochs=1, **options):
    """The steps of each epoch, read by one process."""
    [data] = opened(1, [], **options)
    return [taken([data.epoch_batches()]) for _ in range(epochs)]


def test_each_sample_once_an_epoch_in_another_order_each_time():
    first, second = alone(2)
    for steps in (first, second):
        assert sorted(row[0] for rows, _ in steps for row in rows) == InShards(LENGTHS).numbers()
    assert [rows for rows, _ in first] != [rows for rows, _ in second]
    assert alone(2) == [first, second]


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("worlds", [(2, 1), (1, 4), (3, 2, 6), (5, 3)])
def test_from_the_middle_of_an_epoch_on_any_number_of_ranks_goes_on(worlds, accumulate, workers):
    [expected] = alone()
    found, state = [], None
    for number, world_size in enumerate(worlds):
        ranks = opened(world_size, expected[len(found) :], state, accumulate=accumulate, workers=workers)
        running = [data.epoch_batches() for data in ranks]
        found += taken(running, None if number == len(worlds) - 1 else 2)
        states = [data.state_dict() for data in ranks]
        assert all(other == states[0] for other in states), "one rank's word is enough"
        state = states[0]
        for data in ranks:
            data.close()
    assert found == expected
    assert (state["epoch"], state["samples_done"]) == (1, 0)


def test_a_rank_whose_shards_are_at_their_ends_goes_on_beside_others():
    lengths = [20, 1]
    [expected] = alone(lengths=lengths)
    [before] = opened(1, [], lengths=lengths)
    found = taken([before.epoch_batches()], 2)
    ranks = opened(2, expected[2:], before.state_dict(), lengths=lengths)
    found += taken([data.epoch_batches() for data in ranks])
    assert found == expected


def test_saved_before_the_end_was_known_to_be_one():
    [data] = opened(1, [])
    first, second = alone(2)
    batches = data.epoch_batches()
    assert taken([batches], len(first)) == first
    [later] = opened(1, [], data.state_dict())
    assert taken([later.epoch_batches()]) == []
    assert taken([later.epoch_batches()]) == second


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_with_an_empty_slot_can_be_dropped(world_size):
    lengths = [13, 10, 9, 12, 8, 7]
    [expected] = alone(lengths=lengths)
    whole = [step for step in expected if step[1] == BATCH]
    assert whole and expected[: len(whole)] == whole and len(whole) < len(expected)
    ranks = opened(world_size, expected, lengths=lengths, drop_last=True)
    assert taken([data.epoch_batches() for data in ranks]) == whole


def test_another_number_of_shards_waits_for_the_next_epoch():
    [data] = opened(1, [])
    batches = data.epoch_batches()
    next(batches)
    [other] = opened(1, [], lengths=LENGTHS[1:])
    with pytest.raises(BadSettings, match=r"middle of epoch 0 .* expected 6, got 5\nhint: "):
        other.load_state_dict(data.state_dict())
    list(batches)
    other.load_state_dict(data.state_dict())
    assert other.epoch == 1 and taken([other.epoch_batches()])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"world_size": 8}, "shards: expected at least as many as ranks, 8, got 6"),
        ({"batch_size": 5}, "batch_size: expected at least as much as the stream has shards, 6, got 5"),
        ({"world_size": 2}, "needs sum_over_ranks with 2 ranks"),
    ],
)
def test_what_cannot_work_is_refused(options, said):
    with pytest.raises(BadSettings, match=said):
        TrainData(InShards(LENGTHS), **{"batch_size": BATCH} | options)


def test_shards_without_a_sample_are_an_error():
    with pytest.raises(TrainerError, match="epoch 0 before it gave a sample"):
        alone(lengths=[0, 0])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_validation_reads_each_sample_once_in_batches_of_any_size(world_size):
    seen = []
    for rank in range(world_size):
        data = EvalData(InShards(LENGTHS), batch_size=world_size, rank=rank, world_size=world_size)
        seen += [int(row[0]) for batch in data.batches() for row in batch.data]
    assert sorted(seen) == InShards(LENGTHS).numbers()
