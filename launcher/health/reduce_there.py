"""Run one rank of an all-reduce by torch (gloo), connected as in training. This file is run on each host as text
(`python -P -c TEXT`) and reads requests from stdin.

The first JSON line has the program's own address, the second the first rank's address and port. The program ends when
stdin ends, whatever it waits for. The store and gloo use only its own address.
"""

import datetime as dt
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

_SIOCGIFADDR = 0x8915


def main() -> None:
    """Run one rank of the all-reduce and answer its two requests, each by a line of JSON.

    The first answer is the `port` on which the first rank listens (0 on others), the second how long the all-reduce
    took (`took_s`) and whether its result was `right`. An `error` comes in place of either; then wait until stdin ends.
    """
    asked = _read_request()
    try:
        family, place = _prepared(asked["address"])
        import torch  # noqa: F401 - late: it reads OMP_NUM_THREADS now, and what goes wrong is told

        listener = socket.create_server((place, 0), family=family) if asked["rank"] == 0 else None
        _print_line(port=listener.getsockname()[1] if listener else 0)
        go = _read_request()
        threading.Thread(target=_read_request, daemon=True).start()
        _print_line(**_reduced(asked["rank"], asked["world"], go, listener.detach() if listener else None))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        _print_line(error=" ".join(str(error).split())[:200] or type(error).__name__)
        _read_request()  # who holds the store stays for the others


def _prepared(address: str) -> tuple[int, str]:
    """Make gloo use the interface that has `address`, this host's name or address for the others, and torch one
    thread, by environment variables. Return (socket family, IP address to bind).
    """
    family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    os.environ["OMP_NUM_THREADS"] = "1"
    if interface := _interface_of(str(place[0])):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    return family, str(place[0])


def _reduced(rank: int, world: int, go: dict[str, Any], listener: int | None) -> dict[str, Any]:
    """Join the process group as rank `rank` of `world` ranks, run the all-reduce, and return the answer: the seconds
    that it took (`took_s`) and whether the result was right (`right`).

    `go` is the request: the first rank's `address` and `port`, the size of the message (`mb`) and a time limit
    (`limit_s`). `listener` is the socket on which the first rank listens, None for others.
    """
    import torch  # late: as in main
    import torch.distributed as dist  # late: as in main

    limit = dt.timedelta(seconds=go["limit_s"])
    store = dist.TCPStore(go["address"], go["port"], world, rank == 0, limit, master_listen_fd=listener)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    numbers = torch.full((go["mb"] * 250_000,), rank + 1.0)
    dist.barrier()
    began = time.monotonic()
    dist.all_reduce(numbers)
    took_s = time.monotonic() - began
    right = bool((numbers == world * (world + 1) / 2).all())
    dist.barrier()
    return {"took_s": took_s, "right": right}


def _interface_of(address: str) -> str:
    """Return the name of the network interface with this IPv4 address, or "" if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _print_line(**what: object) -> None:
    """Print an answer as a line of JSON."""
    print(json.dumps(what), flush=True)


def _read_request() -> dict[str, Any]:
    """Return the next request, decoded from a line of stdin; end this process with exit code 1 at the end of stdin.

    The first request has this host's `address`, the `rank` and the number of ranks (`world`); the second has the
    `address` and `port` of the first rank, the size of the message (`mb`) and a time limit (`limit_s`).
    """
    line = sys.stdin.readline()
    if not line:
        os._exit(1)
    found: dict[str, Any] = json.loads(line)
    return found


if __name__ == "__main__":
    main()
