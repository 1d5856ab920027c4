"""Build report pages from HTML and SVG that need no network and no script."""

import html
import math
from collections.abc import Callable, Iterable, Sequence

COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0f766e", "#be123c", "#6b7280", "#4338ca", "#9d174d")
Place = Callable[[float], float]
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884 }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
svg { max-width: 100%; height: auto }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return an HTML page; `title` is text, the parts are HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def bullets(lines: Iterable[str]) -> str:
    """Return an HTML list of the texts, which are escaped."""
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; heads and cells are plain text, which is escaped here."""
    head = "".join(f"<th>{html.escape(cell.capitalize())}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def logarithmic(low: float, high: float, begin: float, end: float) -> Place:
    """Return a function that maps a number between `low` and `high` to a logarithmic axis from `begin` to `end`."""
    span = math.log(high / low) or 1.0
    return lambda value: begin + (end - begin) * math.log(max(value, 1e-9) / low) / span


def line(points: Iterable[tuple[float, float]], colour: str, dashes: str = "") -> str:
    """Return a line through the points as SVG, dashed by the lengths in `dashes` if that is not empty."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'


def dot(x: float, y: float, colour: str, tooltip: str) -> str:
    """Return a dot as SVG, which shows `tooltip` under the mouse pointer."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{html.escape(tooltip)}</title></circle>'


def words(x: float, y: float, text: str, colour: str = "currentColor", anchor: str = "start") -> str:
    """Return a text as SVG; `anchor` is the part of it that is at `x`: start, middle or end."""
    look = f'fill="{colour}" font-size="12" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{html.escape(text)}</text>'


def picture(width: int, height: int, title: str, drawn: Iterable[str]) -> str:
    """Return a picture as SVG; `drawn` are its parts as SVG, and `title` is text."""
    inside = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title)}" font-family="sans-serif">\n'
        f"<title>{html.escape(title)}</title>\n{inside}\n</svg>"
    )
