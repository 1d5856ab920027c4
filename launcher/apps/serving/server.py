"""The HTTP side of a model's server: /predict, /batch-predict, /health, /metrics and the OpenAPI page."""

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
    """Return the web application of a server whose engine was started; `run` is the id in its title.

    With `tells_hits`, responses say whether answers come from the cache, which reveals what others have asked.
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
        return await _answered(engine, request, _predict_one, tells_hits)

    many = _described("The answers to a list of inputs, in order.", _list_of(one), _list_of(answer))

    @app.post("/batch-predict", response_class=Response, **many)
    async def batch_predict(request: Request) -> Response:
        """Return the answers to a list of inputs."""
        return await _answered(engine, request, _predict_many, tells_hits)

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


async def _predict_one(engine: Engine, body: bytes) -> tuple[bytes, list[Computed]]:
    """Compute the input in a request body; return (the answer as JSON, a list with only that answer).

    Raise WrongInput if the input does not fit the schema, or an error of `Engine.ask`.
    """
    (found,) = await engine.ask([engine.inputs.one(body)])
    return found.json, [found]


async def _predict_many(engine: Engine, body: bytes) -> tuple[bytes, list[Computed]]:
    """Compute the list of inputs in a request body; return (the answers as a JSON list, the answers).

    Raise WrongInput if the body is no such list, or has more inputs than the queue takes; the errors of `Engine.ask`,
    such as that of the first input with one, are passed on.
    """
    inputs = engine.inputs.many(body)
    if len(inputs) > engine.options.queue:
        raise WrongInput((), f"expected at most {engine.options.queue} inputs in one request, got {len(inputs)}")
    found = await engine.ask(inputs) if inputs else []
    return b"[" + b",".join(one.json for one in found) + b"]", found


def _cache_headers(found: list[Computed], *, tells_hits: bool) -> dict[str, str]:
    """Return the headers `x-launch-step`, with the steps of the checkpoints that computed the answers, and, with
    `tells_hits`, `x-launch-cache`: whether all (hit), some (partly) or none (miss) of the answers were cached.
    """
    steps = sorted({str(one.step) for one in found if one.step is not None})
    cached = sum(one.cached for one in found)
    said = "hit" if found and cached == len(found) else "miss" if not cached else "partly"
    return {**({"x-launch-cache": said} if tells_hits else {}), **({"x-launch-step": ",".join(steps)} if steps else {})}


async def _answered(
    engine: Engine, request: Request, route: Callable[[Engine, bytes], Awaitable[tuple[bytes, list[Computed]]]],
    tells_hits: bool,
) -> Response:  # fmt: skip
    """Return the response of a route; the request is counted and timed. Errors of the input, of `predict` and of
    workers become responses with their status, such as 429 for an overload.

    With `tells_hits`, a header of the response says whether answers were cached.
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
    """Return a response that says where an input is invalid and why, in the form of FastAPI's validation errors, which
    clients can parse.
    """
    detail = [{"loc": ["body", *where], "msg": why, "type": "value_error"}]
    return Response(msgspec.json.encode({"detail": detail}), 422, media_type=_JSON)


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with the HTTP status `status`, these headers, and this error text as JSON."""
    return JSONResponse({"detail": text}, status, headers)


def _list_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a list whose elements have the schema `schema`."""
    return {"type": "array", "items": schema}


def _described(summary: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which FastAPI describes a route on the OpenAPI page: a summary, and the JSON Schemas of
    its input (`asked`) and its answer (`answered`).
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
    """Load the model of the run `served` and serve it on the socket `listening` until SIGINT or SIGTERM; raise
    LaunchError if it cannot be loaded.

    `ready` is called once the model is loaded. `say` prints a line. With `tls`, clients connect by HTTPS. Without a
    `token`, anyone may call the server. Bodies of more than `most_bytes` are refused.
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
    """Serve a model until SIGINT or SIGTERM: run serve(), with the same arguments, in a new event loop."""
    asyncio.run(serve(listening, served, options, token=token, most_bytes=most_bytes, ready=ready, say=say, tls=tls))


@dataclass(frozen=True)
class ServingRules:
    """The checks that a model's server makes on a request. With a token, any host name is accepted. Without one
    (`access` is None) the Host header must name this machine, so that no web site can make a browser send requests.
    """

    access: Access | None
    most_bytes: int  # of a request's body

    @classmethod
    def of(cls, token: str | None, port: int, most_bytes: int) -> "ServingRules":
        """Return the rules of a server at this port, which refuses bodies of more than `most_bytes`; without a token,
        anyone may call it.
        """
        access = None if token is None else Access(Keys(token), f"launch_serve_{port}", _PAGES)
        return cls(access, most_bytes)

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the response with which the request is refused, or None if it is allowed.

        Besides the host name or the token (which /health does not need), this checks that the body of a POST is JSON
        and that no body is longer than `most_bytes`.
        """
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
