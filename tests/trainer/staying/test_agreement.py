"""From where ranks go on: over every interleaving of steps that are finished and a rank that dies."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.staying.agreement import Agreement, Standing, agree
from trainer.staying.notes import SLOTS


class Rank:
    """One rank of a training with whole replicas: it notes, gives its gradients, and steps once it has all of them."""

    def __init__(self) -> None:
        self.step = 0
        self.notes = [0]
        self.given = 0  # the newest step whose gradients it has let out

    def note(self) -> None:
        self.notes = [*self.notes, self.step + 1][-SLOTS:]

    def said(self, *, new: bool) -> Standing:
        return Standing("life", None if new else self.step, tuple(self.notes))


def train(size: int, turns: list[tuple[int, int]], victim: int, after: int) -> list[Rank]:
    """Ranks do what they can, in the order of `turns`; the victim only until it has done so many things."""
    ranks, done, dead = [Rank() for _ in range(size)], 0, False
    for who, lets in turns:
        rank = ranks[who]
        if dead and who == victim:
            continue
        if rank.given == rank.step:
            rank.note()
            rank.given = rank.step + 1
        elif all(one.given > rank.step for one in ranks) and not (dead and lets and rank.step >= ranks[victim].step):
            rank.step += 1  # unless what the victim passes on has not come out any more
        if who == victim:
            done += 1
            dead = done >= after
    return ranks


@given(st.data(), st.integers(2, 4), st.integers(0, 20))
def test_all_interleavings_end_in_the_newest_step_that_somebody_has_done(
    data: st.DataObject, size: int, after: int
) -> None:
    victim = data.draw(st.integers(0, size - 1))
    turn = st.tuples(st.integers(0, size - 1), st.sampled_from([0, 1]))
    ranks = train(size, data.draw(st.lists(turn, max_size=60)), victim, after)
    said = [rank.said(new=number == victim) for number, rank in enumerate(ranks)]
    agreed = agree(said)
    assert isinstance(agreed, Agreement), agreed
    living = [rank.step for number, rank in enumerate(ranks) if number != victim]
    assert agreed.step == max(living)
    assert ranks[agreed.source].step == agreed.step
    assert agreed.source not in agreed.takers
    assert set(agreed.takers) == {n for n, rank in enumerate(ranks) if n == victim or rank.step < agreed.step}


def test_several_new_ranks_take_from_one_that_has_it() -> None:
    said = [
        Standing("x", None, (4, 5)),
        Standing("x", 5, (4, 5)),
        Standing("x", None, (5,)),
        Standing("x", 4, (3, 4, 5)),
    ]
    assert agree(said) == Agreement(5, 1, (0, 2, 3))


def test_where_nobody_has_weights_there_is_no_way() -> None:
    assert agree([Standing("x", None, (5,))] * 2) == "no rank has the weights"


def test_a_note_that_is_missing_has_no_way() -> None:
    said = agree([Standing("x", 5, (5,)), Standing("x", None, (3, 4))])
    assert said == "rank 1 has not noted what was its own after step 5"


def test_notes_of_another_start_are_not_believed() -> None:
    said = agree([Standing("x", 5, (5,)), Standing("y", None, (5,))])
    assert said == "what rank 1 has noted is of another start of the training"


def test_ranks_that_are_further_apart_than_can_be_are_not_believed() -> None:
    assert isinstance(agree([Standing("x", 5, (5,)), Standing("x", 3, (5,))]), str)
