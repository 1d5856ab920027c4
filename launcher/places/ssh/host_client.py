"""Ask the launcher's server on a host, over one connection and one process there."""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.copies.mirror.tails import Part, Tail, parted
from launcher.errors import LaunchError
from launcher.places.ssh.facts import Surveyed, survey
from launcher.places.ssh.messages import Request
from launcher.remote.connect import Line
from launcher.remote.rpc.client import RpcClient
from launcher.remote.rpc.wire import OtherVersion
from launcher.remote.shipping import bundle, deploy_there
from launcher.spec.model import SshHost
from trainer.errors import CheckpointDamaged

_DEPLOY_S = 120.0
_MOST_PASSED_OVER = 4096  # pieces

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostLimits:
    """The time limits, in seconds, for a host's answers."""

    soon_s: float = 10.0  # for requests that take no work
    answer_s: float = 120.0  # for all other requests, unless one sets its own limit
    ends_s: float = 60.0  # beyond the grace period: for killing what is left of a run


class Place(msgspec.Struct, frozen=True):
    """An entry of hosts.json: a host of an attempt, and how to reach the launcher there."""

    host: SshHost
    agent: bool  # whether the keys of the SSH agent may be used
    python: str  # of the launcher's environment there; the host expands "~/", in `workdir` too
    workdir: str  # the folder of all runs
    address: str  # by which other hosts reach it


def settled_in(line: Line, found: Surveyed) -> str:
    """Return the path of the Python on the host that has this version of the launcher, after installing the launcher
    there, over the connection `line`, if `found` shows that it is missing.

    Raise LaunchError if it cannot be installed, or if other users can write to a folder that it is in.
    """
    facts = found.facts
    tag = facts.tag if facts.tag == bundle.own_tag() else ""
    if not tag and facts.missing:
        names = " and ".join(facts.missing)
        raise LaunchError(
            f"{found.host.name}: {facts.python} ({facts.tag}) has no {names}",
            f"hint: {facts.python} -m pip install {' '.join(facts.missing)}; or a Python like the one here, "
            f"{sys.implementation.cache_tag}, by `python:` of the host",
        )
    if facts.exposed:
        raise LaunchError(
            f"{found.host.name}: others can write to {facts.exposed}: they could put their code in the place of yours",
            f"hint: chmod go-w {facts.exposed}, where it is yours, or another `workdir:` of the host",
        )
    digest = bundle.digest(tag or facts.tag)
    python = f"{facts.workdir}/lib/{digest}/bin/python"
    if digest in facts.libraries:
        return python
    text = Path(deploy_there.__file__).read_text(encoding="utf-8")
    asked = {"workdir": facts.workdir, "digest": digest, "theirs": not tag}
    words = [facts.python, "-I", "-c", text, msgspec.json.encode(asked).decode()]
    done = line.run(words, stdin=bundle.archive(tag or facts.tag), limit_s=_DEPLOY_S)
    if done.code != 0:
        said = (done.err or done.out).decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"exit code {done.code}"
        raise LaunchError(f"{found.host.name}: the launcher could not be brought to {facts.workdir}: {why}", _ELSEWHERE)
    return python


_ELSEWHERE = "hint: `launch doctor POOL` tries that folder; `workdir:` of the host names another"


class HostClient:
    """The client of the launcher's server on one host: it sends one question after the other.

    The server is started with the first question, and exits with its client.
    """

    def __init__(self, line: Line, place: Place, limits: HostLimits | None = None) -> None:
        self.place, self.limits = place, limits or HostLimits()
        self._python = place.python
        self._line = line
        self._server: RpcClient | None = None
        self._lock = threading.Lock()

    def ask(self, request: Request, kind: type[T], contents: Iterable[bytes] = (), limit_s: float | None = None) -> T:
        """Return the answer, of type `kind`, to the request, which is followed by `contents`.

        Raise the error that the host reports, or Unreachable if no answer comes within `limit_s` (None:
        `limits.answer_s`).
        """
        within_s = limit_s or self.limits.answer_s
        if contents:
            with self._asking() as server:
                return server.ask(request, kind, contents=contents, timeout_s=within_s)
        return self._with_right_version(lambda server: server.ask(request, kind, timeout_s=within_s))

    def ask_with_bytes(
        self, request: Request, kind: type[T], most: int, limit_s: float | None = None
    ) -> tuple[T, bytes]:
        """Return (the answer of type `kind`, the bytes that follow it).

        Raise the error that the host reports, Garbled if more than `most` bytes follow, or Unreachable if no answer
        comes within `limit_s` (None: `limits.answer_s`).
        """
        within_s = limit_s or self.limits.answer_s
        return self._with_right_version(lambda server: server.ask_with_bytes(request, kind, most, timeout_s=within_s))

    def ask_with_files(
        self, request: Request, kind: type[T], parts: Callable[[T], Iterable[Part]], most: int, limit_s: float
    ) -> tuple[T, list[Tail]]:
        """Return (the answer of type `kind`, the files or pieces of files that follow it). `parts` takes the names and
        sizes of these from the answer; together they have at most `most` bytes.

        Raise the error that the host reports, Unreachable if no answer comes within `limit_s`, Garbled if more than
        `most` bytes follow, or another LaunchError if the sizes do not add up to what follows.
        """
        answer, content = self.ask_with_bytes(request, kind, most, limit_s)
        try:
            return answer, list(parted(parts(answer), content))
        except ValueError as error:
            raise self.confused(str(error)) from error

    @contextmanager
    def stream(self, request: Request, most: int, limit_s: float | None = None) -> Iterator[Iterator[bytes]]:
        """Yield an iterator over the bytes, at most `most`, that follow the host's empty answer, as they arrive; no
        other question may be asked until the `with` block ends.

        Raise the error that the host reports, or Unreachable if the answer, or any mebibyte after it, does not come
        within `limit_s` (None: `limits.answer_s`).
        """
        within_s = limit_s or self.limits.answer_s
        with self._asking() as server:
            server.send(request)
            server.receive(type(None), time.monotonic() + within_s, most=most)
            pieces = server.pieces(within_s)
            try:
                yield pieces
            except (CheckpointDamaged, OSError):
                for _ in itertools.islice(pieces, _MOST_PASSED_OVER):
                    continue  # the rest, so that what follows is read as the next answer
                raise

    def confused(self, what: str) -> LaunchError:
        """Return the error that the host does not answer as expected; `what` describes the problem."""
        return LaunchError(f"{self.place.host.name}: does not speak as expected: {what}")

    def over(self, line: Line) -> bool:
        """Return whether the client's server was, or with the first question will be, started over the SSH connection
        `line`. If not, `line` has replaced the client's connection, and a new client is needed.
        """
        return self._line is line

    def close(self) -> None:
        """Close the connection to the server, which then exits."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _with_right_version(self, question: Callable[[RpcClient], T]) -> T:
        """Return the result of `question`, which is given the connection to the server.

        The server is of the version of the launcher that handed the run over. If it and this version do not understand
        each other, install this version on the host and ask again; raise OtherVersion if it was this version already.
        """
        try:
            with self._asking() as server:
                return question(server)
        except OtherVersion:
            ours = settled_in(self._line, survey(self._line, self.place.host))
            if ours == self._python:
                raise
            self._python = ours
        with self._asking() as server:
            return question(server)

    @contextmanager
    def _asking(self) -> Iterator[RpcClient]:
        """Yield the connection to the server, to one thread at a time; start the server if there is none.

        Close the connection afterwards if a question was not finished, as the next bytes would not be the answer to the
        next question.
        """
        with self._lock:
            if self._server is None:
                words = [self._python, "-P", "-m", "launcher.programs", "host"]
                if words[0].startswith("~/"):
                    words = ["/bin/sh", "-c", 'exec "$HOME/$0" "$@"', words[0][2:], *words[1:]]
                self._server = RpcClient(self._line.start(words), self.limits.answer_s)
            server = self._server
            try:
                yield server
            finally:
                if not server.is_idle:
                    self.close()
