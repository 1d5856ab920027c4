"""Test which steps are complete, whoever has the parts and in whatever order they are reported."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint_files.complete_steps import whole

STEPS = st.sets(st.integers(0, 6))
SAID = st.lists(st.dictionaries(st.integers(0, 3), STEPS, max_size=3), max_size=5)


@given(SAID)
def test_a_step_counts_where_somebody_has_each_part_of_it_and_only_there(said: list[dict[int, set[int]]]) -> None:
    parts = {part for one in said for part in one}
    there = {step for step in range(7) if all(any(step in one.get(part, ()) for one in said) for part in parts)}
    assert whole(said) == (there if parts else set())


@given(st.data(), SAID)
def test_all_who_hear_the_same_find_the_same(data: st.DataObject, said: list[dict[int, set[int]]]) -> None:
    assert whole(data.draw(st.permutations(said))) == whole(said)


@given(SAID, st.integers(0, 3), STEPS)
def test_who_comes_with_more_takes_no_step_away(said: list[dict[int, set[int]]], part: int, steps: set[int]) -> None:
    named = any(part in one for one in said)
    assert whole([*said, {part: steps}]) >= whole(said) or not named


def test_a_part_that_nobody_has_is_wanted_all_the_same() -> None:
    said: list[dict[str, tuple[int, ...]]] = [{"a": (5, 6)}, {"b": ()}, {"b": (4, 5)}, {"b": (6,)}]
    assert whole(said[:2]) == set()
    assert whole(said) == {5, 6}
