"""A replica server, and a peer of one, that know the key and lie: in every field of every word, and in what follows."""

import asyncio
import json
import random

import msgspec
import pytest
from hostile import fields_of
from replication_lab import KEY, Pool, address, content, held, names, save_apart

from launcher.copies import client
from launcher.copies.choice import decide
from launcher.copies.client import DiskFailed
from launcher.copies.files import ReplicaFiles
from launcher.copies.link import linked
from launcher.copies.protocol import LINE_BYTES, Save
from launcher.copies.replication import NotBrought, NothingToLoad
from launcher.copies.server import MOST_SESSIONS
from launcher.wire.frames import WireError, WireServer, dial
from launcher.wire.messages import ReplicaAddress, Start
from tests.sizes import SCALE, SEED
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import MANIFEST
from trainer.checkpoint_files.partial import digest_of

pytestmark = pytest.mark.nightly

LIES = [
    None, True, -1, 0, 1, 7, 2**31, 2**63 - 1, 1e308, "", "..", "../../x", "/etc/passwd", "a\0b", "x" * 5000,
    "rank-00000.data", "rank-00099.data", "best", "step", "0" * 32, [], ["../../x"], [0, 1, 99, -1], {},
    {"../../x": [1]},
]  # fmt: skip
BOUND_S = 150.0
LONGEST_WORD = 1000  # a coordinator takes lines up to a bound, and no longer one from whoever repeats a lie


def forged(value, at, lie):
    if not at:
        return lie
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = forged(copy[at[0]], at[1:], lie)
    return copy


class LyingServer:
    """A server that claims to have all of step 20 and lies in one field; `lie` says in which message, where and how."""

    def __init__(self, folder, lie=("nothing", (), None)):
        self._files = ReplicaFiles(folder)
        (found,) = self._files.list()
        self._save = Save("step", found.step, found.digest)
        self._true = self._files.manifest(self._save)
        self._lie = lie
        self.heard = set()
        self._server = WireServer(KEY, msgspec.json.Decoder(), self._serve, 100, LINE_BYTES)
        self.open, self.close = lambda: self._server.start(address(1)), self._server.close

    def words(self):
        """The messages in which it may lie."""
        inventory, decision = self._files.list(), decide({0: [], 1: self._files.list()}, [0, 1])
        return {
            "list": _plain(inventory), "decide": _plain(decision), "manifest": json.loads(self._true)["manifest"],
            "offer": {"t": "offer", "size": 0}, "fine": {"t": "fine"}, "cut": {"left": 0}, "other": {"bytes": 0},
            "refuse": {"t": "refused", "text": "no", "gone": False},
        }  # fmt: skip

    def _said(self, of):
        kind, at, lie = self._lie
        whole = self.words()[of]
        return forged(whole, at, lie) if kind == of else whole

    def _manifest(self):
        """A forged one has the digest of what it is, and all that is told agrees with that."""
        if self._lie[0] != "manifest":
            return self._true
        body = json.dumps(self._said("manifest"), separators=(",", ":")).encode()
        return b'{"checksum":"%s","manifest":%s}\n' % (digest_of(body).encode(), body)

    def _contents(self, request):
        if request["t"] in ("list", "decide"):
            digest = digest_of(self._manifest())
            return json.dumps(self._said(request["t"])).replace(self._save.digest, digest).encode()
        if request["name"] == MANIFEST:
            return self._manifest()
        rank = int(request["name"][5:10])
        return content(rank, 20) if self._lie[0] != "other" else bytes(len(content(rank, 20)))

    async def _serve(self, wire):
        while (request := await wire.receive()) is not None:
            self.heard.add(request["t"])
            if request["t"] in ("arrived", "doubt", "put"):
                wire.send(self._said("fine"))
                continue
            if self._lie[0] == "refuse":
                wire.send(self._said("refuse"))
                continue
            data = self._contents(request)
            wire.send(self._said("offer") if self._lie[0] == "offer" else {"t": "offer", "size": len(data)})
            if await wire.receive() is None:
                return
            wire.writer.write(data if self._lie[0] != "cut" else data[:-1])
            if self._lie[0] == "cut":
                return


def _plain(value):
    return json.loads(msgspec.json.encode(value))


def outside(root, *own):
    """Return all names and contents except of the checkpoint folders that lies are about."""
    there = (path for path in root.rglob("*") if not any(one in (path, *path.parents) for one in own))
    return {path: path.read_bytes() if path.is_file() else None for path in there}


async def brought(root, lie, first, give_up_s, **patience):
    """Return the result of fetching while node 1 lies, and the requests that node 1 got."""
    async with Pool(root, 1, give_up_s=give_up_s, **patience) as pool:
        save_apart(pool.folders, 10)
        liar = LyingServer(root / "node-1", lie)
        replicas = [pool.server(0), ReplicaAddress(1, address(1), await liar.open())]
        start = Start(1, first, 1, 2, first, 2, address(0), 1, 0, tuple(replicas if first == 0 else replicas[::-1]))
        before = outside(root, *pool.folders)
        arriving = asyncio.create_task(arrive(pool))
        try:
            async with asyncio.timeout(BOUND_S):
                (error,) = await asyncio.gather(pool.replications[0].bring(start), return_exceptions=True)
        finally:
            arriving.cancel()
            await asyncio.wait([arriving])
            await liar.close()
        assert outside(root, *pool.folders) == before, lie
        for entry in catalog.entries(pool.folders[0]):
            if held(pool.folders[0], entry.step) == names(*range(2 if entry.step == 20 else 1)):
                catalog.verify(entry)
        assert len(list(pool.folders[0].rglob("*"))) < 20, lie
    return error, liar.heard


@pytest.mark.parametrize("lie", ["hopeless", "another"])
def test_a_first_member_that_lies_takes_no_good_checkpoint_away(tmp_path, lie):
    """A word of it was enough, and a run lost what all of its disks had."""

    async def scene():
        async with Pool(tmp_path, 1, give_up_s=0.1) as pool:
            digest = save_apart([pool.folders[0], tmp_path / "node-1"], 20)
            told = {"hopeless": [["step", 20, digest]], "another": []}[lie]
            other = {"another": ["step", 20, "0" * 32], "hopeless": None}[lie]
            forgery = {
                "save": other,
                "with_manifest": [1],
                "holders": {},
                "hopeless": told,
                "fetches": other is not None,
            }
            liar = LyingServer(tmp_path / "node-1", ("decide", (), {"load": forgery, "best": {}}))
            replicas = (ReplicaAddress(1, address(1), await liar.open()), pool.server(0))
            start = Start(1, 1, 1, 2, 1, 2, address(1), 1, 0, replicas)
            (error,) = await asyncio.gather(pool.replications[0].bring(start), return_exceptions=True)
            await liar.close()
            return pool, error

    pool, error = asyncio.run(scene())
    assert held(pool.folders[0], 20) == names(0)
    assert (error is None) == (lie == "hopeless"), error
    assert "node 1" in (str(error) if error else pool.said[0][-1].text)


async def arrive(pool):
    """Node 1 has all that it needs, as far as the first member hears."""
    for ask in (client.decision, lambda link, generation: client.arrive(link, generation, 1)):
        async with linked(pool.server(0), address(1), KEY, pool.replications[0]._pool) as link:
            await ask(link, 1)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.timeout(150 * SCALE)
def test_a_server_that_lies_keeps_a_member_from_its_checkpoint_and_does_no_more(tmp_path, first):
    """Be it the first member, which says what all load, or another one."""
    print("seed", SEED)

    async def scene(number, lie=("nothing", (), None), *, give_up_s, **patience):
        root = tmp_path / str(number)
        save_apart([root / "node-1"], 20, ranks_each=2)
        return await brought(root, lie, first, give_up_s, **patience)

    error, heard = asyncio.run(scene("honest", give_up_s=BOUND_S))
    assert error is None and heard == ({"list", "get"} if first == 0 else {"decide", "get", "arrived"})
    hasty = {"give_up_s": 0.1, "members_s": 0.1, "retry_s": 0.02}
    words = LyingServer(tmp_path / "honest" / "node-1").words()
    cases = [(of, at, lie) for of, value in words.items() for at in fields_of(value) for lie in LIES]
    drawn = random.Random(SEED).sample(cases, min(len(cases), 150 * SCALE))
    missing = {**words["decide"]["load"]["holders"]}
    missing.popitem()
    drawn += [("decide", ("load", "holders"), missing), ("decide", ("load", "with_manifest"), []), ("cut", (), 0)]
    drawn += [("list", (0, "step"), 2**63 - 1), ("list", (0, "digest"), "../../x")]
    failed = 0
    for number, lie in enumerate(drawn):
        error, _ = asyncio.run(scene(number, lie, **hasty))
        assert error is None or isinstance(error, (NotBrought, NothingToLoad, DiskFailed)), (lie, repr(error))
        assert isinstance(error, (DiskFailed, type(None))) or "node 1" in str(error), (lie, str(error))
        assert len(str(error)) < LONGEST_WORD, lie
        failed += error is not None
    assert failed > len(drawn) // 10, "such lies were told"


REQUESTS = [
    {"t": "list"},
    {"t": "get", "save": ["step", 10, ""], "name": MANIFEST},
    {"t": "doubt", "save": ["step", 10, ""], "name": "rank-00000.data"},
    {"t": "put", "save": ["step", 10, ""], "name": "rank-00000.data", "size": 5},
    {"t": "decide", "generation": 3},
    {"t": "arrived", "generation": 3, "node": 1},
    {"t": "go"},
]


@pytest.mark.daily
def test_a_peer_that_lies_in_every_field_of_what_it_asks_gets_and_changes_nothing(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            digest = save_apart(pool.folders, 10)
            before = outside(tmp_path)
            for request in REQUESTS:
                honest = forged(request, ("save", 2), digest) if "save" in request else request
                for at in fields_of(honest):
                    for lie in LIES:
                        await asked(pool, forged(honest, at, lie))
            assert outside(tmp_path) == before
            assert len(pool.replications[0]._server.agreement._sessions) <= MOST_SESSIONS
            asked_now = await asked(pool, {"t": "list"}, bound_s=BOUND_S)
            assert json.loads(asked_now)["t"] == "offer", "others are served as before"

    asyncio.run(scene())


@pytest.mark.daily
def test_no_peer_fills_the_memory_with_generations_to_come(tmp_path):
    async def scene():
        async with Pool(tmp_path, 1) as pool:
            for generation in range(2 * MOST_SESSIONS):
                await asked(pool, {"t": "decide", "generation": 1000 + generation})
            assert len(pool.replications[0]._server.agreement._sessions) <= MOST_SESSIONS
            assert await pool.bring([0]) == [None], "what is decided here has its place"

    asyncio.run(scene())


async def asked(pool, request, bound_s=0.02):
    """The first line of the answer; nothing where none has come within that time."""
    server = pool.server(0)
    wire = await dial(server.address, server.port, "127.0.0.9", KEY, msgspec.json.Decoder(), LINE_BYTES)
    try:
        await wire.deliver(request)
        async with asyncio.timeout(bound_s):
            return await wire._reader.readline()
    except (TimeoutError, WireError, ConnectionError):
        return b""
    finally:
        wire.close()
