"""Links, pipes and files that somebody put into a checkpoints folder: nothing outside is written, nobody hangs."""

import os
from pathlib import Path

import pytest
from checkpoint_lab import invalid, manifest_of, save, write_rank

from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.durable import write_new
from trainer.checkpoint_files.layout import FENCE, FENCE_DRAFT, FENCE_LOCK, MANIFEST, data_name, folder_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, TreeEntry
from trainer.errors import CheckpointDamaged, TrainerError

NAMES = [
    FENCE, FENCE_DRAFT, FENCE_LOCK, "step-00000001", "step-00000002", "best-00000002", ".tmp-2-a0-x", ".trash-x",
    ".bad-x", ".tmp-" + "x" * 250, ".trash-new\nline", ".tmp-\udcff", "..tmp-", MANIFEST, "core",
]  # fmt: skip
KINDS = {
    "link to a file": lambda path, outside: path.symlink_to(outside / "precious"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link upwards": lambda path, outside: path.symlink_to(".."),
    "dangling link": lambda path, outside: path.symlink_to(outside / "nowhere"),
    "link to itself": lambda path, outside: path.symlink_to(path),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "fifo": lambda path, outside: os.mkfifo(path),
    "empty folder": lambda path, outside: path.mkdir(),
    "full folder": lambda path, outside: os.symlink(outside, path / "link") if path.mkdir() is None else None,
    "empty file": lambda path, outside: path.touch(),
    "file": lambda path, outside: path.write_bytes(os.urandom(100)),
}


@pytest.fixture
def outside(memory) -> Path:
    outside = memory / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    return outside


def untouched(outside: Path) -> bool:
    return os.listdir(outside) == ["precious"] and (outside / "precious").read_text() == "precious"


def live(folder: Path) -> str:
    """Do what a start does, from its claim to pruning; return the message if the folder is refused."""
    try:
        mine = commit.take_over(folder)
        for entry in catalog.entries(folder):
            try:
                catalog.verify(entry)
            except CheckpointDamaged:
                commit.set_aside(entry)
        for step in (1, 2):
            save(folder, step, mine)
        commit.publish_best(catalog.Entry("step", 2, folder / folder_name(2)), mine)
        commit.remove([folder / folder_name(1)])
    except (OSError, TrainerError) as error:
        return str(error)
    return ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_way_is_stepped_round(folder, outside, kind):
    for name in NAMES:
        mine_own = folder / f"{NAMES.index(name)}"
        mine_own.mkdir()
        KINDS[kind](mine_own / name, outside)
        said = live(mine_own)
        assert untouched(outside), name
        if name == FENCE_LOCK and said:
            assert FENCE_LOCK in said
            continue
        assert not said, f"{name!r}: {said}"
        assert catalog.steps(mine_own) == [2] and invalid(mine_own) == [], name


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [MANIFEST, data_name(1)])
def test_what_stands_in_a_draft_is_not_written_through(folder, outside, mine, kind, name):
    draft = commit.begin(folder, 1, mine)
    files = [write_rank(draft, 1, rank) for rank in range(2)]
    if name != MANIFEST:
        (draft / name).unlink()
    KINDS[kind](draft / name, outside)
    with pytest.raises(FileExistsError):
        write_new(draft / name, [b"x"])
    with pytest.raises((OSError, CheckpointDamaged)):
        commit.publish(draft, manifest_of(1, files), mine)
    assert untouched(outside) and catalog.entries(folder) == []


@pytest.mark.parametrize(
    "name",
    ["../precious", "/etc/passwd", "..", "", ".", "rank-00000.data/../../x", "rank-00000.data\0", "x" * 300, "a\nb"],
)
def test_a_manifest_names_nothing_outside_of_its_folder(folder, outside, mine, name):
    draft = commit.begin(folder, 1, mine)
    hostile = Manifest(1, 1, "n", (FileEntry(name, 1, "0" * 32),), {}, {"t": TreeEntry(0, 0, 1)})
    with pytest.raises(CheckpointDamaged, match="one file per rank"):
        commit.publish(draft, hostile, mine)
    assert untouched(outside) and catalog.entries(folder) == []


@pytest.mark.parametrize(
    "name", ["with space", "new\nline", "é漢字", "'quoted\"", "-rf", "$(touch canary)", "x" * 200, "%s{}"]
)
def test_the_folder_may_have_any_name(memory, name):
    folder = memory / name
    folder.mkdir()
    assert live(folder) == "" and catalog.steps(folder) == [2]


def test_a_checkpoint_that_is_a_link_can_be_read_and_loses_only_the_link(folder, memory, mine):
    elsewhere = memory / "another-disk"
    save(folder, 1, mine).rename(elsewhere)
    (folder / folder_name(1)).symlink_to(elsewhere)
    save(folder, 2, mine)
    assert invalid(folder) == [] and catalog.steps(folder) == [1, 2]
    commit.remove([folder / folder_name(1)])
    assert catalog.steps(folder) == [2] and (elsewhere / MANIFEST).exists()
