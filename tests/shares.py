"""How much of what could be tried is tried, and which: in CI a share, by the day, or drawn by a seed that failing tests
print.

Read at import: the suite takes LAUNCH_* out of the environment of its tests.
"""

import os
import time
from collections.abc import Sequence
from typing import TypeVar

SHARE = int(os.environ.get("LAUNCH_TEST_SHARE", "1"))
# Both in the environment for the workers of pytest-xdist: they have to agree, also when a day ends.
SEED = int(os.environ.setdefault("LAUNCH_TEST_SEED", str(time.time_ns() % 10**6)))
_DAY = int(os.environ.setdefault("LAUNCH_TEST_DAY", str(int(time.time() // 86_400))))

T = TypeVar("T")


def todays(cases: Sequence[T], of: int = 3) -> list[T]:
    """At the nightly size all; in CI one in so many, others every day. For what is no test by itself: a test has the
    mark `dealt`."""
    return [case for number, case in enumerate(cases) if SHARE > 1 or number % of == _DAY % of]
