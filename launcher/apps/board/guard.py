"""Access rules of the board: a request needs the token and the name of this machine, and an action must come from the
board's own page.
"""

from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launcher.apps.web.guard import Access, is_this_machine
from launcher.apps.web.keys import Keys, equal

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = (  # headers of every answer, beside its policy
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_POST_HEADER = "x-launch-token"


@dataclass(frozen=True)
class BoardRules:
    """The checks that the board makes on a request. `access` checks the token; `host` is the name at which it
    listens.
    """

    access: Access
    host: str

    @classmethod
    def of(cls, keys: Keys, port: int, host: str) -> "BoardRules":
        """Return the rules of a board with the token in `keys` that listens at this port of the host name or address
        `host`.

        A token in an address opens only the front page.
        """
        return cls(Access(keys, f"launch_board_{port}", ("/",)), host.lower())

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the response with which the request is refused, or None if it is allowed.

        It is refused if it names another host, has another method than GET, HEAD and POST, or lacks the token; a POST
        also needs a header with a value that only the board's own page has.
        """
        method = request.scope["method"]
        if not is_this_machine(request, self.host):
            return in_words("not a name of this board", 421)
        if method not in ("GET", "HEAD", "POST"):
            return in_words("GET, or POST for actions", 405)
        if not self.access.has_token(request):
            return in_words("open the address that `launch board` printed", 401)
        if method == "POST" and not equal(request.headers.get(_POST_HEADER, ""), self.access.keys.post):
            return in_words(f"an action needs the header {_POST_HEADER}", 403)
        return None


class WithPolicy:
    """An ASGI application that adds the page's content security policy to responses that have none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("content-security-policy", _POLICY)
            await send(message)

        await self._app(scope, receive, sent)


def in_words(text: str, status: int) -> Response:
    """Return a plain-text response with the HTTP status `status`."""
    return PlainTextResponse(f"launch board: {text}\n", status)
