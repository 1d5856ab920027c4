"""Runs the application on a socket until it is asked to stop."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from launcher.apps.serving.app import application
from launcher.apps.serving.engine import Engine, ServingOptions
from launcher.apps.serving.guard import ALWAYS, ServingRules
from launcher.apps.serving.what_is_served import Served
from launcher.apps.web.guard import RequestGuard
from launcher.apps.web.limits import Limits
from launcher.apps.web.server import WebServer

_LET_GO_S = 10  # for requests that are being answered when the server is asked to end


async def serve(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None], tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. Call `ready` once the model is loaded; raise LaunchError where it cannot be.

    Without a `token` anyone may ask.
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
    """Serve as `serve` does, in an event loop of its own."""
    asyncio.run(serve(listening, served, options, token=token, most_bytes=most_bytes, ready=ready, say=say, tls=tls))
