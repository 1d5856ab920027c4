import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint_files.retention import Parts, Save, expired, safest, spared


def test_the_newest_good_ones_stay():
    assert expired([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 3) == [1, 2]
    assert expired([5, 1, 3], [5, 3, 1], 1) == [1, 3]


def test_one_that_nobody_has_looked_at_does_not_count():
    assert expired([1, 2, 3, 4, 5], [2, 5], 2) == [1]
    assert expired([1, 2, 3, 4, 5], [1, 3], 2) == []


def test_as_many_others_stay_while_there_are_too_few_good_ones():
    assert expired([1, 2, 3, 4], [4], 2) == [1]
    assert expired([1, 2, 3], [3], 2) == []
    assert expired([1, 2, 3, 4, 5], [2, 5], 3) == []
    assert expired([1, 2, 3, 4, 5, 6], [5, 6], 3, spoilt={2}) == []
    assert expired([1, 2, 3, 4], [], 1) == []
    assert expired([], [], 1) == []


def test_a_good_one_that_is_gone_does_not_count():
    assert expired([1, 2, 3], [3, 9], 2) == []


@pytest.mark.parametrize("keep", [0, -1])
def test_nobody_can_ask_for_none(keep):
    with pytest.raises(ValueError, match="at least 1"):
        expired([1, 2], [1, 2], keep)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 5))
def test_what_is_left_is_enough(steps, good, keep):
    gone = set(expired(steps, good, keep))
    assert gone <= steps
    left = steps - gone
    assert len(left & good) >= min(keep, len(steps & good)), "good ones"
    assert not gone or max(gone) < min(left & good), "only older ones"
    assert not gone or len(left & good) == keep or len(left - good) >= keep, "no more than asked for"
    assert len({step for step in left if step < min(left & good, default=0)}) <= keep, "none pile up"
    assert expired(left, good & left, keep) == []


def test_spoilt_ones_push_no_good_one_out_and_do_not_pile_up():
    assert expired([1, 2, 3, 4, 5], [1, 2], 2, spoilt={3, 4, 5}) == [3]
    assert expired([1, 2, 3, 4, 5], [1, 2, 5], 2, spoilt={3, 4}) == [1]
    assert expired([1, 2, 3, 4, 5], [1, 4, 5], 2, spoilt={2, 3}) == [1, 2, 3]
    assert expired([1, 2, 3], [], 2, spoilt={1, 2, 3}) == [1]


def test_what_is_spared_stays():
    assert expired([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 2, spared={1, 3}) == [2]


def disks(number, **copied):
    """So many disks of a rank each; of each step how many of them have passed on their file to the next one."""
    stocks = [{} for _ in range(number)]
    for name, count in copied.items():
        step = int(name.removeprefix("step"))
        all_names = {f"rank-{disk}" for disk in range(number)}
        for disk, stock in enumerate(stocks):
            here = {f"rank-{disk}"} | ({f"rank-{(disk - 1) % number}"} if (disk - 1) % number < count else set())
            stock[Save(step, "a")] = Parts(frozenset(here), frozenset(all_names - here))
    return stocks


def test_the_newest_that_survives_a_disk_is_spared_and_so_is_the_one_that_is_copied_next():
    assert spared(disks(3, step1=3, step2=3, step3=0, step4=0, step5=0)) == {2, 3, 5}
    assert spared(disks(3, step1=3, step2=3)) == {2}
    assert (safest(disks(3, step1=3, step2=3, step3=0)), safest(disks(3, step1=0))) == (2, None)


def test_where_none_survives_a_disk_the_one_that_is_copied_and_the_newest_are_spared():
    assert spared(disks(3, step1=2, step2=0, step3=0)) == {1, 3}


def test_of_one_disk_nothing_is_spared():
    assert spared(disks(1, step1=0, step2=0)) == set()
    assert spared([]) == set()


def test_one_that_is_not_whole_is_not_spared():
    stocks = disks(2, step1=0, step2=2, step3=0)
    del stocks[1][Save(1, "a")], stocks[1][Save(3, "a")]
    assert spared(stocks) == {2}


def test_files_of_two_saves_of_one_step_are_no_copies_of_each_other():
    stocks = disks(2, step1=2, step2=2)
    stocks[1][Save(2, "b")] = stocks[1].pop(Save(2, "a"))
    assert spared(stocks) == {1, 2}, "each disk happens to have all of its own"
    one, other = disks(2, step2=0)
    other[Save(2, "b")] = other.pop(Save(2, "a"))
    assert spared([one, other]) == set()


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.just([False] * 60) | st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_however_slow_copies_are_some_are_done_and_the_newest_of_them_stays(keep, slowness, pauses):
    """Two nodes that save at each moment and copy the oldest that they have; a copy takes `slowness` moments."""
    nodes: list[dict[int, int]] = [{}, {}]  # moments that were spent on each step's copy
    safe = 0
    for now in range(1, 61):
        for node, spent in enumerate(nodes):
            spent[now] = 0
            waiting = [step for step, moments in spent.items() if moments < slowness]
            if not (node and pauses[now - 1]):
                spent[min(waiting)] += 1
        stock = [
            {
                Save(step, ""): Parts(frozenset(here), frozenset({"0", "1"} - here))
                for step in nodes[node]
                for here in [{str(node)} | ({str(1 - node)} if nodes[1 - node].get(step, 0) >= slowness else set())]
            }
            for node in (0, 1)
        ]
        gone = expired(list(nodes[0]), list(nodes[0]), keep, spared(stock))
        for spent in nodes:
            for step in gone:
                del spent[step]
        safe_now = max((step for step in nodes[0] if all(spent[step] >= slowness for spent in nodes)), default=0)
        assert safe_now >= safe, "what survives a disk never becomes older"
        safe = safe_now
        assert len(nodes[0]) <= keep + 3
    if not any(pauses):
        assert safe >= 60 - 2 * slowness - keep - 2
