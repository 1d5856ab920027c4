"""Convert floating-point numbers between types, rounding as torch does: to nearest, ties to even."""

import importlib.util
from typing import TYPE_CHECKING

from trainer.errors import BadSettings

if TYPE_CHECKING:
    import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")
_KINDS = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}


def check_convertible(dtype: str) -> None:
    """Raise BadSettings if `dtype` is not float64, float32, float16 or bfloat16, or if numpy is not installed."""
    if dtype not in FLOATS:
        raise BadSettings(f"expected one of {', '.join(FLOATS)} as type, got {dtype}")
    if importlib.util.find_spec("numpy") is None:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadSettings(f"{dtype}: another type needs numpy, which is not installed\n{install_hint('export')}")


def convert(data: bytes, source: str, target: str) -> bytes:
    """Return the numbers in `data`, of type `source`, as bytes of type `target`.

    Raises ValueError for a type that is not float64, float32, float16 or bfloat16.
    """
    if wrong := [one for one in (source, target) if one not in FLOATS]:
        raise ValueError(f"expected one of {', '.join(FLOATS)}, got {wrong[0]}")
    if source == target:
        return data
    import numpy as np  # late: of use to exports alone, and only where they change the type

    with np.errstate(over="ignore", invalid="ignore"):  # too large a number becomes infinite
        if source == "bfloat16":  # the upper half of a single
            numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            numbers = np.frombuffer(data, _KINDS[source]).astype("<f4")
        found = _to_bfloat16(numbers) if target == "bfloat16" else numbers.astype(_KINDS[target])
    return found.tobytes()


def _to_bfloat16(numbers: "np.ndarray") -> "np.ndarray":
    """Return float32 numbers as bfloat16, each as 16 bits in a uint16, rounded to nearest, ties to even."""
    import numpy as np  # late: likewise

    bits = numbers.view("<u4")
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return np.where(np.isnan(numbers), bits >> 16 | 0x40, rounded).astype("<u2")
