"""What a submitter and a host say to each other over one SSH connection: JSON lines, some followed by bytes.

submitter → host   Open, then the blobs it names   host → submitter   Opened (the code is wanted, or not)
                   CodeArchive, then that many bytes                  Up (where its keeper listens)
                   Keepers                                            Ok
                   GoAhead                                            Ok
                   AskReport | AskTails | Cancel ...                  one answer each

A plan, and what a disk has, pass as the JSON that they are: `launch status` must not wait for the classes of both.
"""

from typing import TypeVar

import msgspec

from launcher.clusters.mirror.messages import AboutARun, Blob, OfARun
from launcher.errors import LaunchError
from launcher.rundir.records import Intent

HELLO = b"launch-there\n"  # of the host, before any answer: what came before it is the talk of a shell

T = TypeVar("T")


class Confused(LaunchError):
    """The other side does not speak this protocol."""


class Peer(msgspec.Struct, frozen=True):
    """A keeper of the run, as the others reach it."""

    host: str  # as the pool calls it
    address: str
    port: int


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


class CodeArchive(msgspec.Struct, frozen=True, tag="code", tag_field="t"):
    size: int  # of the archive that follows


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


Request = Open | CodeArchive | Keepers | GoAhead | ListRuns | Cancel | Pardon | AboutARun
Answer = Opened | Up | RunNames | Cancelled | Failed | OfARun

_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encoded(message: Request | Answer) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def read_request(line: bytes) -> Request:
    return _decoded(_requests, line)


def read_answer(line: bytes) -> Answer:
    """Raises what the other side says instead."""
    answer = _decoded(_answers, line)
    if isinstance(answer, Failed):
        told = LaunchError(*answer.lines)
        told.exit_code = answer.exit_code  # type: ignore[assignment]
        raise told
    return answer


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Confused(f"expected a message, got {line[:80]!r}") from error
