"""What the keepers of a run say to each other.

Ask ─► KeeperStatus            what the other one is doing
Replica ─► Agreed              a record of the leader's, for hosts that do not share its disk
Begin ─► Agreed, Declined      who has what it needs keeps it, until all have said so or one has not
Begun ─► Agreed, Declined      all have: it begins; or not all: whoever is in an older run's way may let go
Members ─► Agreed, Declined    who counts, once the leader has lost a host or has it back
Promise ─► Agreed, Declined    nobody of an older attempt writes here any more: the vote of a take-over
Propose ─► Agreed, Declined    the next attempt
"""

from collections.abc import Mapping

import msgspec

from launcher.plan.model import Plan
from launcher.rundir.records import Intent


class KeeperStatus(msgspec.Struct, frozen=True, tag="status", tag_field="t"):
    """What a keeper is doing."""

    node: int  # of the plan that the keepers were started with
    attempt: int  # the one it carries out, or waits to
    has_slots: bool
    told: bool  # to go on, by the submitter
    began: bool
    leads: bool
    leaderless: bool  # it has not heard the leader for a whole lease
    waits_for: str = ""
    pledged: bool = False  # it keeps what it has; the leader: it asks whether all do
    promised: int = 0  # the newest attempt that had its vote
    led_by: str = ""  # the host that leads its attempt


class Ask(msgspec.Struct, frozen=True, tag="ask", tag_field="t"):
    pass


class Replica(msgspec.Struct, frozen=True, tag="replica", tag_field="t"):
    node: int  # of the sender
    attempt: int
    name: str  # see record_copies.py
    at: int  # where in the file the data belongs; -1: it is the whole file
    data: str


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="t"):
    attempt: int


class Begun(msgspec.Struct, frozen=True, tag="begun", tag_field="t"):
    attempt: int
    by_all: bool


class Members(msgspec.Struct, frozen=True, tag="members", tag_field="t"):
    """Who counts from now on: a host that was lost for good does not hold up those that are left.

    Of several rolls all count, each for itself: the last one is to replace the others once all in it have agreed.
    """

    attempt: int
    version: int  # of the leader's words to this in the attempt
    rolls: tuple[tuple[int, ...], ...]


class Promise(msgspec.Struct, frozen=True, tag="promise", tag_field="t"):
    attempt: int
    node: int  # of the candidate


class Propose(msgspec.Struct, frozen=True, tag="propose", tag_field="t"):
    intent: Intent
    plan: Plan


class Agreed(msgspec.Struct, frozen=True, tag="agreed", tag_field="t"):
    pass


class Declined(msgspec.Struct, frozen=True, tag="declined", tag_field="t"):
    why: str


KeeperQuestion = Ask | Replica | Begin | Begun | Members | Promise | Propose
KeeperReply = KeeperStatus | Agreed | Declined


def statuses(replies: Mapping[int, KeeperReply]) -> dict[int, KeeperStatus]:
    """What those that answered are doing."""
    return {number: reply for number, reply in replies.items() if isinstance(reply, KeeperStatus)}


def granted(replies: Mapping[int, KeeperReply]) -> list[int]:
    """Who has agreed."""
    return [number for number, reply in replies.items() if isinstance(reply, Agreed)]
