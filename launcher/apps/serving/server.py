"""The HTTP side: /predict, /batch-predict, /health, /metrics and the OpenAPI page, served until it is asked to stop."""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from launcher.apps.serving.engine import (
    Computed,
    Engine,
    InputRefused,
    Overloaded,
    PredictFailed,
    ServingOptions,
    TookTooLong,
)
from launcher.apps.serving.input_schema import Location, WrongInput
from launcher.apps.serving.processes import WorkerLost
from launcher.apps.serving.what_is_served import Served
from launcher.apps.web.guard import Access, RequestGuard, is_this_machine
from launcher.apps.web.keys import Keys
from launcher.apps.web.limits import Limits
from launcher.apps.web.server import WebServer
from launcher.states import VERSION

_FREE = "/health"  # load balancers ask without a token
_PAGES = ("/docs",)
ALWAYS = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))  # headers of every answer

_LET_GO_S = 10  # for requests that are being answered when the server is asked to end
_JSON = "application/json"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_AGAIN = {"retry-after": "1"}
_SAID = {
    422: "The input is not what the schema says; `detail` names the field.",
    429: "Too many requests wait. `Retry-After` says in how many seconds to try again.",
    500: "The model's `predict` raised an exception for this input.",
    503: "The worker that computed it was lost, or none was free in time. Try again.",
}


def application(engine: Engine, run: str, *, tells_hits: bool) -> FastAPI:
    """Return the application of a server whose engine has been started.

    With `tells_hits`, answers say whether they come from the cache, which reveals what others have asked.
    """
    app = FastAPI(
        title=run, version=VERSION, redoc_url=None, openapi_url="/openapi.json",
        description=f"Answers of the model that {run} has trained. `x-launch-step` of an answer is the step of its "
        "checkpoint{}.".format(", `x-launch-cache` whether it was computed before" if tells_hits else ""),
    )  # fmt: skip
    loaded = engine.loaded
    one, answer = dict(loaded.input), dict(loaded.output)

    @app.post("/predict", response_class=Response, **_described("The answer to one input.", one, answer))
    async def predict(request: Request) -> Response:
        """Return the answer to one input."""
        return await _answered(engine, request, _one, tells_hits)

    many = _described("The answers to a list of inputs, in order.", _list_of(one), _list_of(answer))

    @app.post("/batch-predict", response_class=Response, **many)
    async def batch_predict(request: Request) -> Response:
        """Return the answers to a list of inputs."""
        return await _answered(engine, request, _many, tells_hits)

    @app.get("/health", summary="Whether it answers, and with which checkpoint.")
    async def health() -> Response:
        """Return the server's state, with status 503 while it has no worker."""
        status = {"status": "ok" if engine.ready else "no worker", "run": run, "step": engine.step,
                  "workers": engine.ready}  # fmt: skip
        return JSONResponse(status, 200 if engine.ready else 503)

    @app.get("/metrics", summary="What is counted, for Prometheus.", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the server's metrics as OpenMetrics text."""
        return Response(engine.exposition(), media_type=_OPENMETRICS)

    return app


async def _one(engine: Engine, body: bytes) -> tuple[bytes, list[Computed]]:
    """Return (the answer to the input in a body, that answer in a list)."""
    (found,) = await engine.ask([engine.inputs.one(body)])
    return found.json, [found]


async def _many(engine: Engine, body: bytes) -> tuple[bytes, list[Computed]]:
    """Return (the answers to a list of inputs as JSON, the answers); raise WrongInput if there are too many."""
    inputs = engine.inputs.many(body)
    if len(inputs) > engine.options.queue:
        raise WrongInput((), f"expected at most {engine.options.queue} inputs in one request, got {len(inputs)}")
    found = await engine.ask(inputs) if inputs else []
    return b"[" + b",".join(one.json for one in found) + b"]", found


def _cache_headers(found: list[Computed], *, tells_hits: bool) -> dict[str, str]:
    """Return the headers with the checkpoint's step and, with `tells_hits`, whether answers were cached."""
    steps = sorted({str(one.step) for one in found if one.step is not None})
    cached = sum(one.cached for one in found)
    said = "hit" if found and cached == len(found) else "miss" if not cached else "partly"
    return {**({"x-launch-cache": said} if tells_hits else {}), **({"x-launch-step": ",".join(steps)} if steps else {})}


async def _answered(
    engine: Engine, request: Request, route: Callable[[Engine, bytes], Awaitable[tuple[bytes, list[Computed]]]],
    tells_hits: bool,
) -> Response:  # fmt: skip
    """Return the route's response, or the error as a response; count and time it.

    With `tells_hits` the response says whether answers were cached.
    """
    body = await request.body()
    began = time.monotonic()
    try:
        answer, found = await route(engine, body)
        response = Response(answer, media_type=_JSON, headers=_cache_headers(found, tells_hits=tells_hits))
    except WrongInput as error:
        response = _unfit(error.where, error.why)
    except InputRefused as error:
        response = _unfit((error.field,), error.why)
    except Overloaded as error:
        response = _error(429, str(error), {"retry-after": str(error.retry_after_s)})
    except PredictFailed as error:
        response = _error(500, f"predict failed: {error}")
    except (WorkerLost, TookTooLong) as error:
        response = _error(503, str(error), _AGAIN)
    engine.figures.requests[request.url.path, response.status_code] += 1
    engine.figures.seconds.add(time.monotonic() - began)
    return response


def _unfit(where: Location, why: str) -> Response:
    """Return a validation error in FastAPI's own form, which clients can parse."""
    detail = [{"loc": ["body", *where], "msg": why, "type": "value_error"}]
    return Response(msgspec.json.encode({"detail": detail}), 422, media_type=_JSON)


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with an error text."""
    return JSONResponse({"detail": text}, status, headers)


def _list_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def _described(summary: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a route, whose bodies are decoded by the schema of the service, not by
    FastAPI.
    """
    body = {"required": True, "content": {_JSON: {"schema": asked}}}
    responses: dict[int | str, Any] = {
        200: {"description": "The answer.", "content": {_JSON: {"schema": answered}}},
        **{status: {"description": text} for status, text in _SAID.items()},
    }
    return {"summary": summary, "openapi_extra": {"requestBody": body}, "responses": responses}


async def serve(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None], tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM.

    Call `ready` once the model is loaded; raise LaunchError if it cannot be. `say` prints a line; with `tls` clients
    connect by HTTPS. Without a `token` anyone may call the server.
    """
    engine = Engine(served, options, say)
    limits = Limits(body_bytes=most_bytes, bodies_bytes=most_bytes * 3 // 2)
    try:
        await engine.start()
        app = application(engine, served.run, tells_hits=token is not None)
        guarded = RequestGuard(app, ServingRules.of(token, listening.getsockname()[1], most_bytes), limits)
        server = WebServer(
            guarded, listening, limits, proves=guarded.proves, tls=tls, headers=ALWAYS, let_go_s=_LET_GO_S
        )
        ready(engine)
        await server.serve()
    finally:
        await engine.close()


def run_server(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None], tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve as `serve` does, in a new event loop."""
    asyncio.run(serve(listening, served, options, token=token, most_bytes=most_bytes, ready=ready, say=say, tls=tls))


@dataclass(frozen=True)
class ServingRules:
    """The checks that a model's server makes on a request.

    With a token any host name is accepted. Without one, the Host header must name this machine and JSON from another
    origin is refused, because a site could point its name here and have a browser send requests.
    """

    access: Access | None
    most_bytes: int

    @classmethod
    def of(cls, token: str | None, port: int, most_bytes: int) -> "ServingRules":
        """Return the rules of a server at this port; without a token anyone may call it."""
        access = None if token is None else Access(Keys(token), f"launch_serve_{port}", _PAGES)
        return cls(access, most_bytes)

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the response that refuses the request, or None if it is allowed."""
        if self.access is None and not is_this_machine(request):
            return _error(421, "not a name of this server")
        if self.access is not None and request.url.path != _FREE and not self.access.has_token(request):
            return _error(401, "expected the header `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if request.scope["method"] == "POST" and kind != "application/json":
            return _error(415, "expected the header `Content-Type: application/json`")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > self.most_bytes:
            return _error(413, f"expected a body of at most {self.most_bytes} bytes", {"connection": "close"})
        return None
