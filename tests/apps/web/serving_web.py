"""A small application behind the doors of the board and of `launch serve`, in a thread of the test, and its clients."""

import asyncio
import re
import socket
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from launcher.apps.web.guard import Access, RequestGuard
from launcher.apps.web.keys import Keys
from launcher.apps.web.listening import listen
from launcher.apps.web.server import WebServer

BOUND_S = 60.0
KEYS = Keys("t" * 32)


@dataclass
class TokenRules:
    access: Access | None

    def refusal(self, request: HTTPConnection):
        if self.access is not None and not self.access.has_token(request):
            return PlainTextResponse("no token", 401)
        return None


async def echo(request: Request):
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def long(request: Request):
    return PlainTextResponse("x" * (64 << 20))


@contextmanager
def open_web(limits, *, public=False, tls=None, before=lambda port: None):
    """Yield its port, until the block ends; `before` is called when it listens and accepts nobody yet."""
    app = Starlette(routes=[Route("/", echo, methods=["GET", "POST"]), Route("/long", long)])
    rules = TokenRules(None if public else Access(KEYS, "cookie", ("/",)))
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        guard = RequestGuard(app, rules, limits)
        server = WebServer(guard, listening, limits, proves=guard.proves, tls=tls)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        before(port)
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(BOUND_S)
    assert not thread.is_alive()


def head(first="GET / HTTP/1.1", *more, token=KEYS.token):
    key = [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([first, "Host: localhost", *key, *more, "", ""]).encode()


def connect(stack, port, sent=b"", source="127.0.0.1"):
    """Return a new connection on which these bytes were sent."""
    peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_S, (source, 0)))
    peer.sendall(sent)
    return peer


def answer(peer):
    """Return the status of the answer that comes on it; 0: it was closed."""
    said = b""
    try:
        while (found := re.search(rb"content-length: ([0-9]+)\r\n(?s:.*?)\r\n\r\n", said)) is None:
            if not (data := peer.recv(65536)):
                return 0
            said += data
        while len(said) < found.end() + int(found[1]):
            said += peer.recv(65536)
    except ConnectionResetError:
        return 0
    return int(said.split(b" ", 2)[1])


def ask(port, **more):
    with ExitStack() as stack:
        return answer(connect(stack, port, head(**more)))
