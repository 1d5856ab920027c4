"""The server's side of the rpc: answer requests that come over stdin, one after the other, until stdin is closed."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import BadInput, Exit, LaunchError, said_by_the_system
from launcher.remote.rpc.wire import Garbled, Have, Incoming, Reply, Tree, decoded, encoded, greeting, reading
from launcher.run.durable import write_all
from trainer.errors import CheckpointDamaged

_PIECE = 1 << 20
_LONGEST_FOLDER = 1000


class Body:
    """The bytes that follow a request; they are read from the connection as they are asked for."""

    def __init__(self, incoming: Incoming, size: int) -> None:
        self._incoming = incoming
        self._left = size

    def some(self, most: int) -> bytes:
        """Return at least one and at most `most` of the next bytes, or b"" after the last."""
        piece = self._incoming.some(min(most, self._left)) if self._left else b""
        self._left -= len(piece)
        return piece

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes; raise LaunchError if fewer follow the request."""
        data = b"".join(self.pieces(size))
        if len(data) < size:
            raise LaunchError(f"expected {size} bytes more, got {len(data)}")
        return data

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in pieces of at most 1 MiB, or what is left if the request has fewer."""
        while size and (piece := self.some(min(size, _PIECE))):
            size -= len(piece)
            yield piece

    def pass_over(self) -> None:
        """Skip the bytes that were not read, so that the next request can be read."""
        while self.some(_PIECE):
            continue


class WithBytes(NamedTuple):
    """An answer `value` that is followed by `size` bytes, given in pieces."""

    value: object
    size: int
    pieces: Iterable[bytes]


Answering = Callable[[Any, Body], Any]


def serve(requests: Any, answer: Answering, *, where: str = "") -> int:
    """Serve requests on stdin and stdout until the client closes the connection, and return the exit code.

    `requests` is the union of the types that `answer` accepts, which is called with a request and the bytes that follow
    it, and returns the answer's value. A request that arrived completely is carried out even if the connection breaks.
    Requests to store or find trees of code are answered without `answer`. `where` begins the message of an internal
    error.
    """
    asked, out = take_stdio()
    return answer_all(Incoming(reading(asked)), lambda data: write_all(out, data), requests, answer, where=where)


def answer_all(
    incoming: Incoming, tell: Callable[[bytes], object], requests: Any, answer: Answering, *, where: str = ""
) -> int:
    """Serve requests that come from `incoming`, send replies with `tell`, until the client closes the connection;
    return this program's exit code: 0 then, Exit.INTERNAL after a malformed request, which ends the connection.

    `requests` is the union of the types that `answer` accepts, which is called with a request and the bytes that follow
    it. `where` begins the message of an internal error.
    """
    decoder = decoder_of(requests | Have | Tree)
    try:
        tell(greeting())
        while True:
            request = decoded(incoming.line(), decoder)
            body = Body(incoming, getattr(request, "follows", 0))
            reply, pieces = _answered(request, answer, body, where)
            body.pass_over()
            tell(encoded(reply))
            _tell_exactly(reply.follows, pieces, tell)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return Exit.OK  # the visitor has left, or what was announced cannot be kept: the other side has to see that
    except Garbled as error:
        tell(encoded(Reply(error=error.lines, exit_code=error.exit_code)))
        return Exit.INTERNAL


def folder_of(named: str) -> Path:
    """Return the named folder, relative to the home folder unless it is absolute; raise BadInput if the name contains
    `..` or is no folder name.
    """
    if not named.isprintable() or ".." in named.split("/") or len(named) > _LONGEST_FOLDER:
        raise BadInput(f"expected a folder, got {named[:100]!r}")
    return Path.home() / os.path.expanduser(named)


def projects_in(folder: str) -> Path:
    """Return the subfolder `projects` of `folder`, in which trees of code are kept; raise BadInput if `folder` contains
    `..` or is no folder name.
    """
    return folder_of(folder) / "projects"


def take_stdio() -> tuple[int, int]:
    """Return the connection as (descriptor to read from, descriptor to write to), which are copies of stdin and stdout.

    From then on stdin is /dev/null, and stdout goes to stderr, so that no child and no print interferes with the
    connection.
    """
    asked, told = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return asked, told


def _answered(request: Any, answer: Answering, body: Body, where: str) -> tuple[Reply, Iterable[bytes]]:
    """Carry out a request with `answer`; return (the reply, the bytes that follow it).

    An exception becomes a reply with the error's text, which begins with `where` if the error is none that is expected;
    only EOFError, the end of the connection, is raised.
    """
    try:
        value = _about_trees(request, body) if isinstance(request, Have | Tree) else answer(request, body)
        whole = value if isinstance(value, WithBytes) else WithBytes(value, 0, ())
        return Reply(msgspec.Raw(msgspec.json.encode(whole.value)), follows=whole.size), whole.pieces
    except LaunchError as error:
        return Reply(error=error.lines, exit_code=error.exit_code), ()
    except CheckpointDamaged as error:
        return Reply(error=(str(error),), exit_code=Exit.DAMAGED), ()
    except EOFError:
        raise
    except OSError as error:  # a disk or a folder there that stands in the way
        return Reply(error=(said_by_the_system(error),), exit_code=Exit.REFUSED), ()
    except Exception as error:  # noqa: BLE001 - the last resort: one line for people, who are on another machine
        first = (str(error) or "no text").splitlines()[0]
        return Reply(error=(f"{where}{type(error).__name__}: {first}",), exit_code=Exit.INTERNAL), ()


def _tell_exactly(size: int, pieces: Iterable[bytes], tell: Callable[[bytes], object]) -> None:
    """Send exactly `size` bytes with `tell`. Raise EOFError if the pieces have more or fewer, or if the connection has
    ended.
    """
    try:
        for piece in pieces:
            size -= len(piece)
            if size < 0:
                break
            tell(piece)
    except OSError as error:
        raise EOFError from error
    if size:
        raise EOFError


def _about_trees(request: Have | Tree, body: Body) -> bool:
    """Store the files in a Tree request, or look for those of a Have request; return whether all of them are stored
    here now.

    A tree is the files of a project, stored under their digest. Storing one also deletes trees that no submit has used
    for a day, except the 20 newest. Raise BadInput for an invalid request or tree, and OSError if the tree cannot be
    written.
    """
    from launcher.remote.shipping import kept_trees  # late: nothing else that is asked needs it

    projects = projects_in(request.folder)
    if isinstance(request, Have):
        return kept_trees.have(projects, request.digest)
    kept_trees.keep(projects, request.digest, request.files, body.some)
    kept_trees.tidy(projects, time.time())
    return True
