"""What is asked of the machine where a run is, to keep a mirror of its folder here: its records, its logs, its
checkpoints.

What a disk has passes as the JSON that it is: `launch status` must not wait for its classes.
"""

from collections.abc import Mapping

import msgspec

from launcher.status.derive import RunStatus
from trainer.checkpoint_files.layout import Kind

LIMIT_S = 10.0  # for an answer that takes no work


class Blob(msgspec.Struct, frozen=True):
    """A file that follows, as its bytes."""

    name: str
    size: int


class AskReport(msgspec.Struct, frozen=True, tag="look", tag_field="t"):
    """How a run is, and what is new of its records."""

    run_id: str
    workdir: str
    events_from: int  # bytes of events.jsonl that are known
    whole: bool = False  # what was there from the start too: the spec and the first plan


class RunReport(msgspec.Struct, frozen=True, tag="seen", tag_field="t"):
    """The answer to Look, followed by the blobs: records as they are, and the new part of events.jsonl."""

    status: RunStatus | None  # None: there is no such run here
    began: bool  # the newest attempt's keeper has been told to go
    attempt: int
    blobs: tuple[Blob, ...]


class AskTails(msgspec.Struct, frozen=True, tag="logs", tag_field="t"):
    """What is new in the files below these folders of the run."""

    run_id: str
    workdir: str
    folders: tuple[str, ...]
    known: Mapping[str, int]  # bytes that are there already, by name


class Tail(msgspec.Struct, frozen=True):
    """Bytes of a file that follow, from this place on."""

    name: str
    at: int
    size: int


class Tails(msgspec.Struct, frozen=True, tag="parts", tag_field="t"):
    parts: tuple[Tail, ...]
    more: bool  # there is more than fits into one answer


class ListCheckpoints(msgspec.Struct, frozen=True, tag="inventory", tag_field="t"):
    """What is there of the run's checkpoints."""

    run_id: str
    workdir: str
    folder: str  # inside the run's


class CheckpointList(msgspec.Struct, frozen=True, tag="stock", tag_field="t"):
    held: msgspec.Raw  # a list of trainer.checkpoint_files.partial.Held


class SendFile(msgspec.Struct, frozen=True, tag="give", tag_field="t"):
    """The bytes of a file of a checkpoint; without a name, of its manifest."""

    run_id: str
    workdir: str
    folder: str
    step: int
    name: str
    digest: str = ""  # of its manifest, which a draft of it has too; "": whichever is committed
    kind: Kind = "step"


class FileFollows(msgspec.Struct, frozen=True, tag="given", tag_field="t"):
    """So many bytes follow."""

    size: int


class TakeFile(msgspec.Struct, frozen=True, tag="put", tag_field="t"):
    """A file of a checkpoint to be kept: its manifest follows, then its bytes."""

    run_id: str
    workdir: str
    folder: str
    manifest_size: int
    name: str
    size: int
    kind: Kind = "step"


class Ok(msgspec.Struct, frozen=True, tag="done", tag_field="t"):
    """It is done, and there is nothing more to say."""


AboutARun = AskReport | AskTails | ListCheckpoints | SendFile | TakeFile
OfARun = RunReport | Tails | CheckpointList | FileFollows | Ok  # the answers
