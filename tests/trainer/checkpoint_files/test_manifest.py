import contextlib
import json
import math
from collections import Counter

import msgspec
import pytest
import xxhash
from checkpoint_lab import manifest_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import SCALE
from trainer.checkpoint_files import manifest as manifest_module
from trainer.checkpoint_files.layout import LAST_STEP
from trainer.checkpoint_files.manifest import (
    Chunk,
    FileEntry,
    Manifest,
    TensorEntry,
    TreeEntry,
    chunk_bytes,
    decode,
    encode,
)
from trainer.errors import CheckpointDamaged

FILES = [FileEntry(f"rank-0000{rank}.data", 100, "0" * 32) for rank in range(2)]
GOOD = manifest_of(7, FILES)


def sealed(body: bytes) -> bytes:
    """Any words, with the checksum that belongs to them."""
    return b'{"checksum":"%s","manifest":%s}\n' % (xxhash.xxh3_128_hexdigest(body).encode(), body)


WHOLE = (Chunk(0, 0, (0,), (4,)),)


def with_tensor(dtype="float32", shape=(4,), chunks=WHOLE, ranks=None) -> Manifest:
    return Manifest(7, 2, "n", tuple(FILES), {"w": TensorEntry(dtype, shape, tuple(chunks))}, {}, ranks=ranks)


def test_it_comes_back_as_it_was_written():
    assert decode(encode(GOOD)) == GOOD
    assert GOOD.size_bytes == 200


def test_it_is_a_document_that_people_can_read():
    said = json.loads(encode(GOOD))
    assert said["manifest"]["step"] == 7 and said["manifest"]["files"][1]["name"] == "rank-00001.data"


@given(
    st.dictionaries(
        st.text(max_size=20), st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=50)
    ),
    st.integers(0, LAST_STEP),
)
def test_what_the_user_adds_comes_back(info, step):
    manifest = Manifest(step, 1, "n", (), {}, {}, info=info)
    assert decode(encode(manifest)) == manifest


def test_a_number_that_json_does_not_have_is_none():
    assert decode(encode(Manifest(1, 1, "n", (), {}, {}, info={"loss": math.nan}))).info == {"loss": None}


def test_no_byte_can_change_unnoticed():
    data = encode(GOOD)
    for at in range(len(data)):
        for mask in (1, 0x80):
            with pytest.raises(CheckpointDamaged):
                decode(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
        for other in (data[:at], data[:at] + data[at + 1 :], data[:at] + b"\0" + data[at:]):
            with pytest.raises(CheckpointDamaged):
                decode(other)
    with pytest.raises(CheckpointDamaged):
        decode(data + b"\n")


@given(st.binary(max_size=300))
def test_bytes_of_anybody_are_no_manifest(data):
    for one in (data, sealed(data)):
        with pytest.raises(CheckpointDamaged, match="manifest"):
            decode(one)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"1e999", b"null", b'"' + b"\\ud800" + b'"']
)
def test_a_document_that_is_made_to_hurt_is_damage(body):
    with pytest.raises(CheckpointDamaged, match="not one of this version"):
        decode(sealed(body))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_whatever_is_believed_lies_inside_of_its_files(data):
    """Any part of the document is replaced by anything, and the checksum made to fit."""
    document = json.loads(encode(GOOD))["manifest"]
    at, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
        at = at[key]
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    at[key] = data.draw(_ANY | st.integers(-2, 2**70))
    try:
        manifest = decode(sealed(json.dumps(document).encode()))
    except CheckpointDamaged:
        return
    for entry in manifest.tensors.values():
        for chunk in entry.chunks:
            assert 0 <= chunk.at <= chunk.at + chunk_bytes(entry, chunk) <= manifest.files[chunk.file].size
    for tree in manifest.trees.values():
        assert 0 <= tree.at <= tree.at + tree.size <= manifest.files[tree.file].size
    assert all("/" not in file.name for file in manifest.files)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (with_tensor(dtype="object"), "unknown type 'object'"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (3,))]), "its parts are not the whole"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (2,)), Chunk(1, 0, (1,), (2,))]), "its parts overlap"),
        (
            with_tensor(shape=(), chunks=[Chunk(0, 0, (), ()), Chunk(1, 0, (), ())]),
            "its parts are not the whole",
        ),
        (with_tensor(shape=(), chunks=[Chunk(0, 0, (), ()), Chunk(1, 0, (), ())], ranks=(0,)), "its parts overlap"),
        (with_tensor(chunks=[Chunk(0, 0, (1,), (4,))]), "a part reaches over the edge"),
        (with_tensor(chunks=[Chunk(2, 0, (0,), (4,))]), "lies in a file that is not listed"),
        (with_tensor(chunks=[Chunk(0, 96, (0,), (4,))]), "lies outside of its file"),
        (with_tensor(chunks=[Chunk(0, 0, (0, 0), (2, 2))]), "another number of dimensions"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (2,), 2, 2)]), "lies in a file that is not listed"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (2,), 3)]), "a part reaches over the edge"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (1,), 2)]), "its parts are not the whole"),
        (with_tensor(chunks=[Chunk(0, 93, (0,), (2,), 2)]), "lies outside of its file"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (1,), 2), Chunk(0, 0, (1,), (2,))]), "its parts overlap"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (2,), 2, 1, 1)]), "follows no dimension"),
        (with_tensor(shape=(), chunks=[Chunk(0, 0, (), (), 2)], ranks=(0,)), "follows no dimension"),
        (with_tensor(chunks=[Chunk(0, 0, (0,), (2,), 1 << 62, 1 << 62)]), "a part reaches over the edge"),
        (with_tensor(shape=(0,), chunks=[Chunk(0, 0, (0,), (0,), 1 << 62, 1 << 62)]), "file that is not listed"),
        (Manifest(1, 1, "n", (FILES[0], FILES[0]), {}, {}), "expected one file per rank"),
        (Manifest(1, 1, "n", (FileEntry("../x", 1, "0"),), {}, {}), "expected one file per rank"),
        (Manifest(1, 1, "n", (FileEntry("FENCE", 1, "0"),), {}, {}), "expected one file per rank"),
        (Manifest(1, 2, "n", tuple(FILES), {}, {"t": TreeEntry(0, 99, 2)}), "t: lies outside of its file"),
        (Manifest(1, 2, "n", tuple(FILES), {}, {"t": TreeEntry(2, 0, 1)}), "t: lies outside of its file"),
        (Manifest(1, 1, "n", (), {}, {}, format=3), "expected format 2 or an older one, got 3"),
        (Manifest(LAST_STEP + 1, 1, "n", (), {}, {}), "not one of this version"),
        (Manifest(-1, 1, "n", (), {}, {}), "not one of this version"),
    ],
)
def test_one_that_makes_no_sense_is_damaged(manifest, problem):
    with pytest.raises(CheckpointDamaged, match=problem):
        decode(encode(manifest))


def test_a_row_of_parts_is_each_of_them():
    rows = [Chunk(0, 8, (0, 0), (2, 3), 2, 1, 1), Chunk(1, 0, (0, 6), (2, 1))]
    manifest = with_tensor(shape=(2, 7), chunks=rows)
    (entry,) = decode(encode(manifest)).tensors.values()
    assert list(entry.chunks) == [Chunk(0, 8, (0, 0), (2, 3)), Chunk(1, 8, (0, 3), (2, 3)), rows[1]]


def test_one_of_before_there_were_rows_is_read():
    body = (
        b'{"step":7,"world_size":2,"nonce":"n","files":[{"name":"rank-00000.data","size":9,"digest":"d"}],"tensors":{"w"'
        b':{"dtype":"int8","shape":[4],"chunks":[[0,0,[0],[2]],[0,4,[2],[2]]]}},"trees":{},"ranks":null,"apart":false,'
        b'"finite":true,"attempt":0,"saved_unix_s":0.0,"info":{},"format":1}'
    )
    assert decode(sealed(body)).tensors["w"].rows == (Chunk(0, 0, (0,), (2,)), Chunk(0, 4, (2,), (2,)))


def halves(depth: int) -> list[Chunk]:
    """A square cut in two again and again, across and along."""
    parts = [Chunk(0, 0, (0, 0), (64, 64))]
    for level in range(depth):
        d = level % 2
        parts = [Chunk(0, 0, *_half(part, d, second)) for part in parts for second in (False, True)]
    return parts


def _half(part: Chunk, d: int, second: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    half = part.lengths[d] // 2
    offsets = tuple(at + half * second * (k == d) for k, at in enumerate(part.offsets))
    return offsets, tuple(half if k == d else size for k, size in enumerate(part.lengths))


def square(chunks: list[Chunk], side: int = 64) -> Manifest:
    files = (FileEntry("rank-00000.data", side * side, "0" * 32),)
    return Manifest(1, 1, "n", files, {"t": TensorEntry("uint8", (side, side), tuple(chunks))}, {}, ranks=(0,))


PINWHEEL = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]


def test_parts_of_every_shape_are_told_apart():
    for depth in range(11):
        parts = halves(depth)
        assert decode(encode(square(parts)))
        if depth:
            moved = msgspec.structs.replace(parts[0], offsets=parts[-1].offsets)
            with pytest.raises(CheckpointDamaged, match="its parts overlap"):
                decode(encode(square([*parts[1:], moved])))
    wheel = [Chunk(0, 0, *where) for where in PINWHEEL]  # which no straight cut divides
    assert decode(encode(square(wheel)))
    with pytest.raises(CheckpointDamaged, match="its parts overlap"):
        decode(encode(square([*wheel, wheel[4]])))


@settings(max_examples=300 * SCALE, deadline=None)
@given(st.lists(st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 3))] * 2), max_size=9))
def test_overlaps_are_what_comparing_all_pairs_finds(spans):
    parts = [Chunk(0, 0, (a, b), (m, n)) for (a, m), (b, n) in spans]
    cells = Counter((x, y) for p in parts for x in range(p.offsets[0], p.offsets[0] + p.lengths[0])
                    for y in range(p.offsets[1], p.offsets[1] + p.lengths[1]))  # fmt: skip
    try:
        decode(encode(square(parts)))
        assert max(cells.values(), default=1) == 1
    except CheckpointDamaged:
        assert max(cells.values()) > 1


@pytest.mark.parametrize("lie", ["columns", "the same", "staircase", "spiral", "dimensions"])
def test_a_manifest_costs_no_more_than_its_size(lie, monkeypatch):
    """Side by side in one dimension, thousands of parts were compared each with each."""
    compared = []
    meet = manifest_module._overlap
    monkeypatch.setattr(manifest_module, "_overlap", lambda *pair: compared.append(1) or meet(*pair))
    count = 3000
    match lie:
        case "columns":
            parts = [Chunk(0, 0, (0, k), (count, 1)) for k in range(count)]
        case "the same":
            parts = [Chunk(0, 0, (0, 0), (count, count))] * count
        case "staircase":
            parts = [Chunk(0, 0, (k, k), (2, 2)) for k in range(count - 1)]
        case "spiral":
            parts = [Chunk(0, 0, (k, k), (1, count - k) if k % 2 else (count - k, 1)) for k in range(count)]
        case "dimensions":
            deep = TensorEntry("uint8", (1,) * 20_000, (Chunk(0, 0, (0,) * 20_000, (1,) * 20_000),) * 2)
            whole = msgspec.structs.replace(square([]), tensors={"t": deep})
    with contextlib.suppress(CheckpointDamaged):
        decode(encode(whole if lie == "dimensions" else square(parts, count)))
    assert len(compared) <= 40_000


def test_a_part_of_the_ranks_need_not_have_the_whole():
    part = with_tensor(chunks=[Chunk(0, 0, (2,), (2,))], ranks=(1,))
    assert decode(encode(part)) == part


def grid(rows: int, columns: int, row_cuts: int, column_cuts: int) -> list[Chunk]:
    r, c = rows // row_cuts, columns // column_cuts
    return [Chunk(0, 0, (i * r, j * c), (r, c)) for i in range(row_cuts) for j in range(column_cuts)]


@pytest.mark.parametrize("cuts", [(1, 1), (4, 1), (1, 4), (4, 4)])
def test_parts_beside_each_other_are_the_whole(cuts):
    chunks = grid(4, 4, *cuts)
    for order in (chunks, chunks[::-1]):
        assert decode(encode(with_tensor(dtype="int8", shape=(4, 4), chunks=order))).tensors
    empty = Chunk(0, 0, (2, 0), (0, 4))
    assert decode(encode(with_tensor(dtype="int8", shape=(4, 4), chunks=[empty, *chunks]))).tensors
    if len(chunks) > 1:
        with pytest.raises(CheckpointDamaged, match="its parts overlap"):
            decode(encode(with_tensor(dtype="int8", shape=(4, 4), chunks=[*chunks[:-1], chunks[0]])))


def test_an_empty_tensor_needs_no_part():
    empty = with_tensor(shape=(0, 3), chunks=())
    assert decode(encode(empty)) == empty
