"""Who may see the board: whoever knows its token, by the name of this machine, and no page of elsewhere.

The token comes once, in the address that is printed; after that a cookie stands for it, which scripts cannot read and
other sites cannot have sent. A page of another site that has its own name lead here is found out by the Host header.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from launcher.board.address import Keys

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {  # headers of each answer
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_CLOSED = "launch board: open the address that `launch board` printed\n"
_POST_HEADER = "x-launch-token"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as far as it decides who may have an answer. Names of headers are in small letters."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Admission:
    """Of one board, which listens at that port of that host."""

    keys: Keys
    port: int
    host: str

    @property
    def cookie(self) -> str:
        """The header that sets it."""
        return f"{self._cookie_name}={self.keys.cookie}; HttpOnly; Path=/; SameSite=strict"

    @property
    def _cookie_name(self) -> str:
        return f"launch_board_{self.port}"  # browsers do not tell ports apart

    def refusal(self, asked: Asked) -> tuple[str, int] | None:
        """What is said instead of an answer, and its status; None: the way is free."""
        if not self._is_ours(asked.headers.get("host", "")):
            return "launch board: not a name of this board\n", 421
        if asked.method not in ("GET", "HEAD", "POST"):
            return "launch board: GET, or POST for actions\n", 405
        if not self.comes_in(asked) and not self._is_known(asked.headers):
            return _CLOSED, 401
        if asked.method == "POST" and not _equal(asked.headers.get(_POST_HEADER, ""), self.keys.post):
            return f"launch board: an action needs the header {_POST_HEADER}\n", 403
        return None

    def comes_in(self, asked: Asked) -> bool:
        """By the address that was printed. It gets the page itself, whose script takes the token out of the address.

        Not a redirect: a browser keeps a strict cookie back from one that began in a file or on another site.
        """
        given = parse_qs(asked.query).get("token", [""])[0]
        return asked.path == "/" and asked.method != "POST" and bool(given) and _equal(given, self.keys.token)

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        given = {name: value for name, _, value in cookies}.get(self._cookie_name, "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer" and _equal(token, self.keys.token)
        return _equal(given, self.keys.cookie) or by_header

    def _is_ours(self, host: str) -> bool:
        """This machine by an address, by `localhost` or by the name that was asked for; at any port, for `ssh -L`."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        return name in ("localhost", self.host.lower()) or _is_address(name)


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
