"""When a message is tried again, and when no more."""

from launcher.notify.message import Message
from launcher.notify.outbox import GIVE_UP_S, Outbox


def message(key):
    return Message(key, "ended", "job-1", "job", "title", 0.0)


def test_messages_go_out_in_order_and_once():
    box = Outbox()
    for key in ("a", "b", "a"):
        box.put(message(key), 0.0)
    assert box.to_try(0.0).key == "a"
    box.done()
    assert box.to_try(0.0).key == "b"
    box.done()
    box.put(message("a"), 1.0)
    assert box.empty


def test_pauses_double_up_to_five_minutes():
    box, now, pauses = Outbox(), 0.0, []
    box.put(message("a"), now)
    for _ in range(10):
        box.failed(now)
        assert box.to_try(now + 1.9) is None
        pauses.append(next(s for s in (2, 4, 8, 16, 32, 64, 128, 256, 300) if box.to_try(now + s)))
        now += pauses[-1]
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    box.done()
    box.put(message("b"), now)
    assert box.to_try(now).key == "b"  # a new message begins anew


def test_who_asks_for_time_gets_it_up_to_a_bound():
    box = Outbox()
    box.put(message("a"), 0.0)
    box.failed(0.0, 60.0)
    assert box.to_try(59.0) is None and box.to_try(60.0)
    box.failed(60.0, 1e9)
    assert box.to_try(360.0)


def test_a_message_is_given_up_in_the_end():
    box = Outbox()
    box.put(message("a"), 0.0)
    assert not box.failed(GIVE_UP_S - 1)
    assert box.failed(GIVE_UP_S)


def test_where_there_is_little_time_it_is_tried_at_once_and_often():
    box = Outbox()
    box.put(message("a"), 0.0)
    for _ in range(9):
        box.failed(0.0)
    box.hurry(3.0, 1.0)
    assert box.to_try(1.0)
    box.failed(1.0)
    assert box.to_try(4.0)
