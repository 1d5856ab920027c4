"""Where a board is reached and by whom: its secret, and the address that has it.

It imports nothing of what serves the page, so that a browser starts while that is imported.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote

from launcher.listening import in_address


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


def address_of(host: str, port: int, keys: Keys, view: str = "") -> str:
    """Of the page, with what it begins with, such as run/ID, where nobody but the browser reads it."""
    return f"http://{in_address(host)}:{port}/?token={keys.token}{f'#/{quote(view)}' if view else ''}"
