"""Kinds of values for durations, such as 90s, 10m or 02:00:00; the unit must be written. A kind reads one form of value
from a node of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re
from typing import Any

from launcher.spec.kinds.leaf import Leaf, Unfit
from launcher.spec.tree import Scalar

_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST_S = 3650 * 86_400.0
_N = "[0-9]{1,9}"
_PARTS = rf"(?=[0-9])(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?"
_FRACTION = rf"{_N}\.{_N}(?:d|h|m|s)|{_N}ms"
_CLOCK = r"[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]"
DURATION = f"(?:{_PARTS}|{_FRACTION}|{_CLOCK})"
_LONG_UNITS = {"sec": "s", "min": "m", "hour": "h", "hr": "h", "day": "d", "second": "s", "minute": "m"}


def seconds(text: str) -> float | None:
    """Return the seconds of `1h30m`, `1.5h`, `500ms` or `01:30:00`, or None for any other text."""
    if not re.fullmatch(DURATION, text):
        return None
    if ":" in text:
        hours, minutes, rest = (int(part) for part in text.split(":"))
        return float(hours * 3600 + minutes * 60 + rest)
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"([0-9.]+)(ms|[dhms])", text))


def show_seconds(value: float) -> str:
    """Return a duration in seconds as text in the largest unit that divides it: 900.0 is 15m."""
    for unit in ("d", "h", "m", "s"):
        if value and value % _UNITS_S[unit] == 0:
            return f"{value / _UNITS_S[unit]:.0f}{unit}"
    return f"{value * 1000:.0f}ms" if value else "0s"


class Duration(Leaf, frozen=True):
    """A duration such as 90s, read as seconds; with `zero`, it may be 0s."""

    zero: bool = True  # whether 0s is allowed

    WORDS = "a duration such as 90s, 10m, 2h, 1d12h or 02:00:00"
    PATTERN = DURATION

    def convert(self, scalar: Scalar) -> float:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        return duration(scalar.text, zero=self.zero)

    def show(self, value: float) -> str:
        """Return the value as it would be written in a spec, for JSON."""
        return show_seconds(value)


def duration(text: str, *, zero: bool = True) -> float:
    """Return the seconds of a duration.

    Raise Unfit, with a hint, if the text is none, stands for more than ten years, or is zero without `zero`.
    """
    value = seconds(text)
    if value is None:
        raise Unfit(_cure(text))
    if value > _LONGEST_S:
        raise Unfit(reason=f"expected at most {show_seconds(_LONGEST_S)}, got {text}")
    if not value and not zero:
        raise Unfit(reason=f"expected more than no time, got {text}")
    return value


def _cure(text: str) -> str:
    """Return a hint with the unit that a duration lacks or should have, or "" if none is likely."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return f"write the unit: {text}s, {text}m or {text}h"
    if re.fullmatch(r"[0-9]{1,2}:[0-5][0-9]", text):
        first, second = text.split(":")
        return f"write {int(first)}m{second}s or {int(first)}h{second}m"
    spelled = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)", text)
    if spelled:
        word = spelled[2].lower()
        unit = word if word in _UNITS_S else _LONG_UNITS.get(word.removesuffix("s"))
        return f"write {spelled[1]}{unit}" if unit else "the units are d, h, m, s and ms"
    return ""


class DurationRange(Leaf, frozen=True):
    """A range of durations such as `1s..60s`, or one duration for both ends; it is read as (shortest, longest) in
    seconds.
    """

    WORDS = "two durations such as 1s..60s, or one"
    PATTERN = rf"{DURATION}(?:\.\.{DURATION})?"

    def convert(self, scalar: Scalar) -> tuple[float, float]:
        """Return (the shorter, the longer duration in seconds); raise Unfit if the text is no range."""
        first, dots, last = scalar.text.partition("..")
        low = duration(first)
        high = duration(last) if dots else low
        if low > high:
            raise Unfit(f"write {last}..{first}")
        return low, high

    def show(self, value: tuple[float, float]) -> str:
        """Return the range (least, most), in seconds, as it would be written in a spec, such as `1s..60s`."""
        return f"{show_seconds(value[0])}..{show_seconds(value[1])}"


_AUTO_HANG_S = 900.0  # of what time may mend, as a long validation
_STEPS = r"[1-9][0-9]{0,11} steps?"


class HangAfter(Leaf, frozen=True):
    """The time without progress after which ranks count as hung: a duration, `off`, or `auto`, a default time that is
    cut short if the ranks' states show that waiting is of no use. It is read as (seconds or None, whether it is auto).
    """

    WORDS = "auto, off or a duration, such as 10m"
    PATTERN = f"(?:auto|off|{DURATION})"

    def convert(self, scalar: Scalar) -> tuple[float | None, bool]:
        """Return (seconds or None for no limit, whether it is `auto`: the ranks' states may show a hang earlier).

        Raise Unfit for any other text.
        """
        match scalar.text:
            case "auto":
                return _AUTO_HANG_S, True
            case "off":
                return None, False
        try:
            return duration(scalar.text, zero=False), False
        except Unfit:
            if scalar.text.lower() in ("none", "never", "unlimited", "no", "false", "disabled"):
                raise Unfit("write off") from None
            raise

    def show(self, value: Any) -> Any:
        """Return the value as it would be written in a spec, for JSON."""
        limit_s, auto = value
        return "auto" if auto else "off" if limit_s is None else show_seconds(limit_s)


class Every(Leaf, frozen=True):
    """An interval in steps or as a duration, read as (steps, seconds), of which one is None."""

    WORDS = "steps or a duration, such as 500 steps or 10m"
    PATTERN = f"(?:{_STEPS}|{DURATION})"

    def convert(self, scalar: Scalar) -> tuple[int | None, float | None]:
        """Return (steps, None) or (None, seconds); raise Unfit if the text is neither."""
        text = scalar.text
        if re.fullmatch(_STEPS, text):
            return int(text.split()[0]), None
        bare = re.fullmatch(r"([1-9][0-9]{0,11})\s*_?(?:steps?)?", text)
        if bare:
            either = f"write {bare[1]} steps"
            raise Unfit(f"{either} or {bare[1]}s" if bare[1] == text else either)
        return None, duration(text, zero=False)
