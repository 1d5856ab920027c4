"""Export runs as a web page that opens from disk or from any web server. The answers that the board's server would give
are stored in the page.
"""

import contextlib
import shutil
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from launcher import api
from launcher.apps.board.answers import encode
from launcher.apps.board.bundle import PAGE, PAGE_FILES, SCRIPT, STYLES, page_file
from launcher.apps.board.groups import group_of
from launcher.apps.board.life_view import board_life
from launcher.apps.board.log_view import LogPage, LogRequest, log_page
from launcher.apps.board.measured.curves import MOST_NAMES, CurveWindow, curves
from launcher.apps.board.measured.reading import MeasuredRun
from launcher.apps.board.rows import BoardRow, board_row, figures_of
from launcher.apps.board.run_view import RunView, board_checkpoints, checkpoint_words, hang_of, run_head, run_sheet
from launcher.apps.redacted import redacted, redacted_record, secrets_of
from launcher.errors import BadInput, LaunchError, Refused, said_by_the_system
from launcher.run.durable import write_bytes
from launcher.run.layout import RunDir
from launcher.status.derive import RunStatus

MOST_RUNS = 20
_MOST_LINES, _MOST_CHARACTERS = 2000, 2_000_000  # of a run's log
_PIXELS = 1000  # that a curve is drawn for: one can zoom, but not see more than these
_SCRIPT_TAG = f'<script src="page/{SCRIPT}" defer></script>'
_INDEX, _ICON = "index.html", "icon.svg"
_LICENCES_ALONE = shutil.ignore_patterns("*.js", "*.css")  # what they are of lies in the page's own files
_CHARSET = '<meta charset="utf-8">'
# `file:` is what 'self' would mean on a page from disk.
_POLICY = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: data:"


def export_page(runs: Sequence[api.Run], folder: Path) -> Path:
    """Write the page as files into a folder, and return the file to open in a browser.

    An earlier export is overwritten. Raise Refused if the folder has anything else in it, and BadInput for no runs or
    more than 20.
    """
    _refuse_number(runs)
    _check(folder)
    return _written(folder, _text_of(runs))


def export_report(runs: Sequence[api.Run], file: Path) -> Path:
    """Write the page as one file, and return its path; with several runs it opens with their comparison.

    Raise Refused if the file cannot be written, and BadInput for no runs or more than 20.
    """
    _refuse_number(runs)
    try:
        write_bytes(file, _single(_text_of(runs), "/".join(_view_of(runs))).encode())
    except OSError as error:
        raise Refused(f"cannot write {file}: {said_by_the_system(error)}", "hint: -o names another file") from error
    return file


def _view_of(runs: Sequence[api.Run]) -> tuple[str, str]:
    """Return (the view with which the page opens: `compare` for several runs, else `run`; the runs' ids, separated by
    commas).
    """
    return "compare" if len(runs) > 1 else "run", ",".join(one.id for one in runs)


def _refuse_number(runs: Sequence[api.Run]) -> None:
    """Raise BadInput if there are no runs, or more than 20, the most that one page shows."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise BadInput(f"expected 1 to {MOST_RUNS} runs to export, got {len(runs)}")


def _text_of(runs: Sequence[api.Run]) -> str:
    """Fetch the runs' newest state from their clusters, as far as these answer, and return, as JSON without secrets,
    the server's answers to all requests that the page can make about the runs.
    """
    for one in runs:
        with contextlib.suppress(LaunchError):  # what is here can be shown without what is elsewhere
            one.renew()
    statuses = api.statuses(runs, api.WATCH_S)
    secrets = {found for status in statuses for found in secrets_of(RunDir(Path(status.run_dir)), status.attempt)}
    return encode(redacted(dict(_answers(runs, statuses, tuple(secrets))), tuple(secrets))).decode()


def _check(folder: Path) -> None:
    """Raise Refused if the folder has anything in it but an earlier export."""
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise Refused(f"{folder}: is no folder") from None
    if names and not (names <= {_INDEX, "page"} and (folder / "page" / SCRIPT).is_file()):
        raise Refused(
            f"{folder}: holds other things", "hint: a page is exported into a new or empty folder, or over an older one"
        )


# -- what lies in it


def _answers(
    runs: Sequence[api.Run], statuses: Sequence[RunStatus], secrets: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield (path of a request, its answer) for all requests that the page can make about `runs`, whose present status
    is in `statuses`.

    `secrets` are removed from texts before these are cut short.
    """
    now, rows = time.time(), list[BoardRow]()
    for one, status in zip(runs, statuses, strict=True):
        measured, path = MeasuredRun(RunDir(one.path)), f"/api/runs/{one.id}"
        about = redacted_record(one.about(), secrets)
        measured.renew()
        row = board_row(status, about, figures_of(measured), group_of(one.id, one.path, about.tags))
        head = msgspec.structs.replace(
            run_head(status, row, checkpoint_words(one, status.checkpoint), hang=hang_of(one, status)), run_dir=""
        )  # the page does not show it
        rows.append(row)
        yield path, RunView(now, head, run_sheet(one, status.attempt, about))
        yield f"{path}/life", board_life(status, measured, now)
        yield f"{path}/curves", curves(measured, measured.names, CurveWindow(px=_PIXELS))
        used = MeasuredRun(RunDir(one.path), system=True)
        used.renew()
        yield f"{path}/curves?of=system", curves(used, (), CurveWindow("time", px=_PIXELS), first=MOST_NAMES)
        yield f"{path}/logs", _last_lines(one)
        yield f"{path}/checkpoints", board_checkpoints(one, status.checkpoint)
    yield "/api/runs", {"at": now, "complete": True, "runs": rows}
    if len(runs) > 1:
        yield "/api/compare", api.compare(runs)


def _last_lines(one: api.Run) -> LogPage:
    """Return the last lines of the run's log, at most as many, and as much text, as an exported page may contain
    (`_MOST_LINES`, `_MOST_CHARACTERS`).
    """
    lines = log_page(one, LogRequest(limit=_MOST_LINES)).lines
    left, first = _MOST_CHARACTERS, len(lines)
    while first and left >= len(lines[first - 1].text):
        first -= 1
        left -= len(lines[first].text)
    return LogPage(lines[first:], None)


# -- its files


def _written(folder: Path, answers: str) -> Path:
    """Write the page's files, with `answers`, the server's answers as JSON, into the folder; return the one to open in
    a browser.
    """
    page = folder / "page"
    page.mkdir(parents=True, exist_ok=True)
    for name in PAGE_FILES:
        if name != _INDEX:
            (page / name).write_bytes(page_file(name))
    shutil.copytree(PAGE / "vendor", page / "vendor", ignore=_LICENCES_ALONE, dirs_exist_ok=True)
    index = folder / _INDEX
    index.write_text(_index(answers), encoding="utf-8")
    return index


def _single(answers: str, view: str) -> str:
    """Return the page as a single HTML file with its scripts, styles and data.

    `answers` are the server's answers as JSON. `view` is the fragment of the page's address with which it opens, such
    as `run/ID`. The page's policy lets the browser run these scripts and no others.
    """
    first = f'if (!location.hash) location.hash = "#/{view}";'
    scripts = [first, page_file(SCRIPT).decode().replace("</script", "<\\/script")]
    hashes = " ".join(f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"
    licence = (PAGE / "vendor" / "uplot" / "LICENSE").read_text().replace("--", "- -")
    icon = b64encode(page_file(_ICON)).decode()
    html = page_file(_INDEX).decode()
    for old, new in (
        (_CHARSET, f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (f'href="page/{_ICON}"', f'href="data:image/svg+xml;base64,{icon}"'),
        (f'<link rel="stylesheet" href="page/{STYLES}">', f"<style>\n{page_file(STYLES).decode()}</style>"),
        (f"{_SCRIPT_TAG}\n", ""),
        ("</body>", "\n".join([_data(answers), *(f"<script>{one}</script>" for one in scripts), "</body>"])),
        ("</html>", f"<!-- uPlot:\n{licence}-->\n</html>"),
    ):
        html = html.replace(old, new)
    return html


def _data(answers: str) -> str:
    """Return an HTML script element with the JSON text `answers`.

    Every `<` is escaped, so that no text in it can end the element.
    """
    return f'<script type="application/json" id="board-data">{answers.replace("<", chr(92) + "u003c")}</script>'


def _index(answers: str) -> str:
    """Return index.html with the JSON text `answers` in it, and a policy that forbids other scripts."""
    data = _data(answers)
    policy = f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    html = page_file(_INDEX).decode().replace(_CHARSET, policy)
    return html.replace(_SCRIPT_TAG, f"{data}\n{_SCRIPT_TAG}")
