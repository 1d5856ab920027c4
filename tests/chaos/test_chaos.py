"""A share of the soak: one run of each kind by a schedule that stays, and at the nightly size many that a seed draws.

`python -m tests.chaos` goes on for hours.
"""

import pytest

from tests.chaos.__main__ import GAPS_S, KINDS, Soak
from tests.chaos.schedule import drawn, written
from tests.lab.fixtures import hosts, lab_possible, shared_hosts, shared_lab
from tests.sizes import NIGHTLY, SCALE, SEED

__all__ = ["hosts", "lab_possible", "shared_hosts", "shared_lab"]

STRIKES = 5
SEEDS = range(SEED, SEED + SCALE) if NIGHTLY else (2,)


@pytest.mark.timeout(1800)
@pytest.mark.nightly
@pytest.mark.parametrize("turn", range(len(SEEDS)))
@pytest.mark.parametrize("kind", ["local", "ssh", "slurm", "hot"])
def test_nothing_wrong_ever(kind, turn, request):
    seed = SEEDS[turn]
    schedule = drawn(seed, KINDS[kind].kinds, STRIKES, GAPS_S[kind])
    print("seed", seed, written(schedule))
    place = {"ssh": "shared_hosts", "slurm": "shared_lab"}.get(kind)
    outcome = Soak(kind, place and request.getfixturevalue(place)).outcome(schedule)
    print(outcome)
    assert outcome.wrong == []
    ended_for_a_record = outcome.ended_early and outcome.harmed
    assert ended_for_a_record or sum(outcome.fired.values()) >= STRIKES - 1
