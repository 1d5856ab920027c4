"""The token of a server, what is made of it, and the address that has it.

It imports nothing of what serves, so that a browser starts while that is imported.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote

from launcher.apps.web.listening import in_address


@dataclass(frozen=True)
class Keys:
    """One secret and what is made of it: the cookie's value and the header of actions open nothing else."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """Return the value of the cookie that stands for the token."""
        return self._made("cookie")

    @property
    def post(self) -> str:
        """Return what a page sends along with an action."""
        return self._made("post")

    def _made(self, use: str) -> str:
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()


def origin(host: str, port: int, *, tls: bool = False) -> str:
    """Return the address of a server without a path."""
    return f"{'https' if tls else 'http'}://{in_address(host)}:{port}"


def page_address(server: str, keys: Keys, path: str = "/", view: str = "") -> str:
    """Return the address that opens a page in a browser; `view` stands where nobody but the browser reads it."""
    return f"{server}{path}?token={keys.token}{f'#/{quote(view)}' if view else ''}"


def equal(given: str, known: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())
