"""Kinds of values for `queue`: a moment or another run for which a run waits, and its priority. A kind reads one form
of value from a node of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re
import time

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.model import Predecessor
from launcher.spec.tree import Scalar

_DATE, _CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?"
_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")
_RUN = r"[a-z0-9][a-z0-9_-]{0,127}"
_STEP = r"[1-9][0-9]{0,11}"
_DAY_S = 86_400.0
_FAR = 99


AFTER_HOURS = "after-hours"
_SATURDAY, _WORK = 5, (8, 18)  # hours


class WrittenMoment(Leaf, frozen=True):
    """A time of the day or a date by this machine's clock, or `after-hours`, outside working hours. It is kept as
    text, because the moment it stands for depends on when the job is submitted.
    """

    WORDS = f"a moment such as 22:00 or 2027-01-31 22:00, or {AFTER_HOURS}"
    PATTERN = f"(?:{_DATE}(?:[ T]{_CLOCK})?|{_CLOCK}|{AFTER_HOURS})"

    def convert(self, scalar: Scalar) -> str:
        """Return the text unchanged; raise Unfit if it has another form, or there is no such day."""
        if not re.fullmatch(self.PATTERN, scalar.text):
            bare = re.fullmatch(r"([0-9]):([0-5][0-9])", scalar.text)
            raise Unfit(f"write 0{scalar.text}" if bare else "")
        try:
            moment(scalar.text, 0.0)
        except ValueError:
            raise Unfit("there is no such day") from None
        return scalar.text


def moment(text: str, now: float) -> float | None:
    """Return the Unix time of a moment written as `2027-01-31 22:00`, `2027-01-31`, `22:00` or `after-hours`, in this
    machine's time zone; raise ValueError if there is no such day.

    A date alone is its midnight, and `22:00` is the next such time after `now` (Unix time). `after-hours` is 18:00 if
    `now` is a working hour (weekdays, 8 to 18); else the result is None, for at once.
    """
    if text == AFTER_HOURS:
        return _end_of_work(time.localtime(now))
    written = text.replace("T", " ")
    if re.fullmatch(_CLOCK, written):
        today = time.strftime("%Y-%m-%d", time.localtime(now))
        at = _time_of_date(f"{today} {written}")
        if at > now:
            return at
        tomorrow = time.strftime("%Y-%m-%d", time.localtime(_time_of_date(f"{today} 12:00") + _DAY_S))
        return _time_of_date(f"{tomorrow} {written}")
    return _time_of_date(written)


def _end_of_work(now: time.struct_time) -> float | None:
    """Return the Unix time of 18:00 today, or None if `now` is not within working hours: Monday to Friday, 8:00 to
    18:00.
    """
    working = now.tm_wday < _SATURDAY and _WORK[0] <= now.tm_hour < _WORK[1]
    return _time_of_date(time.strftime(f"%Y-%m-%d {_WORK[1]}:00", now)) if working else None


def _time_of_date(text: str) -> float:
    """Return the Unix time of a date, such as `2027-01-31` or `2027-01-31 22:00`, in this machine's time zone; a date
    alone is its midnight. Raise ValueError if there is no such day.
    """
    for form in _FORMATS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise ValueError(text)


class PredecessorName(Leaf, frozen=True):
    """The run for which another waits, and until when: `prep-7k3f` for its success, `prep-7k3f:ended`, or
    `prep-7k3f:step 100`.
    """

    WORDS = "a run, alone or with :succeeded, :ended or :step N"
    PATTERN = rf"{_RUN}(?::(?:succeeded|ended|step {_STEP}))?"

    def convert(self, scalar: Scalar) -> Predecessor:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        text = scalar.text
        if not re.fullmatch(self.PATTERN, text):
            near = re.fullmatch(rf"({_RUN}):(?:step[:=_-]?)?({_STEP})", text)
            raise Unfit(f"write {near[1]}:step {near[2]}" if near else "")
        run, _, wish = text.partition(":")
        until, _, step = wish.partition(" ")
        return Predecessor(run, until or "succeeded", int(step or 0))


class Priority(Leaf, frozen=True):
    """The priority of a run: a small integer, which may be negative; higher numbers start first."""

    WORDS = f"an integer from -{_FAR} to {_FAR}"

    def convert(self, scalar: Scalar) -> int:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if not re.fullmatch("0|-?[1-9][0-9]?", scalar.text):
            raise Unfit
        if not scalar.plain:
            raise Unfit("take the quotes away")
        return int(scalar.text)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "integer", "minimum": -_FAR, "maximum": _FAR}
