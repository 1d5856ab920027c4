"""Which checkpoint is meant."""

import pytest
from checkpoint_lab import set_stage

from trainer.checkpoint_files.choice import candidates, first_whole
from trainer.errors import TrainerError


def steps_of(folder):
    return [(entry.kind, entry.step) for entry in candidates(folder)]


def test_the_newest_comes_first_and_the_best_where_it_is_asked_for(tmp_path):
    folder = set_stage(tmp_path / "checkpoints", 4, 8, 12, best=8).template
    assert steps_of(folder) == [("step", 12), ("step", 8), ("step", 4)]
    assert steps_of(folder / "best") == [("best", 8)]
    assert steps_of(folder / "best-00000008") == [("best", 8)]


def test_a_folder_that_is_called_so_is_that_folder(tmp_path):
    folder = set_stage(tmp_path / "best", 4).template
    assert steps_of(folder) == [("step", 4)]


def test_where_no_best_one_was_kept_no_other_is_taken(tmp_path):
    folder = set_stage(tmp_path / "checkpoints", 4).template
    with pytest.raises(TrainerError, match="checkpoints: expected the best checkpoint, found none"):
        first_whole(folder / "best", lambda entry: entry, print)
