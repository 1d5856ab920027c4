"""A loader that keeps its own place: killed and begun again, a training from it ends as an undisturbed one."""

import os
import warnings

import pytest
from ranks import Ranks
from tiny_training import KILL, Noisy, Saved, history, run_tiny

from trainer.errors import BadSettings
from trainer.loop import Settings
from trainer.loop.trials import first_batches

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # what torchdata calls
SETTINGS = {"accumulate": 1, "max_epochs": 4}


def loader_of(rank, size):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    data = Noisy()
    return StatefulDataLoader(data, 16 // size, sampler=StatefulDistributedSampler(data, size, rank))


def train_from_a_loader(folder, disturb=()):
    warnings.simplefilter("ignore")
    loader = loader_of(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return run_tiny(folder, SETTINGS, disturb, data=loader, callbacks=[Saved(folder, 8)])


def test_killed_in_the_middle_of_an_epoch_it_goes_on_to_the_same_weights(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = Ranks(train_from_a_loader, 2, tmp_path / "whole").results()
    kill = [{"number": KILL, "rank": 1, "step": 9}]
    for _ in range(2):
        outcomes = Ranks(train_from_a_loader, 2, tmp_path / "killed", kill).outcomes()
    assert [what for _, what in outcomes] == whole
    assert whole[0]["steps"] == 24 and len(whole[0]["fingerprint"]) == 64
    assert history(tmp_path / "killed") == history(tmp_path / "whole")


def test_a_loader_has_no_first_batches_to_learn_by_heart():
    with pytest.raises(BadSettings, match="overfit_batches: expected a data set, got a loader"):
        first_batches(Settings(max_steps=1, overfit_batches=2), loader_of(0, 1))
