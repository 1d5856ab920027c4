"""How much the tests try: the same few cases every day, many more with `pytest --nightly`.

conftest.py sets these values from the command line before test files are imported. Import them as `tests.sizes`, in a
test file and not in a conftest.py.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

NIGHTLY = False
SCALE = 1  # multiplies the numbers of random cases
SEED = 1  # of what is drawn at random: fixed, but for nightly runs

T = TypeVar("T")


def one_in(of: int, cases: Sequence[T], nightly: int = 1) -> list[T]:
    """Return every `of`-th of `cases`; in a nightly run one in `nightly`, drawn by the seed, times the scale."""
    if not NIGHTLY:
        return list(cases[::of])
    many = min(len(cases), -(-len(cases) * SCALE // nightly))
    return [cases[at] for at in sorted(random.Random(SEED).sample(range(len(cases)), many))]
