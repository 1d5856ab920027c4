"""Run the application on a socket until it is asked to stop."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from launcher.apps.serving.app import application
from launcher.apps.serving.engine import Engine, ServingOptions
from launcher.apps.serving.what_is_served import Served
from launcher.apps.web.guard import Access, RequestGuard, is_this_machine
from launcher.apps.web.keys import Keys
from launcher.apps.web.limits import Limits
from launcher.apps.web.server import WebServer

_FREE = "/health"  # load balancers ask without a token
_PAGES = ("/docs",)
ALWAYS = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))  # headers of every answer

_LET_GO_S = 10  # for requests that are being answered when the server is asked to end


async def serve(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None], tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. Call `ready` once the model is loaded; raise LaunchError if it cannot be.

    Without a `token` anyone may call the server.
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
    """Checks that a model's server makes on a request. With a token any host name is accepted. Without one, the Host
    header must name this machine and JSON from another origin is refused, because a site could point its name here
    and have a browser send requests.
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


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return a response with an error text."""
    return JSONResponse({"detail": text}, status, headers)
