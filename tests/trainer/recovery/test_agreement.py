"""From where ranks go on: over every interleaving of steps that are finished and a rank, or a node, that dies."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recovery.agreement import Agreement, RankReport, agree, holder_of
from trainer.recovery.rank_states import KEPT


class Rank:
    """One rank of a training with whole replicas: it notes, gives its gradients, and steps once it has all of them."""

    def __init__(self) -> None:
        self.step = 0
        self.state_steps = [0]
        self.given = 0  # the newest step whose gradients it has let out

    def note(self) -> None:
        self.state_steps = [*self.state_steps, self.step + 1][-KEPT:]

    def reports(self, *, new: bool) -> RankReport:
        return RankReport("life", None if new else self.step, tuple(self.state_steps))


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
    reports = [rank.reports(new=number == victim) for number, rank in enumerate(ranks)]
    agreed = agree(reports, size)
    assert isinstance(agreed, Agreement), agreed
    living = [rank.step for number, rank in enumerate(ranks) if number != victim]
    assert agreed.step == max(living)
    assert ranks[agreed.source].step == agreed.step
    assert agreed.source not in agreed.receivers
    assert set(agreed.receivers) == {n for n, rank in enumerate(ranks) if n == victim or rank.step < agreed.step}


def test_several_new_ranks_take_from_one_that_has_it() -> None:
    reports = [
        RankReport("x", None, (4, 5)),
        RankReport("x", 5, (4, 5)),
        RankReport("x", None, (5,)),
        RankReport("x", 4, (3, 4, 5)),
    ]
    assert agree(reports, 4) == Agreement(5, 1, (0, 2, 3))


def test_where_nobody_has_weights_there_is_no_way() -> None:
    assert agree([RankReport("x", None, (5,))] * 2, 2) == "no rank has the weights"


def test_a_note_that_is_missing_has_no_way() -> None:
    reports = agree([RankReport("x", 5, (5,)), RankReport("x", None, (3, 4))], 2)
    assert reports == "rank 1 has not saved its own state after step 5"


def test_notes_of_another_start_are_not_believed() -> None:
    reports = agree([RankReport("x", 5, (5,)), RankReport("y", None, (5,))], 2)
    assert reports == "the saved state of rank 1 is of another start of the training"


def test_ranks_that_are_further_apart_than_can_be_are_not_believed() -> None:
    assert isinstance(agree([RankReport("x", 5, (5,)), RankReport("x", 3, (5,))], 2), str)


class OfANode(Rank):
    """A simulated rank whose node may be replaced by a spare: it steps once it has its charge's state too."""

    def __init__(self) -> None:
        super().__init__()
        self.copy_steps: list[int] = [0]

    def said_of_both(self) -> RankReport:
        return RankReport("life", self.step, tuple(self.state_steps), copy_steps=tuple(self.copy_steps[-KEPT:]))


def train_on_nodes(data: st.DataObject, nodes: int, each: int, after: int) -> tuple[list[OfANode], range]:
    """Return all ranks after so many turns, and those that were lost with their node."""
    lost = data.draw(st.integers(1, nodes - 1))
    ranks = [OfANode() for _ in range(nodes * each)]
    dead = range(lost * each, (lost + 1) * each)
    turns = data.draw(st.lists(st.tuples(st.integers(0, len(ranks) - 1), st.booleans()), max_size=80))
    for number, (who, comes) in enumerate(turns):
        rank = ranks[who]
        if number >= after and who in dead:
            continue
        if rank.given == rank.step:
            rank.note()
            rank.given = rank.step + 1
            continue
        charge = ranks[who + each] if who + each < len(ranks) else None
        wanted = rank.step + 1
        if charge is not None and wanted in charge.state_steps and rank.copy_steps[-1] < wanted and comes:
            rank.copy_steps.append(wanted)  # of a node that is lost meanwhile it comes, or does not
        has_copy = charge is None or rank.copy_steps[-1] >= wanted
        if all(one.given > rank.step for one in ranks) and has_copy:
            rank.step = wanted
    return ranks, dead


@given(st.data(), st.integers(2, 3), st.integers(1, 2), st.integers(0, 30))
def test_of_a_lost_node_the_notes_are_with_another_or_it_is_said_that_they_are_not(
    data: st.DataObject, nodes: int, each: int, after: int
) -> None:
    """A holder that has done the step has them. Only where it has not, and another one has, may they be lost."""
    ranks, dead = train_on_nodes(data, nodes, each, after)
    reports = [RankReport("", None, ()) if who in dead else rank.said_of_both() for who, rank in enumerate(ranks)]
    agreed = agree(reports, each)
    living = [rank.step for who, rank in enumerate(ranks) if who not in dead]
    holders = {who: holder_of(who, each) for who in dead}
    if isinstance(agreed, Agreement):
        assert agreed.step == max(living)
        assert agreed.copies_sent == tuple((holder, who) for who, holder in holders.items())
        assert {*dead} <= {*agreed.receivers}
    else:
        assert "is lost, and no rank has a copy" in agreed
        assert any(holder is not None and ranks[holder].step < max(living) for holder in holders.values())


@given(st.data(), st.integers(2, 4), st.integers(1, 2), st.integers(0, 30))
def test_ranks_that_are_left_go_on_from_the_newest_step_of_theirs_as_fewer(
    data: st.DataObject, nodes: int, each: int, after: int
) -> None:
    ranks, dead = train_on_nodes(data, nodes, each, after)
    left = [who for who in range(len(ranks)) if who not in dead]
    reports = [replace(ranks[who].said_of_both(), old_place=(who, len(ranks))) for who in left]
    agreed = agree(reports, each)
    newest = max(ranks[who].step for who in left)
    if isinstance(agreed, Agreement):
        assert (agreed.step, agreed.resized, agreed.copies_sent) == (newest, True, ())
        assert agreed.receivers == tuple(place for place, who in enumerate(left) if ranks[who].step < newest)
        assert all(newest in ranks[who - each].copy_steps[-KEPT:] for who in dead)
    else:
        assert "is lost, and no rank has a copy" in agreed
        assert any(ranks[who - each].step < newest for who in dead)


OF_TWO = RankReport("x", 5, (5,), copy_steps=(5,), old_place=(0, 2))


def test_one_that_is_left_of_two_goes_on_alone() -> None:
    assert agree([OF_TWO], 1) == Agreement(5, 0, (), resized=True)


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([replace(OF_TWO, copy_steps=(4,))], "the state of rank 1 of 2 after step 5 is lost, and no rank has a copy"),
        ([replace(OF_TWO, state_steps=(4,))], "rank 0 of 2 has not saved its own state after step 5"),
        ([replace(OF_TWO, old_place=(0, 3)), replace(OF_TWO, old_place=(1, 2), start="y")], "had not met the others"),
        ([RankReport("", None, ()), replace(OF_TWO, old_place=(0, 3))], "rank 0 is new"),
        ([replace(OF_TWO, old_place=(1, 2))], "rank 0 is new"),
        ([replace(OF_TWO, step=None)], "no rank has the weights"),
    ],
)
def test_where_ranks_cannot_be_fewer_it_is_said_why(reports: list[RankReport], why: str) -> None:
    found = agree(reports, 1)
    assert isinstance(found, str)
    assert why in found


def test_who_met_in_the_new_world_is_replaced_as_in_any_other() -> None:
    reports = [replace(OF_TWO, old_place=(0, 2)), RankReport("", None, ())]
    assert agree(reports, 1) == Agreement(5, 0, (1,), copies_sent=((0, 1),))


def test_a_note_that_was_lost_comes_from_who_keeps_it() -> None:
    reports = [RankReport("x", 5, (4, 5), copy_steps=(4, 5)), RankReport("", None, ())]
    assert agree(reports, 1) == Agreement(5, 0, (1,), copies_sent=((0, 1),))


def test_notes_that_a_node_has_of_another_start_give_way_to_the_copy() -> None:
    reports = [RankReport("x", 5, (5,), copy_steps=(5,)), RankReport("y", None, (5, 6))]
    assert agree(reports, 1) == Agreement(5, 0, (1,), copies_sent=((0, 1),))


@pytest.mark.parametrize(
    ("holder", "each"),
    [
        (RankReport("x", 5, (5,), copy_steps=(3, 4)), 1),  # of the step it has none
        (RankReport("x", 5, (5,), copy_steps=(5,)), 2),  # it is of the same node, and keeps nothing of the other
    ],
)
def test_where_nobody_has_it_there_is_no_way(holder: RankReport, each: int) -> None:
    reports = agree([holder, RankReport("", None, ())], each)
    assert reports == "the state of rank 1 after step 5 is lost, and no rank has a copy"


def test_weights_of_another_start_are_not_believed_whoever_keeps_a_copy() -> None:
    reports = agree([RankReport("x", 5, (5,), copy_steps=(5,)), RankReport("y", 5, (5,))], 1)
    assert reports == "the saved state of rank 1 is of another start of the training"


def test_the_first_node_has_no_holder() -> None:
    assert [holder_of(rank, 2) for rank in range(6)] == [None, None, 0, 1, 2, 3]


def of_shard(step: int | None, shard: int) -> RankReport:
    return RankReport("x", step, (4, 5, 6), shard=shard)


@pytest.mark.parametrize(
    ("steps", "agreed"),
    [
        pytest.param((None, 5, 5, 5), Agreement(5, 1, (0,), shards_sent=((2, 0),)), id="from the other copy"),
        pytest.param(
            (5, 5, None, None), Agreement(5, 0, (2, 3), shards_sent=((0, 2), (1, 3))), id="a whole copy is lost"
        ),
        pytest.param(
            (5, 6, 6, None), Agreement(6, 1, (0, 3), shards_sent=((2, 0), (1, 3))), id="one had not done the step"
        ),
        pytest.param(
            (5, 6, None, 5), Agreement(5, 0, (1, 2), shards_sent=((3, 1), (0, 2))), id="of shard 0 nobody had"
        ),
        pytest.param((None, None, 5, 5), Agreement(5, 2, (0, 1), shards_sent=((2, 0), (3, 1))), id="rank 0 is new"),
    ],
)
def test_shards_come_from_the_newest_step_that_is_left_of_all(steps: tuple[int | None, ...], agreed: Agreement) -> None:
    reports = [of_shard(step, rank % 2) for rank, step in enumerate(steps)]
    assert agree(reports, 4) == agreed


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((5, None, 5, None), "no rank has shard 1 any more"),
        ((None, None, None, None), "no rank has shard 0 any more"),
        ((6, 5, None, None), "the shards that are left are of different steps: 5, 6"),
    ],
)
def test_where_a_shard_is_lost_with_its_copies_there_is_no_way_but_back(
    steps: tuple[int | None, ...], why: str
) -> None:
    assert agree([of_shard(step, rank % 2) for rank, step in enumerate(steps)], 4) == why


@given(st.data(), st.integers(1, 3), st.integers(2, 3), st.integers(0, 60))
def test_with_copies_of_shards_all_interleavings_end_in_a_step_of_all(
    data: st.DataObject, shards: int, copies: int, after: int
) -> None:
    """A rank makes its update, which nobody else has part in, once all are through with their gradients."""
    ranks, dead = [Rank() for _ in range(shards * copies)], set[int]()
    for number, (who, comes) in enumerate(
        data.draw(st.lists(st.tuples(st.integers(0, len(ranks) - 1), st.booleans()), max_size=80))
    ):
        if number == after:
            lost = data.draw(st.integers(0, copies - 1))  # a node has a copy of all shards, or one rank dies
            dead = {lost * shards + one for one in range(shards)} if data.draw(st.booleans()) else {lost * shards}
        rank = ranks[who]
        if who in dead:
            continue
        if rank.given == rank.step:
            rank.note()
            rank.given = rank.step + 1
        elif all(one.given > rank.step for one in ranks) and (not dead or comes):
            rank.step += 1
    reports = [
        RankReport("life", None if who in dead else rank.step, tuple(rank.state_steps), shard=who % shards)
        for who, rank in enumerate(ranks)
    ]
    agreed = agree(reports)
    living = {who: rank.step for who, rank in enumerate(ranks) if who not in dead}
    if isinstance(agreed, str):
        newest = max(living.values())
        assert all(
            {who % shards for who, step in living.items() if step == one} != {*range(shards)}
            for one in (newest, newest - 1)
        )
        return
    assert agreed.step in (max(living.values()), max(living.values()) - 1)
    assert {receiver for _, receiver in agreed.shards_sent} == {*agreed.receivers}
    assert {*agreed.receivers} == {who for who in range(len(ranks)) if living.get(who) != agreed.step}
    for sender, receiver in agreed.shards_sent:
        assert (living[sender], sender % shards) == (agreed.step, receiver % shards)
