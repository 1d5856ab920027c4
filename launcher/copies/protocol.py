"""Messages between agents and replica servers, which copy checkpoint files: one JSON line each. File contents follow
after a Go. A generation is one set of ranks that train together; its members are the nodes with those ranks.

    peer → server   List | Decide | Get             server → peer   Offer(size)
    peer → server   Go                              server → peer   exactly so many bytes

    peer → server   Put(size)                       server → peer   Go | InPlace | Refusal
    peer → server   exactly so many bytes           server → peer   Fine; or Refusal, also before the last byte

    peer → server   Arrived                         server → peer   Fine, when all members have
    peer → server   Doubt                           server → peer   Fine, when it has looked

A message names a checkpoint by its kind, its step and the digest of its manifest, and a file by its name in the
manifest; no path is ever sent.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from trainer.checkpoint_files.partial import Held

LINE_BYTES = 1 << 16
MOST_LISTED_BYTES = 64 << 20
MOST_MANIFEST_BYTES = 256 << 20
REASON_CHARS = 500  # it is passed to the coordinator, whose lines are bounded too

Name = Annotated[str, msgspec.Meta(max_length=64)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARS)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Step = Annotated[int, msgspec.Meta(ge=0, le=10**18 - 1)]


class Save(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The identity of one checkpoint: its kind, its step, and the digest of its manifest, which is equal on all
    disks.
    """

    kind: Literal["step", "best"]
    step: Step
    digest: Digest  # of its manifest

    @classmethod
    def of(cls, held: "Held") -> "Save":
        """Return the identity of a checkpoint from a disk's entry about it."""
        return cls(held.kind, held.step, held.digest)

    def __str__(self) -> str:
        return f"{'the best, ' if self.kind == 'best' else ''}step {self.step}"


class SaveChoice(msgspec.Struct, frozen=True):
    """The choice of the checkpoint from which a generation continues, and which nodes have its files, so that members
    that lack some can fetch them.
    """

    save: Save | None = None  # the checkpoint; None: there is no complete one
    with_manifest: tuple[int, ...] = ()  # nodes that have the checkpoint's manifest
    holders: dict[str, tuple[int, ...]] = {}  # by the name of a file of the checkpoint: the nodes that have this file
    hopeless: tuple[Save, ...] = ()  # newer checkpoints that cannot be completed
    passed_over: tuple[Save, ...] = ()  # newer checkpoints that an absent node may complete
    fetches: bool = False  # some member lacks a file of the checkpoint


class LoadDecision(msgspec.Struct, frozen=True):
    """The checkpoint that all members of a generation load, and the best one by a metric, which they only keep.

    If the run has no checkpoint yet, `load.save` is None and ranks start from the beginning. If it has some but none is
    complete, `lacks` says which file is missing, and no rank is started.
    """

    load: SaveChoice  # the one that ranks load
    best: SaveChoice  # the best one, which members only keep
    lacks: Reason = ""  # which file is missing if none of the run's checkpoints is complete; "": ranks may start


class List(msgspec.Struct, frozen=True, tag="list", tag_field="t"):
    """A request for the checkpoints that the peer has."""


class Get(msgspec.Struct, frozen=True, tag="get", tag_field="t"):
    """A request for the file `name` of a checkpoint, or with an empty name for its manifest."""

    save: Save
    name: Name


class Doubt(msgspec.Struct, frozen=True, tag="doubt", tag_field="t"):
    """A request to check the file `name` of a checkpoint, which arrived damaged at the sender of this request; if it is
    damaged on the peer's disk, the peer stops offering it.
    """

    save: Save
    name: Name


class Put(msgspec.Struct, frozen=True, tag="put", tag_field="t"):
    """An offer to send a file of `size` bytes, which the peer is to keep as a second copy. It belongs to a checkpoint
    whose manifest is on the peer's disk as well.

    The peer answers with a Go if it wants the bytes, with InPlace if it has the file, or with a refusal.
    """

    save: Save
    name: Name
    size: Size


class Decide(msgspec.Struct, frozen=True, tag="decide", tag_field="t"):
    """A request to the first member of a generation (the node of rank 0) for its decision which checkpoint is
    loaded.
    """

    generation: int


class Arrived(msgspec.Struct, frozen=True, tag="arrived", tag_field="t"):
    """A report to the first member of a generation (the node of rank 0) that node `node` has all files that its ranks
    load. The answer, a Fine, comes once all members have reported that, so all can begin to load together.
    """

    generation: int
    node: int


class Offer(msgspec.Struct, frozen=True, tag="offer", tag_field="t"):
    """The answer that there are `size` bytes of content, which are sent once the peer answers with a Go."""

    size: Size


class Go(msgspec.Struct, frozen=True, tag="go", tag_field="t"):
    """The answer to an Offer or a Put: the peer is to send the contents that it has offered."""


class InPlace(msgspec.Struct, frozen=True, tag="have", tag_field="t"):
    """The answer to the offer of a file: this server's node has the file already, so it need not be sent."""


class Fine(msgspec.Struct, frozen=True, tag="fine", tag_field="t"):
    """The answer that the request was carried out and its result is on disk."""


class Refusal(msgspec.Struct, frozen=True, tag="refused", tag_field="t"):
    """The answer that the request is refused, with the reason; `gone` if the checkpoint no longer exists."""

    text: Reason
    gone: bool = False  # the checkpoint no longer exists here, which is no failure


ToServer = List | Get | Doubt | Put | Decide | Arrived | Go
FromServer = Offer | Go | InPlace | Fine | Refusal


def refusal(text: str, *, gone: bool = False) -> Refusal:
    """Return a refusal with the text cut to the length that the protocol allows; `gone` means that the checkpoint no
    longer exists.
    """
    return Refusal(text[:REASON_CHARS], gone)
