"""Run on a host as text (`python -I -c TEXT`) by `launch doctor POOL`: lets others measure the way to it, and
measures its own ways to them. Asked by JSON lines on stdin; leaves when they end, and leaves nothing behind.

Who connects proves the token, and has it proved, as on the agents' wire. The standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import random
import secrets
import select
import socket
import statistics
import struct
import sys
import threading
import time
from typing import Any

PINGS = 5
FLOOD_S, FLOOD_BYTES = 1.0, 64_000_000
_PIECE = 256 * 1024
_CONNECT_S, _SILENT_S = 3.0, 5.0
_LONGEST_LINE = 512
_CALLER, _LISTENER = "doctor-caller", "doctor-listener"
_MASTER_PORTS = (20_000, 32_000)  # where a run's MASTER_PORT is
_TRIES = 64


def main() -> None:
    token, version, own_address = "", 0, ""
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            if asked["do"] == "open":
                token, version, own_address = asked["token"], asked["version"], asked["address"]
                answer = {"ports": open_doors(own_address, token, version)}
            else:
                answer = call(asked["address"], asked["ports"], own_address, token, version)
        except (OSError, ValueError) as error:
            answer = {"error": why(error)}
        print(json.dumps(answer), flush=True)


def why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]


def open_doors(address: str, token: str, version: int) -> list[int]:
    """Listen on this address alone: on a port as MASTER_PORT has, and on one that the kernel chooses."""
    if not address:
        raise ValueError("its address is not known")
    family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    ports = []
    for choices in ([random.SystemRandom().randint(*_MASTER_PORTS) for _ in range(_TRIES)], [0]):
        door = _bound(family, str(place[0]), choices)
        door.listen()
        ports.append(int(door.getsockname()[1]))
        threading.Thread(target=_attend, args=(door, token, version), daemon=True).start()
    return ports


def _bound(family: int, address: str, ports: list[int]) -> socket.socket:
    """On the first of the ports that is free."""
    *some, last = ports
    door = socket.socket(family, socket.SOCK_STREAM)
    for port in some:
        try:
            door.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return door
    door.bind((address, last))
    return door


def _attend(door: socket.socket, token: str, version: int) -> None:
    while True:
        caller, _ = door.accept()
        threading.Thread(target=_serve, args=(caller, token, version), daemon=True).start()


def _serve(caller: socket.socket, token: str, version: int) -> None:
    """Answer pings; then take what comes, and say how much it was in how long."""
    with caller, contextlib.suppress(OSError, ValueError):  # strangers, and who hangs up
        caller.settimeout(_SILENT_S)
        challenge(caller, token, version)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            if not caller.recv(1):
                return
            caller.sendall(b".")
        buffer = bytearray(_PIECE)
        first = caller.recv_into(buffer)
        began = now = time.monotonic()
        size = 0
        while first + size < FLOOD_BYTES and now - began < FLOOD_S:
            took = caller.recv_into(buffer)
            if not took:
                return
            size += took
            now = time.monotonic()
        caller.sendall(json.dumps({"bytes": size, "seconds": now - began}).encode() + b"\n")
        while caller.recv_into(buffer) and time.monotonic() - now < _SILENT_S:
            continue  # closed with something unread, the answer might be lost


def call(address: str, ports: list[int], own_address: str, token: str, version: int) -> dict[str, Any]:
    """How long a word takes there and back, and how fast much of it goes there."""
    master, other = ports
    for port in (other, master):
        try:
            with socket.create_connection((address, port), _CONNECT_S, (own_address, 0)) as line:
                line.settimeout(_SILENT_S)
                prove(line, token, version)
                if port == master:
                    return {"round_trip_s": _ping(line), "bytes_per_s": _flood(line)}
        except (OSError, ValueError) as error:
            return {"error": why(error), "port": port}
    raise AssertionError("it has returned")


def _ping(line: socket.socket) -> float:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        line.sendall(b".")
        if not line.recv(1):
            raise ConnectionError("it hung up")
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _flood(line: socket.socket) -> float:
    """Bytes a second, as the other side has counted them."""
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what is still unsent is not wanted
    piece, left, answer = memoryview(bytes(_PIECE)), FLOOD_BYTES, b""
    until = time.monotonic() + FLOOD_S + _SILENT_S
    while not answer.endswith(b"\n"):
        wait_s = max(0.0, until - time.monotonic())
        heard, free, _ = select.select([line], [line] if left else [], [], wait_s)
        if heard:
            answer += (more := line.recv(_LONGEST_LINE))
            if not more:
                raise ConnectionError("it hung up")
        elif free:
            left -= line.send(piece[: min(left, _PIECE)])
        if not wait_s:
            raise TimeoutError("nothing arrives there")
    counted = json.loads(answer)
    return float(counted["bytes"] / max(counted["seconds"], 1e-6))


# The proof of launcher.agent.wire


def challenge(line: socket.socket, token: str, version: int) -> None:
    nonce = secrets.token_hex(16)
    _say(line, {"v": version, "nonce": nonce})
    proof = _hear(line, "nonce", "mac")
    if not hmac.compare_digest(proof["mac"].encode(), _mac(token, _CALLER, nonce, proof["nonce"]).encode()):
        raise ValueError("a stranger")
    _say(line, {"mac": _mac(token, _LISTENER, proof["nonce"], nonce)})


def prove(line: socket.socket, token: str, version: int) -> None:
    theirs, nonce = _hear(line, "nonce")["nonce"], secrets.token_hex(16)
    _say(line, {"v": version, "nonce": nonce, "mac": _mac(token, _CALLER, theirs, nonce)})
    answer = _hear(line, "mac")
    if not hmac.compare_digest(answer["mac"].encode(), _mac(token, _LISTENER, nonce, theirs).encode()):
        raise ValueError("somebody else answers there")


def _mac(token: str, role: str, first: str, second: str) -> str:
    return hmac.new(bytes.fromhex(token), f"{role}|{first}|{second}".encode(), "sha256").hexdigest()


def _say(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")


def _hear(line: socket.socket, *words: str) -> dict[str, str]:
    """These words of a line that is read byte by byte: what follows it is not for here."""
    said = b""
    while not said.endswith(b"\n"):
        byte = line.recv(1)
        if not byte or len(said) > _LONGEST_LINE:
            raise ConnectionError("it hangs up before it proves the token")
        said += byte
    message = json.loads(said)
    if not isinstance(message, dict) or not all(isinstance(message.get(word), str) for word in words):
        raise ValueError("somebody else answers there")
    return {word: message[word] for word in words}


if __name__ == "__main__":
    main()
