"""Test which inputs are computed together and when, without clock or process."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.apps.serving.batching import Batcher, BatchPace


def batcher(size=3, wait_s=1.0, most=10):
    return Batcher(size, wait_s, most)


def keys(batch):
    return [wanted.key for wanted in batch]


def test_a_batch_is_due_when_it_is_full():
    wanted = batcher()
    for number in range(2):
        wanted.ask(bytes([number]), number, f"t{number}", 5.0)
    assert wanted.take(5.0) == []
    wanted.ask(b"\2", 2, "t2", 5.1)
    assert wanted.due_at() == 5.0
    assert keys(wanted.take(5.1)) == [b"\0", b"\1", b"\2"]
    assert wanted.due_at() is None


def test_or_when_the_first_has_waited_for_long_enough():
    wanted = batcher()
    wanted.ask(b"a", 1, "t", 5.0)
    wanted.ask(b"b", 2, "u", 5.9)
    assert wanted.due_at() == 6.0
    assert wanted.take(5.99) == []
    assert keys(wanted.take(6.0)) == [b"a", b"b"]


def test_equal_inputs_are_one_also_while_they_are_computed():
    wanted = batcher()
    for client in ("t", "u"):
        wanted.ask(b"a", 1, client, 5.0)
    (batch,) = wanted.take(6.0)
    wanted.ask(b"a", 1, "v", 6.5)
    assert wanted.queued == 0
    assert batch.clients == ["t", "u", "v"]
    assert (wanted.shared, wanted.waiting) == (2, 3)
    wanted.settle([batch])
    wanted.ask(b"a", 1, "w", 7.0)
    assert (wanted.queued, wanted.waiting) == (1, 1)


def test_what_was_not_begun_comes_next_again():
    wanted = batcher(size=2)
    for number in range(4):
        wanted.ask(bytes([number]), number, f"t{number}", float(number))
    batch = wanted.take(3.0)
    wanted.withdraw(b"\0", "t0")
    wanted.put_back(batch)
    assert (wanted.queued, wanted.waiting, wanted.due_at()) == (3, 3, 1.0)
    assert keys(wanted.take(3.0)) == [b"\1", b"\2"]


def test_no_more_may_wait_than_there_is_room_for():
    wanted = batcher(most=2)
    assert wanted.takes(5), "who asks for more than may ever wait comes when nobody else waits"
    wanted.ask(b"a", 1, "t", 0.0)
    assert wanted.takes(1)
    assert not wanted.takes(2)
    wanted.ask(b"a", 1, "u", 0.0)
    assert not wanted.takes(1), "equal ones wait too"
    wanted.settle(wanted.take(9.0))
    assert wanted.takes(2)


def test_what_nobody_waits_for_is_not_computed():
    wanted = batcher()
    wanted.ask(b"a", 1, "t", 0.0)
    wanted.ask(b"a", 1, "u", 0.0)
    wanted.withdraw(b"a", "t")
    assert (wanted.queued, wanted.waiting) == (1, 1)
    wanted.withdraw(b"a", "u")
    wanted.withdraw(b"a", "u")
    assert (wanted.queued, wanted.waiting, wanted.take(9.0)) == (0, 0, [])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["ask", "take", "settle", "withdraw"]))), st.integers(1, 4)
)
def test_everybody_is_answered_once_and_in_turn(moves, size):
    wanted, now, computed, asked, answered, left = batcher(size, 1.0), 0.0, [], [], [], []
    for number, (key, move) in enumerate(moves):
        now += 0.4
        if move == "ask":
            wanted.ask(bytes([key]), key, number, now)
            asked.append((key, number))
        elif move == "take" and (batch := wanted.take(now)):
            assert len(batch) <= size
            computed.append(batch)
        elif move == "settle" and computed:
            batch = computed.pop(0)
            answered += [client for one in batch for client in one.clients]
            wanted.settle(batch)
        elif move == "withdraw" and asked:
            gone, client = asked[0]
            if client not in answered:
                wanted.withdraw(bytes([gone]), client)
                left.append(client)
    while batch := wanted.take(now + 10):
        computed.append(batch)
    for batch in computed:
        answered += [client for one in batch for client in one.clients]
        wanted.settle(batch)
    assert sorted(answered) == sorted({number for _, number in asked} - set(left))
    assert wanted.waiting == wanted.queued == 0


def test_who_is_sent_away_hears_when_the_others_will_have_been_served():
    pace = BatchPace(weight=0.5)
    assert pace.retry_after_s(1000, 2) == 1
    pace.took(1.0, 10)
    assert pace.retry_after_s(100, 2) == 5
    pace.took(3.0, 10)
    assert pace.retry_after_s(100, 2) == 10
    assert pace.retry_after_s(10**6, 0) == 60
