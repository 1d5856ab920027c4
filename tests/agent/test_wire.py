"""The agent ↔ coordinator wire against friends, strangers and vandals."""

import asyncio
import hashlib

import pytest

from launcher.agent import messages, wire
from launcher.agent.wire import WireError, accept, connect
from launcher.rundir.records import ProcessId

TOKEN = hashlib.sha256(b"token").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
JOIN = messages.Join(1, "127.0.0.2", ProcessId("h", "b", 1, 2), 20_001)


class Server:
    """A coordinator's end that keeps what it heard and why it dropped whom."""

    def __init__(self):
        self.heard = []
        self.dropped = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=wire.MAX_LINE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            friend = await accept(reader, writer, TOKEN)
            while (message := await friend.receive()) is not None:
                self.heard.append(message)
                friend.send(messages.Welcome(15.0))
        except (WireError, TimeoutError, OSError) as error:
            self.dropped.append(error)
        finally:
            writer.close()


def test_messages_cross_both_ways_from_the_agents_own_address():
    async def scene():
        async with Server() as server:
            agent = await connect("127.0.0.1", server.port, "127.0.0.2", TOKEN)
            agent.send(JOIN)
            answer = await agent.receive()
            agent.close()
            return server.heard, answer

    heard, answer = asyncio.run(scene())
    assert heard == [JOIN]
    assert answer == messages.Welcome(15.0)


def test_a_wrong_token_is_refused_and_heard_of_nowhere():
    async def scene():
        async with Server() as server:
            with pytest.raises(WireError):
                await connect("127.0.0.1", server.port, "127.0.0.1", OTHER)
            return server

    server = asyncio.run(scene())
    assert server.heard == []
    assert "token" in str(server.dropped[0])


def test_an_agent_does_not_trust_a_coordinator_without_the_token():
    async def impostor(reader, writer):
        writer.write(b'{"v":%d,"nonce":"00"}\n' % messages.WIRE_VERSION)
        await reader.readline()
        writer.write(b'{"mac":"' + b"0" * 64 + b'"}\n')
        writer.close()

    async def scene():
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WireError, match="token"):
            await connect("127.0.0.1", port, "127.0.0.1", TOKEN)
        server.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"{}\n", b'{"v":1}\n', b"[" * 5000 + b"\n",
     b"x" * 3_000_000, b'{"v":99,"nonce":"a","mac":"b"}\n', b'{"v":1,"nonce":"\xff","mac":""}\n', b"\n\n\n"],
)  # fmt: skip
def test_garbage_disturbs_nobody(garbage):
    async def scene():
        async with Server() as server:
            friend = await connect("127.0.0.1", server.port, "127.0.0.1", TOKEN)
            _, vandal = await asyncio.open_connection("127.0.0.1", server.port)
            vandal.write(garbage)
            if vandal.can_write_eof():
                vandal.write_eof()
            while not server.dropped:
                await asyncio.sleep(0.005)
            vandal.close()
            friend.send(JOIN)
            assert await friend.receive() == messages.Welcome(15.0)
            friend.close()

    asyncio.run(scene())


def test_a_silent_peer_is_dropped_in_time(monkeypatch):
    monkeypatch.setattr(wire, "HANDSHAKE_S", 0.1)

    async def scene():
        async with Server() as server:
            reader, silent = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readline()
            assert await reader.read() == b""
            silent.close()
            return server.dropped

    assert isinstance(asyncio.run(scene())[0], TimeoutError)


def test_a_proof_recorded_from_one_connection_opens_no_other():
    recorded = []
    servers = []

    async def tap(reader, writer):
        inside, outside = await asyncio.open_connection("127.0.0.1", servers[0].port)
        writer.write(await inside.readline())
        recorded.append(await reader.readline())
        writer.close()
        outside.close()

    async def scene():
        async with Server() as server:
            servers.append(server)
            between = await asyncio.start_server(tap, "127.0.0.1", 0)
            with pytest.raises(WireError):
                await connect("127.0.0.1", between.sockets[0].getsockname()[1], "127.0.0.1", TOKEN)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readline()
            writer.write(recorded[0])
            assert await reader.read() == b""
            writer.close()
            between.close()
            return server

    server = asyncio.run(scene())
    assert server.heard == []
    assert any("token" in str(error) for error in server.dropped)


def test_a_line_that_is_no_message_ends_only_its_own_connection():
    async def scene():
        async with Server() as server:
            one = await connect("127.0.0.1", server.port, "127.0.0.1", TOKEN)
            two = await connect("127.0.0.1", server.port, "127.0.0.1", TOKEN)
            one._writer.write(b'{"t":"join","node":"x"}\n')
            assert await one.receive() is None
            one.close()
            two.send(JOIN)
            assert await two.receive() == messages.Welcome(15.0)
            two.close()

    asyncio.run(scene())
