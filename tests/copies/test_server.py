"""A server against friends, strangers and vandals."""

import asyncio
import json
import os
import socket

import msgspec
import pytest
from replication_lab import BOUND_S, KEY, OTHER, Pool, content, held, names, save_apart

from launcher.copies import bulk
from launcher.copies import client as peer
from launcher.copies.link import Unwilling, linked
from launcher.copies.protocol import (
    LINE_BYTES,
    Get,
    Go,
    LoadDecision,
    Offer,
    Put,
    Save,
    SaveChoice,
)
from launcher.wire import frames as wire
from launcher.wire.frames import WireError, dial
from launcher.wire.messages import ReplicaAddress
from tests.waits import eventually
from trainer.checkpoint_files.layout import MANIFEST, data_name
from trainer.errors import CheckpointDamaged

NAMES = [
    "../../../etc/passwd", "..", ".", "", "/etc/passwd", "rank-00000.data/", "rank-00000.data\0", "rank-0.data",
    "FENCE", "x" * 60, "x" * 300, "rank-00007.data", "rank-00000.data\n", "\ud7ff",
]  # fmt: skip


def saved(folders, step, **how):
    return Save("step", step, save_apart(folders, step, **how))


def reach(pool, node, *, key=KEY, own="127.0.0.9", **how):
    return linked(pool.server(node), own, key, pool.replications[0]._pool, **how)


async def raw(pool, node):
    """A proved connection without any manners."""
    server = pool.server(node)
    wire = await dial(server.address, server.port, "127.0.0.9", KEY, msgspec.json.Decoder(), LINE_BYTES)
    return wire._reader, wire.writer


async def works(pool, node, step=10):
    """Check that the server still serves others."""
    async with asyncio.timeout(BOUND_S), reach(pool, node) as link:
        assert [one.step for one in await peer.inventory(link)] == [step]


def test_it_lists_and_gives(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save = saved(pool.folders, 10, size=5_000_000)
            async with reach(pool, 0) as link:
                (one,) = await peer.inventory(link)
                assert (one.step, one.digest, one.present) == (10, save.digest, (data_name(0),))
                manifest, _ = await peer.manifest(link, save)
                assert manifest == (pool.folders[0] / "step-00000010" / MANIFEST).read_bytes()
                get = Get(save, data_name(0))
                data = await link.take(get, lambda size: size < 6_000_000, bulk.receive_all)
                assert data == content(0, 10, 5_000_000)
                assert len(await peer.inventory(link)) == 1, "the connection serves on"

    asyncio.run(scene())


def test_all_members_of_a_large_run_wait_for_what_is_decided(tmp_path):
    """Each on a connection of its own, while the first one is still looking around."""
    threads = bulk.new_pool()

    async def scene():
        async with Pool(tmp_path, 2) as pool:

            async def ask():
                async with linked(pool.server(0), "127.0.0.9", KEY, threads) as link:
                    return await peer.decision(link, 1)

            waiting = []
            let_in = pool.replications[0]._server._listener._serving
            for wanted in range(20, 401, 20):
                waiting += [asyncio.create_task(ask()) for _ in range(20)]
                await eventually(lambda wanted=wanted: len(let_in) == wanted, "they are let in")
            nothing = LoadDecision(SaveChoice(), SaveChoice())
            pool.replications[0]._server.agreement.decide(1, nothing, [0, 1])
            assert await asyncio.gather(*waiting) == [nothing] * 400

    asyncio.run(scene())


def test_a_stranger_learns_nothing(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save_apart(pool.folders, 10)
            with pytest.raises(WireError):
                async with reach(pool, 0, key=OTHER):
                    pass
            await works(pool, 0)

    asyncio.run(scene())


def test_a_proof_for_one_server_opens_no_other(tmp_path):
    """Somebody between two agents who passes their proofs on to another server of the same run."""

    async def scene():
        async with Pool(tmp_path, 2) as pool:
            target = pool.server(1)

            async def relay(reader, writer):
                inside, outside = await asyncio.open_connection(target.address, target.port)
                writer.write(await inside.readline())
                outside.write(await reader.readline())
                writer.write(await inside.readline())
                writer.close()
                outside.close()

            between = await asyncio.start_server(relay, "127.0.0.1", 0)
            fake = ReplicaAddress(0, "127.0.0.1", between.sockets[0].getsockname()[1])
            with pytest.raises(WireError):
                async with linked(fake, "127.0.0.9", KEY, pool.replications[0]._pool):
                    pass
            between.close()

    asyncio.run(scene())


def test_an_agent_believes_no_server_without_the_token(tmp_path):
    async def impostor(reader, writer):
        writer.write(b'{"v":%d,"nonce":"%s"}\n' % (wire.WIRE_VERSION, b"0" * 32))
        await reader.readline()
        writer.write(b'{"mac":"' + b"0" * 64 + b'"}\n')
        writer.close()

    async def scene():
        async with Pool(tmp_path, 1) as pool:
            server = await asyncio.start_server(impostor, "127.0.0.1", 0)
            fake = ReplicaAddress(0, "127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(WireError, match="token"):
                async with linked(fake, "127.0.0.9", KEY, pool.replications[0]._pool):
                    pass
            server.close()

    asyncio.run(scene())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verb", ["get", "put", "doubt"])
def test_only_the_manifests_own_names_are_files(tmp_path, verb, name):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save = saved(pool.folders, 10)
            before = listing(tmp_path)
            reader, writer = await raw(pool, 0)
            words = {"t": verb, "save": ["step", 10, save.digest], "name": name, "size": 4}
            writer.write(json.dumps(words).encode() + b"\n")
            answer = await reader.readline()
            if len(name) > 64:
                assert answer == b"", "no message at all"
            else:
                assert json.loads(answer)["t"] == {"doubt": "fine"}.get(verb, "refused")
            writer.close()
            await works(pool, 0)
            assert listing(tmp_path) == before

    asyncio.run(scene())


def listing(path):
    return sorted(str(one) for one in path.rglob("*"))


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"t":"shell"}\n', b"[" * 5000 + b"\n", b"x" * 3_000_000,
     b"\xff" * 40 + b"\n",
     b'{"t":"go"}\n', b'{"t":"get","save":["step",-1,""],"name":""}\n', b'{"t":"offer","size":4}\n',
     b'{"t":"get","save":["step",10,"../../../../../../../../etc/pass"],"name":"MANIFEST.json"}\n',
     b'{"t":"get","save":["../..",10,"%s"],"name":"MANIFEST.json"}\n' % (b"0" * 32)],
)  # fmt: skip
@pytest.mark.parametrize("proved", [True, False])
def test_garbage_disturbs_nobody(tmp_path, garbage, proved):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save_apart(pool.folders, 10)
            server = pool.server(0)
            if proved:
                reader, writer = await raw(pool, 0)
            else:
                reader, writer = await asyncio.open_connection(server.address, server.port)
            writer.write(garbage)
            writer.write_eof()
            async with asyncio.timeout(BOUND_S):
                while await reader.read(1 << 16):
                    pass
            writer.close()
            await works(pool, 0)

    try:
        asyncio.run(scene())
    except ConnectionError:
        assert len(garbage) > wire.HANDSHAKE_LINE_BYTES, "cut off in the middle of what it would not hear"


def test_a_put_that_is_cut_off_leaves_nothing(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save = saved(pool.folders, 10, size=5_000_000)
            size = (pool.folders[0] / "step-00000010" / data_name(0)).stat().st_size
            async with reach(pool, 1) as link:
                await link.send(Put(save, data_name(0), size))
                await link.expect(Go)
                link._wire.writer.write(content(0, 10, 5_000_000)[:3_000_000])
                await link._wire.writer.drain()
                await eventually(lambda: drafts(pool.folders[1]), "it is being written")
            await eventually(lambda: not drafts(pool.folders[1]), "nothing is left")
            assert held(pool.folders[1], 10) == names(1)
            await works(pool, 1)

    asyncio.run(scene())


def test_a_put_that_stalls_is_dropped(tmp_path, monkeypatch):
    async def scene():
        async with Pool(tmp_path, 2, stall_s=0.3) as pool:
            save = saved(pool.folders, 10, size=5_000_000)
            size = (pool.folders[0] / "step-00000010" / data_name(0)).stat().st_size
            files, seen = pool.replications[1]._files, []
            receive = files.receive

            def watched(*what):
                return receive(*what[:-1], noting(what[-1], lambda: seen.extend(drafts(pool.folders[1]))))

            monkeypatch.setattr(files, "receive", watched)
            async with reach(pool, 1) as link:
                await link.send(Put(save, data_name(0), size))
                await link.expect(Go)
                async with asyncio.timeout(BOUND_S):
                    assert await link.receive_message() is None
            assert seen, "it had begun"
            assert held(pool.folders[1], 10) == names(1)
            assert not drafts(pool.folders[1])

    asyncio.run(scene())


def test_a_put_of_other_bytes_is_refused(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save = saved(pool.folders, 10)
            async with reach(pool, 1) as link:
                size = len(content(0, 10))
                await link.send(Put(save, data_name(0), size))
                await link.expect(Go)
                link._wire.writer.write(b"x" * size)
                with pytest.raises(Unwilling, match="not what was written"):
                    await link.expect(Offer)
            assert held(pool.folders[1], 10) == names(1)
            assert not drafts(pool.folders[1])

    asyncio.run(scene())


@pytest.mark.parametrize("size", [0, 1, 1 << 62])
def test_a_put_of_another_size_is_refused_before_a_byte(tmp_path, size):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save = saved(pool.folders, 10)
            async with reach(pool, 1) as link:
                await link.send(Put(save, data_name(0), size))
                with pytest.raises(Unwilling):
                    await link.expect(Go)

    asyncio.run(scene())


def test_a_source_that_stalls_or_lies_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.copies.server.send_file", lambda peer, *_: peer.sendall(b"half"))

    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save = saved(pool.folders, 10)
            files = pool.replications[1]._files
            (file,) = [one for one in files.look_at("step", 10)[1].files if one.name == data_name(0)]
            whole = files.manifest(save)
            async with reach(pool, 0, stall_s=0.3) as link:
                with pytest.raises(WireError, match="timed out"):
                    await peer.fetch(link, files, whole, Get(save, data_name(0)), file, lambda _: None)
            assert held(pool.folders[1], 10) == names(1)
            assert not drafts(pool.folders[1])

    asyncio.run(scene())


def test_a_source_cannot_fill_the_disk(tmp_path):
    """It offers more than the manifest says."""

    async def scene():
        async with Pool(tmp_path, 2) as pool:
            save = saved(pool.folders, 10)
            files = pool.replications[1]._files
            (file,) = [one for one in files.look_at("step", 10)[1].files if one.name == data_name(0)]
            whole = files.manifest(save)
            path = pool.folders[0] / "step-00000010" / data_name(0)
            path.write_bytes(b"x" * (file.size + 1))
            async with reach(pool, 0) as link:
                with pytest.raises(WireError, match="which cannot be"):
                    await peer.fetch(link, files, whole, Get(save, data_name(0)), file, lambda _: None)
            path.write_bytes(b"x" * file.size)
            async with reach(pool, 0) as link:
                with pytest.raises(CheckpointDamaged):
                    await peer.fetch(link, files, whole, Get(save, data_name(0)), file, lambda _: None)
            assert held(pool.folders[1], 10) == names(1)

    asyncio.run(scene())


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save = saved(pool.folders, 10)
            path = pool.folders[0] / "step-00000010" / data_name(0)
            path.unlink()
            path.symlink_to("/etc/passwd")
            async with reach(pool, 0) as link:
                await link.send(Get(save, data_name(0)))
                with pytest.raises(Unwilling):
                    await link.expect(Offer)

    asyncio.run(scene())


def test_it_listens_on_its_nodes_address_alone(tmp_path):
    async def scene():
        async with Pool(tmp_path, 2) as pool:
            port = pool.server(1).port
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=5)
            socket.create_connection(("127.0.0.2", port), timeout=5).close()

    asyncio.run(scene())


def test_a_crowd_of_silent_strangers_keeps_no_friend_out(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            save_apart(pool.folders, 10)
            server = pool.server(0)
            crowd = [await asyncio.open_connection(server.address, server.port) for _ in range(100)]
            for reader, _ in crowd:
                await reader.readline()  # it has been let in, and its time runs
            await works(pool, 0)
            for _, writer in crowd:
                writer.close()

    asyncio.run(scene())


def noting(pieces, note):
    """The same pieces; says so when the first is asked for."""
    note()
    yield from pieces


def drafts(folder):
    return [name for name in os.listdir(folder) if name.startswith(".tmp-")]
