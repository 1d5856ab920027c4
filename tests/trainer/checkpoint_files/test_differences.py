"""Test the differences between two checkpoints: tensors however they are sharded, and documents value by value."""

import json
import struct

import pytest
from saved_checkpoints import claim, save_model

from trainer.checkpoint_files import commit
from trainer.checkpoint_files.catalog import entries
from trainer.checkpoint_files.differences import OtherTensor, differences
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, new_nonce
from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry, TreeEntry


def entry(folder):
    [found] = entries(folder)
    return found


def save(folder, data, dtype="float32", shape=(2, 3), chunks=None, **documents):
    """Save one rank's file with a tensor and these documents behind it."""
    make_folder(folder)
    mine = claim(folder)
    draft = commit.begin(folder, 4, mine)
    words = {name: json.dumps(document).encode() for name, document in documents.items()}
    written = write_new(draft / data_name(0), [data, *words.values()])
    sync_folder(draft)
    trees, at = {}, len(data)
    for name, text in words.items():
        trees[name] = TreeEntry(0, at, len(text))
        at += len(text)
    chunks = chunks or (Chunk(0, 0, (0,) * len(shape), shape),)
    files = (FileEntry(data_name(0), written.size, written.digest),)
    manifest = Manifest(4, 1, new_nonce(), files, {"model/w": TensorEntry(dtype, shape, chunks)}, trees)
    commit.publish(draft, manifest, mine)
    return entry(folder)


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_the_first_element_that_differs_is_named(tmp_path):
    one = save(tmp_path / "one", floats(1, 2, 3, 4, 5, 6))
    other = save(tmp_path / "other", floats(1, 2, 3, 4, 5.5, 7))
    found = differences(one, other)
    assert found.first == OtherTensor("model/w", (1, 1), "5", "5.5")
    assert (found.tensors, found.different, found.kept) == (1, ("model/w",), ())


def test_only_values_count_not_which_rank_has_them(tmp_path):
    one = save(tmp_path / "one", floats(1, 2, 3, 4, 5, 6))
    columns = Chunk(0, 0, (0, 0), (2, 1)), Chunk(0, 8, (0, 1), (2, 2))
    other = save(tmp_path / "other", floats(1, 4, 2, 3, 5, 6), chunks=columns)
    assert differences(one, other).different == ()


@pytest.mark.parametrize(
    ("dtype", "one", "other", "said"),
    [
        ("int64", struct.pack("<q", 5), struct.pack("<q", -6), ("5", "-6")),
        ("bfloat16", bytes([0, 0x3F]), bytes([0x80, 0x3F]), ("0.5", "1")),
        ("float16", struct.pack("<e", 0.5), struct.pack("<e", 2), ("0.5", "2")),
        ("float64", struct.pack("<d", 0.1), struct.pack("<d", 0.2), ("0.1", "0.2")),
        ("float8_e4m3fn", b"\x10", b"\x11", ("10", "11")),
    ],
)
def test_values_are_told_as_people_read_them(tmp_path, dtype, one, other, said):
    first = save(tmp_path / "one", one, dtype, (1,)), save(tmp_path / "other", other, dtype, (1,))
    found = differences(*first).first
    assert found is not None
    assert (found.one, found.other) == said


def test_another_shape_and_a_tensor_that_is_not_there(tmp_path):
    one = save(tmp_path / "one", floats(1, 2, 3, 4, 5, 6))
    other = save(tmp_path / "other", floats(1, 2, 3, 4, 5, 6), shape=(3, 2))
    assert differences(one, other).first == OtherTensor(
        "model/w", (), "float32 of shape [2, 3]", "float32 of shape [3, 2]"
    )
    save_model(tmp_path / "third", 4)
    assert differences(one, entry(tmp_path / "third")).different == ("model/w", "model/weight")


def test_kept_state_is_compared_place_by_place_but_for_the_clock(tmp_path):
    generator = {"~": "inline", "v": ["uint8", [2], "AAA="]}
    shared = {"objects": {"progress": {"step": 4, "seconds": 1.5}, "data": {"epoch": 0, "lengths": [1, 2]}}}
    one = save(
        tmp_path / "one", floats(*range(6)), shared=shared, **{"rank/00000": {"generators": {"torch": generator}}}
    )
    later = {
        "objects": {"progress": {"step": 4, "seconds": 9.5}, "data": {"epoch": 1, "lengths": [1, 3], "more": None}}
    }
    drawn = {"generators": {"torch": {**generator, "v": ["uint8", [2], "AQA="]}}}
    other = save(tmp_path / "other", floats(*range(6)), shared=later, **{"rank/00000": drawn})
    assert differences(one, other).kept == (
        "shared/objects/data/epoch", "shared/objects/data/lengths/1", "shared/objects/data/more",
        "rank/00000/generators/torch",
    )  # fmt: skip
    assert differences(one, one).kept == ()
