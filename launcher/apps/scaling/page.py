"""Write a report as an HTML page that needs no network, as Markdown, and as JSON."""

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from launcher.apps.report_pages import bullets, page, table
from launcher.apps.scaling.findings import ScalingReport
from launcher.apps.scaling.pictures import parts_picture, speedup_picture
from launcher.apps.scaling.tables import (
    FORECAST_HEADS,
    HEADS,
    VOLUME_HEADS,
    forecast_rows,
    model_lines,
    rows_of,
    sentences,
    volume_note,
    volume_rows,
)
from launcher.errors import BadInput

_PARTS_TITLE = "Where the time of a step goes"


def write_pages(report: ScalingReport, folder: Path) -> list[Path]:
    """Write index.html, scaling.md and scaling.json and return their paths. Raise BadInput if they
    cannot be written.
    """
    written = {
        "index.html": html_page(report),
        "scaling.md": markdown_page(report),
        "scaling.json": msgspec.json.format(msgspec.json.encode(report)).decode() + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise BadInput(f"-o {folder}: {error}") from error
    return [folder / name for name in written]


def html_page(report: ScalingReport) -> str:
    """Return the report as HTML."""
    return page(f"One to many: {report.spec}", _html(report))


def _html(report: ScalingReport) -> Iterator[str]:
    """Yield the parts of the page."""
    yield f"<h1>{html.escape(report.spec)} on one rank and on many</h1>"
    yield f"<p>{html.escape(_measured_how(report))}</p>"
    yield bullets([*sentences(report), *report.notes])
    if report.advice:
        yield "<h2>What would help first</h2>"
        yield bullets(report.advice)
    yield "<h2>Measured</h2>"
    yield table(HEADS, rows_of(report.points))
    if rows := volume_rows(report.points):
        yield f"<h2>What moves</h2>\n<p>{html.escape(volume_note(report.points))}</p>"
        yield table(VOLUME_HEADS, rows)
    if picture := parts_picture(report.points):
        yield f"<h2>{_PARTS_TITLE}</h2>\n{picture}"
    if picture := speedup_picture(report):
        yield f"<h2>Speed-up</h2>\n{picture}"
    if report.forecasts:
        yield "<h2>More ranks, by a model</h2>"
        yield bullets(model_lines(report.models))
        yield table(FORECAST_HEADS, forecast_rows(report.forecasts))


def _measured_how(report: ScalingReport) -> str:
    """Return a sentence on how it was measured."""
    rounds = f", {report.rounds} rounds" if report.rounds > 1 else ""
    return (
        f"{report.steps} steps of each training{rounds}, on {report.on}, in {report.took_s:.0f} s. Ranges of rates are "
        "from the slowest line of metrics to the fastest, those of speed-ups are without a tenth at each end."
    )


def markdown_page(report: ScalingReport) -> str:
    """Return the report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: ScalingReport) -> Iterator[str]:
    """Yield the lines of the Markdown."""
    yield f"# {_marked(report.spec)} on one rank and on many"
    yield from ("", _marked(_measured_how(report)), "")
    yield from (f"- {_marked(line)}" for line in (*sentences(report), *report.notes))
    yield from ("", *_marked_table(HEADS, rows_of(report.points)))
    if rows := volume_rows(report.points):
        yield from (
            "",
            "## What moves",
            "",
            _marked(volume_note(report.points)),
            "",
            *_marked_table(VOLUME_HEADS, rows),
        )
    if report.advice:
        yield from ("", "## What would help first", "", *(f"- {_marked(line)}" for line in report.advice))
    if report.forecasts:
        yield from ("", "## More ranks, by a model", "", *(f"- {_marked(line)}" for line in model_lines(report.models)))
        yield from ("", *_marked_table(FORECAST_HEADS, forecast_rows(report.forecasts)))


def _marked_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_marked(cell) for cell in row)} |"


def _marked(text: str) -> str:
    """Return a text from a spec or a log with all markup escaped."""
    plain = html.escape(text.replace("\n", " "), quote=False)
    return "".join(f"\\{one}" if one in "\\`*_[]|#" else one for one in plain)
