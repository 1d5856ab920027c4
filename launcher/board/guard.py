"""Who may see the board: whoever knows its token, by the name of this machine, and no page of elsewhere.

The token comes once, in the address that is printed; after that a cookie stands for it, which scripts cannot read and
other sites cannot have sent. A page of another site that has its own name lead here is found out by the Host header.
"""

import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launcher.board.address import Keys

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_CLOSED = "launch board: open the address that `launch board` printed\n"
_POST_HEADER = "x-launch-token"


class BoardGuard:
    """Around the whole application: what it refuses never gets to a route."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        port: int,
        host: str,
        welcomed: Callable[[], None] = lambda: None,
    ) -> None:
        self._app, self._keys = app, keys
        self._cookie_name = f"launch_board_{port}"  # browsers do not tell ports apart
        self._cookie = f"{self._cookie_name}={keys.cookie}; HttpOnly; Path=/; SameSite=strict"
        self._names = {"localhost", host.lower()}
        self._welcomed = welcomed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer, comes_in = self._refusal(scope, headers), False
        if answer is None and (comes_in := self._comes_in(scope)):
            self._welcomed()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                told.update(_ALWAYS)
                if comes_in:
                    told.append("set-cookie", self._cookie)
            await send(message)

        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """What is said instead of an answer; None: the way is free."""
        if not self._is_ours(headers.get("host", "")):
            return PlainTextResponse("launch board: not a name of this board\n", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("launch board: GET, or POST for actions\n", 405)
        if not self._comes_in(scope) and not self._is_known(headers):
            return PlainTextResponse(_CLOSED, 401)
        if scope["method"] == "POST" and not _equal(headers.get(_POST_HEADER, ""), self._keys.post):
            return PlainTextResponse(f"launch board: an action needs the header {_POST_HEADER}\n", 403)
        return None

    def _comes_in(self, scope: Scope) -> bool:
        """By the address that was printed. It gets the page itself, whose script takes the token out of the address.

        Not a redirect: a browser keeps a strict cookie back from one that began in a file or on another site.
        """
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return scope["path"] == "/" and scope["method"] != "POST" and bool(given) and _equal(given, self._keys.token)

    def _is_known(self, headers: Headers) -> bool:
        given = cookie_parser(headers.get("cookie", "")).get(self._cookie_name, "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer" and _equal(token, self._keys.token)
        return _equal(given, self._keys.cookie) or by_header

    def _is_ours(self, host: str) -> bool:
        """This machine by an address, by `localhost` or by the name that was asked for; at any port, for `ssh -L`."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    """Nobody can have a name of their own lead here and still be called by an address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _equal(given: str, known: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())
