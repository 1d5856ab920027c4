"""Time limits for waiting on other nodes while checkpoints are fetched and copied."""

from dataclasses import dataclass

from launcher.copies.bulk import STALL_S


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits in seconds; `give_up_s` is that of a whole transfer, through all its tries, without a single byte."""

    give_up_s: float
    list_s: float = 5.0  # for one list of a member
    others_s: float = 2.0  # for that of a node that is no member, and may be cut off
    members_s: float = 15.0  # until each member has given its list: without it nobody knows what it has
    retry_s: float = 0.2  # between two tries of what ranks wait for
    copy_retry_s: float = 2.0  # between two tries of a second copy: a peer that is busy or just comes back
    stall_s: float = STALL_S
