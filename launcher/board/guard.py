"""Who may see the board: whoever knows its token, by the name of this machine, and no page of elsewhere.

The token comes once, in the address that is printed; after that a cookie stands for it, which scripts cannot read and
other sites cannot have sent. A page of another site that has its own name lead here is found out by the Host header.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
# Not a redirect: a browser keeps a strict cookie back from one that began in a file or on another site.
_WELCOME = (
    '<!doctype html><meta http-equiv="refresh" content="0;url=/{}"><link rel="icon" href="data:,">'
    "<title>launch board</title>"
)
_POST_HEADER = "x-launch-token"


@dataclass(frozen=True)
class Keys:
    """One secret, and what is made of it: the cookie's value and that of the header of actions are of no other use."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        return self._made("cookie")

    @property
    def post(self) -> str:
        return self._made("post")

    def _made(self, use: str) -> str:
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()


class BoardGuard:
    """Around the whole application: what it refuses never gets to a route."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        port: int,
        host: str,
        welcomed: Callable[[], None] = lambda: None,
        view: str = "",
    ) -> None:
        self._app, self._keys = app, keys
        self._cookie_name = f"launch_board_{port}"  # browsers do not tell ports apart
        self._names = {"localhost", host.lower()}
        self._welcomed, self._view = welcomed, view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_ALWAYS)
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is said instead of an answer; None: the way is free."""
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            return PlainTextResponse("launch board: not a name of this board\n", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("launch board: GET, or POST for actions\n", 405)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and given and _equal(given, self._keys.token):
            return self._welcome()
        if not self._is_known(headers):
            return PlainTextResponse(_CLOSED, 401)
        if scope["method"] == "POST" and not _equal(headers.get(_POST_HEADER, ""), self._keys.post):
            return PlainTextResponse(f"launch board: an action needs the header {_POST_HEADER}\n", 403)
        return None

    def _welcome(self) -> Response:
        self._welcomed()
        answer = HTMLResponse(_WELCOME.format(f"#/{quote(self._view)}" if self._view else ""))
        answer.set_cookie(self._cookie_name, self._keys.cookie, httponly=True, samesite="strict", path="/")
        return answer

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
