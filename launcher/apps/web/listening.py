"""The listening socket of a server, and how its host is written in an address."""

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import BadInput

if TYPE_CHECKING:
    import ssl


def listen(host: str, port: int, *, waiting: int = 1024, hint: str = "--port 0") -> socket.socket:
    """Return a socket that listens on one address; raise BadInput, with `hint`, if that is impossible.

    `waiting` is how many connections may wait to be accepted. An address that stands for all interfaces is refused,
    because networks could then reach the server that the user did not think of.
    """
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = _address(str(where[0]).partition("%")[0])
        if found is not None and found.is_unspecified:
            raise BadInput(f"{host!r}: expected one address of this machine", "hint: `hostname -I` shows them")
        listening = socket.create_server(where, family=family, backlog=waiting)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{host}:{port}: {error}", f"hint: {hint} takes a port that is free") from error
    # Connections have it from here; else an answer's body waits 40 ms until the other end has acknowledged its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`: it is a loopback address or `localhost`; no other name is
    looked up.
    """
    found = _address(host)
    return host == "localhost" if found is None else found.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address, or None if `host` is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def in_address(host: str) -> str:
    """Return the host as an address writes it: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def tls_context(certificate: Path, key: Path) -> "ssl.SSLContext":
    """Return the TLS context for a certificate and its key; raise BadInput if they cannot be used."""
    import ssl  # late: few servers need it, and it costs 20 ms

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        raise BadInput(
            f"--tls-cert {certificate}, --tls-key {key}: {error}", "hint: both in PEM, the key without a passphrase"
        ) from error
    return context
