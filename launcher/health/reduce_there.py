"""One rank of an all-reduce by torch (gloo), run as text on each host (`python -P -c TEXT`), by the ways of training.

Asked by JSON lines on stdin: first who it is, then where the first rank listens. It ends with its stdin, whatever it
waits for; the store and gloo are on its own address alone.
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
    asked = _hear()
    try:
        family, place = _prepared(asked["address"])
        import torch  # noqa: F401 - late: it reads OMP_NUM_THREADS now, and what goes wrong is told

        listener = socket.create_server((place, 0), family=family) if asked["rank"] == 0 else None
        _say(port=listener.getsockname()[1] if listener else 0)
        go = _hear()
        threading.Thread(target=_hear, daemon=True).start()
        _say(**_reduced(asked["rank"], asked["world"], go, listener.detach() if listener else None))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        _say(error=" ".join(str(error).split())[:200] or type(error).__name__)
        _hear()  # who holds the store stays for the others


def _prepared(address: str) -> tuple[int, str]:
    """Set gloo's environment variables; return the family and the address to bind."""
    family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    os.environ["OMP_NUM_THREADS"] = "1"
    if interface := _interface_of(str(place[0])):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    return family, str(place[0])


def _reduced(rank: int, world: int, go: dict[str, Any], listener: int | None) -> dict[str, Any]:
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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def _hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        os._exit(1)
    found: dict[str, Any] = json.loads(line)
    return found


if __name__ == "__main__":
    main()
