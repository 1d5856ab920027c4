"""Which rank gives which bytes: each byte once, from each giver as many; from the taker's own node where it can be."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.recovery.replica import senders_of, stripes

LEAST = 1 << 20


@given(st.lists(st.integers(0, 5 * LEAST), max_size=30), st.integers(1, 70))
def test_each_byte_is_given_once_and_nobody_gives_more_than_a_part(sizes, senders):
    dealt = stripes(sizes, senders, LEAST)
    assert len(dealt) == senders
    begins = [0] * len(sizes)
    for piece in (piece for some in dealt for piece in some):  # in the order of givers each tensor is filled up
        assert piece.begin == begins[piece.tensor] < piece.end
        begins[piece.tensor] = piece.end
    assert begins == sizes
    given_by = [sum(piece.end - piece.begin for piece in some) for some in dealt]
    used = max(1, min(senders, sum(sizes) // LEAST))
    assert max(given_by) - min(given_by[:used]) <= 1
    assert not any(given_by[used:])


def test_a_large_tensor_is_cut_and_a_small_state_comes_from_one():
    dealt = stripes([9 * LEAST, 3 * LEAST], 3, LEAST)
    cut = [[(piece.tensor, piece.begin, piece.end) for piece in some] for some in dealt]
    assert cut == [[(0, 0, 4 * LEAST)], [(0, 4 * LEAST, 8 * LEAST)], [(0, 8 * LEAST, 9 * LEAST), (1, 0, 3 * LEAST)]]
    assert [len(some) for some in stripes([LEAST // 2, LEAST], 3, LEAST)] == [2, 0, 0]


@given(st.data(), st.integers(1, 6), st.integers(1, 8))
def test_those_of_the_same_node_give_and_else_all_that_have_it(data, nodes, each):
    size = nodes * each
    receivers = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    for receiver in receivers:
        senders = senders_of(receiver, receivers, size, each)
        there = [rank for rank in range(size) if rank not in receivers]
        near = [rank for rank in there if rank // each == receiver // each]
        assert senders == (near or there)
