"""Who may ask, and how much at once; what is refused here costs no worker anything."""

import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FREE = "/health"  # load balancers ask without a token
_HIDDEN = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class BodyTooLarge(Exception):
    """A client goes on sending."""


class ServingGuard:
    """Around the whole application.

    Without a token only this machine can ask. A page in its browser cannot: a site that has its name lead here is found
    out by the Host header, and others are not let to send JSON to another origin.
    """

    def __init__(self, app: ASGIApp, token: str | None, most_bytes: int) -> None:
        self._app, self._token, self._most_bytes = app, token, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        had, began = 0, False

        async def bounded() -> Message:
            nonlocal had
            message = await receive()
            had += len(message.get("body", b""))
            if had > self._most_bytes:
                raise BodyTooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, bounded, noted)
        except BodyTooLarge:
            if not began:
                await self._too_large()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._token is None and not _is_this_machine(headers.get("host", "")):
            return _said(421, "not a name of this server")
        if self._token is not None and scope["path"] != _FREE and not self._is_known(headers):
            return _said(401, "expected the header `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})
        if (
            scope["method"] == "POST"
            and headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            return _said(415, "expected the header `Content-Type: application/json`")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > self._most_bytes:
            return self._too_large()
        return None

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = (self._token or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known)

    def _too_large(self) -> Response:
        return _said(413, f"expected a body of at most {self._most_bytes} bytes", {"connection": "close"})


def _is_this_machine(host: str) -> bool:
    """An address, or `localhost`: nobody can have a name of their own lead here and be called so."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _said(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": text}, status, {**_HIDDEN, **(headers or {})})
