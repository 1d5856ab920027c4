"""Disks apart: what each has of a checkpoint, and how it gets the rest."""

import os
import threading

import pytest
from checkpoint_lab import calls_of, left_over, manifest_of, payload, points, strike, unsynced, whole, write_rank

from tests.lab.requirements import need
from trainer.checkpoint_files import catalog, commit, partial
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.fence import take_token
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name
from trainer.checkpoint_files.manifest import encode
from trainer.errors import CheckpointDamaged, CheckpointPartial, Fenced

NAMES = [data_name(0), data_name(1)]


class Disk:
    """The disk of one of two nodes, on which one of two ranks writes."""

    def __init__(self, folder, rank):
        folder.mkdir()
        self.folder, self.rank, self.mine = folder, rank, commit.take_over(folder)

    def prepare(self, manifest, draft):
        """Do everything of a save except the final rename."""
        path = self.folder / draft
        commit.enter(path)
        write_rank(path, manifest.step, self.rank)
        commit.prepare(path, manifest, self.mine, away=[NAMES[1 - self.rank]])
        return path

    def entry(self, step):
        return Entry("step", step, self.folder / folder_name(step))


@pytest.fixture
def two(memory):
    return Disk(memory / "0", 0), Disk(memory / "1", 1)


def manifest(scratch, step, attempt=1):
    """Return the manifest of a save by two ranks, whose files are written to know their digests."""
    path = scratch / f"scratch-{step}-{attempt}"
    path.mkdir()
    return manifest_apart(step, [write_rank(path, step, rank) for rank in (0, 1)], attempt)


def manifest_apart(step, files, attempt):
    made = manifest_of(step, files, attempt)
    return type(made)(**{name: getattr(made, name) for name in made.__struct_fields__} | {"apart": True})


def save(disks, made, *, place=(0, 1)):
    """Prepared on all of them, with its final name on some."""
    name = f".tmp-{made.step}-a{made.attempt}-{made.nonce}"
    for disk in disks:
        draft = disk.prepare(made, name)
        if disk.rank in place:
            commit.place(draft, made, disk.mine)


def send(source, target, step, name):
    with partial.open_file(source.folder, step, name) as file:
        partial.receive(
            target.folder, partial.read_manifest(source.folder, step), name, iter(lambda: file.read(1000), b"")
        )


def test_each_disk_tells_what_it_has(two, tmp_path):
    made = manifest(tmp_path, 5)
    save(two, made, place=(0,))
    (first,), (second,) = partial.inventory(two[0].folder), partial.inventory(two[1].folder)
    assert (first.step, first.nonce, first.attempt, first.kind) == (5, made.nonce, 1, "step")
    assert (first.folder, first.committed, first.present, first.missing) == (
        "step-00000005",
        True,
        (NAMES[0],),
        (NAMES[1],),
    )
    assert (second.committed, second.present, second.missing) == (False, (NAMES[1],), (NAMES[0],))
    assert second.folder.startswith(".tmp-") and second.digest == first.digest
    assert partial.inventory(tmp_path / "none") == []


def test_what_nobody_has_prepared_or_is_damaged_is_not_told(two, tmp_path):
    save(two, manifest(tmp_path, 5))
    disk = two[0]
    (disk.folder / folder_name(5) / MANIFEST).write_bytes(b"{}")
    write_rank(commit.begin(disk.folder, 6, disk.mine), 6, 0)
    assert partial.inventory(disk.folder) == []


def test_a_file_of_another_size_is_missing(two, tmp_path):
    save(two, manifest(tmp_path, 5))
    os.truncate(two[0].folder / folder_name(5) / NAMES[0], 10)
    (held,) = partial.inventory(two[0].folder)
    assert held.present == () and held.missing == tuple(NAMES)


def test_a_checkpoint_is_whole_over_disks_where_one_has_committed_it_and_each_file_is_somewhere(two, tmp_path):
    save(two, manifest(tmp_path, 1))
    save(two, manifest(tmp_path, 2), place=(1,))
    save(two, manifest(tmp_path, 3), place=())
    inventories = [partial.inventory(disk.folder) for disk in two]
    assert [held.step for held in partial.whole_over(inventories)] == [1, 2]
    assert partial.whole_over(inventories[:1]) == []


def test_two_saves_of_one_step_are_not_mixed(two, tmp_path):
    save(two[:1], manifest(tmp_path, 1, attempt=1))
    save(two[1:], manifest(tmp_path, 1, attempt=2))
    assert partial.whole_over([partial.inventory(disk.folder) for disk in two]) == []
    with pytest.raises(FileExistsError):
        send(two[0], two[1], 1, NAMES[0])
    partial.set_aside(two[1].folder, 1)
    send(two[0], two[1], 1, NAMES[0])
    assert partial.inventory(two[1].folder)[0].attempt == 1 and len(catalog.set_aside(two[1].folder)) == 1


def test_a_copy_makes_it_whole(two, tmp_path):
    save(two, manifest(tmp_path, 5))
    with pytest.raises(CheckpointPartial, match=r"rank-00000\.data not on this disk"):
        catalog.read_manifest(two[1].entry(5))
    assert catalog.verify(two[1].entry(5), partial=True).step == 5
    send(two[0], two[1], 5, NAMES[0])
    assert whole(two[1].entry(5)) and left_over(two[1].folder) == []
    (held,) = partial.inventory(two[1].folder)
    assert held.present == tuple(NAMES)


def test_a_copy_to_a_disk_that_has_nothing_makes_the_checkpoint(two, tmp_path):
    save(two[:1], manifest(tmp_path, 5))
    send(two[0], two[1], 5, NAMES[0])
    assert catalog.missing(two[1].entry(5).path, catalog.read_manifest(two[1].entry(5), partial=True)) == [NAMES[1]]
    fresh = tmp_path / "not" / "there"
    partial.receive(fresh, partial.read_manifest(two[0].folder, 5), NAMES[0], [payload(5, 0), b'{"epoch":3}'])
    assert [held.present for held in partial.inventory(fresh)] == [(NAMES[0],)]


def test_a_copy_for_a_prepared_draft_keeps_what_is_in_it(two, tmp_path):
    save(two, manifest(tmp_path, 5), place=(0,))
    send(two[0], two[1], 5, NAMES[0])
    assert whole(two[1].entry(5))


def test_a_copy_mends_a_file(two, tmp_path):
    save(two, manifest(tmp_path, 5))
    send(two[0], two[1], 5, NAMES[0])
    path = two[0].folder / folder_name(5) / NAMES[0]
    path.write_bytes(path.read_bytes()[::-1])
    send(two[1], two[0], 5, NAMES[0])
    assert catalog.verify(two[0].entry(5), partial=True).step == 5


@pytest.mark.parametrize("chunks", [[], [b"x" * 10], [b"x" * 3011], [payload(5, 0), b'{"epoch":3}', b"more"]])
def test_what_is_not_in_the_manifest_never_gets_there(two, tmp_path, chunks):
    save(two, manifest(tmp_path, 5))
    with pytest.raises(CheckpointDamaged):
        partial.receive(two[1].folder, partial.read_manifest(two[0].folder, 5), NAMES[0], chunks)
    assert partial.inventory(two[1].folder)[0].missing == (NAMES[0],)
    assert left_over(two[1].folder) == []


@pytest.mark.parametrize("name", ["rank-00007.data", "../FENCE", MANIFEST, "", "/etc/passwd"])
def test_no_other_file_can_be_named(two, tmp_path, name):
    save(two, manifest(tmp_path, 5))
    with pytest.raises(CheckpointDamaged):
        partial.receive(two[1].folder, partial.read_manifest(two[0].folder, 5), name, [b""])
    with pytest.raises((CheckpointDamaged, FileNotFoundError)):
        partial.open_file(two[0].folder, 5, name)


def test_a_forged_manifest_is_not_believed(two, tmp_path):
    data = bytearray(encode(manifest(tmp_path, 5)))
    data[60] ^= 1
    with pytest.raises(CheckpointDamaged):
        partial.receive(two[1].folder, bytes(data), NAMES[0], [payload(5, 0)])
    assert catalog.entries(two[1].folder) == []


def test_a_sender_that_breaks_off_leaves_nothing(two, tmp_path):
    save(two, manifest(tmp_path, 5))

    def broken():
        yield payload(5, 0)[:100]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        partial.receive(two[1].folder, partial.read_manifest(two[0].folder, 5), NAMES[0], broken())
    assert left_over(two[1].folder) == []


def test_copies_that_come_at_once_all_arrive(two, tmp_path):
    save(two, manifest(tmp_path, 5))
    fresh = Disk(tmp_path / "2", 0)
    barrier, failed = threading.Barrier(4), []

    def copy(disk):
        barrier.wait()
        try:
            send(disk, fresh, 5, NAMES[disk.rank])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=copy, args=(disk,)) for disk in (*two, *two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and whole(fresh.entry(5)) and left_over(fresh.folder) == []


def test_a_draft_is_promoted_once_and_only_that_one(two, tmp_path):
    made = manifest(tmp_path, 5)
    save(two, made, place=(0,))
    with pytest.raises(FileNotFoundError):
        partial.promote(two[1].folder, 5, "another")
    for _ in range(2):
        partial.promote(two[1].folder, 5, made.nonce)
    assert [held.committed for held in partial.inventory(two[1].folder)] == [True]
    with pytest.raises(FileExistsError):
        partial.promote(two[1].folder, 5, "another")


def test_a_save_that_was_promoted_by_another_hand_succeeds(two, tmp_path):
    made = manifest(tmp_path, 5)
    save(two, made, place=(0,))
    (held,) = partial.inventory(two[1].folder)
    partial.promote(two[1].folder, 5, made.nonce)
    assert commit.place(two[1].folder / held.folder, made, two[1].mine) == two[1].entry(5).path


def test_what_another_disk_could_not_do_goes_again(two, tmp_path):
    made = manifest(tmp_path, 5)
    save(two, made, place=(0,))
    draft = f".tmp-5-a1-{made.nonce}"
    for disk in two:
        commit.undo(disk.folder / draft, made, disk.mine)
        assert catalog.entries(disk.folder) == [] and left_over(disk.folder) == []


def test_a_newer_start_keeps_what_the_older_one_would_take_back(two, tmp_path):
    made = manifest(tmp_path, 5)
    save(two, made)
    take_token(two[0].folder)
    with pytest.raises(Fenced):
        commit.undo(two[0].folder / ".tmp-5", made, two[0].mine)
    assert catalog.steps(two[0].folder) == [5]


def test_the_best_one_has_the_files_that_are_here(two, tmp_path):
    made = [manifest(tmp_path, step) for step in (5, 6)]
    for disk in two:
        for one in made:
            save([disk], one)
            commit.publish_best(disk.entry(one.step), disk.mine, info={"accuracy": 0.5})
    inventories = [partial.inventory(disk.folder) for disk in two]
    assert [(held.step, held.kind) for held in inventories[0]] == [(5, "step"), (6, "step"), (6, "best")]
    (best,) = partial.whole_over(inventories, "best")
    assert best.step == 6 and best.digest != partial.whole_over(inventories)[-1].digest
    with partial.open_file(two[0].folder, 6, NAMES[0], "best") as file:
        partial.receive(two[1].folder, partial.read_manifest(two[0].folder, 6, "best"), NAMES[0], [file.read()], "best")
    assert catalog.verify(Entry("best", 6, two[1].folder / folder_name(6, "best"))).info["accuracy"] == 0.5


def test_a_copy_and_a_promotion_are_on_disk_when_they_return(two, tmp_path):
    need("strace")
    save(two, manifest(tmp_path, 5))
    save(two, made := manifest(tmp_path, 6), place=(0,))
    fresh, late = Disk(tmp_path / "2", 0), manifest(tmp_path, 7)
    for operation in (
        lambda: two[0].prepare(late, ".tmp-7-a1-00"),
        lambda: send(two[0], fresh, 5, NAMES[0]),
        lambda: send(two[0], two[1], 5, NAMES[0]),
        lambda: partial.promote(two[1].folder, 6, made.nonce),
    ):
        assert unsynced(calls_of(operation, "-y")) == []


def test_killed_at_any_call_of_a_copy(two, tmp_path, memory):
    """What is told as present is whole, and the next copy makes it so."""
    need("strace")
    save(two, manifest(tmp_path, 5))
    source = two[0]
    kills = 0
    for call, when in points(calls_of(lambda: send(source, Disk(memory / "counted", 0), 5, NAMES[0]))):
        target = Disk(memory / f"{call}-{when}", 0)
        inject = f"inject={call}:signal=SIGKILL:when={when}"
        kills += strike(lambda to=target: send(source, to, 5, NAMES[0]), "-e", f"trace={call}", "-e", inject).code == -9
        for held in partial.inventory(target.folder):
            assert catalog.verify(target.entry(5), partial=True).step == held.step == 5
        send(source, target, 5, NAMES[0])
        assert [held.present for held in partial.inventory(target.folder)] == [(NAMES[0],)]
        commit.take_over(target.folder)
        assert left_over(target.folder) == []
    assert kills > 30
