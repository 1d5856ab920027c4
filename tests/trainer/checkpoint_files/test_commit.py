import os
import stat
from pathlib import Path

import pytest
from checkpoint_lab import calls_of, invalid, left_over, manifest_of, payload, save, unsynced, whole, write_rank

from tests.lab.requirements import need
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import FENCE, FENCE_LOCK, MANIFEST, data_name, draft_name, folder_name
from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry
from trainer.errors import CheckpointDamaged, Fenced


def step_entry(folder: Path, step: int) -> Entry:
    return Entry("step", step, folder / folder_name(step))


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - {FENCE, FENCE_LOCK}


def best_steps(folder: Path) -> list[int]:
    return [entry.step for entry in catalog.entries(folder) if entry.kind == "best"]


def filled_draft(folder, step, mine):
    draft = commit.begin(folder, step, mine)
    return draft, manifest_of(step, [write_rank(draft, step, rank) for rank in range(2)])


def test_a_checkpoint_is_there_when_it_is_published_and_not_before(folder, mine):
    draft, manifest = filled_draft(folder, 5, mine)
    assert catalog.entries(folder) == []
    assert commit.publish(draft, manifest, mine) == folder / "step-00000005"
    assert names(folder) == {"step-00000005"}
    assert catalog.verify(step_entry(folder, 5)) == manifest
    assert invalid(folder) == []


def test_it_is_for_its_owner_alone_whatever_the_umask(folder, mine):
    before = os.umask(0)
    try:
        path = save(folder, 1, mine)
        best = commit.publish_best(step_entry(folder, 1), mine)
    finally:
        os.umask(before)
    for one in (path, best):
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in one.iterdir()} == {0o600}


def test_a_step_is_never_saved_over(folder, mine):
    first = catalog.verify(Entry("step", 1, save(folder, 1, mine)))
    with pytest.raises(FileExistsError, match="step-00000001"):
        save(folder, 1, mine)
    assert catalog.verify(step_entry(folder, 1)) == first
    assert names(folder) == {"step-00000001"}


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, Path.touch, lambda path: os.symlink("nowhere", path)])
def test_nor_is_anything_else_that_has_its_name(folder, mine, make):
    make(folder / "step-00000001")
    with pytest.raises(FileExistsError):
        save(folder, 1, mine)
    assert names(folder) == {"step-00000001"}
    save(folder, 2, mine)


@pytest.mark.parametrize("what", ["missing", "extra", "short", "folder", "fifo", "link"])
def test_only_exactly_what_was_gathered_is_published(folder, mine, what):
    draft, manifest = filled_draft(folder, 1, mine)
    file = draft / data_name(1)
    if what == "extra":
        (draft / data_name(2)).touch()
    elif what == "short":
        os.truncate(file, 10)
    else:
        file.rename(folder / "elsewhere")
        make = {"folder": os.mkdir, "fifo": os.mkfifo, "link": lambda path: os.symlink(folder / "elsewhere", path)}
        make.get(what, lambda path: None)(file)
    with pytest.raises(CheckpointDamaged, match=r"rank-0000[12]\.data"):
        commit.publish(draft, manifest, mine)
    assert names(folder) <= {"elsewhere"}


def test_what_nobody_could_load_is_not_published(folder, mine):
    draft, good = filled_draft(folder, 1, mine)
    hole = {"w": TensorEntry("uint8", (10,), (Chunk(0, 0, (0,), (9,)),))}
    with pytest.raises(CheckpointDamaged, match="not the whole"):
        commit.publish(draft, Manifest(1, 2, "n", good.files, hole, {}), mine)
    assert names(folder) == set()


def test_a_failed_publish_gives_its_space_back(folder, mine):
    (folder / "step-00000001").mkdir()
    with pytest.raises(FileExistsError):
        save(folder, 1, mine)
    assert left_over(folder) == []


def test_the_next_start_takes_everything_that_was_under_way(folder, mine):
    save(folder, 1, mine)
    draft, manifest = filled_draft(folder, 2, mine)
    (folder / draft_name(3, 0, "dead")).mkdir()
    (folder / ".trash-old").mkdir()
    second = commit.take_over(folder)
    assert names(folder) == {"step-00000001"}
    with pytest.raises(Fenced):
        commit.publish(draft, manifest, mine)
    with pytest.raises(Fenced):
        commit.begin(folder, 3, mine)
    assert names(folder) == {"step-00000001"}
    save(folder, 2, second)


def test_an_older_start_takes_nothing(folder):
    mine = commit.take_over(folder, 2)
    draft, manifest = filled_draft(folder, 1, mine)
    with pytest.raises(Fenced):
        commit.take_over(folder, 1)
    commit.publish(draft, manifest, mine)
    assert invalid(folder) == [] and catalog.steps(folder) == [1]


def test_the_run_s_fence_stops_each_step_of_a_commit(folder, memory):
    mine = commit.take_over(folder, 1)
    run_dir = memory / "run"
    run_dir.mkdir()
    save(folder, 1, mine, run_dir)
    draft, manifest = filled_draft(folder, 2, mine)
    (run_dir / FENCE).write_text("2\n")
    for step in (
        lambda: commit.publish(draft, manifest, mine, run_dir),
        lambda: commit.begin(folder, 3, mine, run_dir),
        lambda: commit.publish_best(step_entry(folder, 1), mine, run_dir),
    ):
        with pytest.raises(Fenced, match="attempt 2"):
            step()
    assert names(folder) == {"step-00000001"}


def test_the_best_one_outlives_the_others(folder, mine):
    for step in (1, 2):
        save(folder, step, mine)
    assert commit.publish_best(step_entry(folder, 1), mine) == folder / "best-00000001"
    commit.remove([step_entry(folder, 1).path])
    assert names(folder) == {"step-00000002", "best-00000001"}
    assert catalog.steps(folder) == [2]
    assert [whole(entry) for entry in catalog.entries(folder)] == [True, True]


def test_there_is_one_best(folder, mine):
    for step in (1, 2):
        save(folder, step, mine)
        commit.publish_best(step_entry(folder, step), mine)
        commit.publish_best(step_entry(folder, step), mine)
    assert names(folder) == {"step-00000001", "step-00000002", "best-00000002"}
    commit.publish_best(step_entry(folder, 1), mine)
    assert best_steps(folder) == [1]


def test_the_best_one_shares_its_bytes_where_it_can(folder, mine):
    save(folder, 1, mine)
    best = commit.publish_best(step_entry(folder, 1), mine)
    assert (best / data_name(0)).samefile(folder / "step-00000001" / data_name(0))


@pytest.mark.parametrize("what", ["damaged", "another past", "a folder", "a file"])
def test_what_was_best_once_does_not_stand_in_for_the_best(folder, mine, what):
    save(folder, 1, mine)
    if what == "a folder":
        (folder / "best-00000001").mkdir()
    elif what == "a file":
        (folder / "best-00000001").touch()
    else:
        best = commit.publish_best(step_entry(folder, 1), mine)
        commit.remove([step_entry(folder, 1).path])
        save(folder, 1, mine)
        if what == "damaged":
            (best / data_name(0)).unlink()
    commit.publish_best(step_entry(folder, 1), mine)
    best_entry = Entry("best", 1, folder / "best-00000001")
    assert catalog.verify(best_entry) == catalog.verify(step_entry(folder, 1))
    assert len(catalog.set_aside(folder)) == 1


def test_a_damaged_one_is_not_kept_as_the_best(folder, mine):
    save(folder, 1, mine)
    (folder / "step-00000001" / data_name(0)).unlink()
    with pytest.raises(CheckpointDamaged):
        commit.publish_best(step_entry(folder, 1), mine)
    assert best_steps(folder) == [] and left_over(folder) == []


def test_where_nothing_can_be_linked_the_best_is_a_copy(folder, mine, monkeypatch):
    def no_links(*_, **__):
        raise OSError(95, "Operation not supported")

    save(folder, 1, mine)
    monkeypatch.setattr(os, "link", no_links)  # a file system that has none is hard to come by
    best = commit.publish_best(step_entry(folder, 1), mine)
    assert not (best / data_name(0)).samefile(folder / "step-00000001" / data_name(0))
    assert invalid(folder) == []
    commit.remove([best])
    (folder / "step-00000001" / data_name(0)).write_bytes(payload(2, 0) + b'{"epoch":3}')  # as long as it was
    with pytest.raises(CheckpointDamaged, match="is not what was written"):
        commit.publish_best(step_entry(folder, 1), mine)
    assert best_steps(folder) == [] and left_over(folder) == []


def test_what_is_removed_is_gone(folder, mine):
    for step in (1, 2, 3):
        save(folder, step, mine)
    commit.remove(step_entry(folder, step).path for step in (1, 2, 7))
    assert names(folder) == {"step-00000003"}


def test_what_is_thrown_away_takes_nothing_else_along(folder, mine, memory):
    (memory / "precious").mkdir()
    (memory / "precious" / "file").write_text("precious")
    for name in (".trash-link", ".tmp-link"):
        (folder / name).symlink_to(memory / "precious")
    (folder / ".trash-folder").mkdir()
    (folder / ".trash-folder" / "link").symlink_to(memory / "precious")
    save(folder, 1, mine)
    (folder / "step-00000001" / "link").symlink_to(memory / "precious")
    commit.remove([folder / "step-00000001"])
    commit.take_over(folder)
    assert names(folder) == set()
    assert (memory / "precious" / "file").read_text() == "precious"


def test_a_damaged_one_is_set_aside_to_be_looked_at(folder, mine):
    save(folder, 1, mine)
    aside = commit.set_aside(step_entry(folder, 1))
    assert catalog.entries(folder) == [] and catalog.set_aside(folder) == [aside]
    assert (aside / MANIFEST).exists()
    save(folder, 1, mine)
    assert commit.set_aside(step_entry(folder, 1)) != aside


def test_nothing_of_a_commit_can_be_taken_back_by_a_power_cut(folder, mine):
    need("strace")
    for operation in (
        lambda: save(folder, 1, mine),
        lambda: commit.publish_best(Entry("step", 1, folder / "step-00000001"), mine),
        lambda: commit.take_over(folder),
    ):
        assert unsynced(calls_of(operation, "-y")) == []


def test_what_is_removed_is_durably_out_of_sight_before_its_bytes_go(folder, mine):
    need("strace")
    save(folder, 1, mine)
    calls = [call.split("(")[0] for call in calls_of(lambda: commit.remove([folder / "step-00000001"]))]
    changes = [call for call in calls if call in ("rename", "fsync", "unlink", "unlinkat", "rmdir")]
    assert changes[:2] == ["rename", "fsync"] and set(changes[2:]) <= {"unlink", "unlinkat", "rmdir"}


def test_files_of_other_ranks_count_by_their_name_and_size_alone(folder, mine):
    draft = commit.begin(folder, 1, mine)
    entry = write_rank(draft, 1, 0)
    with pytest.raises(CheckpointDamaged, match="expected 20 bytes"):
        commit.publish(draft, manifest_of(1, [FileEntry(entry.name, 20, entry.digest)]), mine)
