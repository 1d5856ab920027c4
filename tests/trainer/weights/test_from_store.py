"""Weights straight from an object store, by the address of a run."""

from uuid import uuid4

import pytest
import torch
from saved_checkpoints import save_model
from torch import nn

from trainer.checkpoint_files.layout import MANIFEST, data_name
from trainer.checkpoint_files.manifest import decode
from trainer.checkpoint_files.object_store import ObjectStore, save_name
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.weights import load_weights


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))


@pytest.fixture
def url(tmp_path):
    """A run of steps 10 and 20."""
    store = ObjectStore(f"memory://{uuid4().hex}/job-abcd")
    for step in (10, 20):
        made = save_model(tmp_path / "here", step, values=(step, step + 1.0, step + 2.0))
        folder = save_name(decode((made / MANIFEST).read_bytes()))
        for name in (data_name(0), data_name(1), MANIFEST):
            store.put(folder, name, [(made / name).read_bytes()])
    return store.url


def loaded(url, **which):
    model = Model()
    load_weights(model, url, **which)
    return model.weight.tolist()


def test_the_newest_or_that_of_a_step(url):
    assert loaded(url) == [20.0, 21.0, 22.0]
    assert loaded(url, step=10) == [10.0, 11.0, 12.0]
    with pytest.raises(TrainerError, match="expected a checkpoint of step 11, found none"):
        loaded(url, step=11)
    with pytest.raises(TrainerError, match="does not copy the best"):
        loaded(url, best=True)


def test_other_bytes_than_were_written_are_passed_over(url):
    store = ObjectStore(url)
    folder = next(name for name, step in store.folders().items() if step == 20)
    store.put(folder, data_name(1), [b"\0" * 8])
    assert loaded(url) == [10.0, 11.0, 12.0]
    with pytest.raises(CheckpointDamaged):
        loaded(url, step=20)


def test_an_address_that_fsspec_does_not_know(url):
    with pytest.raises(TrainerError, match="fsspec does not support zz://\nhint: expected s3://"):
        loaded("zz://bucket/job-abcd")
