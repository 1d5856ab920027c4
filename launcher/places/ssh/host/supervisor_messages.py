"""Define the messages between the supervisors of a run, one on each host. A host's slots are the GPUs or cores that it
keeps for the run, its history is its copy of the run's events, and the leader is the host that decides for all.

Ask ─► SupervisorStatus, Returning  the state of the other one
Replica ─► Agreed              a record of the leader's, for hosts that do not share its disk
Prepare ─► Agreed, Declined    keep what the host has, until all have prepared or one has not
Commit ─► Agreed, Declined     all have prepared and it begins; or not all, and it may let go again
Vote ─► Agreed, Declined       promise that no older attempt writes here any more; one candidate per number
OpenAttempt ─► Agreed, Declined  the next attempt, from the leader or from an elected candidate
Settled ─► Agreed              enough voters have accepted the attempt
Cancelled ─► Agreed, Declined  a user has cancelled the run on the hosts that could be reached
Rejoin ─► OpenAttempt, Declined  a lost host is back and asks for the attempt that goes on
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from launcher.states import Cause

# What comes from elsewhere is bounded where it is read.
Number = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Age = Annotated[float, msgspec.Meta(ge=0.0)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class SupervisorStatus(msgspec.Struct, frozen=True, tag="status", tag_field="t"):
    """The state of a supervisor, its host's slots and its votes."""

    node: Number  # its number in the plan that the supervisors were started with
    attempt: Number  # the attempt that it runs or waits to run
    has_slots: bool  # it holds all the slots that it needs
    told: bool  # the submitter has told it to begin
    began: bool  # it has begun its attempt: all hosts had their slots
    leads: bool  # it leads its attempt
    leaderless: bool  # its leader was silent for a whole lease
    accepted: Number = 0  # the newest attempt that it has accepted, after copying the leader's history
    settled: bool = True  # it knows that enough voters have accepted that attempt
    has_vote: bool = True  # it is a voter of that attempt
    history: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0  # size in bytes
    waits_for: Text = ""  # a text for users on the slots that its host lacks; "": none
    prepared: bool = False  # it keeps its slots until all hosts do, or one does not; of the leader: it asks them to
    voted_for: Number = 0  # the newest attempt number for which it has voted
    led_by: Text = ""  # the host that leads its attempt
    held_back: bool = False  # the run waits for something other than hosts, such as a start time
    silent_s: Age = 0.0  # of the leader: seconds since its coordinator last wrote its state, by its own clock


class Returning(msgspec.Struct, frozen=True, tag="returning", tag_field="t"):
    """The answer to Ask of a host that has come back and takes no part in the run yet. If the run has no leader, others
    may count on its vote.
    """

    attempt: Number  # the newest attempt that it has accepted
    began: bool  # it had begun that attempt
    has_vote: bool  # it is a voter of that attempt


class Ask(msgspec.Struct, frozen=True, tag="ask", tag_field="t"):
    """Ask the supervisor that receives this for its state."""


class Replica(msgspec.Struct, frozen=True, tag="replica", tag_field="t"):
    """A record of the run, or a piece of one, as the sender has it on its disk: the leader, or a candidate, the
    host that was elected to lead the next attempt.
    """

    node: Number  # the sender's
    attempt: Number  # that the sender is in at this time
    name: Text  # the record's name, as in record_copies.py
    at: Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]  # byte offset of the data; -1: it is the whole file
    data: str
    ends: bool = False  # the last piece of a candidate's event history: whatever the receiver has after it is cut off


class Prepare(msgspec.Struct, frozen=True, tag="begin", tag_field="t"):
    """Ask the host that receives this to keep the slots that it has for the run, for this attempt, until the leader
    sends Commit. The answer is Agreed or, if the host does not have them, Declined.
    """

    attempt: Number


class Commit(msgspec.Struct, frozen=True, tag="begun", tag_field="t"):
    """The leader's message to hosts that keep their slots for an attempt (see Prepare): all hosts do, so begin; or, if
    `by_all` is False, not all do, and the slots may be released.
    """

    attempt: Number
    by_all: bool  # all hosts have prepared


class RecordsSaid(msgspec.Struct, frozen=True, array_like=True):
    """How new a host's records are: its newest attempt, and the length in bytes and the digest of its history."""

    attempt: Number
    length: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    digest: Text


class OpeningSaid(msgspec.Struct, frozen=True, array_like=True):
    """The entry of the replicated log with which an attempt begins, in the form in which messages have it: the
    attempt's number, its leader, and the hosts that vote during it. Hosts are indices in the run's list of hosts.
    """

    attempt: Number
    leader: Number
    voters: tuple[Number, ...]


class Vote(msgspec.Struct, frozen=True, tag="vote", tag_field="t"):
    """Ask the host that receives this for its vote for a candidate, a host that wants to lead attempt number `attempt`.
    A host that agrees promises that no older attempt writes its records any more.
    """

    attempt: Number
    node: Number  # of the candidate
    records: RecordsSaid  # how new the candidate's records are


class OpenAttempt(msgspec.Struct, frozen=True, tag="open", tag_field="t"):
    """The announcement of an attempt by its leader: a request to accept it or, in answer to a Rejoin, the attempt
    that a lost host may join now that it is back. Each host derives the attempt's token and plan from the secret and
    the plan that it got over SSH.
    """

    attempt: Number
    node: Number  # of the leader
    hosts: tuple[Text, ...]  # the attempt's voters, the leader first
    cause: Cause | None  # why the attempt before it ended; None in answer to a Rejoin
    away: tuple[Text, ...]  # hosts that were lost, and may take part once they are back
    before: tuple[OpeningSaid, ...]  # earlier attempts that may not be settled, and the last settled one
    records: RecordsSaid  # how new the leader's records are


class Settled(msgspec.Struct, frozen=True, tag="settled", tag_field="t"):
    """Report that enough of the attempt's voters (at least half, the leader included) have accepted it, so that earlier
    attempts are over.
    """

    attempt: Number
    node: Number  # of the leader


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", tag_field="t"):
    """Report that a user has cancelled the run on the sender's host. The receiver then cancels it on its own host too:
    the user's command may not have reached all hosts.
    """

    node: Number  # of the sender


class Rejoin(msgspec.Struct, frozen=True, tag="rejoin", tag_field="t"):
    """Ask the leader, as a lost host that is back, for the attempt that runs, to take part in it. The answer is its
    OpenAttempt, or Declined by a host that does not lead.
    """

    node: Number  # of the sender


class Agreed(msgspec.Struct, frozen=True, tag="agreed", tag_field="t"):
    """The answer to a request without results, such as Prepare or Vote, that the host has agreed and carried it out."""


class Declined(msgspec.Struct, frozen=True, tag="declined", tag_field="t"):
    """The answer that the request was refused, and why."""

    why: Text


SupervisorQuestion = Ask | Replica | Prepare | Commit | Vote | OpenAttempt | Settled | Cancelled | Rejoin
SupervisorReply = SupervisorStatus | Returning | Agreed | Declined | OpenAttempt


def statuses(replies: Mapping[int, SupervisorReply]) -> dict[int, SupervisorStatus]:
    """Return the replies that are a SupervisorStatus, by the number of the host."""
    return {number: reply for number, reply in replies.items() if isinstance(reply, SupervisorStatus)}


def granted(replies: Mapping[int, SupervisorReply]) -> list[int]:
    """Return the numbers of the hosts that carried the request out: their answer is Agreed."""
    return [number for number, reply in replies.items() if isinstance(reply, Agreed)]
