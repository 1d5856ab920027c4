"""A search is worth its name: TPE finds better points than chance, and ASHA as good ones in a third of the steps."""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from search import beside_no_stop, beside_random

pytestmark = pytest.mark.nightly

SEEDS, TRIALS = range(4), 40


def test_tpe_finds_better_points_than_chance(tmp_path):
    pairs = beside_random(tmp_path, SEEDS, TRIALS)
    tpe, random = zip(*pairs, strict=True)
    assert statistics.median(tpe) > statistics.median(random), pairs


def test_asha_finds_as_good_points_in_a_third_of_the_steps(tmp_path):
    for (best, steps), (best_of_all, all_steps) in beside_no_stop(tmp_path, SEEDS, TRIALS, 4):
        assert steps <= all_steps / 3
        assert best >= 0.99 * best_of_all
