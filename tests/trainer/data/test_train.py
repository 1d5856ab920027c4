"""Map-style data: each sample once per epoch over kills and changes of the world; the same randomness for all."""

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_sets import Augmented, Broken, Numbers, Pids, children, generator_states
from torch.utils.data import TensorDataset

from tests.sizes import SCALE, SEED
from tests.waits import until
from trainer.data import TrainData
from trainer.data.order import epoch_order
from trainer.errors import BadSettings, TrainerError


def team(dataset, world_size, *, state=None, **options):
    """Return one TrainData per rank of a world."""
    ranks = [TrainData(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for data in ranks:
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))  # plain words: no pickle needed, and none used
    return ranks


def steps(ranks):
    """The optimizer steps of the rest of an epoch: for each, the batches by micro-batch and rank."""
    step = []
    for batches in zip(*(data.epoch_batches() for data in ranks), strict=True):
        step.append(batches)
        assert len({(batch.ends_step, batch.step_samples) for batch in batches}) == 1
        if batches[0].ends_step:
            yield step
            step = []
    assert not step


def indices(step):
    return [index for batches in step for batch in batches for index in batch.indices]


@st.composite
def lives(draw):
    """Draw the lives of a run: for each a world, `accumulate`, its length and when it saved."""
    count = draw(st.integers(1, 8))
    return [
        (draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 9)), draw(st.integers(0, 9)))
        for _ in range(count)
    ]


@settings(max_examples=60 * SCALE)
@given(
    lives=lives(),
    length=st.integers(1, 50),
    batch_size=st.integers(1, 17),
    drop_last=st.booleans(),
    seed=st.integers(0, 5),
)
def test_each_sample_once_per_epoch_over_kills_and_worlds(lives, length, batch_size, drop_last, seed):
    if drop_last and batch_size > length:
        batch_size = length
    dataset, state, trained = Numbers(length), None, []
    for world_size, accumulate, lived, saved in [*lives, (1, 1, 200, 200)]:
        options = {"batch_size": batch_size, "accumulate": accumulate, "seed": seed, "drop_last": drop_last}
        ranks = team(dataset, world_size, state=state, **options)
        since, kept = [], 0
        while len(since) < lived and len(trained) + len(since) < 40:
            for step in steps(ranks):
                since.append(sorted(indices(step)))
                if len(since) <= saved:
                    state, kept = ranks[-1].state_dict(), len(since)
                if len(since) == lived or len(trained) + len(since) == 40:
                    break
        trained += since[:kept]  # what came after the last save is lost with the kill
    per_epoch = -(-length // batch_size) if not drop_last else length // batch_size
    for number, seen in enumerate(trained):
        epoch, step = divmod(number, per_epoch)
        expected = epoch_order(length, seed, epoch, shuffle=True)[step * batch_size : (step + 1) * batch_size]
        assert seen == sorted(expected.tolist())
    assert len(trained) == 40


def test_each_once_over_2_4_1_3_ranks_in_the_middle_of_epochs():
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    dataset, batch_size, state, seen = Numbers(101), 12, None, {}
    for world_size in (2, 4, 1, 3) * 3:
        ranks = team(dataset, world_size, state=state, batch_size=batch_size, accumulate=chance.choice([1, 2, 5]))
        left = chance.randrange(1, 14)  # steps that it lives
        while left:
            for step in steps(ranks):
                seen.setdefault(ranks[0].epoch, []).extend(indices(step))
                assert step[0][0].step_samples == len(indices(step))
                state = ranks[0].state_dict()
                left -= 1
                if not left:
                    break
    assert len(seen) > 2
    for epoch, found in seen.items():
        assert len(found) == len(set(found))
        if epoch < max(seen):
            assert sorted(found) == list(range(101))


@given(
    world_size=st.integers(1, 5), accumulate=st.integers(1, 5), length=st.integers(1, 40), batch_size=st.integers(1, 20)
)
def test_scales_make_the_mean_over_ranks_the_mean_over_samples(world_size, accumulate, length, batch_size):
    ranks = team(Numbers(length), world_size, batch_size=batch_size, accumulate=accumulate)
    for step in steps(ranks):
        weights = {}
        for batches in step:
            for batch in batches:
                assert batch.samples == len(batch.indices)
                assert (batch.scale == 0.0) == (batch.samples == 0)
                assert len(batch.data) == max(1, batch.samples)
                for index in batch.indices:
                    weights[index] = batch.scale / batch.samples / world_size
        assert all(weight == pytest.approx(1 / step[0][0].step_samples) for weight in weights.values())
        assert len(weights) == step[0][0].step_samples


def test_a_filler_is_a_sample_of_its_step():
    ranks = team(Numbers(5), 4, batch_size=2, shuffle=False)
    first = next(iter(steps(ranks)))[0]
    assert [(batch.samples, batch.data.tolist()) for batch in first] == [(1, [0]), (1, [1]), (0, [0]), (0, [0])]


def test_the_position_moves_with_whole_steps_only():
    data = TrainData(Numbers(10), batch_size=4, accumulate=2)
    batches = data.epoch_batches()
    next(batches)
    assert (data.epoch, data.samples_done) == (0, 0)
    next(batches)
    assert (data.epoch, data.samples_done) == (0, 4)
    next(batches)
    assert data.state_dict()["samples_done"] == 4
    assert len(list(batches)) == 2
    assert (data.epoch, data.samples_done) == (1, 0)


def test_an_epoch_left_in_the_middle_of_a_step_begins_again_with_that_step():
    data = TrainData(Numbers(12), batch_size=4, accumulate=2, shuffle=False)
    for number, _ in enumerate(data.epoch_batches()):
        if number == 2:
            break
    assert [batch.indices for batch in data.epoch_batches()] == [(4, 5), (6, 7), (8, 9), (10, 11)]


def test_the_end_of_an_epoch_can_be_come_back_to():
    """A state saved after the last step, before anything that follows the epoch: that is still to be done."""
    data = TrainData(Numbers(8), batch_size=4)
    batches = data.epoch_batches()
    next(batches), next(batches)
    state = data.state_dict()
    again = TrainData(Numbers(8), batch_size=4)
    again.load_state_dict(state)
    assert (again.epoch, list(again.epoch_batches()), again.epoch) == (0, [], 1)


def everything(data, epochs=2):
    return [batch.data for _ in range(epochs) for batch in data.epoch_batches()]


def test_augmentation_is_the_same_for_any_number_of_workers():
    drawn = []
    for workers, prefetch in ((0, 2), (2, 1), (3, 4)):
        data = TrainData(
            Augmented(37), batch_size=8, rank=1, world_size=2, accumulate=2, workers=workers, prefetch=prefetch
        )
        drawn.append(everything(data))
        data.close()
    for other in drawn[1:]:
        assert len(other) == len(drawn[0])
        assert all(torch.equal(a, b) for a, b in zip(drawn[0], other, strict=True))
    values = torch.cat(drawn[0])[:, 1:]
    assert all(len(column.unique()) == len(values) for column in values.t())  # and never the same twice


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("instant", [1, 2, 3, 7, 11])
def test_augmentation_is_the_same_after_a_resume(workers, instant):
    options = {"batch_size": 8, "accumulate": 2, "workers": workers, "seed": 3}
    whole = everything(TrainData(Augmented(37), **options | {"workers": 0}))
    dying = TrainData(Augmented(37), **options)
    given_out, kept, state = 0, 0, dying.state_dict()
    while given_out < instant:
        for batch in dying.epoch_batches():
            given_out += 1
            if batch.ends_step:
                kept, state = given_out, dying.state_dict()
            if given_out == instant:
                break
    dying.close()
    resumed = TrainData(Augmented(37), **options)
    resumed.load_state_dict(state)
    rest = everything(resumed, epochs=2 - resumed.epoch)
    resumed.close()
    assert len(rest) == len(whole) - kept
    assert all(torch.equal(a, b) for a, b in zip(rest, whole[kept:], strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_process_own_generators_are_never_touched(workers):
    random.seed(1)
    before = generator_states()
    data = TrainData(Augmented(20), batch_size=4, workers=workers)
    for _ in data.epoch_batches():
        assert generator_states() == before
    data.load_state_dict(data.state_dict())
    data.close()
    assert generator_states() == before


def test_rows_of_tensors_come_in_the_same_order_as_samples():
    tensors = TensorDataset(torch.arange(50))
    quick = TrainData(tensors, batch_size=8, seed=4)
    slow = TrainData(Numbers(50), batch_size=8, seed=4)
    for one, other in zip(quick.epoch_batches(), slow.epoch_batches(), strict=True):
        assert one.indices == other.indices
        assert torch.equal(one.data[0], other.data)


def test_workers_are_kept_over_epochs_and_ended_by_close():
    data = TrainData(Pids(16), batch_size=4, workers=2)
    first, second = ({int(pid) for batch in data.epoch_batches() for pid in batch.data} for _ in range(2))
    assert first == second and len(first) == 2
    assert first <= set(children())
    data.close()
    assert not first & set(children())
    third = {int(pid) for batch in data.epoch_batches() for pid in batch.data}
    assert len(third) == 2 and not third & first
    data.close()


def test_workers_end_with_the_data():
    data = TrainData(Pids(16), batch_size=4, workers=2)
    pids = {int(pid) for batch in data.epoch_batches() for pid in batch.data}
    del data
    until("the workers are gone", lambda: not pids & set(children()))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_of_the_data_set_the_place_is_that_of_the_last_whole_step(workers):
    data = TrainData(Broken(20, 9, OSError("disk")), batch_size=4, shuffle=False, workers=workers)
    seen = []
    with pytest.raises(OSError, match="disk"):
        seen += [batch.indices for batch in data.epoch_batches()]
    assert data.samples_done == 8
    with pytest.raises(OSError, match="disk"):
        list(data.epoch_batches())
    data.close()


def test_batches_of_an_older_place_are_refused():
    data = TrainData(Numbers(20), batch_size=4)
    old = data.epoch_batches()
    next(old)
    new = data.epoch_batches()
    next(new)
    with pytest.raises(TrainerError, match="position has changed"):
        next(old)
    data.load_state_dict({**data.state_dict(), "samples_done": 16})
    with pytest.raises(TrainerError, match="position has changed"):
        next(new)
    assert data.samples_done == 16
    assert len(list(data.epoch_batches())) == 1


def test_the_number_of_steps_is_known():
    assert TrainData(Numbers(10), batch_size=4).steps_per_epoch == 3
    assert TrainData(Numbers(10), batch_size=4, drop_last=True).steps_per_epoch == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "with seed 1, got 2"),
        ({"shuffle": False}, "with shuffle True, got False"),
        ({"dataset": Numbers(21)}, "with length 20, got 21"),
    ],
)
def test_what_would_change_the_rest_of_an_epoch_is_refused(change, said):
    options = {"dataset": Numbers(20), "batch_size": 4, "seed": 1}
    data = TrainData(**options)
    batches = data.epoch_batches()
    next(batches)
    with pytest.raises(BadSettings, match=said):
        TrainData(**options | change).load_state_dict(data.state_dict())
    for _ in range(4):
        next(batches)
    ended = data.state_dict()  # before the next batch is asked for
    assert next(batches, None) is None
    for state in (ended, data.state_dict()):  # between epochs it may change
        other = TrainData(**options | change)
        other.load_state_dict(state)
        if other.epoch == 0:
            assert list(other.epoch_batches()) == []
        assert other.epoch == 1
        assert len(list(other.epoch_batches())) == other.steps_per_epoch


def test_what_was_dropped_of_an_epoch_does_not_come_back_after_its_end():
    data = TrainData(Numbers(10), batch_size=4, drop_last=True)
    batches = data.epoch_batches()
    for step in range(2):
        next(batches)
        keeping = TrainData(Numbers(10), batch_size=4)
        keeping.load_state_dict(data.state_dict())
        assert len(list(keeping.epoch_batches())) == 2 * (1 - step)


def test_the_place_of_another_kind_of_data_set_is_refused():
    with pytest.raises(BadSettings, match="is of other data: it has no length, seed, shuffle"):
        TrainData(Numbers(20), batch_size=4).load_state_dict({"epoch": 0, "samples_done": 4, "stream": None})


def test_another_batch_size_goes_on_with_the_rest():
    data = TrainData(Numbers(20), batch_size=6)
    batches = data.epoch_batches()
    seen = [*next(batches).indices]
    other = TrainData(Numbers(20), batch_size=5)
    other.load_state_dict(data.state_dict())
    seen += [index for batch in other.epoch_batches() for index in batch.indices]
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": Numbers(0)}, "expected a data set of 1 samples or more, got 0"),
        ({"drop_last": True, "batch_size": 30}, "expected a data set of 30 samples or more, got 20"),
        ({"workers": -1}, "expected 0 or more workers"),
        ({"prefetch": 0}, "prefetch of 1 or more"),
        ({"batch_size": 0}, "batch_size: expected 1 or more"),
        ({"rank": 1}, "rank: expected one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, said):
    with pytest.raises(BadSettings, match=said):
        TrainData(**{"dataset": Numbers(20), "batch_size": 4} | options)


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_pinned_only_where_a_gpu_is(workers):
    data = TrainData(TensorDataset(torch.arange(20)), batch_size=4, pin_memory=True, workers=workers)
    pinned = {batch.data[0].is_pinned() for batch in data.epoch_batches()}
    data.close()
    assert pinned == {torch.cuda.is_available()}
