"""Test what one recipient is sent, in which order and how often, and what is recorded of it."""

import threading

import pytest

from launcher.run.records import NOT_TOLD, TOLD
from launcher.supervisor.notify.delivery import NotDelivered
from launcher.supervisor.notify.message import Message
from launcher.supervisor.notify.record import Recipient
from launcher.supervisor.notify.sender import GIVE_UP_S, LONGEST_PAUSE_S, RecipientThread, pause_after

LATER, NEVER = NotDelivered("it is down", again=True), NotDelivered("it refuses", again=False)
LIMIT_S = 30.0


class Recorder:
    """A recipient that answers as it is told, and what was noted of it."""

    def __init__(self, *answers, clock=lambda: 0.0):
        self.answers, self.tried, self.noted = [*answers], [], []
        self.changed = threading.Condition()
        self.thread = RecipientThread(Recipient("json-1", "json"), self.send, self.note, clock)

    def send(self, message):
        with self.changed:
            self.tried.append(message.key)
            self.changed.notify_all()
            if self.answers and (error := self.answers.pop(0)) is not None:
                raise error

    def note(self, kind, message, recipient, problem):
        with self.changed:
            self.noted.append((kind, message.key, problem))
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, LIMIT_S), (self.tried, self.noted)


def message(key):
    return Message(key, "ended", "job-1", "job", "title", 0.0)


def test_messages_go_out_in_order_and_once():
    to = Recorder()
    for key in ("a", "b", "a", "c"):
        to.thread.put(message(key))
    to.until(lambda: len(to.noted) == 3)
    assert to.tried == ["a", "b", "c"] and {kind for kind, _, _ in to.noted} == {TOLD}


def test_a_message_is_tried_until_it_is_taken_and_those_behind_it_wait():
    to = Recorder(LATER, LATER)
    to.thread.hurry(0.01)
    to.thread.put(message("a"))
    to.thread.put(message("b"))
    to.until(lambda: len(to.noted) == 2)
    assert to.tried == ["a", "a", "a", "b"]
    assert to.noted == [(TOLD, "a", ""), (TOLD, "b", "")]


def test_a_refusal_is_final_and_the_next_message_is_sent():
    to = Recorder(NEVER)
    to.thread.put(message("a"))
    to.thread.put(message("b"))
    to.until(lambda: len(to.noted) == 2)
    assert to.noted == [(NOT_TOLD, "a", "it refuses, tried 1 times"), (TOLD, "b", "")]


def test_an_error_of_a_library_is_noted_without_its_words():
    to = Recorder(RuntimeError("https://s3cr3t"))
    to.thread.put(message("a"))
    to.until(lambda: to.noted)
    assert to.noted == [(NOT_TOLD, "a", "RuntimeError, tried 1 times")]


def test_an_old_message_is_given_up():
    hours = iter([0.0, GIVE_UP_S - 1, GIVE_UP_S])
    to = Recorder(LATER, LATER, LATER, clock=lambda: next(hours))
    to.thread.hurry(0.01)
    to.thread.put(message("a"))
    to.until(lambda: to.noted)
    assert to.noted == [(NOT_TOLD, "a", "it is down, tried 2 times")]


def test_what_was_not_sent_in_time_is_noted():
    to = Recorder(LATER)
    to.thread.put(message("a"))
    to.thread.put(message("b"))
    to.until(lambda: to.tried)
    to.thread.give_up()
    assert [(kind, key) for kind, key, _ in to.noted] == [(NOT_TOLD, "a"), (NOT_TOLD, "b")]


@pytest.mark.parametrize(
    ("tries", "after_s", "pause_s"),
    [(1, 0, 2), (2, 0, 4), (8, 0, 256), (9, 0, LONGEST_PAUSE_S), (999, 0, LONGEST_PAUSE_S),
     (1, 60, 60), (9, 60, LONGEST_PAUSE_S), (1, 1e9, LONGEST_PAUSE_S)],
)  # fmt: skip
def test_pauses_double_up_to_five_minutes_or_are_what_the_recipient_asks_for(tries, after_s, pause_s):
    assert pause_after(tries, after_s) == pause_s
