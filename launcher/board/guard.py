"""Who may see the board: whoever knows its token, by the name of this machine, and no page of elsewhere.

The token comes once, in the address that is printed; after that a cookie stands for it, which scripts cannot read and
other sites cannot have sent. A page of another site that has its own name lead here is found out by the Host header.
"""

import hmac
import ipaddress

from launcher.board.address import Keys
from launcher.board.wire.exchange import Asked, BoardReply, in_words

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = (  # headers of every answer
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_POST_HEADER = "x-launch-token"


class BoardGuard:
    """In front of all routes: what it refuses never gets to one."""

    def __init__(self, keys: Keys, port: int, host: str) -> None:
        self._keys = keys
        self._cookie_name = f"launch_board_{port}"  # browsers do not tell ports apart
        self.cookie = f"{self._cookie_name}={keys.cookie}; HttpOnly; Path=/; SameSite=strict"  # for who comes in
        self._names = {"localhost", host.lower()}

    def refusal(self, asked: Asked) -> BoardReply | None:
        """What is said instead of an answer; None: the way is free."""
        if not self._is_ours(asked.headers.get("host", "")):
            return in_words("not a name of this board", 421)
        if asked.method not in ("GET", "HEAD", "POST"):
            return in_words("GET, or POST for actions", 405)
        if not self.comes_in(asked) and not self._is_known(asked):
            return in_words("open the address that `launch board` printed", 401)
        if asked.method == "POST" and not _equal(asked.headers.get(_POST_HEADER, ""), self._keys.post):
            return in_words(f"an action needs the header {_POST_HEADER}", 403)
        return None

    def comes_in(self, asked: Asked) -> bool:
        """By the address that was printed. It gets the page itself, whose script takes the token out of the address.

        Not a redirect: a browser keeps a strict cookie back from one that began in a file or on another site.
        """
        given = asked.query.get("token", "")
        return asked.path == "/" and asked.method != "POST" and bool(given) and _equal(given, self._keys.token)

    def _is_known(self, asked: Asked) -> bool:
        cookies = (part.strip().partition("=") for part in asked.headers.get("cookie", "").split(";"))
        given = {name: value for name, _, value in cookies}.get(self._cookie_name, "")
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
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
