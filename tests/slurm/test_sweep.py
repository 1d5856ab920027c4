"""The small ResNet swept on Slurm while its ranks and its conductor are killed."""

import pytest
from struck_sweep import check, struck_until_over, undisturbed

from tests.sizes import SEED

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_killed_at_random_it_loses_no_trial_and_starts_none_twice(desk):
    expected = undisturbed(desk)
    sweep, status, hits = struck_until_over(desk, SEED, "--on", "slurm")
    print(f"seed {SEED}: {hits}")
    check(desk, sweep, status, hits, expected)
