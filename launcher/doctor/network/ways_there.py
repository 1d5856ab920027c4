"""Measures the ways from and to one node: lets others measure the way to it, and measures its own ways to them.

The standard library alone. On hosts that have nothing of ours it is run as text (`python -I -c TEXT`), is asked by
JSON lines on stdin, and leaves when they end. Who connects proves the token, and has it proved, as on the agents' wire.
"""

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass

PINGS = 5
FLOOD_S, FLOOD_BYTES = 1.0, 64_000_000
_PIECE = 256 * 1024
_CONNECT_S, _SILENT_S = 3.0, 5.0
_LONGEST_LINE = 512
_CALLER, _LISTENER = "doctor-caller", "doctor-listener"
_MASTER_PORTS = (20_000, 32_000)  # where a run's MASTER_PORT is
_TRIES = 64


@dataclass(frozen=True)
class OwnEnd:
    """Where this node listens and calls from, and what proves to the others that it is one of them."""

    address: str
    token: str
    version: int


@dataclass(frozen=True)
class OpenDoors:
    """The ports where others can call, first one as MASTER_PORT has; or why there are none."""

    ports: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Measured:
    """What a call found out; with an error it did not come through, at that port."""

    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""
    port: int = 0


def main() -> None:
    me = OwnEnd("", "", 0)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.pop("do") == "open":
            me = OwnEnd(**asked)
        answer = call(me, **asked) if "ports" in asked else open_doors(me)
        print(json.dumps(asdict(answer)), flush=True)


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]


def open_doors(me: OwnEnd) -> OpenDoors:
    """Listen on this address alone: on a port as MASTER_PORT has, and on one that the kernel chooses."""
    if not me.address:
        return OpenDoors(error="its address is not known")
    ports = []
    try:
        family, _, _, _, place = socket.getaddrinfo(me.address, 0, type=socket.SOCK_STREAM)[0]
        for choices in ([random.SystemRandom().randint(*_MASTER_PORTS) for _ in range(_TRIES)], []):
            door = _bound(family, str(place[0]), choices)
            door.listen()
            ports.append(int(door.getsockname()[1]))
            threading.Thread(target=_attend, args=(door, me), daemon=True).start()
    except OSError as error:
        return OpenDoors(error=_why(error))
    return OpenDoors(tuple(ports))


def _bound(family: int, address: str, ports: list[int]) -> socket.socket:
    """On the first of the ports that is free, or on any."""
    door = socket.socket(family, socket.SOCK_STREAM)
    for port in (*ports, 0):
        try:
            door.bind((address, port))
            break
        except OSError as error:
            if not port or error.errno != errno.EADDRINUSE:
                raise
    return door


def _attend(door: socket.socket, me: OwnEnd) -> None:
    while True:
        caller, _ = door.accept()
        threading.Thread(target=_serve, args=(caller, me), daemon=True).start()


def _serve(caller: socket.socket, me: OwnEnd) -> None:
    """Answer pings; then take what comes, and say how much it was in how long."""
    with caller, contextlib.suppress(OSError, ValueError):  # strangers, and who hangs up
        caller.settimeout(_SILENT_S)
        challenge(caller, me)
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
        _say(caller, {"bytes": size, "seconds": now - began})
        while caller.recv_into(buffer) and time.monotonic() - now < _SILENT_S:
            continue  # closed with something unread, the answer might be lost


def call(me: OwnEnd, address: str, ports: Sequence[int], *, flood: bool = True) -> Measured:
    """How long a word takes there and back, and how fast much of it goes there."""
    master, other = ports
    for port in (other, master):
        try:
            with socket.create_connection((address, port), _CONNECT_S, (me.address, 0)) as line:
                line.settimeout(_SILENT_S)
                prove(line, me)
                if port == master:
                    return Measured(_ping(line), _flood(line) if flood else 0.0)
        except (OSError, ValueError) as error:
            return Measured(error=_why(error), port=port)
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


def challenge(line: socket.socket, me: OwnEnd) -> None:
    nonce = secrets.token_hex(16)
    _say(line, {"v": me.version, "nonce": nonce})
    proof = _hear(line, "nonce", "mac")
    if not hmac.compare_digest(proof["mac"].encode(), _mac(me, _CALLER, nonce, proof["nonce"]).encode()):
        raise ValueError("a stranger")
    _say(line, {"mac": _mac(me, _LISTENER, proof["nonce"], nonce)})


def prove(line: socket.socket, me: OwnEnd) -> None:
    theirs, nonce = _hear(line, "nonce")["nonce"], secrets.token_hex(16)
    _say(line, {"v": me.version, "nonce": nonce, "mac": _mac(me, _CALLER, theirs, nonce)})
    answer = _hear(line, "mac")
    if not hmac.compare_digest(answer["mac"].encode(), _mac(me, _LISTENER, nonce, theirs).encode()):
        raise ValueError("somebody else answers there")


def _mac(me: OwnEnd, role: str, first: str, second: str) -> str:
    return hmac.new(bytes.fromhex(me.token), f"{role}|{first}|{second}".encode(), "sha256").hexdigest()


def _say(line: socket.socket, message: dict[str, str | int | float]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")


def _hear(line: socket.socket, *words: str) -> dict[str, str]:
    """These words of a line that is read byte by byte: what follows it is not for here."""
    said = b""
    while not said.endswith(b"\n"):
        said += (byte := line.recv(1))
        if not byte or len(said) > _LONGEST_LINE:
            raise ConnectionError("it hangs up before it proves the token")
    message = json.loads(said)
    if not isinstance(message, dict) or not all(isinstance(message.get(word), str) for word in words):
        raise ValueError("somebody else answers there")
    return {word: message[word] for word in words}


if __name__ == "__main__":
    main()
