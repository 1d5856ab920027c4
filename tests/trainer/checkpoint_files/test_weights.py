"""The weights of a checkpoint as rows of bytes, whatever ranks had parts of them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry
from trainer.checkpoint_files.weights import Place, entries_of, places
from trainer.errors import TrainerError


def manifest_of(**tensors):
    return Manifest(1, 1, "n", (FileEntry("rank-00000.data", 0, ""),), tensors, {})


ONE = TensorEntry("float32", (1,), (Chunk(0, 0, (0,), (1,)),))


def laid_out(shape, cuts):
    """A tensor of uint8 that is cut so, and the files in which its parts are; element i of it is i % 251."""
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    chunks, files = [], []
    edges = [sorted({0, length, *(cut % (length + 1) for cut in cuts[dim])}) for dim, length in enumerate(shape)]
    for number, block in enumerate(itertools.product(*(list(itertools.pairwise(one)) for one in edges))):
        indexes = itertools.product(*(range(begin, end) for begin, end in block))
        at = 7 * number
        content = bytes(sum(i * s for i, s in zip(index, strides, strict=True)) % 251 for index in indexes)
        files.append(b"-" * at + content)
        offsets, lengths = tuple(begin for begin, _ in block), tuple(end - begin for begin, end in block)
        chunks.append(Chunk(number, at, offsets, lengths))
    return TensorEntry("uint8", tuple(shape), tuple(chunks)), files


@given(
    shape=draw.lists(draw.integers(1, 5), max_size=4),
    cuts=draw.lists(draw.lists(draw.integers(0, 5), max_size=2), min_size=4, max_size=4),
)
def test_however_a_tensor_is_cut_its_elements_come_in_order(shape, cuts):
    entry, files = laid_out(shape, cuts)
    found = b"".join(files[place.file][place.at : place.at + place.size] for place in places(entry))
    assert found == bytes(number % 251 for number in range(math.prod(shape)))


def test_what_lies_one_behind_the_other_is_read_as_one():
    rows = (Chunk(0, 64, (0, 0), (2, 3)), Chunk(0, 88, (2, 0), (1, 3)), Chunk(1, 0, (3, 0), (1, 3)))
    assert [*places(TensorEntry("float32", (4, 3), rows))] == [Place(0, 64, 36), Place(1, 0, 12)]


def test_an_empty_tensor_has_no_bytes():
    assert [*places(TensorEntry("float32", (0, 4), (Chunk(0, 0, (0, 0), (0, 4)),)))] == []
    assert [*places(TensorEntry("float32", (0, 4), ()))] == []


def test_only_what_is_the_models_goes_by_its_own_names():
    names = entries_of(manifest_of(**{"model/a.weight": ONE, "optimizer/a.weight/exp_avg": ONE, "state/shared/x": ONE}))
    assert [*names] == ["a.weight"]


def test_of_several_models_one_has_to_be_named():
    manifest = manifest_of(**{"model/actor/w": ONE, "model/critic/w": ONE, "model/critic/b": ONE})
    assert [*entries_of(manifest, "critic")] == ["w", "b"]
    for wrong in (None, "cirtic"):
        with pytest.raises(TrainerError, match="they are: actor, critic"):
            entries_of(manifest, wrong)
    with pytest.raises(TrainerError, match="they are: one, which has no name"):
        entries_of(manifest_of(**{"model/w": ONE}), "critic")
    with pytest.raises(TrainerError, match="found none"):
        entries_of(manifest_of())
