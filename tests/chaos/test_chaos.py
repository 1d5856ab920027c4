"""A share of the soak: one run of each kind by a schedule that stays, and at the nightly size many that a seed draws.

`python -m tests.chaos` goes on for hours.
"""

import pytest
from shares import SEED, SHARE

from tests.chaos.__main__ import GAPS_S, KINDS, Soak
from tests.chaos.schedule import drawn, written
from tests.lab.fixtures import hosts, lab_possible, shared_hosts, shared_lab

__all__ = ["hosts", "lab_possible", "shared_hosts", "shared_lab"]

STRIKES = 5
SEEDS = (2,) if SHARE == 1 else range(SEED, SEED + 10)


@pytest.mark.timeout(1800)
@pytest.mark.dealt(4)
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
