"""The token of a server, the values derived from it, and the address that contains it. It imports no web library, so
that a browser can be started while those are imported.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote

from launcher.apps.web.listening import in_address


@dataclass(frozen=True)
class Keys:
    """A token and two values derived from it, for a cookie and for a header. Neither of them reveals the token."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The value of the cookie that stands for the token in a browser."""
        return self._made("cookie")

    @property
    def post(self) -> str:
        """The value that a page must send in a header with each action, so that other sites cannot cause one."""
        return self._made("post")

    def _made(self, use: str) -> str:
        """Return the value derived from the token for this use, "cookie" or "post"; each use has a different value."""
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()


def origin(host: str, port: int, *, tls: bool = False) -> str:
    """Return the address of a server without a path: https with `tls`, else http."""
    return f"{'https' if tls else 'http'}://{in_address(host)}:{port}"


def page_address(server: str, keys: Keys, path: str = "/", view: str = "") -> str:
    """Return the address that opens the page `path` of the server `server` in a browser and contains the token.

    `view` is put after `#`, which a browser does not send to the server.
    """
    return f"{server}{path}?token={keys.token}{f'#/{quote(view)}' if view else ''}"


def equal(given: str, known: str) -> bool:
    """Return whether two texts are equal, in a time that does not reveal how much of them is."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())
