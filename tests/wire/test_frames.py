"""The proved connection between our processes against friends, strangers, vandals, relays and crowds."""

import asyncio
import hashlib
import json
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.records import ProcessId
from launcher.wire import frames as wire
from launcher.wire import messages
from launcher.wire.frames import WireError, WireServer, dial, handshake_limit_s, wire_key
from tests.waits import eventually

KEY, OTHER = (wire_key(hashlib.sha256(what).hexdigest(), messages.WIRE, "run", 1) for what in (b"token", b"other"))
JOIN = messages.Join(1, "127.0.0.2", ProcessId("h", "b", 1, 2), 20_001)


class Server:
    """A coordinator's end that keeps what it heard; why it dropped strangers is kept too."""

    def __init__(self, most_peers=100, **limits):
        self.heard = []
        self.dropped = []
        self._listener = WireServer(KEY, messages.TO_COORDINATOR, self._serve, most_peers, **limits)
        drop = self._listener._drop

        def note(peer, error):
            self.dropped.append(error)
            drop(peer, error)

        self._listener._drop = note

    async def __aenter__(self):
        self.port = await self._listener.start("127.0.0.1")
        return self

    async def __aexit__(self, *_):
        await self._listener.close()

    def drop_overdue(self):
        self._listener._drop_overdue()

    @property
    def unproved(self):
        return self._listener._unproved

    async def _serve(self, friend):
        while (message := await friend.receive()) is not None:
            self.heard.append(message)
            friend.send(messages.Welcome(15.0))


def connect(port, own="127.0.0.1", key=KEY, patience=1):
    return dial("127.0.0.1", port, own, key, messages.TO_AGENT, patience=patience)


def test_messages_cross_both_ways_from_the_agents_own_address():
    async def scene():
        async with Server() as server:
            agent = await connect(server.port, "127.0.0.2")
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
            with pytest.raises(WireError, match="left"):
                await connect(server.port, key=OTHER)
            return server

    server = asyncio.run(scene())
    assert server.heard == []
    assert "token" in str(server.dropped[0])


@pytest.mark.parametrize(
    "other",
    [("replicas", "run", 1), (messages.WIRE, "run-2", 1), (messages.WIRE, "run", 2), (messages.WIRE, "run1", 1)],
)
def test_a_key_is_that_of_one_wire_of_one_attempt_of_one_run(other):
    assert wire_key("ab" * 32, messages.WIRE, "run", 1) != wire_key("ab" * 32, *other)


def test_an_agent_does_not_trust_a_coordinator_without_the_token():
    async def impostor(reader, writer):
        writer.write(b'{"v":%d,"nonce":"%s"}\n' % (messages.WIRE_VERSION, b"0" * 32))
        await reader.readline()
        writer.write(b'{"mac":"' + b"0" * 64 + b'"}\n')
        writer.close()

    async def scene():
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WireError, match=f"127.0.0.1:{port}.*token"):
            await connect(port)
        server.close()

    asyncio.run(scene())


GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"{}\n", b'{"v":1}\n', b"[" * 5000 + b"\n",
     b"x" * 3_000_000, b'{"v":99,"nonce":"a","mac":"b"}\n', b'{"v":1,"nonce":"\xff","mac":""}\n', b"\n\n\n",
     b'{"v":4,"nonce":"%s","mac":"\xc3\xa9"}\n' % (b"0" * 32)]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_disturbs_nobody(garbage):
    async def scene():
        async with Server() as server:
            friend = await connect(server.port)
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


@pytest.mark.parametrize("garbage", GARBAGE)
def test_nor_does_it_disturb_who_has_called_there(garbage):
    async def scene():
        async def vandal(_, writer):
            writer.write(garbage)
            writer.close()
            left.set_result(None)

        left = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(vandal, "127.0.0.1", 0)
        with pytest.raises(WireError, match=r"127\.0\.0\.1"):
            await connect(server.sockets[0].getsockname()[1])
        await left
        server.close()

    asyncio.run(scene())


def test_a_silent_peer_is_dropped_in_time():
    async def scene():
        async with Server(handshake_s=0.1) as server:
            reader, silent = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readline()
            assert await reader.read() == b""
            silent.close()
            return server.dropped

    assert isinstance(asyncio.run(scene())[0], TimeoutError)


# -- who passes on what others say


def test_a_proof_recorded_from_one_connection_opens_no_other():
    recorded, servers = [], []

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
                await connect(between.sockets[0].getsockname()[1])
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


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.2"])
def test_a_relay_gets_nowhere(own):
    """It passes every byte on, at once and both ways, with the address of whom it speaks for if it has that."""

    async def scene():
        async with Server() as server:

            async def relay(reader, writer):
                inside, outside = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(own, 0))
                await asyncio.gather(copied(reader, outside), copied(inside, writer))

            between = await asyncio.start_server(relay, "127.0.0.1", 0)
            with pytest.raises(WireError):
                await connect(between.sockets[0].getsockname()[1], own)
            between.close()
            return server

    server = asyncio.run(scene())
    assert server.heard == []
    assert "speaks for another" in str(server.dropped[0])


async def copied(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


# -- crowds


def test_strangers_who_say_nothing_delay_nobody_for_longer_than_their_time():
    """More of them come than may be there at once, and go on coming."""

    async def stranger(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read(1) == b"{", "it is asked for its proof in its turn"
        most.append(len(server.unproved))
        while await reader.read(100):
            pass
        writer.close()

    async def scene():
        async with Server(hurry_s=0.2, most_unproved=16) as server:
            crowd = [asyncio.create_task(stranger(server)) for _ in range(100)]
            await eventually(lambda: len(server.unproved) == 16)
            friend = await connect(server.port, patience=10)
            friend.send(JOIN)
            assert await friend.receive() == messages.Welcome(15.0)
            friend.close()
            await asyncio.gather(*crowd)
            assert len(server.dropped) == 100

    most = []
    asyncio.run(scene())
    assert max(most) == 16


def test_friends_of_any_number_at_once_are_all_let_in_and_none_gives_way():
    """All of them have connected before the first has proved itself."""

    async def slow_friend(server):
        friend = await connect(server.port, patience=100)
        friend.send(JOIN)
        assert await friend.receive() == messages.Welcome(15.0)
        friend.close()

    async def scene():
        async with Server(most_peers=1000, handshake_s=600.0, hurry_s=600.0, most_unproved=16) as server:
            await asyncio.gather(*(slow_friend(server) for _ in range(300)))
            assert (len(server.heard), server.dropped) == (300, [])

    asyncio.run(scene())


def test_a_friend_that_has_spoken_is_let_in_where_the_server_was_late():
    """Its proof has come, and nothing of it was read, when its time is over: the server had no processor."""

    async def scene():
        async with Server(handshake_s=600.0) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as friend:
                await eventually(lambda: server.unproved)
                (handshake,) = server.unproved.values()
                server_nonce, nonce = json.loads(friend.recv(512))["nonce"], "0" * 32
                ends = [f"{address} {port}" for address, port in (friend.getsockname(), friend.getpeername())]
                mac = wire.proof_of(KEY, "client", *ends, f"{server_nonce}|{nonce}")
                said = {"v": messages.WIRE_VERSION, "nonce": nonce, "mac": mac}
                friend.sendall(json.dumps(said).encode() + b"\n")
                handshake.since = -1e9
                server.drop_overdue()
                assert not server.unproved
            assert not server.dropped

    asyncio.run(scene())


def test_no_more_peers_than_there_can_be_even_if_they_know_the_token():
    async def scene():
        async with Server(most_peers=2) as server:
            friends = [await connect(server.port) for _ in range(2)]
            friends[0].send(JOIN)
            await friends[0].receive()
            late = await connect(server.port)
            assert await late.receive() is None
            friends[1].send(JOIN)
            assert await friends[1].receive() == messages.Welcome(15.0)
            for one in (*friends, late):
                one.close()

    asyncio.run(scene())


def test_what_strangers_send_stays_where_it_is():
    """Not a byte beyond one short line is taken out of the kernel."""

    async def scene():
        async with Server() as server:
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.settimeout(60)
                await asyncio.to_thread(stranger.recv, 100)
                (peer,) = server.unproved
                stranger.sendall(b"x" * 100_000)
                while server.unproved:
                    await asyncio.sleep(0.005)
                assert peer.fileno() == -1
            assert "too much" in str(server.dropped[0])

    asyncio.run(scene())


# -- lines


def test_a_line_that_is_no_message_ends_only_its_own_connection(capsys):
    async def scene():
        async with Server() as server:
            one = await connect(server.port)
            two = await connect(server.port)
            one.writer.write(b'{"t":"join","node":"x"}\n')
            assert await one.receive() is None
            one.close()
            two.send(JOIN)
            assert await two.receive() == messages.Welcome(15.0)
            two.close()
            return one.writer.get_extra_info("sockname")[1]

    port = asyncio.run(scene())
    assert f"dropped 127.0.0.1:{port}: it sent a line that is no message" in capsys.readouterr().err


@given(st.one_of(st.binary(max_size=2000), st.text(max_size=500).map(lambda text: text.encode(errors="replace"))))
def test_any_line_is_a_message_or_a_named_error(line):
    for decoder in (messages.TO_AGENT, messages.TO_COORDINATOR):
        try:
            wire.parsed(line, decoder)
        except WireError as error:
            assert len(str(error)) <= 500


def test_a_numeric_address_needs_no_thread():
    """Disks that stand still hold all threads of the pool; an agent has to find its coordinator again all the same."""

    async def scene():
        let_go = threading.Event()
        loop = asyncio.get_running_loop()
        async with Server() as server:
            busy = [loop.run_in_executor(None, let_go.wait, 60) for _ in range(64)]
            try:
                agent = await connect(server.port)
                agent.close()
            finally:
                let_go.set()
                await asyncio.gather(*busy)

    asyncio.run(scene())


def test_a_peer_that_resets_right_after_its_proof_is_an_error_of_the_connection():
    async def scene():
        listening = socket.create_server(("127.0.0.1", 0))
        peer = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()
        peer.setblocking(False)
        listening.close()
        with pytest.raises(OSError, match="not connected"):
            await wire._opened(peer, messages.TO_AGENT, 100)
        assert peer.fileno() == -1

    asyncio.run(scene())


def test_where_many_may_come_at_once_each_has_longer_to_prove_itself():
    assert handshake_limit_s(1) < 6.0
    assert handshake_limit_s(12_500) == 30.0


# -- a peer that is attended to


def attended(scene, **limits):
    """Run the scene with a server that has `handle` called; return the messages and why connections ended."""
    heard, ended = [], []

    async def serve(friend):
        heard.append(await friend.receive())
        try:
            await friend.attend(heard.append)
        except WireError as error:
            ended.append(str(error))
            raise
        ended.append("")

    async def run():
        server = WireServer(KEY, messages.TO_COORDINATOR, serve, 10, **limits)
        port = await server.start("127.0.0.1")
        try:
            await scene(port, heard)
            await eventually(lambda: ended)
        finally:
            await server.close()

    asyncio.run(run())
    return heard, ended


def test_what_came_before_is_handled_before_what_comes_after():
    async def scene(port, heard):
        friend = await connect(port)
        for number in range(300):
            friend.send(messages.Stopped(1, number))
            if number in (100, 200):
                await eventually(lambda number=number: len(heard) == number + 1)
        friend.close()

    assert attended(scene) == ([messages.Stopped(1, number) for number in range(300)], [""])


def test_a_line_may_arrive_in_pieces_and_one_without_end_ends_its_connection():
    async def scene(port, heard):
        friend = await connect(port)
        friend.send(JOIN)
        for piece in (b'{"t":"stop', b'ped","node":1,"gener', b'ation":5}\n{"t":"ready","node":1}\n{'):
            friend.writer.write(piece)
            await asyncio.sleep(0.01)
        await eventually(lambda: len(heard) == 3)
        friend.writer.write(b"x" * 5000)
        assert await friend.receive() is None
        friend.close()

    heard, ended = attended(scene, line_bytes=1000)
    assert (heard, ended) == (
        [JOIN, messages.Stopped(1, 5), messages.Ready(1)],
        ["it sent a line beyond the size limit"],
    )


def test_a_line_that_is_no_message_ends_the_connection_that_is_attended_to():
    async def scene(port, heard):
        friend = await connect(port)
        friend.send(JOIN)
        await eventually(lambda: heard)
        friend.writer.write(b'{"t":"join","node":"x"}\n{"t":"ready","node":1}\n')
        assert await friend.receive() is None
        friend.close()

    heard, ended = attended(scene)
    assert heard == [JOIN]
    assert ended[0].startswith("it sent a line that is no message")


def test_among_very_many_connections_every_message_is_read(monkeypatch):
    monkeypatch.setattr(wire, "_MANY", 0)

    async def scene(port, heard):
        friend = await connect(port)
        friend.send(JOIN)
        for number in range(20):
            friend.send(messages.Stopped(1, number))
            await eventually(lambda number=number: len(heard) == number + 2)
        friend.close()

    assert attended(scene)[1] == [""]
