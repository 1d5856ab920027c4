"""Test merged descriptions of tensors' parts: nothing is lost or made up, and regular ones stay short."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import SCALE
from trainer.checkpoint import shares
from trainer.checkpoint.planning import decide, needed, plan_of
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.shares import Share, TensorShares
from trainer.checkpoint_files.manifest import ITEM_BYTES, chunk_bytes


def joined(words):
    """Merge descriptions as a tree of ranks does."""
    ranks = tuple(range(len(words)))
    for place in reversed(ranks):
        for level in SaveGroup(None, ranks, place).children:
            words[place] = shares.merge([words[place], *(words[other] for other in level)])
    return shares.decode(words[0])


def everyone(share):
    """Return which ranks have which box."""
    for copy in range(share.copies):
        for number in range(share.count):
            offsets = list(share.offsets)
            if offsets:
                offsets[share.dim] += number * share.lengths[share.dim]
            rank = share.first + copy * share.copy_stride + number * share.stride
            yield rank, tuple(offsets), share.lengths


def even(shape, cuts, place):
    """The part of a tensor that is cut into equally many rows and columns, as far as they go; None: nothing is left."""
    offsets, lengths = [], []
    for whole, (count, number) in zip(shape, zip(cuts, place, strict=True), strict=True):
        size = -(-whole // count)
        offsets.append(min(size * number, whole))
        lengths.append(min(size, whole - offsets[-1]))
    return None if 0 in lengths else (tuple(offsets), tuple(lengths))


def meshed(order, sizes, shape):
    """Who has what of a tensor whose rows and columns are cut along two dimensions of a mesh and copied along a third.

    `order`: which of rows, columns and copies the number of a rank counts up slowest.
    """
    boxes = []
    for rank in range(math.prod(sizes)):
        place, left = {}, rank
        for name in reversed(order):
            left, place[name] = divmod(left, sizes[name])
        boxes.append(even(shape, (sizes[0], sizes[1]), (place[0], place[1])))
    return boxes


def words_of(boxes, shape, name="w"):
    return [
        shares.encode({name: TensorShares("float32", shape, [] if box is None else [Share(rank, *box)])})
        for rank, box in enumerate(boxes)
    ]


MESHES = st.tuples(st.permutations([0, 1, 2]), st.tuples(*[st.integers(1, 5)] * 3), st.tuples(*[st.integers(1, 9)] * 2))


@settings(max_examples=200 * SCALE, deadline=None)
@given(MESHES)
def test_nothing_is_lost_and_nothing_made_up(mesh):
    order, sizes, shape = mesh
    boxes = meshed(order, sizes, shape)
    found = joined(words_of(boxes, shape))["w"]
    told = sorted(each for share in found.shares for each in everyone(share))
    assert told == sorted((rank, *box) for rank, box in enumerate(boxes) if box is not None)


@settings(max_examples=200 * SCALE, deadline=None)
@given(st.lists(st.none() | st.tuples(*[st.tuples(*[st.integers(0, 3)] * 2)] * 2), min_size=1, max_size=30))
def test_what_is_not_regular_stays_as_it_is(boxes):
    found = joined(words_of(boxes, (9, 9)))["w"]
    told = sorted(each for share in found.shares for each in everyone(share))
    assert told == sorted((rank, *box) for rank, box in enumerate(boxes) if box is not None)


def test_a_thousand_ranks_take_few_words():
    for order, sizes in (
        ((0, 1, 2), (1024, 1, 1)),  # FSDP
        ((0, 1, 2), (1, 1024, 1)),  # FSDP, of columns
        ((2, 0, 1), (1, 1, 1024)),  # DDP
        ((2, 0, 1), (8, 1, 128)),  # HSDP: nodes replicate, GPUs of a node shard
        ((0, 2, 1), (128, 1, 8)),  # sharded over nodes, replicated inside of each
        ((0, 1, 2), (128, 8, 1)),  # FSDP over tensor parallelism
    ):
        boxes = meshed(order, sizes, (1024, 1024))
        assert len(joined(words_of(boxes, (1024, 1024)))["w"].shares) <= min(sizes[:2]), (order, sizes)


@settings(max_examples=100 * SCALE, deadline=None)
@given(MESHES, st.tuples(*[st.integers(1, 4)] * 2))
def test_each_part_is_written_once_and_found_again_by_whoever_needs_it(mesh, cuts):
    order, sizes, shape = mesh
    boxes = meshed(order, sizes, shape)
    both = [shares.merge(pair) for pair in zip(words_of(boxes, shape), words_of(boxes, shape, "v"), strict=True)]
    entries = decide(joined(both), len(boxes))
    cells = {name: set() for name in entries}
    for rank in range(len(boxes)):
        plan = plan_of(entries, rank, 0)
        ends = 0
        for part in plan.parts:
            assert part.at >= ends and (part.offsets, part.lengths) == boxes[rank]
            ends = part.at + part.size
            new = cells_of(part.offsets, part.lengths)
            assert not new & cells[part.name]
            cells[part.name] |= new
        assert plan.size >= ends
    assert all(found == cells_of((0, 0), shape) for found in cells.values())
    for rank in range(cuts[0] * cuts[1]):  # in a world of another shape
        if (box := even(shape, cuts, divmod(rank, cuts[1]))) is not None:
            found = [piece for row in entries["w"].rows for piece in needed("w", box, row)]
            got = [cells_of([a + b for a, b in zip(box[0], one.offsets, strict=True)], one.lengths) for one in found]
            assert set().union(*got) == cells_of(*box) and sum(map(len, got)) == math.prod(box[1])
            for one in found:
                there = [a + b for a, b in zip(one.chunk.offsets, one.inside, strict=True)]
                assert there == [a + b for a, b in zip(box[0], one.offsets, strict=True)]
                assert all(a + n <= m for a, n, m in zip(one.inside, one.lengths, one.chunk.lengths, strict=True))


def cells_of(offsets, lengths):
    (a, b), (m, n) = offsets, lengths
    return {(x, y) for x in range(a, a + m) for y in range(b, b + n)}


def test_what_all_have_is_shared_out_by_size():
    sizes = [1000, 100, 100, 500, 500, 100, 1000, 2000]
    boxes = {f"w{number}": ((0,), (size,)) for number, size in enumerate(sizes)}
    words = [
        shares.encode({name: TensorShares("uint8", box[1], [Share(rank, *box)]) for name, box in boxes.items()})
        for rank in range(3)
    ]
    entries = decide(joined(words), 3)
    written = [0] * 3
    for entry in entries.values():
        for row in entry.rows:
            written[row.file] += chunk_bytes(entry, row)
    assert sum(written) == sum(sizes) and ITEM_BYTES["uint8"] == 1
    assert max(written) == 2000


def test_single_numbers_lie_where_all_read_anyway():
    """Of a thousand ranks each would have to read the files of all others, for a step's number here and there."""
    boxes = {f"step{number}": ((), ()) for number in range(20)}
    words = [
        shares.encode({name: TensorShares("float32", (), [Share(rank, *box)]) for name, box in boxes.items()})
        for rank in range(9)
    ]
    assert {row.file for entry in decide(joined(words), 9).values() for row in entry.rows} == {0}
