"""Format numbers as text for users."""


def duration(seconds: float) -> str:
    """Return a duration as text, such as `42s`, `3m 07s`, `2h 05m` or `4d 03h`."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def size(count: int) -> str:
    """Return a number of bytes as text, such as `812 B` or `3.1 MB`."""
    amount, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def rate(steps_per_s: float | None) -> str:
    """Return a rate of steps as text, such as `12.3/s`, or below 0.1 per second as `3/min`; "-" for None."""
    if steps_per_s is None:
        return "-"
    return f"{steps_per_s:.3g}/s" if steps_per_s >= 0.1 else f"{steps_per_s * 60:.3g}/min"


def steps(step: int | None, total: int | None) -> str:
    """Return a step and the total as text, such as `120/200`; only the step if the total is unknown, and "-" if `step`
    is None.
    """
    if step is None:
        return "-"
    return f"{step}/{total}" if total is not None else str(step)


def count(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 rank` or `2 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
