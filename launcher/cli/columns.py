"""Text in columns."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Each row as a line, its cells padded to the widest of their column; the last one is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(_padded(row, widths)).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    *first, last = row
    return [*(cell.ljust(width) for cell, width in zip(first, widths, strict=False)), last]
