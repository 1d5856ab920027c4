"""Parse values in the output of Slurm's commands: rows, times, durations, numbers."""

import math
import re
from datetime import datetime

FIELD, ROW = "\x1f", "\x1e"
JOB_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<index>[0-9]{1,10}))?(?:\+[0-9]{1,10})?")
_NOTHING = frozenset({"", "n/a", "(null)", "none", "unknown", "none assigned", "not_set"})
_NO_ESTIMATE = 4_102_444_800.0  # 2100: for a job that cannot start, Slurm estimates a thousand years


def read_time(text: str) -> float | None:
    """Return the Unix time of a date, or None if the field is empty or unknown; a date without a time zone is local
    time.
    """
    said = text.strip()
    try:
        when = float(said) if re.fullmatch(r"[0-9]{1,15}", said) else datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError, OSError):
        return None  # N/A, Unknown, None
    return when if 0.0 < when < _NO_ESTIMATE else None


_CLOCK = re.compile(r"(?:(?P<days>[0-9]{1,9})-)?(?P<clock>[0-9]{1,9}(?::[0-9]{1,9}){0,2})")


def read_duration(text: str) -> float | None:
    """Return the seconds of `1-12:00:00`, `10:00` (minutes and seconds) or `30` (minutes); infinity for no limit, None
    if the text is no duration.
    """
    said = text.strip()
    if said.lower() in ("infinite", "unlimited"):
        return math.inf
    found = _CLOCK.fullmatch(said)
    if found is None:
        return None  # n/a
    parts = [int(part) for part in found["clock"].split(":")]
    if found["days"] is None and len(parts) < 3:
        parts.insert(0, 0)  # without days and hours they are minutes and seconds
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return float((int(found["days"] or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)


def read_rows(text: str, width: int, first: re.Pattern[str] = JOB_ID) -> tuple[list[list[str]], list[str]]:
    """Return (the rows that have `width` fields and whose first one matches `first`, the other rows, as text).

    Text without a separator of fields, such as a site's banner, is in neither. The last field is a user's text and may
    contain the separator.
    """
    *ended, rest = text.split(ROW)
    rows, damaged = [], [rest] if FIELD in rest else []
    for row in ended:
        fields = row.split(FIELD, width - 1)
        fields[0] = fields[0].rpartition("\n")[2].strip()
        if len(fields) == width and first.fullmatch(fields[0]):
            rows.append(fields)
        elif len(fields) > 1:
            damaged.append(row)
    return rows, damaged


def read_fields(text: str) -> dict[str, str]:
    """Return the fields of a line of scontrol, such as `NodeName=n0 CPUTot=8`, by name; a value ends at the first
    space.
    """
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))


def read_word(text: str) -> str:
    """Return the text of a field, or "" if it is one of Slurm's words for no value, such as N/A."""
    return "" if text.strip().lower() in _NOTHING else text.strip()


def read_number(text: str) -> int | None:
    """Return the number in a field of 1 to 18 digits, or None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
