"""What a batch scheduler has to be able to do comes in parts that change together."""

import inspect

import pytest

from launcher.clusters.batch import queue


@pytest.mark.parametrize("part", ["Scheduler", "Submitting", "Following", "Moving", "Waiting", "InTheJob"])
def test_a_part_has_five_verbs_or_fewer(part):
    own = [name for name, one in vars(getattr(queue, part)).items() if inspect.isfunction(one) and name[0] != "_"]
    assert 1 <= len(own) <= 5, own


def test_a_scheduler_is_its_parts():
    assert not [name for name in vars(queue.Queue) if not name.startswith("_")]
