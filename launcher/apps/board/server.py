"""The board's HTTP server: its routes, and what runs it. A route's function gets a request with the board, and returns
data to be sent as JSON, or a response.
"""

import asyncio
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from launcher import api
from launcher.apps.board.actions import ACTIONS, ActionReport, ActionRequest
from launcher.apps.board.answers import NoAnswer, encode
from launcher.apps.board.artifacts import POLICY, TYPES, Artifacts, artifacts, read_artifact
from launcher.apps.board.bundle import PAGE_FILES, page_file
from launcher.apps.board.clusters_view import Survey
from launcher.apps.board.guard import ALWAYS, BoardRules, WithPolicy, in_words
from launcher.apps.board.life_view import board_life
from launcher.apps.board.live.feed import Feed
from launcher.apps.board.live.logged_errors import logged_errors
from launcher.apps.board.log_view import LogPage, LogRequest, log_page
from launcher.apps.board.measured.curves import MOST_NAMES, By, Curves, CurveWindow, curves
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.run_view import (
    BoardCheckpoints,
    RunView,
    board_checkpoints,
    checkpoint_words,
    hang_of,
    run_head,
    run_sheet,
)
from launcher.apps.redacted import redacted
from launcher.apps.web.guard import RequestGuard
from launcher.apps.web.keys import Keys
from launcher.apps.web.limits import Limits
from launcher.apps.web.server import WebServer
from launcher.decoding import decoder_of
from launcher.errors import BadInput, LaunchError, NoSuchRun, Refused, Unreachable
from launcher.run.durable import NOT_JSON
from launcher.run.layout import RunDir
from launcher.states import VERSION
from launcher.status.life import Life
from launcher.status.openmetrics import exposition_now

_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
_OF_RUN = "/api/runs/{run}"
_PACKED_FROM = 10_000  # bytes
_MOST_COMPARED = 20


@dataclass(frozen=True)
class Board:
    """The state that all routes share. `actions` allows pages to act on runs, `first` are the runs with which the page
    opens, `keys` the token, `measured` the metrics in memory, and `survey` the state of clusters.
    """

    actions: bool = False
    first: tuple[api.Run, ...] = ()  # the runs with which the page opens
    keys: Keys = field(default_factory=Keys)
    measured: MeasuredRuns = field(default_factory=MeasuredRuns)
    survey: Survey = field(default_factory=Survey)


def serve(
    listening: socket.socket, host: str, board: Board, welcomed: Callable[[], None] = lambda: None,
    tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve the board on a listening socket, whose host name or address is `host`, until SIGINT or SIGTERM.

    `welcomed` is called once a browser has opened the address with the token that `launch board` prints. With `tls`,
    browsers connect by HTTPS.
    """
    BoardServer(listening, host, board, welcomed, tls=tls).run()


class BoardServer:
    """A board on a listening socket. Its feed, which reads the state of runs, starts and ends with it."""

    def __init__(
        self, listening: socket.socket, host: str, board: Board, welcomed: Callable[[], None] = lambda: None, *,
        tls: ssl.SSLContext | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._board, self._feed = board, Feed(board.measured)
        rules, limits = BoardRules.of(board.keys, listening.getsockname()[1], host), limits or Limits()
        guarded = RequestGuard(_application(board, self._feed), rules, limits, welcomed)
        self._server = WebServer(
            WithPolicy(guarded),
            listening,
            limits,
            proves=guarded.proves,
            tls=tls,
            headers=ALWAYS,
            dismiss=self._feed.dismiss,
        )

    def run(self) -> None:
        """Serve until `stop` is called or, in the main thread, until a signal."""
        self._feed.start()
        threading.Thread(target=_read_ahead, args=(self._board,), name="ahead", daemon=True).start()
        try:
            asyncio.run(self._server.serve())
        finally:
            self._feed.close()
            self._board.survey.close()

    def stop(self) -> None:
        """Make `run` return soon, without waiting for that; this may be called from any thread."""
        self._server.should_exit = True


@dataclass(frozen=True)
class _Question:
    """A request to a route: its body, and the board and feed that have the data."""

    board: Board
    feed: Feed
    request: Request
    body: bytes


def _application(board: Board, feed: Feed) -> Starlette:
    """Return the web application with all routes of the board."""

    def live(request: Request) -> Response:
        """Return the response that sends events to an open page."""
        events = feed.live(request.query_params.get("run", ""))
        return StreamingResponse(events, media_type="text/event-stream")

    def route(path: str, answer: Callable[[_Question], Response], method: str = "GET") -> Route:
        """Return a route whose answer is computed in a thread."""

        async def endpoint(request: Request) -> Response:
            """Compute the answer in a thread and return it."""
            return await run_in_threadpool(answer, _Question(board, feed, request, await request.body()))

        return Route(path, endpoint, methods=[method])

    routes = [Route("/api/live", live), *(route(path, answer) for path, answer in _ROUTES.items())]
    if board.actions:
        routes.append(route(f"{_OF_RUN}/{{verb}}", _answering(_act), "POST"))
    packing = Middleware(GZipMiddleware, minimum_size=_PACKED_FROM, compresslevel=1)
    return Starlette(routes=routes, middleware=[packing], exception_handlers={HTTPException: _refused})


def _refused(_: Request, error: Exception) -> Response:
    """Return the response to a request that was refused, such as one for an unknown path."""
    refused = cast("HTTPException", error)
    return in_words("no such page" if refused.status_code == 404 else refused.detail, refused.status_code)


def _read_ahead(board: Board) -> None:
    """Read into memory what pages request first, while the user's browser is still starting: the files of the pages,
    and the metrics of the runs in `board.first`.
    """
    for name in PAGE_FILES:
        page_file(name)
    for one in board.first:
        with logged_errors(one.id):
            board.measured.read_ahead(one)
    from launcher.status import compared  # noqa: F401 - late: the page of a run is the first that needs it


# -- the way in and out of a route


def _answering(route: Callable[[_Question], Any]) -> Callable[[_Question], Response]:
    """Return a request handler that calls `route`.

    The result is sent as JSON without the secrets of the runs in the request; a LaunchError is sent as its message.
    """

    def answer(question: _Question) -> Response:
        """Return the response to the request."""
        try:
            found = route(question)
            return found if isinstance(found, Response) else _json(redacted(found, _secrets(question)))
        except LaunchError as error:
            first, *more = error.lines or ("",)
            hint = next((line.removeprefix("hint: ") for line in more if line.startswith("hint: ")), "")
            return _json(NoAnswer(first, hint), _status_of(error))
        except OSError as error:
            return _json(NoAnswer(str(error)), 500)

    return answer


def _json(answer: Any, status: int = 200) -> Response:
    """Return a response with this data as JSON and the HTTP status `status`."""
    return Response(encode(answer), status, media_type="application/json")


def _status_of(error: LaunchError) -> int:
    """Return the HTTP status for an error by its type: 404 for NoSuchRun, 400 for BadInput, 409 for Refused, 503 for
    Unreachable, or 500 for any other.
    """
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


def _asked_part(question: _Question) -> api.Run:
    """Return the run in the request or, if its query has `role`, the part of the run (a folder with records of its own)
    that belongs to this role.

    Raise BadInput if the run has no such role, or if the role has several parts, one for each of its ranks.
    """
    one, role = _asked_run(question), question.request.query_params.get("role", "")
    parts = api.parts(one, role) if role else [api.Part(one, one.id)]
    if len(parts) > 1:
        raise BadInput(f"role: {role[:100]} has {len(parts)} parts", f"hint: role={parts[0].run.path.name}")
    return parts[0].run


def _asked_run(question: _Question) -> api.Run:
    """Return the run in the request's path; raise NoSuchRun if it does not exist."""
    return api.run(question.request.path_params["run"])


def _secrets(question: _Question) -> tuple[str, ...]:
    """Return the secrets of the runs that the request names in its path or its query parameters `runs` and `with`."""
    named = [
        *_words_in_query(question, "runs"),
        *_words_in_query(question, "with"),
        *filter(None, [question.request.path_params.get("run")]),
    ]
    runs = question.feed.runs
    return tuple(secret for ref in named for secret in runs.known(api.run(ref)).secrets)


def _words_in_query(question: _Question, name: str) -> list[str]:
    """Return the words, separated by commas, in the query parameter `name`; an empty list if it is not given."""
    return [word for word in question.request.query_params.get(name, "").split(",") if word]


def _number(question: _Question, name: str, usual: float) -> float:
    """Return the number in a query parameter, or `usual` if it is not given; raise BadInput for any other text."""
    text = question.request.query_params.get(name, "")
    try:
        found = float(text) if text else usual
    except ValueError:
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}") from None
    if math.isnan(found):
        raise BadInput(f"{name}: expected a number, got {text[:100]!r}")
    return found


def _count(question: _Question, name: str, usual: int) -> int:
    """Return the number in a query parameter as an integer from 0 to 10^12, the nearest if it is outside, or `usual` if
    it is not given. Raise BadInput for text that is no number.
    """
    return int(max(0.0, min(_number(question, name, usual), 1e12)))


def _ranks(question: _Question) -> frozenset[int] | None:
    """Return the ranks in a query such as `ranks=0,3-5`, or None, for all, if it is not given; raise BadInput for any
    other text.
    """
    found = set[int]()
    for word in _words_in_query(question, "ranks"):
        part = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if part is None:
            raise BadInput(f"ranks: expected numbers such as 0 or 0,3-5, got {word[:100]!r}")
        found.update(range(int(part[1]), int(part[2] or part[1]) + 1))
    return frozenset(found) or None


# -- the page


def _index(_: _Question) -> Response:
    """Return the front page of the board."""
    return _file("index.html")


def _page(question: _Question) -> Response:
    """Return the script, style or picture of the page that the request's path names, or a response with status 404 if
    there is none of this name.
    """
    return _file(question.request.path_params["name"])


def _file(name: str) -> Response:
    """Return a file of the page, or a response with status 404 if there is none of this name."""
    if name not in PAGE_FILES:
        return in_words("no such file", 404)
    return Response(page_file(name), media_type=_TYPES[Path(name).suffix])


# -- all runs


def _about(question: _Question) -> dict[str, object]:
    """Return facts about the board: the launcher's `version`, the present Unix time `at`, whether pages may act on runs
    (`actions`), the `post_token` that they have to send with an action ("": they may not act), and `exported`, which is
    False for a server.
    """
    board = question.board
    post = board.keys.post if board.actions else ""
    return {"version": VERSION, "at": time.time(), "actions": board.actions, "post_token": post, "exported": False}


def _runs(question: _Question) -> dict[str, object]:
    """Return the rows of all runs for the table (`runs`), newest first, whether all runs have been read (`complete`),
    and the present Unix time (`at`).
    """
    runs = question.feed.runs
    complete = runs.complete
    rows = sorted(runs.rows.values(), key=lambda row: (-row.submitted_at, row.id))
    return {"at": time.time(), "complete": complete, "runs": rows}


def _compare(question: _Question) -> object:
    """Return the comparison of the runs that the query parameter `runs` names, separated by commas; raise BadInput
    unless it names 2 to 20.
    """
    refs = _words_in_query(question, "runs")
    if not 2 <= len(refs) <= _MOST_COMPARED:
        raise BadInput(f"runs: expected 2 to {_MOST_COMPARED} runs, got {len(refs)}")
    return api.compare([api.run(ref) for ref in refs])


def _clusters(question: _Question) -> dict[str, object]:
    """Return all clusters with their hosts and the runs on them (`clusters`), the `error` of the clusters file, or "",
    and the present Unix time (`at`).
    """
    rows = [*question.feed.runs.rows.values()]
    found = question.board.survey.clusters(rows)
    return {"at": time.time(), "clusters": found.clusters, "error": found.error}


def _metrics(question: _Question) -> Response:
    """Return the metrics of all runs in this user's list in the OpenMetrics format, as of their last reading."""
    text = exposition_now(question.feed.runs.statuses(), time.time())
    return Response(text, media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")


# -- one run


def _run(question: _Question) -> RunView:
    """Return all data about the run in the request."""
    one = _asked_run(question)
    known = question.feed.runs.known(one)
    sheet = run_sheet(one, known.status.attempt, known.about)
    return RunView(
        time.time(),
        run_head(
            known.status, known.row(), checkpoint_words(one, known.status.checkpoint), hang=hang_of(one, known.status)
        ),
        sheet,
    )


def _life(question: _Question) -> Life:
    """Return the timeline of the run in the request."""
    one = _asked_run(question)
    with question.board.measured.renewed(one) as measured:
        return board_life(question.feed.runs.known(one).status, measured, time.time())


def _checkpoints(question: _Question) -> BoardCheckpoints:
    """Return the checkpoints of the run in the request; raise NoSuchRun if there is no such run."""
    one = _asked_run(question)
    return board_checkpoints(one, question.feed.runs.known(one).status.checkpoint)


def _curves(question: _Question) -> Curves:
    """Return curves of the run's metrics or, with `of=system` in the query, of what its nodes and ranks use. `names`
    chooses some, and `by` (step or time), `from`, `to` and `px` (a width in pixels) the part that is shown; with
    `glimpse`, only a rough curve is drawn if the metrics were not read yet.

    Raise BadInput for an invalid query.
    """
    by = question.request.query_params.get("by", "step")
    if by not in ("step", "time"):
        raise BadInput(f"by: expected step or time, got {by[:100]!r}")
    low, high = _number(question, "from", -math.inf), _number(question, "to", math.inf)
    window = CurveWindow(cast("By", by), low, high, _count(question, "px", 800))
    one, names, measured = _asked_part(question), _words_in_query(question, "names"), question.board.measured
    if (of := question.request.query_params.get("of", "metrics")) not in ("metrics", "system"):
        raise BadInput(f"of: expected metrics or system, got {of[:100]!r}")
    if of == "system":
        with measured.renewed(one, system=True) as used:
            return curves(used, names, window, first=MOST_NAMES)
    if question.request.query_params.get("glimpse"):
        with measured.glimpsed(one) as glimpsed:
            if glimpsed is not None:
                return curves(glimpsed, names, window, glimpse=True)
    with measured.renewed(one) as whole:
        return curves(whole, names, window)


def _artifacts(question: _Question) -> Artifacts:
    """Return the list of files that the ranks of the requested run wrote to `artifacts/`."""
    return artifacts(RunDir(_asked_run(question).path))


def _artifact(question: _Question) -> Response:
    """Return the content of the run's artifact that the address names; the values of secrets are removed from text.

    Raise NoSuchRun if there is no such file, or if its ending is none that the board shows.
    """
    name = question.request.path_params["name"]
    kind, media_type = TYPES.get(Path(name).suffix.lower(), ("other", ""))
    if kind == "other":
        raise NoSuchRun(f"{name[:200]!r}: the board shows {', '.join(TYPES)}")
    content = read_artifact(RunDir(_asked_run(question).path), name)
    if media_type != "image/png":
        content = redacted(content.decode(errors="replace"), _secrets(question)).encode()
    return Response(content, media_type=media_type, headers={"content-security-policy": POLICY})


def _logs(question: _Question) -> LogPage:
    """Return the lines of the run's log that the query asks for."""
    around = _number(question, "around", math.inf)
    wish = LogRequest(
        ranks=_ranks(question),
        search=question.request.query_params.get("search", ""),
        before=_count(question, "before", 0),
        around=around if math.isfinite(around) else None,
        limit=_count(question, "limit", 500),
    )
    return log_page(_asked_part(question), wish)


def _code(question: _Question) -> dict[str, object]:
    """Return how a run's code differs from that of the run `with` in the query or, without one, from the commit that
    was checked out when the run was submitted.

    The keys are `changes`, the files that differ (a list of FileChange), and `unknown`, the reason why these are not
    known, or "".
    """
    run, ref = _asked_run(question), question.request.query_params.get("with", "")
    found = api.compare([api.run(ref), run]).code[0] if ref else api.uncommitted(run)
    return {"changes": found.changes, "unknown": found.unknown}


def _act(question: _Question) -> ActionReport:
    """Take an action on the run in the request (cancel, resume, tag, note), and return its result.

    Raise NoSuchRun if there is no such run or action, and BadInput if the request's body is malformed.
    """
    verb = question.request.path_params["verb"]
    if verb not in ACTIONS:
        raise NoSuchRun(f"{verb[:100]!r}: no such action")
    try:
        wish = decoder_of(ActionRequest).decode(question.body or b"{}")
    except NOT_JSON as error:
        raise BadInput(f"{verb}: {error}") from None
    return ACTIONS[verb](_asked_run(question), wish)


_ROUTES: dict[str, Callable[[_Question], Response]] = {
    "/": _index,
    "/page/{name:path}": _page,
    "/api/board": _answering(_about),
    "/api/runs": _answering(_runs),
    _OF_RUN: _answering(_run),
    f"{_OF_RUN}/checkpoints": _answering(_checkpoints),
    f"{_OF_RUN}/life": _answering(_life),
    f"{_OF_RUN}/curves": _answering(_curves),
    f"{_OF_RUN}/logs": _answering(_logs),
    f"{_OF_RUN}/artifacts": _answering(_artifacts),
    f"{_OF_RUN}/artifacts/{{name:path}}": _answering(_artifact),
    f"{_OF_RUN}/code": _answering(_code),
    "/api/compare": _answering(_compare),
    "/api/clusters": _answering(_clusters),
    "/metrics": _metrics,
}
