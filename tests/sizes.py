"""How much the tests try: the same few cases every day, many more with `pytest --nightly`.

conftest.py sets these values from the command line before test files are imported. Import them as `tests.sizes`, in a
test file and not in a conftest.py.
"""

from collections.abc import Sequence
from typing import TypeVar

NIGHTLY = False
SCALE = 1  # multiplies the numbers of random cases
SEED = 1  # of what is drawn at random: fixed, but for nightly runs

T = TypeVar("T")


def one_in(of: int, cases: Sequence[T]) -> list[T]:
    """Return every `of`-th of `cases`, or all of them in a nightly run."""
    return list(cases if NIGHTLY else cases[::of])
