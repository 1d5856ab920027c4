"""Test snapshots in nodes' memory that are copied to the next node, whatever fails meanwhile."""

import asyncio

from replication_lab import BOUND_S, KEY, address, content

from launcher.copies.buddies import Buddies
from launcher.copies.node_memory import NodeMemory, Snapshots, names_of
from launcher.copies.protocol import Save
from launcher.wire.messages import Copied, Noted, ReplicaAddress, Start
from tests.waits import eventually
from trainer.checkpoint_files import commit
from trainer.checkpoint_files.durable import make_folder, write_new
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, encode


def remember(folder, step, *ranks, start="first", at=0.0, size=1000):
    """A snapshot as the ranks of a node keep it."""
    place = folder / folder_name(step)
    make_folder(place)
    files = []
    for rank in ranks:
        written = write_new(place / data_name(rank), [content(rank, step, size)])
        files.append(FileEntry(data_name(rank), written.size, written.digest))
    manifest = Manifest(step, 4, start, tuple(files), {}, {}, ranks=ranks, attempt=1, saved_unix_s=at)
    write_new(place / MANIFEST, [encode(manifest)])


class Nodes:
    """A folder in memory for each, and its agent's part."""

    def __init__(self, root, count, limit=None):
        self.folders = [root / f"node-{node}" for node in range(count)]
        self.said = [[] for _ in range(count)]
        self._limit = limit

    async def __aenter__(self):
        for folder in self.folders:
            make_folder(folder)
        self.memory = [NodeMemory(folder) for folder in self.folders]
        self.buddies = [
            Buddies(node, address(node), KEY, self.memory[node], self.said[node].append, 5.0, self._limit)
            for node in range(len(self.folders))
        ]
        for one in self.buddies:
            await one.open()
        return self

    async def __aexit__(self, *_):
        for one in self.buddies:
            await one.close()

    def start(self, members, node, generation=1):
        place, servers = (
            members.index(node),
            [ReplicaAddress(one, address(one), self.buddies[one].port) for one in members],
        )
        world = 2 * len(members)
        how = (generation, 2 * place, 2, world, place, len(members), address(0), 1, 0, tuple(servers))
        return Start(*how)

    async def follow(self, *members):
        for node in members:
            await self.buddies[node].follow(self.start(members, node))

    def own(self, node, place):
        return [held.step for held in self.memory[node].own.whole(names_of(place, 2))]

    def copies(self, node, place):
        return [held.step for held in self.memory[node].copies.whole(names_of(place, 2))]

    def kinds(self, node):
        return [said.kind for said in self.said[node] if isinstance(said, Noted)]


def play(scene):
    async def bounded():
        async with asyncio.timeout(BOUND_S):
            await scene()

    asyncio.run(bounded())


def test_each_node_keeps_the_newest_of_the_one_before_it(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            await nodes.follow(0, 1)
            for step in (10, 20, 30):
                remember(nodes.folders[0], step, 0, 1)
                remember(nodes.folders[1], step, 2, 3)
                for one in nodes.buddies:
                    one.note(step)
                await eventually(lambda step=step: nodes.copies(0, 1)[-1:] == nodes.copies(1, 0)[-1:] == [step])
            await eventually(lambda: nodes.copies(0, 1) == nodes.copies(1, 0) == [20, 30])
            await eventually(lambda: nodes.kinds(0) == nodes.kinds(1) == ["memory_copied"])
            await eventually(lambda: Copied(0, 1, 30) in nodes.said[0] and Copied(1, 1, 30) in nodes.said[1])

    play(scene)


def test_a_snapshot_that_comes_later_than_ones_own_is_waited_for(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            await nodes.follow(0, 1)
            remember(nodes.folders[0], 10, 0, 1)
            nodes.buddies[1].note(20)
            await eventually(lambda: nodes.copies(1, 0) == [10])
            remember(nodes.folders[0], 20, 0, 1)
            await eventually(lambda: nodes.copies(1, 0) == [10, 20])

    play(scene)


def test_a_spare_gets_what_the_lost_node_had(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 3) as nodes:
            await nodes.follow(0, 1)
            for step in (10, 20):
                remember(nodes.folders[1], step, 2, 3)
                nodes.buddies[0].note(step)
                await eventually(lambda step=step: nodes.copies(0, 1)[-1:] == [step])
            await nodes.buddies[1].close()
            await nodes.buddies[2].bring(nodes.start((0, 2), 2, 2))
            assert nodes.own(2, 1) == [10, 20]
            assert nodes.own(2, 0) == nodes.copies(2, 0) == []
            assert nodes.kinds(2) == ["checkpoint_fetched"] * 2
            assert "of step 20 from the memory of node 0" in nodes.said[2][-1].text

    play(scene)


def test_who_has_it_all_asks_for_nothing(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            await nodes.follow(0, 1)
            remember(nodes.folders[1], 10, 2, 3)
            nodes.buddies[0].note(10)
            await eventually(lambda: nodes.copies(0, 1) == [10])
            remember(nodes.folders[1], 20, 2, 3)
            commit.remove([nodes.folders[1] / folder_name(10)])
            await nodes.buddies[1].bring(nodes.start((0, 1), 1, 2))
            assert nodes.own(1, 1) == [20]
            assert nodes.kinds(1) == []

    play(scene)


def test_copies_of_a_past_that_did_not_happen_go(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            await nodes.follow(0, 1)
            for step in (30, 40):
                remember(nodes.folders[0], step, 0, 1)
                nodes.buddies[1].note(step)
                await eventually(lambda step=step: nodes.copies(1, 0)[-1:] == [step])
            commit.remove(nodes.folders[0] / folder_name(step) for step in (30, 40))
            await nodes.follow(0, 1)
            assert nodes.copies(1, 0) == [30, 40]  # as long as there is nothing in their place
            remember(nodes.folders[0], 30, 0, 1, start="second", at=1.0)
            nodes.buddies[1].note(30)
            await eventually(lambda: nodes.copies(1, 0) == [30])
            [held] = nodes.memory[1].copies.whole(names_of(0, 2))
            assert held.nonce == "second"

    play(scene)


def test_a_copy_that_is_whole_stays_when_its_fetch_is_cut_off(tmp_path):
    remember(tmp_path, 20, 0, 1)
    snapshots = Snapshots(tmp_path)
    [held] = snapshots.whole(names_of(0, 2))
    save = Save(held.kind, held.step, held.digest)
    snapshots.drop_unfinished(save)
    assert snapshots.whole(names_of(0, 2)) == [held]
    (tmp_path / held.folder / data_name(1)).unlink()
    snapshots.drop_unfinished(save)
    assert snapshots.list() == []


def test_what_comes_damaged_is_no_copy_and_the_one_before_stays(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            await nodes.follow(0, 1)
            remember(nodes.folders[0], 10, 0, 1)
            nodes.buddies[1].note(10)
            await eventually(lambda: nodes.copies(1, 0) == [10])
            remember(nodes.folders[0], 20, 0, 1)
            with (nodes.folders[0] / folder_name(20) / data_name(1)).open("r+b") as file:
                file.write(b"?")
            nodes.buddies[1]._patience_s = 0.2
            nodes.buddies[1].note(20)
            await eventually(lambda: "copy_failed" in nodes.kinds(1))
            assert nodes.copies(1, 0) == [10]
            assert [held.step for held in nodes.memory[1].copies.list()] == [10]
            remember(nodes.folders[0], 30, 0, 1)
            nodes.buddies[1].note(30)
            await eventually(lambda: nodes.copies(1, 0) == [10, 30])

    play(scene)


def test_what_a_spare_cannot_get_is_said_and_nothing_is_left_of_it(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 3) as nodes:
            remember(nodes.folders[0] / "copies", 20, 2, 3)
            with (nodes.folders[0] / "copies" / folder_name(20) / data_name(3)).open("r+b") as file:
                file.write(b"?")
            await nodes.buddies[2].bring(nodes.start((0, 2), 2, 2))
            assert nodes.memory[2].own.list() == []
            assert nodes.kinds(2) == ["copy_failed"]

    play(scene)


def test_a_member_that_does_not_answer_has_nothing(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2) as nodes:
            start = nodes.start((0, 1), 1)
            await nodes.buddies[0].close()
            await nodes.buddies[1].bring(start)
            assert nodes.memory[1].list() == []
            assert nodes.kinds(1) == ["copy_failed"]
            assert "node 0 does not say which copies it has" in nodes.said[1][0].text

    play(scene)


def test_each_byte_of_a_copy_is_paid_for(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 2, limit=1e9) as nodes:
            paid, pace = [], nodes.buddies[1]._pace
            pay = pace.pay
            pace.pay = lambda count: (paid.append(count), pay(count))
            await nodes.follow(0, 1)
            remember(nodes.folders[0], 10, 0, 1, size=3_000_000)
            nodes.buddies[1].note(10)
            await eventually(lambda: nodes.copies(1, 0) == [10])
            [held] = nodes.memory[0].own.whole(names_of(0, 2))
            sizes = [(nodes.folders[0] / held.folder / name).stat().st_size for name in held.present]
            assert sum(paid) == sum(sizes)

    play(scene)


def test_a_node_alone_has_no_buddy(tmp_path):
    async def scene():
        async with Nodes(tmp_path, 1) as nodes:
            await nodes.follow(0)
            await nodes.buddies[0].bring(nodes.start((0,), 0))
            assert nodes.buddies[0]._keeping is None

    play(scene)
