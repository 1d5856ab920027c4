"""The board's HTTP: each route is a question to what is known, shaped elsewhere. `serve` runs it until it is ended."""

import math
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, cast

from launcher import api
from launcher.board.actions import ACTIONS, ActionReport, ActionWish
from launcher.board.address import Keys
from launcher.board.answers import NoAnswer, encode
from launcher.board.blotted import blotted
from launcher.board.bundle import PAGE_FILES, page_file
from launcher.board.clusters_view import Survey
from launcher.board.guard import ALWAYS, BoardGuard
from launcher.board.life_view import board_life
from launcher.board.live.apart import apart
from launcher.board.live.feed import Feed
from launcher.board.log_view import LogPage, LogWish, log_page
from launcher.board.measured.curves import By, Curves, CurveWindow, curves
from launcher.board.measured.shelf import MeasuredRuns
from launcher.board.run_view import BoardCheckpoints, RunView, board_checkpoints, run_head, run_sheet
from launcher.board.wire.exchange import Asked, BoardReply, in_words
from launcher.board.wire.listener import BoardListener
from launcher.decoding import decoder_of
from launcher.errors import BadInput, LaunchError, NoSuchRun, Refused, Unreachable
from launcher.rundir.durable import NOT_JSON
from launcher.status.life import Life
from launcher.status.openmetrics import exposition_now
from launcher.words import VERSION

_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
_FILES, _OF_RUN = "/page/", "/api/runs/{run}"
_MOST_COMPARED = 20


@dataclass(frozen=True)
class Board:
    """What the routes ask."""

    actions: bool = False
    first: tuple[api.Run, ...] = ()  # with which the page begins
    keys: Keys = field(default_factory=Keys)
    measured: MeasuredRuns = field(default_factory=MeasuredRuns)
    survey: Survey = field(default_factory=Survey)


def serve(listening: socket.socket, host: str, board: Board, welcomed: Callable[[], None] = lambda: None) -> None:
    """Until SIGINT or SIGTERM."""
    server = BoardServer(listening, host, board, welcomed)
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BoardServer:
    """The feed begins and ends with it."""

    def __init__(
        self, listening: socket.socket, host: str, board: Board, welcomed: Callable[[], None] = lambda: None
    ) -> None:
        self._board, self._feed = board, Feed(board.measured)
        site = _Site(board, self._feed, BoardGuard(board.keys, listening.getsockname()[1], host), welcomed)
        self._listener = BoardListener(listening, site)

    def run(self) -> None:
        """Until it is stopped."""
        self._feed.start()
        threading.Thread(target=_read_ahead, args=(self._board,), name="ahead", daemon=True).start()
        try:
            self._listener.run()
        finally:
            self._feed.close()
            self._board.survey.close()

    def stop(self) -> None:
        """From another thread, or where a signal is handled."""
        self._listener.stop()


@dataclass(frozen=True)
class _Question:
    """What a route is asked, and whom it asks. `names` are those parts of the path that stand in braces."""

    board: Board
    feed: Feed
    asked: Asked
    names: Mapping[str, str]
    body: bytes


_Route = Callable[[_Question], BoardReply]


@dataclass(frozen=True)
class _Site:
    board: Board
    feed: Feed
    guard: BoardGuard
    welcomed: Callable[[], None]
    always: tuple[tuple[str, str], ...] = ALWAYS

    def refusal(self, asked: Asked) -> BoardReply | None:
        return self.guard.refusal(asked)

    def answer(self, asked: Asked, body: bytes) -> BoardReply:
        if self.guard.comes_in(asked):
            self.welcomed()
            return _file("index.html", ("set-cookie", self.guard.cookie))
        if asked.method != "POST" and asked.path.startswith(_FILES):
            return _file(asked.path.removeprefix(_FILES))
        for pattern, route in self._routes(asked.method).items():
            names = _names_in(asked.path, pattern)
            if names is not None:
                return route(_Question(self.board, self.feed, asked, names, body))
        return in_words("no such page", 404)

    def _routes(self, method: str) -> Mapping[str, _Route]:
        if method != "POST":
            return _ROUTES
        return {f"{_OF_RUN}/{{verb}}": _act} if self.board.actions else {}

    def dismiss(self) -> None:
        self.feed.dismiss()


def _names_in(path: str, pattern: str) -> dict[str, str] | None:
    """None: the path is another."""
    parts, expected = path.split("/"), pattern.split("/")
    if len(parts) != len(expected):
        return None
    pairs = [*zip(expected, parts, strict=True)]
    if any(part != one and (not one.startswith("{") or not part) for one, part in pairs):
        return None
    return {one[1:-1]: part for one, part in pairs if one.startswith("{")}


def _read_ahead(board: Board) -> None:
    """What the page that is about to come asks for first, while its browser starts."""
    for name in PAGE_FILES:
        page_file(name)
    for one in board.first:
        with apart(one.id):
            board.measured.read_ahead(one)
    from launcher.status import compared  # noqa: F401 - late: the page of a run is the first that needs it


# -- the way in and out of a route


def _answering(route: Callable[[_Question], Any]) -> _Route:
    """What it gives as JSON, without secrets of the runs that are asked for, and why it cannot as an error."""

    @wraps(route)
    def answer(request: _Question) -> BoardReply:
        try:
            return _json(blotted(route(request), _secrets(request)))
        except LaunchError as error:
            first, *more = error.lines or ("",)
            hint = next((line.removeprefix("hint: ") for line in more if line.startswith("hint: ")), "")
            return _json(NoAnswer(first, hint), _status_of(error))
        except OSError as error:
            return _json(NoAnswer(str(error)), 500)

    return answer


def _json(answer: Any, status: int = 200) -> BoardReply:
    return BoardReply(encode(answer), status)


def _status_of(error: LaunchError) -> int:
    match error:
        case NoSuchRun():
            return 404
        case BadInput():
            return 400
        case Refused():
            return 409
        case Unreachable():
            return 503
        case _:
            return 500


def _asked_run(request: _Question) -> api.Run:
    return api.run(request.names["run"])


def _secrets(request: _Question) -> tuple[str, ...]:
    named = [*_words(request, "runs"), *_words(request, "with"), *filter(None, [request.names.get("run")])]
    runs = request.feed.runs
    return tuple(secret for ref in named for secret in runs.known(api.run(ref)).secrets)


def _words(request: _Question, name: str) -> list[str]:
    return [word for word in request.asked.query.get(name, "").split(",") if word]


def _number(request: _Question, name: str, usual: float) -> float:
    text = request.asked.query.get(name, "")
    try:
        found = float(text) if text else usual
    except ValueError:
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}") from None
    if math.isnan(found):
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}")
    return found


def _count(request: _Question, name: str, usual: int) -> int:
    return int(max(0.0, min(_number(request, name, usual), 1e12)))


def _ranks(request: _Question) -> frozenset[int] | None:
    """`0,3-5`; None: all of them."""
    found = set[int]()
    for word in _words(request, "ranks"):
        part = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if part is None:
            raise BadInput(f"ranks: expected numbers such as 0 or 0,3-5, got {word[:100]!r}")
        found.update(range(int(part[1]), int(part[2] or part[1]) + 1))
    return frozenset(found) or None


# -- the page


def _index(_: _Question) -> BoardReply:
    return _file("index.html")


def _file(name: str, *headers: tuple[str, str]) -> BoardReply:
    """Only what is in the folder of the page, whatever the name says."""
    if name not in PAGE_FILES:
        return in_words("no such file", 404)
    return BoardReply(page_file(name), 200, _TYPES[Path(name).suffix], headers)


# -- all runs


@_answering
def _about(request: _Question) -> dict[str, object]:
    board = request.board
    post = board.keys.post if board.actions else ""
    return {"version": VERSION, "at": time.time(), "actions": board.actions, "post_token": post, "exported": False}


@_answering
def _runs(request: _Question) -> dict[str, object]:
    runs = request.feed.runs
    complete = runs.complete
    rows = sorted(runs.rows.values(), key=lambda row: (-row.submitted_at, row.id))
    return {"at": time.time(), "complete": complete, "runs": rows}


def _live(request: _Question) -> BoardReply:
    return BoardReply(request.feed.live(request.asked.query.get("run", "")), kind="text/event-stream; charset=utf-8")


@_answering
def _compare(request: _Question) -> object:
    refs = _words(request, "runs")
    if not 2 <= len(refs) <= _MOST_COMPARED:
        raise BadInput(f"runs: expected 2 to {_MOST_COMPARED} runs, got {len(refs)}")
    return api.compare([api.run(ref) for ref in refs])


@_answering
def _clusters(request: _Question) -> dict[str, object]:
    rows = [*request.feed.runs.rows.values()]
    return {"at": time.time(), "clusters": request.board.survey.clusters(rows)}


def _metrics(request: _Question) -> BoardReply:
    text = exposition_now(request.feed.runs.statuses(), time.time())
    return BoardReply(text.encode(), kind="application/openmetrics-text; version=1.0.0; charset=utf-8")


# -- one run


@_answering
def _run(request: _Question) -> RunView:
    one = _asked_run(request)
    known = request.feed.runs.known(one)
    sheet = run_sheet(one, known.status.attempt, known.about)
    return RunView(time.time(), run_head(known.status, known.row()), sheet)


@_answering
def _life(request: _Question) -> Life:
    one = _asked_run(request)
    with request.board.measured.renewed(one) as measured:
        return board_life(request.feed.runs.known(one).status, measured, time.time())


@_answering
def _checkpoints(request: _Question) -> BoardCheckpoints:
    return board_checkpoints(_asked_run(request))


@_answering
def _curves(request: _Question) -> Curves:
    by = request.asked.query.get("by", "step")
    if by not in ("step", "time"):
        raise BadInput(f"by: expected step or time, got {by[:100]!r}")
    low, high = _number(request, "from", -math.inf), _number(request, "to", math.inf)
    window = CurveWindow(cast("By", by), low, high, _count(request, "px", 800))
    one, names, measured = _asked_run(request), _words(request, "names"), request.board.measured
    if request.asked.query.get("glimpse"):
        with measured.glimpsed(one) as glimpsed:
            if glimpsed is not None:
                return curves(glimpsed, names, window, glimpse=True)
    with measured.renewed(one) as whole:
        return curves(whole, names, window)


@_answering
def _logs(request: _Question) -> LogPage:
    around = _number(request, "around", math.inf)
    wish = LogWish(
        ranks=_ranks(request),
        search=request.asked.query.get("search", ""),
        before=_count(request, "before", 0),
        around=around if math.isfinite(around) else None,
        limit=_count(request, "limit", 500),
    )
    return log_page(_asked_run(request), wish)


@_answering
def _code(request: _Question) -> dict[str, object]:
    """How it differs from that of another run, or, where none is named, from its commit."""
    run, ref = _asked_run(request), request.asked.query.get("with", "")
    found = api.compare([api.run(ref), run]).code[0] if ref else api.uncommitted(run)
    return {"changes": found.changes, "unknown": found.unknown}


@_answering
def _act(request: _Question) -> ActionReport:
    verb = request.names["verb"]
    if verb not in ACTIONS:
        raise NoSuchRun(f"{verb[:100]!r}: no such action")
    try:
        wish = decoder_of(ActionWish).decode(request.body or b"{}")
    except NOT_JSON as error:
        raise BadInput(f"{verb}: {error}") from None
    return ACTIONS[verb](_asked_run(request), wish)


_ROUTES: dict[str, _Route] = {
    "/": _index,
    "/api/board": _about,
    "/api/runs": _runs,
    "/api/live": _live,
    _OF_RUN: _run,
    f"{_OF_RUN}/checkpoints": _checkpoints,
    f"{_OF_RUN}/life": _life,
    f"{_OF_RUN}/curves": _curves,
    f"{_OF_RUN}/logs": _logs,
    f"{_OF_RUN}/code": _code,
    "/api/compare": _compare,
    "/api/clusters": _clusters,
    "/metrics": _metrics,
}
