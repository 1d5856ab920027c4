"""A restart waits until half of a pool's voters have the record of its failure."""

from math import inf

import msgspec
import pytest

from launcher.coordinator.effects import Finish, Record, Send
from launcher.coordinator.history_copies import HistoryCopies
from launcher.coordinator.server import CopyHold
from launcher.run.records import AttemptEnd, Event
from launcher.states import State
from launcher.wire.messages import ContinueInPlace, End, HeartbeatAck, Start, Stop

FAILURE, OPENED = (Record(Event(0.0, 1, kind, "")) for kind in ("failure", "generation_opened"))
START = Start(2, 0, 1, 2, 0, 2, "127.0.0.1", 20_000, 1)
BEGINS = {"all ranks anew": START, "in place": ContinueInPlace(START, (0,))}


@pytest.fixture
def copies():
    copies = HistoryCopies()
    copies.copied = 0.0
    return copies


@pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS)
def test_a_restart_and_what_follows_it_are_held_until_they_are_released(copies, begin):
    hold = CopyHold(copies)
    assert hold.pass_on([Send(1, START), FAILURE, Send(1, Stop(1, 0.0))]) == [
        Send(1, START), FAILURE, Send(1, Stop(1, 0.0)),
    ]  # fmt: skip
    assert hold.pass_on([OPENED, Send(1, begin), Send(2, begin)]) == [OPENED]
    assert hold.holds
    assert hold.pass_on([Send(1, Stop(2, 0.0)), Send(1, HeartbeatAck(7))]) == [Send(1, HeartbeatAck(7))]
    assert hold.release() == [Send(1, begin), Send(2, begin), Send(1, Stop(2, 0.0))]
    assert not hold.holds
    assert hold.pass_on([Send(1, begin)]) == [Send(1, begin)], "no failure since"


def test_the_first_start_of_a_roles_next_attempt_waits_for_the_failures_before_it(copies):
    hold = CopyHold(copies, follows=True)
    assert hold.pass_on([OPENED, Send(1, START)]) == [OPENED]
    assert not hold.is_copied(0, 90)
    copies.copied = 90.0
    assert hold.is_copied(0, 90) and hold.release() == [Send(1, START)]
    assert CopyHold(HistoryCopies(), follows=True).pass_on([Send(1, START)]) == [Send(1, START)]


def test_nothing_is_held_where_the_leader_alone_is_half_of_the_voters_or_there_are_none():
    hold = CopyHold(HistoryCopies())
    assert hold.pass_on([FAILURE, Send(1, START)]) == [FAILURE, Send(1, START)]


def test_a_failure_is_copied_once_it_is_on_this_disk_and_on_others(copies):
    hold = CopyHold(copies)
    hold.pass_on([FAILURE, FAILURE])
    copies.copied = 100.0
    assert not hold.is_copied(1, 90), "the second one is not on this disk yet"
    assert not hold.is_copied(2, 101) and hold.is_copied(2, 100)
    copies.copied = inf
    assert hold.is_copied(2, 10**9)


SUCCEEDED = Finish(AttemptEnd(State.SUCCEEDED, None, 0, 0.0, "all ranks have finished"), Event(0.0, 1, "ended", "done"))


def test_the_end_of_a_run_is_announced_and_held_until_it_is_released(copies):
    hold, end, ack = CopyHold(copies), Send(1, End("", goes_on=False)), Send(1, HeartbeatAck(7))
    announced = Record(
        msgspec.structs.replace(SUCCEEDED.event, kind="ending", text="about to end: done", end=SUCCEEDED.end)
    )
    assert hold.pass_on([end, ack, SUCCEEDED]) == [announced, ack]
    assert hold.holds and hold.holds_end and not hold.is_copied(0, 0)
    assert hold.release() == [end, SUCCEEDED]
    assert not hold.holds and not hold.holds_end


def test_what_does_not_end_the_run_is_not_announced(copies):
    """A role beside others ends; another attempt follows; the leader alone is half of the voters."""
    queued = Finish(msgspec.structs.replace(SUCCEEDED.end, state=State.QUEUED), SUCCEEDED.event)
    assert CopyHold(copies, ends=False).pass_on([SUCCEEDED]) == [SUCCEEDED]
    assert CopyHold(copies).pass_on([queued]) == [queued]
    assert CopyHold(HistoryCopies()).pass_on([SUCCEEDED]) == [SUCCEEDED]


def test_a_cancel_waits_for_nothing(copies):
    hold = CopyHold(copies)
    hold.pass_on([FAILURE, Send(1, START)])
    end = Finish(AttemptEnd(State.CANCELLED, None, 0, 0.0, ""), Event(0.0, 1, "ended", ""))
    assert hold.pass_on([Send(1, End("", goes_on=False)), end]) == [
        Send(1, START),
        Send(1, End("", goes_on=False)),
        end,
    ]
    assert not hold.holds
