"""Copies of checkpoints in a store, behind the steps."""

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from object_stores import Node, start, steps
from saved_checkpoints import save, save_part

from launcher.copies.uploads import UploadRules, Uploads
from tests.waits import eventually
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name
from trainer.checkpoint_files.object_store import ObjectStore, StoreFailed
from trainer.errors import CheckpointDamaged


@dataclass
class Flaky(ObjectStore):
    """A store that fails as long as it is told to, and notes what it is given."""

    url: str
    fails: set = field(default_factory=set)
    put_names: list = field(default_factory=list)
    removed: list = field(default_factory=list)
    before_put: object = None

    def __post_init__(self):
        super().__init__(self.url)

    def put(self, folder, name, pieces):
        if self.before_put is not None:
            self.before_put(folder, name)
        if name in self.fails or "all" in self.fails:
            raise StoreFailed("it says no")
        super().put(folder, name, pieces)
        self.put_names.append(name)


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return Flaky(f"memory://{uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/store/run")


def run(folder, store, *saves, settle=True, **rules):
    """Follow one generation in which these steps are saved; gives what was said."""

    async def scene():
        node = Node(folder, store, **rules)
        node.uploads.follow(start())
        for step in saves:
            save(folder, step)
            node.uploads.note(step)
        problem = await node.uploads.settle() if settle else ""
        node.uploads.close()
        await asyncio.sleep(0)
        return node.said, problem

    return asyncio.run(scene())


def test_the_newest_is_there_once_it_has_settled(tmp_path, store):
    said, problem = run(tmp_path / "here", store, 10)
    assert (steps(store), problem) == ([10], "")
    assert store.put_names == [data_name(0), data_name(1), MANIFEST]
    assert ("checkpoint_stored", f"the checkpoint of step 10 is in {store.url}") in said


def test_it_comes_back_as_it_was(tmp_path, store):
    run(tmp_path / "here", store, 10)
    (held,) = store.saves()
    store.bring(held, tmp_path / "there")
    for name in (data_name(0), data_name(1), MANIFEST):
        one, other = (tmp_path / place / folder_name(10) / name for place in ("here", "there"))
        assert one.read_bytes() == other.read_bytes()


def test_old_ones_go_and_their_manifest_first(tmp_path, store):
    for step in (10, 20, 30, 40):
        run(tmp_path / "here", store, step, keep=2)
    assert steps(store) == [30, 40]
    assert len(store.folders()) == 2


def test_no_reader_takes_a_save_that_is_half_deleted_for_a_checkpoint(tmp_path, store, monkeypatch):
    run(tmp_path / "here", store, 10)
    (folder,) = store.folders()

    def cut_off(*_, **__):
        raise OSError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(store._fs, "rm", cut_off)
        with pytest.raises(StoreFailed):
            store.remove(folder)
    assert (steps(store), list(store.folders())) == ([], [folder])


def test_a_failure_is_told_once_and_tried_again(tmp_path, store):
    store.fails = {data_name(1)}

    async def scene():
        node = Node(tmp_path / "here", store)
        node.uploads.follow(start())
        save(tmp_path / "here", 10)
        node.uploads.note(10)
        tries = []
        store.before_put = lambda folder, name: tries.append(name)
        await eventually(lambda: tries.count(data_name(1)) >= 5, "five tries")
        assert steps(store) == []
        told = list(node.said)
        store.fails = set()
        assert await node.uploads.settle() == ""
        return told

    assert asyncio.run(scene()) == [("copy_failed", "no copy in the store: it says no")]
    assert steps(store) == [10]
    assert store.put_names.count(data_name(0)) == 1  # what is there is not sent again


def test_a_run_ends_although_the_store_never_answers(tmp_path, store):
    store.fails = {"all"}
    _, problem = run(tmp_path / "here", store, 10, give_up_s=0.2)
    assert problem == "no copy in the store: it says no"


def test_a_package_that_is_missing_is_told_at_once_and_not_waited_for(tmp_path):
    def open_store():
        return ObjectStore("zz://bucket/run")

    async def scene():
        node = Node(tmp_path, None)
        node.uploads = Uploads(tmp_path, open_store, UploadRules(), lambda kind, text: node.said.append((kind, text)))
        node.uploads.follow(start())
        await eventually(lambda: node.said, "it is told")
        return node.said, await node.uploads.settle()

    said, problem = asyncio.run(scene())
    assert said == [("copy_failed", problem)]
    assert problem.startswith(
        "no copy in the store: zz://bucket/run: fsspec does not support zz://; hint: expected s3://"
    )


def test_what_a_killed_upload_left_goes_on(tmp_path, store):
    store.fails = {MANIFEST}
    run(tmp_path / "here", store, 10, give_up_s=0.2)
    assert store.put_names == [data_name(0), data_name(1)]
    store.fails = set()
    run(tmp_path / "here", store)
    # The first one's thread may have been about to put the manifest, and then brings the same once more.
    assert sorted(set(store.put_names)) == sorted([data_name(0), data_name(1), MANIFEST])
    assert [store.put_names.count(data_name(number)) for number in (0, 1)] == [1, 1]
    assert steps(store) == [10]


def test_another_save_of_the_same_step_is_not_mixed_with_it(tmp_path, store):
    store.fails = {MANIFEST, data_name(1)}
    run(tmp_path / "one", store, 10, give_up_s=0.2)
    store.fails = set()
    save(tmp_path / "two", 10, size=1000)
    run(tmp_path / "two", store)
    (held,) = store.saves()
    store.bring(held, tmp_path / "there")  # every byte is compared
    assert len(store.folders()) == 1  # the unfinished one is gone


def test_what_is_pruned_while_it_is_sent_arrives_whole(tmp_path, store):
    folder = tmp_path / "here"
    store.before_put = lambda *_: shutil.rmtree(folder / folder_name(10), ignore_errors=True)
    run(folder, store, 10)
    assert steps(store) == [10]


def test_a_file_that_is_damaged_here_never_gets_a_manifest(tmp_path, store):
    save(tmp_path / "here", 10)
    file = tmp_path / "here" / folder_name(10) / data_name(1)
    file.write_bytes(b"x" * file.stat().st_size)
    said, _ = run(tmp_path / "here", store)
    assert steps(store) == []
    assert "is damaged here" in said[0][1]
    run(tmp_path / "here", store, 20)
    assert steps(store) == [20]


def test_weights_that_are_not_finite_are_not_copied(tmp_path, store):
    save(tmp_path / "here", 10)
    save(tmp_path / "here", 20, finite=False)
    said, _ = run(tmp_path / "here", store)
    assert steps(store) == [10]
    assert [text for _, text in said] == [f"the checkpoint of step 10 is in {store.url}"]


@pytest.mark.parametrize(("rules", "kept"), [({"every_steps": 100}, [10, 120]), ({"every_s": 3600.0}, [10])])
def test_only_those_are_copied_that_are_so_much_newer(tmp_path, store, rules, kept):
    async def scene():
        node = Node(tmp_path / "here", store, keep=9, **rules)
        node.uploads.follow(start())
        for step in (10, 50, 120, 130):
            save(tmp_path / "here", step)
            node.uploads.note(step)
            await eventually(lambda step=step: step not in kept or step in steps(store), f"step {step}")
        assert steps(store) == kept
        assert await node.uploads.settle() == ""  # the last one is copied in any case

    asyncio.run(scene())
    assert steps(store) == [*kept, 130]


def test_nodes_with_disks_of_their_own_bring_their_parts(tmp_path, store):
    folders = [tmp_path / "one", tmp_path / "two"]

    async def scene():
        nodes = [Node(folder, Flaky(store.url), apart=True) for folder in folders]
        made = save_part(folders[0], 10, {0, 1}, world_size=4)
        shutil.copytree(made, folders[1] / made.name)
        for rank in range(4):
            at = folders[1] / made.name / data_name(rank)
            at.unlink(missing_ok=True) if rank < 2 else at.write_bytes(bytes([rank]) * 1000)
        for rank, node in enumerate(nodes):
            node.uploads.follow(start(rank, 2))
        assert await asyncio.gather(*(node.uploads.settle() for node in nodes)) == ["", ""]

    asyncio.run(scene())
    (held,) = store.saves()
    assert held.present == tuple(map(data_name, range(4)))


def test_at_the_end_no_node_waits_for_an_older_one_that_the_others_pass_over(tmp_path, store):
    folders = [tmp_path / "one", tmp_path / "two"]

    async def scene():
        first, second = (Node(folder, Flaky(store.url), apart=True) for folder in folders)
        for step in (10, 20):
            made = save_part(folders[0], step, {0}, world_size=2)
            shutil.copytree(made, folders[1] / made.name)
            (folders[1] / made.name / data_name(0)).unlink()
            (folders[1] / made.name / data_name(1)).write_bytes(bytes([1]) * 1000)
        first.uploads.follow(start(0, 2, ranks=1))
        await eventually(lambda: list(store.folders().values()) == [10], "it waits for step 10")
        shutil.rmtree(folders[1] / folder_name(10))  # pruned there
        second.uploads.follow(start(1, 2, ranks=1))
        assert await asyncio.gather(first.uploads.settle(), second.uploads.settle()) == ["", ""]

    asyncio.run(scene())
    assert steps(store)[-1] == 20


def test_the_network_is_used_no_more_than_allowed(tmp_path, store):
    began = time.monotonic()
    save(tmp_path / "here", 10, size=100_000)
    run(tmp_path / "here", store, limit_bytes_per_s=400_000)
    assert time.monotonic() - began >= 0.4
    assert steps(store) == [10]


def test_other_bytes_than_were_written_are_refused(tmp_path, store):
    run(tmp_path / "here", store, 10)
    (held,) = store.saves()
    store.put(held.folder, data_name(1), [b"z" * 1000])
    with pytest.raises(CheckpointDamaged, match="the received bytes are not what was written"):
        store.bring(held, tmp_path / "there")
    assert not (tmp_path / "there" / folder_name(10) / data_name(1)).exists()
    store.put(held.folder, MANIFEST, [b"{}"])
    assert ObjectStore(store.url).saves() == []
