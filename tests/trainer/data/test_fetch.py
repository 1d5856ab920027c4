"""Samples become batches as torch's own loader makes them."""

import numpy as np
import torch
from sample_sets import Numbers
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from trainer.data.fetch import Fetch, Job
from trainer.data.order import Micro


def fetch(dataset, indices, collate=None):
    return Fetch(dataset, collate, seed=1, rank=0)(Job(indices, len(indices), 0, Micro(0, 4, 0, 0, 4)))


def by_torch(dataset, indices):
    return next(iter(DataLoader(dataset, batch_sampler=[indices])))


def same(one, other):
    assert type(one) is type(other)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def test_rows_of_tensors_come_as_one_by_one_and_draw_nothing():
    tensors = TensorDataset(torch.randn(20, 3), torch.arange(20), torch.rand(20) > 0.5)
    same(fetch(tensors, [3, 1, 19, 3]), by_torch(tensors, [3, 1, 19, 3]))
    assert not Fetch(tensors, None, seed=1, rank=0).draws
    assert Fetch(Numbers(3), None, seed=1, rank=0).draws


def test_a_part_of_a_part_of_tensors():
    tensors = TensorDataset(torch.randn(20, 3), torch.arange(20))
    part, _ = random_split(tensors, [12, 8], torch.Generator().manual_seed(3))
    smaller = Subset(part, np.array([4, 0, 7, 2]))
    same(fetch(smaller, [3, 0, 1]), by_torch(smaller, [3, 0, 1]))


def test_a_subclass_of_tensors_is_asked_for_each_sample():
    class Negated(TensorDataset):
        def __getitem__(self, index):
            return tuple(-tensor for tensor in super().__getitem__(index))

    tensors = Negated(torch.arange(5))
    assert fetch(tensors, [1, 3])[0].tolist() == [-1, -3]


def test_a_collate_of_the_users_own_gets_the_samples():
    assert fetch(Numbers(9), [4, 2], collate=list) == [4, 2]
    tensors = TensorDataset(torch.arange(5))
    assert fetch(tensors, [4, 2], collate=len) == 2


def test_a_data_set_that_gives_many_at_once_is_asked_once():
    class Many(Numbers):
        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    assert fetch(Many(9), [4, 2]).tolist() == [40, 20]
