"""How much of what could be tried is tried: in CI a share, more where $LAUNCH_TEST_SHARE says so."""

import os
import time
from collections.abc import Sequence
from typing import TypeVar

SHARE = int(os.environ.get("LAUNCH_TEST_SHARE", "1"))
_DAY = int(time.time() // 86_400)

T = TypeVar("T")


def todays(cases: Sequence[T], of: int = 3) -> list[T]:
    """At the nightly size all; in CI one in so many, others every day."""
    return [case for number, case in enumerate(cases) if SHARE > 1 or number % of == _DAY % of]
