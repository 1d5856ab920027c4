"""Write a report as one HTML file that needs no network."""

import html
from collections.abc import Iterator
from pathlib import Path

from launcher.apps.collectives.findings import CollectivesReport
from launcher.apps.collectives.pictures import pictures
from launcher.apps.collectives.tables import HEADS, PAIR_HEADS, heading, notes, pair_rows, problems, rows_of
from launcher.apps.report_pages import bullets, page, table
from launcher.errors import BadInput


def write_page(report: CollectivesReport, file: Path) -> Path:
    """Write the report as a page and return its path. Raise BadInput if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(html_page(report))
    except OSError as error:
        raise BadInput(f"-o {file}: {error}") from error
    return file


def html_page(report: CollectivesReport) -> str:
    """Return the report as HTML."""
    return page(f"Collectives of {report.cluster}", _html(report))


def _html(report: CollectivesReport) -> Iterator[str]:
    """Yield the parts of the page."""
    yield f"<h1>Collectives of {html.escape(report.cluster)}</h1>"
    yield f"<p>{html.escape(heading(report))}</p>"
    if said := [*problems(report), *notes(report)]:
        yield bullets(said)
    for title, drawn in pictures(report):
        yield f"<h2>{html.escape(title)}</h2>\n{drawn}"
    if report.pairs:
        yield table(PAIR_HEADS, pair_rows(report))
    if report.lines:
        yield "<h2>All of it</h2>"
        yield table(HEADS, rows_of(report))
