"""The agent ↔ coordinator wire: JSON lines over TCP, after each side has proved that it knows the run's token.

This proof, in other roles, also opens the wire between agents' replica servers (`replication/`).

    coordinator → agent   {"v":1,"nonce":C}
    agent → coordinator   {"v":1,"nonce":A,"mac":HMAC(token, "agent"|C|A)}
    coordinator → agent   {"mac":HMAC(token, "coordinator"|A|C)}

The token itself never crosses; a peer that cannot answer, talks garbage, or is silent is dropped and disturbs nobody.
"""

import asyncio
import hmac
import secrets
from typing import Generic, TypeVar

import msgspec

from launcher.agent.messages import WIRE_VERSION, ToAgent, ToCoordinator
from launcher.errors import LaunchError

MAX_LINE_BYTES = 1 << 20
HANDSHAKE_LINE_BYTES = 512
HANDSHAKE_S = 5.0
MAX_UNSENT_BYTES = 8 << 20

In = TypeVar("In")
Out = TypeVar("Out")


class WireError(LaunchError):
    """The peer broke the protocol, or is not one of ours."""


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    nonce: str


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    nonce: str
    mac: str


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mac: str


def mac(token: str, role: str, first: str, second: str) -> str:
    """What `role` must say to prove the token over both nonces."""
    return hmac.new(bytes.fromhex(token), f"{role}|{first}|{second}".encode(), "sha256").hexdigest()


class Wire(Generic[In, Out]):
    """One proved connection: `receive` gives messages in order and None at the end, `send` never blocks."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.json.Decoder[In]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._encoder = msgspec.json.Encoder()

    async def receive(self) -> In | None:
        """The next message; None where the peer is gone. Raises WireError on a line that is not one."""
        line = await read_line(self._reader)
        if line is None:
            return None
        try:
            return self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"a line that is no message: {error}") from error

    def send(self, message: Out) -> None:
        """Queue one message; a peer that reads nothing for too long is dropped."""
        if self._writer.is_closing():
            return
        self._writer.write(self._encoder.encode(message) + b"\n")
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._writer.transport.abort()

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


AgentWire = Wire[ToAgent, ToCoordinator]
CoordinatorWire = Wire[ToCoordinator, ToAgent]

_to_agent: msgspec.json.Decoder[ToAgent] = msgspec.json.Decoder(ToAgent)
_to_coordinator: msgspec.json.Decoder[ToCoordinator] = msgspec.json.Decoder(ToCoordinator)


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> CoordinatorWire:
    """The coordinator's side of the proof. Raises WireError or TimeoutError; the caller closes."""
    await challenge(reader, writer, token, "agent", "coordinator")
    return Wire(reader, writer, _to_coordinator)


async def connect(address: str, port: int, own_address: str, token: str) -> AgentWire:
    """The agent's side: connect from its own address and prove the token both ways."""
    reader, writer = await dial(address, port, own_address, token, "agent", "coordinator", MAX_LINE_BYTES)
    return Wire(reader, writer, _to_agent)


async def challenge(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, theirs: str, ours: str
) -> None:
    """Have whoever has connected prove the token in the role `theirs`, and prove it to them in the role `ours`.

    Raises WireError or TimeoutError; the caller closes.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        nonce = secrets.token_hex(16)
        writer.write(msgspec.json.encode(_Hello(WIRE_VERSION, nonce)) + b"\n")
        proof = await _handshake_line(reader, _Proof)
        if proof.v != WIRE_VERSION:
            raise WireError(f"wire version {proof.v} where {WIRE_VERSION} was expected")
        if not hmac.compare_digest(proof.mac.encode(), mac(token, theirs, nonce, proof.nonce).encode()):
            raise WireError("the peer does not know this run's token")
        writer.write(msgspec.json.encode(_Answer(mac(token, ours, proof.nonce, nonce))) + b"\n")


async def dial(
    address: str, port: int, own_address: str, token: str, ours: str, theirs: str, limit: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from the own address and prove the token in the role `ours` to one that proves it in `theirs`."""
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(address, port, limit=limit, local_addr=(own_address, 0))
        try:
            hello = await _handshake_line(reader, _Hello)
            if hello.v != WIRE_VERSION:
                raise WireError(f"wire version {hello.v} where {WIRE_VERSION} was expected")
            nonce = secrets.token_hex(16)
            proof = _Proof(WIRE_VERSION, nonce, mac(token, ours, hello.nonce, nonce))
            writer.write(msgspec.json.encode(proof) + b"\n")
            answer = await _handshake_line(reader, _Answer)
            if not hmac.compare_digest(answer.mac.encode(), mac(token, theirs, nonce, hello.nonce).encode()):
                raise WireError(f"{address}:{port} does not know this run's token")
        except BaseException:
            writer.close()
            raise
    return reader, writer


T = TypeVar("T", _Hello, _Proof, _Answer)


async def _handshake_line(reader: asyncio.StreamReader, kind: type[T]) -> T:
    line = await read_line(reader)
    if line is None or len(line) > HANDSHAKE_LINE_BYTES:
        raise WireError("the peer left, or said too much, before its proof")
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError("the peer does not speak this protocol") from error


async def read_line(reader: asyncio.StreamReader) -> bytes | None:
    """One whole line; None at the end of the stream, torn or not."""
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return None
    except asyncio.LimitOverrunError as error:
        raise WireError("a line beyond the size limit") from error
    return line
