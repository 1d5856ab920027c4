"""What a submitter and a host say to each other over one SSH connection: JSON lines, some followed by bytes.

submitter → host   Open, then the blobs it names   host → submitter   Opened (the code is wanted, or not)
                   CodeTree, then the contents of its files           Up (where its keeper listens)
                   Keepers                                            Ok
                   GoAhead                                            Ok
                   AskReport | AskTails | Cancel ...                  one answer each

A plan, and what a disk has, pass as the JSON that they are: `launch status` must not wait for the classes of both.
"""

from collections.abc import Mapping

import msgspec

from launcher.errors import LaunchError
from launcher.hostlink.rpc.wire import decoded
from launcher.hostlink.shipping.tree import FileEntry
from launcher.rundir.records import Intent
from launcher.status.derive import RunStatus
from trainer.checkpoint_files.layout import Kind

LIMIT_S = 10.0  # for an answer that takes no work
HELLO = b"launch-there\n"  # of the host, before any answer: what came before it is the talk of a shell


class Peer(msgspec.Struct, frozen=True):
    """A keeper of the run, as the others reach it."""

    host: str  # as the pool calls it
    address: str
    port: int


class Blob(msgspec.Struct, frozen=True):
    """A file that follows, as its bytes."""

    name: str
    size: int


class Open(msgspec.Struct, frozen=True, tag="open", tag_field="t"):
    """An attempt is to be carried out: what it needs to be there. Nothing starts before GoAhead."""

    run_id: str
    workdir: str
    node: int
    plan: msgspec.Raw
    code: str  # the digest of the user's
    intent: Intent
    gpus: tuple[str, ...]  # of the host, that may be used
    blobs: tuple[Blob, ...]


class Opened(msgspec.Struct, frozen=True, tag="opened", tag_field="t"):
    needs_code: bool


class CodeTree(msgspec.Struct, frozen=True, tag="code", tag_field="t"):
    """The code that is wanted: the contents of its regular files follow, in order."""

    files: tuple[FileEntry, ...]


class Up(msgspec.Struct, frozen=True, tag="up", tag_field="t"):
    """The keeper stands by."""

    port: int


class Keepers(msgspec.Struct, frozen=True, tag="roster", tag_field="t"):
    """All keepers, by node of the plan."""

    peers: tuple[Peer, ...]


class GoAhead(msgspec.Struct, frozen=True, tag="go", tag_field="t"):
    """Carry it out."""


class ListRuns(msgspec.Struct, frozen=True, tag="runs", tag_field="t"):
    """Which runs of this user are on the host."""

    workdir: str


class RunNames(msgspec.Struct, frozen=True, tag="names", tag_field="t"):
    names: tuple[str, ...]


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


class GrownFile(msgspec.Struct, frozen=True):
    """Bytes of a file that follow, from this place on."""

    name: str
    at: int
    size: int


class Tails(msgspec.Struct, frozen=True, tag="parts", tag_field="t"):
    parts: tuple[GrownFile, ...]
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


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="t"):
    """End everything of the run on this host."""

    run_id: str
    workdir: str


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", tag_field="t"):
    ended: tuple[str, ...]
    already: bool


class Pardon(msgspec.Struct, frozen=True, tag="pardon", tag_field="t"):
    """Nothing is held against these hosts any more; without one, against any."""

    run_id: str
    workdir: str
    hosts: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="t"):
    """Instead of any answer."""

    lines: tuple[str, ...]
    exit_code: int


Request = (
    Open | CodeTree | Keepers | GoAhead | AskReport | ListRuns | AskTails | Cancel | Pardon
    | ListCheckpoints | SendFile | TakeFile
)  # fmt: skip
Answer = Opened | Up | RunReport | RunNames | Tails | Cancelled | CheckpointList | FileFollows | Ok | Failed

_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def read_request(line: bytes) -> Request:
    return decoded(line, _requests)


def read_answer(line: bytes) -> Answer:
    """Raises what the other side says instead."""
    answer = decoded(line, _answers)
    if isinstance(answer, Failed):
        told = LaunchError(*answer.lines)
        told.exit_code = answer.exit_code  # type: ignore[assignment]
        raise told
    return answer
