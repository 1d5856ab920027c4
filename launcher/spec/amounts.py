"""Format numbers of bytes."""


def size(amount: float) -> str:
    """Return a number of bytes as text, such as `812 B` or `3.1 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def rate(bytes_per_s: float) -> str:
    """Return a rate such as `3.1 MB/s`."""
    return f"{size(bytes_per_s)}/s"
