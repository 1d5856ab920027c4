"""The socket of a server of ours, and how its host stands in an address."""

import socket

from launcher.errors import BadInput


def listen(host: str, port: int, *, waiting: int = 128, hint: str = "--port 0") -> socket.socket:
    """`waiting`: so many connections may wait to be accepted. Raises BadInput where it cannot listen there."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=waiting)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{host}:{port}: {error}", f"hint: {hint} takes a port that is free") from error
    # Connections have it from here; else an answer's body waits 40 ms until the other end has acknowledged its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
