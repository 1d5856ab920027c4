"""Whatever happens to the bytes of a committed checkpoint, `verify` notices it."""

import os
import random
import shutil
from collections import Counter

import pytest
from checkpoint_lab import manifest_of, save, whole, write_rank

from tests.sizes import SCALE
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name
from trainer.errors import CheckpointDamaged

MUTATIONS = 2000 * SCALE
RANKS = 3
Files = dict[str, bytes]


def contents(path) -> Files:
    return {name: (path / name).read_bytes() for name in os.listdir(path)}


def flip(draw, files, others):
    name = draw.choice(sorted(name for name, data in files.items() if data))
    data = bytearray(files[name])
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    files[name] = bytes(data)


def truncate(draw, files, others):
    name = draw.choice(sorted(files))
    files[name] = files[name][: draw.randrange(len(files[name]))]


def extend(draw, files, others):
    files[draw.choice(sorted(files))] += draw.randbytes(draw.randrange(1, 20))


def zero(draw, files, others):
    name = draw.choice(sorted(files))
    size = draw.choice([1, 8, 64, 512])
    at = draw.randrange(len(files[name])) // size * size
    length = len(files[name][at : at + size])
    files[name] = files[name][:at] + bytes(length) + files[name][at + size :]


def shift(draw, files, others):
    """A block of a file at the place of another."""
    name = draw.choice(sorted(files))
    size = draw.choice([1, 16, 128])
    data = bytearray(files[name])
    to, of = draw.randrange(len(data) - size), draw.randrange(len(data) - size)
    data[to : to + size] = data[of : of + size]
    files[name] = bytes(data)


def swap(draw, files, others):
    one, other = draw.sample(sorted(files), 2)
    files[one], files[other] = files[other], files[one]


def lose(draw, files, others):
    del files[draw.choice(sorted(files))]


def gain(draw, files, others):
    name = draw.choice([data_name(RANKS), "rank-00001.data.tmp", ".hidden", "MANIFEST.json~"])
    files[name] = draw.choice([b"", files[data_name(0)]])


def rename(draw, files, others):
    files[draw.choice([data_name(RANKS), "x", "RANK-00000.data"])] = files.pop(draw.choice(sorted(files)))


def older_manifest(draw, files, others):
    files[MANIFEST] = draw.choice(others)[MANIFEST]


def older_file(draw, files, others):
    name = data_name(draw.randrange(RANKS))
    files[name] = draw.choice(others)[name]


def all_of_another(draw, files, others):
    """A whole checkpoint of another step, under this one's name."""
    files.clear()
    files.update(others[0])


KINDS = (flip, flip, flip, truncate, extend, zero, shift, swap, lose, gain, rename, older_manifest, older_file,
         all_of_another)  # fmt: skip


@pytest.fixture
def directory(folder, mine):
    """A checkpoint of three ranks, one of a step before, and one of the same step from a past that was given up."""

    def save_small(step, seed):
        draft = commit.begin(folder, step, mine)
        files = [write_rank(draft, step + seed, rank, size=700) for rank in range(RANKS)]
        return commit.publish(draft, manifest_of(step, files), mine)

    others = [contents(save_small(1, 0)), contents(save_small(2, 77))]
    commit.remove([folder / folder_name(2)])
    return save_small(2, 0), others


def test_every_mutation_is_noticed(directory, seed):
    path, others = directory
    pristine = contents(path)
    draw = random.Random(seed)
    made = Counter()
    missed = []
    while made.total() < MUTATIONS:
        files = dict(pristine)
        kind = draw.choice(KINDS)
        kind(draw, files, others)
        if draw.random() < 0.1:
            flip(draw, files, others)
        if files == pristine:
            continue
        made[kind.__name__] += 1
        if not noticed(path, files):
            missed.append(kind.__name__)
    assert not missed, f"{Counter(missed)} of {made}"
    assert len(made) == len(set(KINDS)) and min(made.values()) > 50
    assert put(path, pristine) is None and catalog.verify(Entry("step", 2, path)), "the undamaged one is whole"


def put(path, files: Files) -> None:
    for name in {*os.listdir(path)} - set(files):
        os.unlink(path / name)
    for name, data in files.items():
        (path / name).write_bytes(data)


def noticed(path, files: Files) -> bool:
    put(path, files)
    try:
        catalog.verify(Entry("step", 2, path))
    except CheckpointDamaged:
        return True
    return False


@pytest.mark.parametrize("name", [MANIFEST, data_name(0)])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, "link", "dangling", "hole"])
def test_something_else_in_the_place_of_a_file_is_noticed(folder, mine, name, make):
    path = save(folder, 1, mine)
    size = (path / name).stat().st_size
    (path / name).rename(folder / "elsewhere")
    if make == "link":
        (path / name).symlink_to(folder / "elsewhere")
    elif make == "dangling":
        (path / name).symlink_to("x" * size)  # as long as the file was
    elif make == "hole":
        (path / name).touch()
        os.truncate(path / name, size)
    else:
        make(path / name)
    with pytest.raises(CheckpointDamaged, match="step-00000001"):
        catalog.verify(Entry("step", 1, path))


def test_a_renamed_checkpoint_is_noticed(folder, mine):
    shutil.copytree(save(folder, 1, mine), folder / folder_name(2))
    save(folder, 3, mine).rename(folder / folder_name(4))
    states = {}
    for entry in catalog.entries(folder):
        try:
            states[entry.step] = whole(entry)
        except CheckpointDamaged as error:
            states[entry.step] = str(error).partition(": ")[2]
    assert states == {1: True, 2: "the manifest is of step 1", 4: "the manifest is of step 3"}


def test_the_one_before_is_still_whole(folder, mine):
    for step in (1, 2):
        save(folder, step, mine)
    os.truncate(folder / folder_name(2) / data_name(1), 0)
    good = []
    for entry in catalog.entries(folder):
        try:
            good.append(catalog.verify(entry).step)
        except CheckpointDamaged:
            commit.set_aside(entry)
    assert good == [1] == catalog.steps(folder)
    save(folder, 2, mine)
    assert catalog.steps(folder) == [1, 2]
