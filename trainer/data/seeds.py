"""Seed Python's, NumPy's and torch's generators by the position of a batch in the training.

The draws then do not depend on the number of workers, nor on earlier draws. Only CPU generators are seeded:
`torch.manual_seed` would touch every GPU too, and is a hundred times slower.
"""

import ctypes
import random
from types import TracebackType
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.random.mtrand import get_bit_generator, set_bit_generator

_MT19937_BYTES = 625 * 4  # 624 words of state and the position in them
_bits = np.random.MT19937()
_numbers = np.random.RandomState(_bits)  # data sets draw from NumPy's global RandomState: a legacy one


def seed_draws(*numbers: int) -> None:
    """Seed the three generators with a seed made of these numbers; call it inside `IsolatedDraws`, or in a worker."""
    number = _digest(numbers)
    random.seed(number)
    _numbers.seed(number >> 32)  # 32 bits: more take NumPy five times as long
    set_bit_generator(_bits)  # and forget a normal deviate that waits
    torch.default_generator.manual_seed(number >> 1)


def seed_of(*numbers: int) -> int:
    """Return a 32-bit seed made of these numbers, for a separate generator."""
    return _digest(numbers) >> 32


def _digest(numbers: tuple[int, ...]) -> int:
    """Return a 64-bit number computed from these numbers."""
    return xxhash.xxh3_64_intdigest(repr(numbers).encode())


class IsolatedDraws:
    """A context in which `seed_draws` may seed the global generators of Python, NumPy and torch (CPU).

    At its end they are as before. As a copy of NumPy's state takes 70 µs, NumPy uses another bit generator inside the
    context instead.
    """

    __slots__ = ("_gauss", "_numpy", "_python", "_seeded", "_torch")

    def __enter__(self) -> None:
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        self._numpy = get_bit_generator()
        self._gauss = _waiting_gauss(self._numpy)
        self._seeded = _bits.state if self._numpy is _bits else None  # inside of another, or in a worker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        random.setstate(self._python)
        torch.default_generator.set_state(self._torch)
        set_bit_generator(self._numpy)
        if self._seeded is not None:
            _bits.state = self._seeded
        if self._gauss is not None:
            state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - NumPy's global RandomState is meant
            np.random.set_state(state | {"has_gauss": 1, "gauss": self._gauss})  # noqa: NPY002 - the same


def _waiting_gauss(bits: Any) -> float | None:
    """Return NumPy's second normal deviate of a pair if it waits to be drawn, else None; this draws it.

    It lies outside the bit generator, so another bit generator would lose it. Asking NumPy for it copies the whole
    state (33 µs); instead one deviate is drawn. If that did not change the generator's state, it was the waiting one;
    otherwise the state is restored.
    """
    if not _raw_state_is_known or not isinstance(bits, np.random.MT19937):
        state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - NumPy's global RandomState is meant
        return state["gauss"] if state["has_gauss"] else None
    address = bits.ctypes.state_address
    before = ctypes.string_at(address, _MT19937_BYTES)
    drawn = float(np.random.standard_normal())  # noqa: NPY002 - the same
    if ctypes.string_at(address, _MT19937_BYTES) == before:
        return drawn
    ctypes.memmove(address, before, _MT19937_BYTES)
    return None


def _knows_raw_state() -> bool:
    """Return whether NumPy keeps the state of its MT19937 in memory as this file expects, and may read and write it.

    That is undocumented, so it is compared with a state read by NumPy's interface. If it differs, the slower interface
    is used.
    """
    state: Any = _bits.state
    expected = np.append(state["state"]["key"], state["state"]["pos"]).astype(np.uint32).tobytes()
    return ctypes.string_at(_bits.ctypes.state_address, _MT19937_BYTES) == expected


_raw_state_is_known = _knows_raw_state()
