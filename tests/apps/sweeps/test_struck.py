"""The small ResNet swept on this machine while its ranks and its conductor are killed."""

import pytest
from struck_sweep import check, struck_until_over, undisturbed

from tests.sizes import SEED

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_killed_at_random_it_loses_no_trial_and_starts_none_twice(lab):
    expected = undisturbed(lab)
    sweep, status, hits = struck_until_over(lab, SEED)
    print(f"seed {SEED}: {hits}")
    check(lab, sweep, status, hits, expected)
