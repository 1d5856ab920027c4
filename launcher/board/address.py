"""Where a board is reached and by whom: its socket, its secret and the address that holds both.

It imports nothing of what serves the page, so that a browser starts while that is imported.
"""

import hashlib
import hmac
import secrets
import socket
from dataclasses import dataclass, field
from urllib.parse import quote

from launcher.errors import BadInput


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


def listen(host: str, port: int) -> socket.socket:
    """Raises BadInput where there is no such address, or it is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{host}:{port}: {error}", "hint: launch board --port 0 takes a port that is free") from error
    # Connections have it from here; else an answer's body waits 40 ms until the browser has acknowledged its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(host: str, port: int, keys: Keys, view: str = "") -> str:
    """Of the page, with what it begins with, such as run/ID, where nobody but the browser reads it."""
    return f"http://{in_address(host)}:{port}/?token={keys.token}{f'#/{quote(view)}' if view else ''}"


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
