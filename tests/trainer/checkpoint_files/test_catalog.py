import errno
import os

import pytest
from checkpoint_lab import DAMAGED, OS_ERROR, manifest_of, save, strike, write_rank

from tests.lab.requirements import need
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry, entries, read_manifest, set_aside, steps, verify
from trainer.checkpoint_files.layout import MANIFEST, data_name
from trainer.errors import CheckpointDamaged


def test_where_nothing_is_nothing_is_found(folder, memory):
    (memory / "file").touch()
    for path in (folder, folder / "none", memory / "file", memory / "file" / "below"):
        assert (entries(path), steps(path), set_aside(path)) == ([], [], [])


def test_they_come_oldest_first_and_the_best_last(folder, mine):
    for step in (3, 100_000_000, 20):
        save(folder, step, mine)
    commit.publish_best(Entry("step", 20, folder / "step-00000020"), mine)
    os.utime(folder / "step-00000003")  # order is by step, never by time
    assert [(entry.kind, entry.step) for entry in entries(folder)] == [
        ("step", 3), ("step", 20), ("step", 100_000_000), ("best", 20),
    ]  # fmt: skip
    assert steps(folder) == [3, 20, 100_000_000]
    assert all(verify(entry).step == entry.step for entry in entries(folder))


def test_what_is_not_committed_is_not_found(folder, mine):
    draft = commit.begin(folder, 1, mine)
    write_rank(draft, 1, 0)
    (folder / ".trash-step-00000002-ab").mkdir()
    (folder / "step-2").mkdir()
    (folder / os.fsdecode(b"step-\xff")).mkdir()
    assert entries(folder) == []


def test_what_was_set_aside_is_told(folder, mine):
    save(folder, 1, mine)
    aside = commit.set_aside(entries(folder)[0])
    assert set_aside(folder) == [aside]


def test_the_bytes_are_read_only_where_that_is_asked_for(folder, mine):
    path = save(folder, 1, mine) / data_name(1)
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    (entry,) = entries(folder)
    assert read_manifest(entry).step == 1
    with pytest.raises(CheckpointDamaged, match=r"rank-00001\.data: its checksum"):
        verify(entry)


@pytest.mark.parametrize(
    ("name", "problem"),
    [(MANIFEST, r"MANIFEST\.json: is missing"), (data_name(1), r"rank-00001\.data missing")],
)
def test_what_is_missing_is_named(folder, mine, name, problem):
    (save(folder, 1, mine) / name).unlink()
    with pytest.raises(CheckpointDamaged, match=problem):
        read_manifest(entries(folder)[0])


def test_what_does_not_belong_there_is_named(folder, mine):
    (save(folder, 1, mine) / "notes.txt").touch()
    with pytest.raises(CheckpointDamaged, match=r"notes\.txt does not belong there"):
        read_manifest(entries(folder)[0])


def test_a_file_in_the_place_of_a_checkpoint_is_a_damaged_one(folder):
    (folder / "step-00000001").touch()
    with pytest.raises(CheckpointDamaged, match="step-00000001"):
        read_manifest(entries(folder)[0])


def test_one_that_is_pruned_while_it_is_looked_at_is_not_called_damaged(folder, mine):
    save(folder, 1, mine)
    (entry,) = entries(folder)
    commit.remove([entry.path])
    for look in (read_manifest, verify):
        with pytest.raises(CheckpointDamaged, match="was removed meanwhile"):
            look(entry)


@pytest.mark.parametrize("call", ["openat", "read", "preadv,preadv2"])
def test_what_the_disk_cannot_give_back_is_damaged(folder, mine, call):
    need("strace")
    save(folder, 1, mine)
    (entry,) = entries(folder)
    assert strike(lambda: verify(entry), "-e", f"inject={call}:error=EIO:when=1").code == DAMAGED
    # Another's trouble stays what it is.
    assert strike(lambda: verify(entry), "-e", f"inject={call}:error=EMFILE:when=1").code == OS_ERROR + errno.EMFILE


def test_one_of_another_step_under_this_name_is_damaged(folder, mine):
    save(folder, 1, mine).rename(folder / "step-00000002")
    with pytest.raises(CheckpointDamaged, match="the manifest is of step 1"):
        read_manifest(entries(folder)[0])


def test_a_checkpoint_without_files_is_whole(folder, mine):
    draft = commit.begin(folder, 1, mine)
    files = [write_rank(draft, 1, 0)]
    commit.publish(draft, manifest_of(1, files), mine)
    assert catalog.verify(entries(folder)[0]).world_size == 1
