"""Loaders that keep their own place: resumed to the same batches, shared out, refused where they cannot go on."""

import copy
import logging

import pytest
import torch
from sample_sets import Augmented
from torch.utils.data import DataLoader, IterableDataset

from trainer.data import SharedPlace, TrainData
from trainer.data.loaders import samples_in
from trainer.errors import BadSettings

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # what torchdata calls


def stateful(length=20, batch_size=3, rank=0, size=1, **words):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    dataset = Augmented(length)
    if size > 1:
        words |= {"sampler": StatefulDistributedSampler(dataset, size, rank, shuffle=True)}
    else:
        words |= {"shuffle": True}
    return StatefulDataLoader(dataset, batch_size, **words)


def data_of(loader, rank=0, size=1, accumulate=1, seed=7):
    """Return the data of a rank whose peers are not there: sums take each peer to have as many samples."""
    sizes = {"batch_size": loader.batch_size * size * accumulate, "accumulate": accumulate, "seed": seed}
    return TrainData(loader, rank=rank, world_size=size, sum_over_ranks=lambda own: own * size, **sizes)


def consumed(data, epochs):
    """Return each batch with the position after it."""
    return [(batch, copy.deepcopy(data.state_dict())) for _ in range(epochs) for batch in data.epoch_batches()]


def values_of(batch):
    """Return the batch's data and all its counts as one tuple, to compare batches."""
    return (batch.data.tolist(), batch.samples, batch.scale, batch.ends_step, batch.step_samples)


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (0, 3), (2, 2)])
@pytest.mark.parametrize("size", [1, 2])
def test_it_goes_on_after_each_step_as_if_nothing_had_been(workers, accumulate, size):
    def fresh():
        return data_of(stateful(rank=size - 1, size=size, num_workers=workers), size - 1, size, accumulate)

    whole = consumed(fresh(), 3)
    if not workers:  # what is drawn in a worker is the loader's matter, which does not restore it
        real = [str(batch.data[:, 1:].tolist()) for batch, _ in whole if batch.samples]
        assert len(set(real)) == len(real)
    columns = slice(None) if not workers else slice(0, 1)
    every = [number for number, (batch, _) in enumerate(whole) if batch.ends_step]
    for number in every if not workers else every[:: len(every) // 3]:
        data = fresh()
        data.load_state_dict(whole[number][1])
        again = [batch for _ in range(3 - whole[number][1]["epoch"]) for batch in data.epoch_batches()]
        expected = [batch for batch, _ in whole[number + 1 :]]
        assert [one.data[:, columns].tolist() for one in again] == [one.data[:, columns].tolist() for one in expected]
        assert [values_of(one)[1:] for one in again] == [values_of(one)[1:] for one in expected]


def test_each_epoch_has_each_sample_once_and_an_order_of_its_own():
    data = data_of(stateful(), accumulate=2)
    epochs = [[int(row[0]) for batch in data.epoch_batches() for row in batch.data] for _ in range(3)]
    assert all(sorted(one) == list(range(20)) for one in epochs)
    assert len({tuple(one) for one in epochs}) == 3 and data.epoch == 3


def test_steps_are_counted_whole_at_the_end_of_an_epoch_too():
    data = data_of(stateful(), accumulate=2)
    steps = [(batch.samples, batch.step_samples, batch.ends_step) for batch in data.epoch_batches()]
    assert steps == [(3, 6, False), (3, 6, True)] * 3 + [(2, 2, True)]
    assert data.steps_per_epoch == 4


def test_a_step_that_was_not_given_out_whole_is_given_again():
    data = data_of(stateful(), accumulate=2)
    batches = data.epoch_batches()
    first, second, third = (next(batches) for _ in range(3))
    place = copy.deepcopy(data.state_dict())
    batches.close()
    assert values_of(next(data.epoch_batches())) == values_of(third)
    other = data_of(stateful(), accumulate=2)
    other.load_state_dict(place)
    assert values_of(next(other.epoch_batches())) == values_of(third) and values_of(first) != values_of(second)


def test_ranks_share_the_samples_out():
    ranks = [data_of(stateful(rank=rank, size=2), rank, 2) for rank in range(2)]
    seen = [[int(row[0]) for batch in data.epoch_batches() for row in batch.data] for data in ranks]
    assert sorted(seen[0] + seen[1]) == list(range(20)) and not set(seen[0]) & set(seen[1])


def test_a_rank_without_a_batch_computes_with_the_others():
    totals = iter([6, 5, 3, 0])  # the other rank has more
    data = TrainData(stateful(5, rank=0, size=2), batch_size=6, world_size=2, sum_over_ranks=lambda _: next(totals))
    assert [(one.samples, one.scale) for one in data.epoch_batches()] == [(3, 1.0), (0, 0.0), (0, 0.0)]


def loaded_at(shared, size, loader):
    data = data_of(loader, 0, size)
    SharedPlace(data).load_state_dict(shared)
    return data


def test_another_number_of_ranks_goes_on_between_epochs_only():
    data = data_of(stateful(rank=0, size=2), 0, 2)
    steps = [copy.deepcopy(SharedPlace(data).state_dict()) for _ in data.epoch_batches()]
    with pytest.raises(BadSettings, match=r"in the middle of epoch 0 a StatefulDataLoader.*: expected 2, got 1"):
        loaded_at(steps[1], 1, stateful())
    for over in (steps[-1], SharedPlace(data).state_dict()):
        now = loaded_at(over, 1, stateful())
        left = list(now.epoch_batches()) if now.epoch == 0 else []
        assert left == [] and now.epoch == 1
        assert sorted(int(row[0]) for batch in now.epoch_batches() for row in batch.data) == list(range(20))


class Remote(IterableDataset):
    """A data set that keeps its position as MosaicML's StreamingDataset (0.13) does."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size, self.next_epoch, self.resumes = rank, size, 0, None

    def __len__(self):
        return 24 // self.size

    def __iter__(self):
        epoch, begin = self.resume(self.next_epoch)
        self.next_epoch = epoch + 1
        order = torch.randperm(24, generator=torch.Generator().manual_seed(epoch)).tolist()
        yield from (torch.tensor([number]) for number in order[begin:][self.rank :: self.size])

    def resume(self, epoch):
        at = self.resumes
        return (epoch, 0) if at is None or at["epoch"] < epoch else (at["epoch"], at["sample_in_epoch"])

    def state_dict(self, num_samples, from_beginning):
        epoch, offset = self.resume(self.next_epoch - 1)
        return {"epoch": epoch, "sample_in_epoch": num_samples + (0 if from_beginning else offset)}

    def load_state_dict(self, state):
        self.resumes = state


class RemoteLoader(DataLoader):
    """A loader that counts as MosaicML's StreamingDataLoader does."""

    yielded = 0

    def __iter__(self):
        self.yielded = 0
        for batch in super().__iter__():
            self.yielded += len(batch)
            yield batch

    def state_dict(self):
        return self.dataset.state_dict(self.yielded * self.dataset.size, False)

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


def remote(rank=0, size=1):
    return data_of(RemoteLoader(Remote(rank, size), batch_size=4 // size), rank, size)


def seen_by(data):
    return [int(row[0]) for batch in data.epoch_batches() for row in batch.data]


def test_a_place_that_counts_samples_of_all_ranks_is_gone_on_from_on_any_number_of_them():
    whole = remote()
    epochs = [seen_by(whole) for _ in range(3)]
    assert len({tuple(one) for one in epochs}) == 3
    data = remote()
    places = [copy.deepcopy(SharedPlace(data).state_dict()) for _ in range(2) for _ in data.epoch_batches()]
    for number, place in enumerate([*places, SharedPlace(data).state_dict()]):
        ranks = [remote(rank, 2) for rank in range(2)]
        for one in ranks:
            SharedPlace(one).load_state_dict(place)
        if number < len(places):
            epoch, done = divmod(number, 6)
            left = [seen_by(one) for one in ranks]
            assert sorted(left[0] + left[1]) == sorted(epochs[epoch][4 * (done + 1) :])
        else:
            epoch = 1
        nexts = [seen_by(one) for one in ranks]
        assert [number for pair in zip(*nexts, strict=True) for number in pair] == epochs[epoch + 1]


def test_its_rank_goes_on_to_the_same_batches():
    data = remote()
    whole = consumed(data, 2)
    for number, (_, place) in enumerate(whole):
        again = remote()
        again.load_state_dict(place)
        expected = [values_of(batch) for batch, _ in whole[number + 1 :]]
        assert [values_of(batch) for _ in range(2 - place["epoch"]) for batch in again.epoch_batches()] == expected


def test_a_loader_that_does_not_say_where_it_was_begins_its_epoch_again_and_that_is_told(caplog):
    class Silent(RemoteLoader):
        def state_dict(self):
            return None

    data = data_of(Silent(Remote(), batch_size=4))
    batches = data.epoch_batches()
    next(batches)
    place = data.state_dict()
    again = data_of(Silent(Remote(), batch_size=4))
    with caplog.at_level(logging.WARNING):
        again.load_state_dict(place)
    assert "epoch 0 starts again: Silent has saved no position" in caplog.text
    assert len(seen_by(again)) == 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"batch_size": 8}, "batch_size: expected 6 with a StatefulDataLoader of 3 samples a batch, 1 ranks"),
        ({"batch_size": 6, "collate": list}, "collate: expected none beside a loader"),
    ],
)
def test_what_the_loader_decides_is_not_decided_twice(words, said):
    with pytest.raises(BadSettings, match=said):
        TrainData(stateful(), accumulate=2, **words)


def test_ranks_that_would_all_train_on_all_samples_are_refused():
    with pytest.raises(BadSettings, match="gives each its own samples, got one with RandomSampler"):
        data_of(stateful(), 0, 2)


def test_a_stream_that_cannot_say_by_itself_where_it_is_wants_its_loader():
    with pytest.raises(
        BadSettings, match=r"Remote wants num_samples, from_beginning(.|\n)*hint: data=StreamingDataLoader"
    ):
        TrainData(Remote(), batch_size=4)


@pytest.mark.parametrize(
    "batch",
    [torch.ones(3, 2), {"x": torch.ones(3)}, (torch.ones(3, 1), ["a"]), [{"x": [torch.ones(3)]}], [*"abc"]],
)
def test_samples_are_counted_by_what_is_in_a_batch(batch):
    assert samples_in(batch) == 3


def test_a_batch_without_anything_to_count_is_told_of():
    with pytest.raises(BadSettings, match="expected a batch with tensors in it, got object"):
        samples_in(object())
