"""The board's HTTP: each route is a question to what is known, shaped elsewhere. `serve` runs it until it is ended."""

import contextlib
import math
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from launcher import api
from launcher.board.actions import ACTIONS, ActionReport, ActionWish
from launcher.board.address import Keys
from launcher.board.answers import NoAnswer, encode
from launcher.board.blotted import blotted
from launcher.board.bundle import PAGE, SCRIPT, bundled
from launcher.board.clusters_view import Survey
from launcher.board.guard import BoardGuard
from launcher.board.life_view import board_life
from launcher.board.live.apart import apart
from launcher.board.live.feed import Feed
from launcher.board.log_view import LogPage, LogWish, log_page
from launcher.board.measured.curves import By, Curves, CurveWindow, curves
from launcher.board.measured.shelf import MeasuredRuns
from launcher.board.run_view import BoardCheckpoints, RunView, board_checkpoints, run_head, run_sheet
from launcher.decoding import decoder_of
from launcher.errors import BadInput, LaunchError, NoSuchRun, Refused, Unreachable
from launcher.rundir.durable import NOT_JSON
from launcher.status.life import Life
from launcher.status.openmetrics import exposition_now
from launcher.words import VERSION

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_COMPARED = 20
_MOST_BODY = 1 << 20


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
    feed = Feed(board.measured)
    app = application(board, feed, host, listening.getsockname()[1], welcomed)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", ws="none", server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, feed).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Lets pages go first: one that listens would hold up the end."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: "list[socket.socket] | None" = None) -> None:
        self._feed.dismiss()
        await super().shutdown(sockets)


def application(board: Board, feed: Feed, host: str, port: int, welcomed: Callable[[], None] = lambda: None) -> ASGIApp:
    """Guarded; the feed begins and ends with it."""

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        feed.start()
        threading.Thread(target=_read_ahead, args=(board,), name="ahead", daemon=True).start()
        yield
        feed.close()
        board.survey.close()

    of_run = "/api/runs/{run}"
    routes = [
        Route("/", _index),
        Route("/page/{name:path}", _page_file),
        Route("/api/board", _about),
        Route("/api/runs", _runs),
        Route("/api/live", _live),
        Route(of_run, _run),
        Route(f"{of_run}/checkpoints", _checkpoints),
        Route(f"{of_run}/life", _life),
        Route(f"{of_run}/curves", _curves),
        Route(f"{of_run}/logs", _logs),
        Route(f"{of_run}/code", _code),
        Route("/api/compare", _compare),
        Route("/api/clusters", _clusters),
        Route("/metrics", _metrics),
        *([Route(f"{of_run}/{{verb}}", _act, methods=["POST"])] if board.actions else []),
    ]
    inner = Starlette(routes=routes, lifespan=life)
    inner.state.board, inner.state.feed = board, feed
    guarded = GZipMiddleware(inner, minimum_size=10_000, compresslevel=1)
    return BoardGuard(guarded, board.keys, port, host, welcomed)


def _read_ahead(board: Board) -> None:
    """What the page that is about to come asks for first, while its browser starts."""
    _page()
    for one in board.first:
        with apart(one.id):
            board.measured.read_ahead(one)
    from launcher.status import compared  # noqa: F401 - late: the page of a run is the first that needs it


# -- the way in and out of a route


def _answering(route: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """What it gives as JSON, without secrets of the runs that are asked for, and why it cannot as an error.

    In a thread of its own: it may read disks.
    """

    @wraps(route)
    def answer(request: Request) -> Response:
        try:
            return _json(blotted(route(request), _secrets(request)))
        except LaunchError as error:
            first, *more = error.lines or ("",)
            hint = next((line.removeprefix("hint: ") for line in more if line.startswith("hint: ")), "")
            return _json(NoAnswer(first, hint), _status_of(error))
        except OSError as error:
            return _json(NoAnswer(str(error)), 500)

    return answer


def _json(answer: Any, status: int = 200) -> Response:
    return Response(encode(answer), status, media_type="application/json")


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


def _board(request: Request) -> Board:
    return cast("Board", request.app.state.board)


def _feed(request: Request) -> Feed:
    return cast("Feed", request.app.state.feed)


def _asked_run(request: Request) -> api.Run:
    return api.run(request.path_params["run"])


def _secrets(request: Request) -> tuple[str, ...]:
    named = [*_words(request, "runs"), *_words(request, "with"), *filter(None, [request.path_params.get("run")])]
    runs = _feed(request).runs
    return tuple(secret for ref in named for secret in runs.known(api.run(ref)).secrets)


def _words(request: Request, name: str) -> list[str]:
    return [word for word in request.query_params.get(name, "").split(",") if word]


def _number(request: Request, name: str, usual: float) -> float:
    text = request.query_params.get(name, "")
    try:
        found = float(text) if text else usual
    except ValueError:
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}") from None
    if math.isnan(found):
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}")
    return found


def _count(request: Request, name: str, usual: int) -> int:
    return int(max(0.0, min(_number(request, name, usual), 1e12)))


def _ranks(request: Request) -> frozenset[int] | None:
    """`0,3-5`; None: all of them."""
    found = set[int]()
    for word in _words(request, "ranks"):
        part = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if part is None:
            raise BadInput(f"ranks: expected numbers such as 0 or 0,3-5, got {word[:100]!r}")
        found.update(range(int(part[1]), int(part[2] or part[1]) + 1))
    return frozenset(found) or None


# -- the page


async def _index(_: Request) -> Response:
    return _file("index.html")


async def _page_file(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    """Only what is in the folder of the page, whatever the name says."""
    found = _page().get(name)
    if found is None:
        return PlainTextResponse("launch board: no such file\n", 404)
    return Response(found, media_type=_TYPES[Path(name).suffix])


@cache
def _page() -> dict[str, bytes]:
    """All files of the page, by name: a browser asks for all of them at once, and is to wait for no disk."""
    files = (path for path in PAGE.rglob("*") if path.suffix in _TYPES and path.is_file())
    page = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in files}
    return page | {SCRIPT: bundled("app.js").encode()}


# -- all runs


@_answering
def _about(request: Request) -> dict[str, object]:
    board = _board(request)
    post = board.keys.post if board.actions else ""
    return {"version": VERSION, "at": time.time(), "actions": board.actions, "post_token": post, "exported": False}


@_answering
def _runs(request: Request) -> dict[str, object]:
    runs = _feed(request).runs
    complete = runs.complete
    rows = sorted(runs.rows.values(), key=lambda row: (-row.submitted_at, row.id))
    return {"at": time.time(), "complete": complete, "runs": rows}


async def _live(request: Request) -> Response:
    run = request.query_params.get("run", "")
    return StreamingResponse(_feed(request).live(run), media_type="text/event-stream")


@_answering
def _compare(request: Request) -> object:
    refs = _words(request, "runs")
    if not 2 <= len(refs) <= _MOST_COMPARED:
        raise BadInput(f"runs: expected 2 to {_MOST_COMPARED} runs, got {len(refs)}")
    return api.compare([api.run(ref) for ref in refs])


@_answering
def _clusters(request: Request) -> dict[str, object]:
    rows = [*_feed(request).runs.rows.values()]
    return {"at": time.time(), "clusters": _board(request).survey.clusters(rows)}


def _metrics(request: Request) -> Response:
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    text = exposition_now(_feed(request).runs.statuses(), time.time())
    return Response(text, headers={"content-type": kind})


# -- one run


@_answering
def _run(request: Request) -> RunView:
    one = _asked_run(request)
    known = _feed(request).runs.known(one)
    sheet = run_sheet(one, known.status.attempt, known.about)
    return RunView(time.time(), run_head(known.status, known.row()), sheet)


@_answering
def _life(request: Request) -> Life:
    one = _asked_run(request)
    with _board(request).measured.renewed(one) as measured:
        return board_life(_feed(request).runs.known(one).status, measured, time.time())


@_answering
def _checkpoints(request: Request) -> BoardCheckpoints:
    return board_checkpoints(_asked_run(request))


@_answering
def _curves(request: Request) -> Curves:
    by = request.query_params.get("by", "step")
    if by not in ("step", "time"):
        raise BadInput(f"by: expected step or time, got {by[:100]!r}")
    low, high = _number(request, "from", -math.inf), _number(request, "to", math.inf)
    window = CurveWindow(cast("By", by), low, high, _count(request, "px", 800))
    one, names, measured = _asked_run(request), _words(request, "names"), _board(request).measured
    if request.query_params.get("glimpse"):
        with measured.glimpsed(one) as glimpsed:
            if glimpsed is not None:
                return curves(glimpsed, names, window, glimpse=True)
    with measured.renewed(one) as whole:
        return curves(whole, names, window)


@_answering
def _logs(request: Request) -> LogPage:
    around = _number(request, "around", math.inf)
    wish = LogWish(
        ranks=_ranks(request),
        search=request.query_params.get("search", ""),
        before=_count(request, "before", 0),
        around=around if math.isfinite(around) else None,
        limit=_count(request, "limit", 500),
    )
    return log_page(_asked_run(request), wish)


@_answering
def _code(request: Request) -> dict[str, object]:
    """How it differs from that of another run, or, where none is named, from its commit."""
    run, ref = _asked_run(request), request.query_params.get("with", "")
    found = api.compare([api.run(ref), run]).code[0] if ref else api.uncommitted(run)
    return {"changes": found.changes, "unknown": found.unknown}


async def _act(request: Request) -> Response:
    body = await request.body()
    return await run_in_threadpool(_answering(lambda asked: _done(asked, body)), request)


def _done(request: Request, body: bytes) -> ActionReport:
    verb = request.path_params["verb"]
    if verb not in ACTIONS or len(body) > _MOST_BODY:
        raise NoSuchRun(f"{verb[:100]!r}: no such action")
    try:
        wish = decoder_of(ActionWish).decode(body or b"{}")
    except NOT_JSON as error:
        raise BadInput(f"{verb}: {error}") from None
    return ACTIONS[verb](_asked_run(request), wish)
