"""Runs the application on a socket until it is asked to stop."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import uvicorn

from launcher.serving.app import application
from launcher.serving.engine import Engine, ServingOptions
from launcher.serving.guard import ServingGuard
from launcher.serving.what_is_served import Served

_LET_GO_S = 10  # for requests that are being answered when the server is asked to end
_KEEP_OPEN_S = 75  # a connection on which nothing is asked: longer than clients and proxies usually keep theirs


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None],
) -> None:  # fmt: skip
    """Until SIGINT or SIGTERM. Raises LaunchError where the model cannot be loaded; `ready` is called once it is."""
    engine = Engine(served, options, say)
    try:
        await engine.start()
        app = ServingGuard(application(engine, served.run), token, most_bytes)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=_LET_GO_S, timeout_keep_alive=_KEEP_OPEN_S, backlog=1024,
        )  # fmt: skip
        ready(engine)
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await engine.close()


def run_server(
    listening: socket.socket, served: Served, options: ServingOptions, *, token: str | None, most_bytes: int,
    ready: Callable[[Engine], None], say: Callable[[str], None],
) -> None:  # fmt: skip
    asyncio.run(serve(listening, served, options, token=token, most_bytes=most_bytes, ready=ready, say=say))
