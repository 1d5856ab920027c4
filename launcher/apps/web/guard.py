"""Guard a web application: check who may call it, and limit how much of a request is read. When a server starts, it
prints an address that contains its token, for a browser to open.
"""

import ipaddress
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launcher.apps.web.keys import Keys, equal
from launcher.apps.web.limits import Limits
from launcher.apps.web.server import STATE, LimitedProtocol


@dataclass(frozen=True)
class Access:
    """The check of the token, which may come in a header, in the cookie derived from it, or in the printed address. The
    address opens `pages` only. `cookie_name` contains the port, because browsers send a cookie to every port of a
    machine.
    """

    keys: Keys
    cookie_name: str
    pages: Collection[str]

    def has_token(self, request: HTTPConnection) -> bool:
        """Return whether the request has the token: in a header, the cookie, or the address of one of `pages`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer" and equal(token, self.keys.token)
        return by_header or equal(self._cookie_of(request), self.keys.cookie) or self.comes_in(request)

    def comes_in(self, request: HTTPConnection) -> bool:
        """Return whether the request has the token in its address, as when a user opens the printed address.

        It counts only for one of `pages` and not for a POST. The page's script then removes the token from the address
        bar, as a redirect to an address without the token would lose the cookie that this answer sets.
        """
        given = request.query_params.get("token", "")
        return request.scope["method"] != "POST" and request.url.path in self.pages and equal(given, self.keys.token)

    def cookie(self, request: HTTPConnection) -> tuple[bytes, bytes]:
        """Return (name, value) of the header that sets the cookie in the browser of a client that had the token."""
        secure = "; Secure" if request.scope["scheme"] == "https" else ""
        value = f"{self.cookie_name}={self.keys.cookie}; HttpOnly; Path=/; SameSite=strict{secure}"
        return b"set-cookie", value.encode()

    def _cookie_of(self, request: HTTPConnection) -> str:
        """Return the value of the cookie in the request, or "" if it has none."""
        parts = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in parts}.get(self.cookie_name, "")


def is_this_machine(request: HTTPConnection, *names: str) -> bool:
    """Return whether the request's Host header is an IP address, `localhost` or one of the host names in `names`, with
    any port.

    Return False if it is the name of a web site, even if that name resolves to this machine.
    """
    hosts = request.headers.getlist("host")
    if len(hosts) != 1:
        return False
    host = hosts[0]
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in ("localhost", *names):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Rules(Protocol):
    """The checks that a server makes on a request before it reads the body."""

    @property
    def access(self) -> Access | None:
        """The check of the token, or None if anyone may call."""

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the response with which the request is refused, or None if it is allowed: it has the token, if one is
        needed, and the host name, method and headers that this server expects.
        """


@dataclass
class RequestGuard:
    """An ASGI application that checks a request by `rules` and `limits` before it passes it to `app`. `welcomed` is
    called when a browser opens the printed address. Mistakes of clients are not logged.
    """

    app: ASGIApp
    rules: Rules
    limits: Limits
    welcomed: Callable[[], None] = lambda: None  # called when a browser opens the printed address
    _reading: dict[LimitedProtocol | None, int] = field(default_factory=dict)  # bytes of unfinished bodies

    @property
    def proves(self) -> Callable[[Scope], bool] | None:
        """A function that tells whether a request has the token, or None if anyone may call."""
        access = self.rules.access
        return None if access is None else lambda scope: access.has_token(HTTPConnection(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it to the application."""
        request = HTTPConnection(scope)
        access, connection = self.rules.access, scope.get("state", {}).get(STATE)
        comes_in = access is not None and access.comes_in(request)
        refusal = self.rules.refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def bounded() -> Message:
            """Receive and return a message, counting its bytes."""
            message = await receive()
            self._read(connection, message)
            return message

        async def with_cookie(message: Message) -> None:
            """Send a message, with the cookie in the first one."""
            if access is not None and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], access.cookie(request)]
            await send(message)

        if comes_in:
            self.welcomed()
        try:
            await self.app(scope, bounded, with_cookie if comes_in else send)
        except ClientDisconnect:
            return  # its own affair
        finally:
            self._reading.pop(connection, None)

    def _read(self, connection: LimitedProtocol | None, message: Message) -> None:
        """Count the bytes of a part of a request's body, which came on `connection` (None: it is not known); raise
        HTTPException if the body is too large.

        If all unfinished bodies together are too large, drop the oldest connections that have not shown the token; if
        there are none or this is the oldest, raise HTTPException.
        """
        more = len(message.get("body", b""))
        had = self._reading.get(connection, 0) + more
        if had > self.limits.body_bytes:
            raise HTTPException(413, f"expected a body of at most {self.limits.body_bytes} bytes")
        if not message.get("more_body", False):
            self._reading.pop(connection, None)
            return
        self._reading[connection] = had
        while sum(self._reading.values()) > self.limits.bodies_bytes:
            oldest = next((one for one in self._reading if one is not None and not one.proved), None)
            if oldest is None or oldest is connection:
                raise HTTPException(503, "too much is being read; try again", {"retry-after": "1"})
            del self._reading[oldest]
            oldest.drop()
