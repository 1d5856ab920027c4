"""From a host's name to an open socket, in bounded time."""

import socket
import threading
import time
from typing import Any

from launcher.errors import Unreachable
from launcher.hostlink.failures import why
from launcher.hostlink.paramiko_library import CUT_S
from launcher.hostlink.target import TRY, Target, silent, who


def dial(target: Target, deadline: float) -> socket.socket:
    """The first of the host's addresses that answers. Raises Unreachable."""
    addresses = _addresses(target, deadline)
    failed = silent(target)
    for number, (family, address) in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - number)
        try:
            return _dialled(family, address, max(0.01, share_s))
        except TimeoutError:
            failed = silent(target)
        except OSError as error:
            failed = Unreachable(f"{who(target)} cannot be reached: {why(error)}", TRY)
    raise failed


def _dialled(family: int, address: Any, limit_s: float) -> socket.socket:
    dialled = socket.socket(family, socket.SOCK_STREAM)
    try:
        dialled.settimeout(limit_s)
        dialled.connect(address)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; elsewhere silence is noticed a little later
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(CUT_S * 1000))
    except BaseException:
        dialled.close()
        raise
    return dialled


def _addresses(target: Target, deadline: float) -> list[tuple[int, Any]]:
    """Asked in a thread of its own, since a resolver knows no time-out."""
    found: list[tuple[int, Any]] = []
    failed: list[OSError | UnicodeError] = []

    def resolve() -> None:
        try:
            answers = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
            found.extend((family, address) for family, _, _, _, address in answers)
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(max(0.01, deadline - time.monotonic()))
    if failed:
        raise Unreachable(
            f"{who(target)} cannot be found: {why(failed[0])}",
            "hint: another name of the host, or `HostName` for it in the SSH configuration",
        )
    if not found:
        raise Unreachable(f"{who(target)} cannot be found: no answer about its name in time")
    return list(found)
