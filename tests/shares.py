"""How much of what could be tried is tried, and which.

In CI a share, with a seed of the day: a change fails by itself and not by a draw, and tomorrow other cases are tried.
At the nightly size all, with a seed of the moment, which failing tests print.

Read at import: the suite takes LAUNCH_* out of the environment of its tests.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

SHARE = int(os.environ.get("LAUNCH_TEST_SHARE", "1"))
# Both in the environment for the workers of pytest-xdist: they have to agree, also when a day ends.
_DAY = int(os.environ.setdefault("LAUNCH_TEST_DAY", str(int(time.time() // 86_400))))
SEED = int(os.environ.setdefault("LAUNCH_TEST_SEED", str(time.time_ns() % 10**6 if SHARE > 1 else _DAY)))

T = TypeVar("T")


def todays(cases: Sequence[T], of: int = 3) -> list[T]:
    """At the nightly size all; in CI one in so many, others every day. For what is no test by itself: a test has the
    mark `dealt`."""
    return [case for number, case in enumerate(cases) if SHARE > 1 or number % of == _DAY % of]


def of_other_days(marked: Iterable[tuple[T, int]]) -> set[T]:
    """Of what is given with a 3 two thirds, tomorrow other ones: tests that are marked `dealt(3)`. Those of the whole
    suite are counted on: with a count in each file, all that are alone in theirs would come on the same day."""
    hands = defaultdict(list)
    for one, of in marked:
        hands[of].append(one)
    return {one for of, hand in hands.items() for one in set(hand) - set(todays(hand, of))}
