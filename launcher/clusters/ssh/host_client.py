"""What is asked of the server on a host, over one connection and one process of ours there."""

import itertools
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clusters.ssh.facts import Surveyed
from launcher.clusters.ssh.messages import HELLO, Answer, CodeTree, FileFollows, Request, RunReport, Tails, read_answer
from launcher.errors import LaunchError, Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.failures import Broken
from launcher.hostlink.rpc.wire import Garbled, encoded
from launcher.hostlink.running import Running
from launcher.hostlink.shipping import bundle, deploy_there
from launcher.spec.model import SshHost
from trainer.errors import CheckpointDamaged

_ANSWER_S = 120.0
_DEPLOY_S = 120.0
_PIECE = 1 << 20

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """One entry of hosts.json: a host of an attempt, and how to speak to what is ours there."""

    host: SshHost
    agent: bool  # whether the keys of the SSH agent may be used
    python: str  # of our own environment there
    workdir: str  # absolute
    address: str


def settled_in(line: Line, found: Surveyed) -> str:
    """Have the launcher on the host, brought there if it is not yet; gives its Python."""
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
            f"hint: chown and chmod 700 {facts.exposed}, or another `workdir:` of the host",
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
    """One process of ours on the host that answers until we hang up."""

    def __init__(self, line: Line, place: Place) -> None:
        self.place = place
        self._line = line
        self._running: Running | None = None
        self._greeted = False
        self._owed = 0  # what the host has yet to say: an answer, or so many bytes behind one
        self._lock = threading.Lock()

    def ask(self, request: Request, contents: Iterable[bytes] = (), limit_s: float = _ANSWER_S) -> Answer:
        """Raises what the other side says instead of an answer, and Unreachable."""
        return self.ask_with_contents(request, contents, limit_s)[0]

    def ask_with_contents(
        self, request: Request, contents: Iterable[bytes] = (), limit_s: float = _ANSWER_S
    ) -> tuple[Answer, list[bytes]]:
        """The answer, and the bytes that follow it."""
        with self._lock, self._asking() as running:
            answer = self._answer_to(running, request, contents, limit_s)
            return answer, [b"".join(self._pieces(running, size, limit_s)) for size in _sizes(answer)]

    @contextmanager
    def stream(self, request: Request, limit_s: float = _ANSWER_S) -> Iterator[Iterator[bytes]]:
        """The bytes that follow the answer, as they come. Nobody else asks anything before this is left."""
        with self._lock, self._asking() as running:
            pieces = self._pieces(running, sum(_sizes(self._answer_to(running, request, (), limit_s))), limit_s)
            try:
                yield pieces
            except (CheckpointDamaged, OSError):
                for _ in pieces:
                    continue  # the rest, so that what follows is read as the next answer
                raise

    def next_answer(self, limit_s: float = _ANSWER_S) -> Answer:
        """What else it says to what it was asked."""
        with self._lock, self._asking() as running:
            return self._answer(running, limit_s)

    def expect(self, kind: type[T], answer: Answer) -> T:
        """The answer, if it is of this kind."""
        if not isinstance(answer, kind):
            raise self.confused()
        return answer

    def confused(self) -> LaunchError:
        return LaunchError(f"{self.place.host.name}: it does not speak as expected")

    def over(self, line: Line) -> bool:
        """Whether they go over this connection."""
        return self._line is line

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _process(self) -> Running:
        if self._running is None:
            self._running = self._line.start([self.place.python, "-P", "-m", "launcher.clusters.ssh.host.server"])
            self._greeted = False
        return self._running

    def _answer(self, running: Running, limit_s: float) -> Answer:
        line = running.readline(limit_s)
        while not self._greeted and line.endswith(b"\n"):
            self._greeted = line == HELLO
            line = running.readline(limit_s)
        if not line.endswith(b"\n"):
            done = running.finish(5.0)
            said = done.err.decode(errors="replace").strip().splitlines()
            raise Unreachable(f"{self.place.host.name}: {said[-1] if said else 'it hung up'}")
        try:
            answer = read_answer(line)
        except LaunchError as error:
            self._owed = 1 if isinstance(error, Garbled) else 0
            error.lines = (f"{self.place.host.name}: {error.lines[0]}", *error.lines[1:])
            raise
        self._owed = sum(_sizes(answer))
        return answer

    @contextmanager
    def _asking(self) -> Iterator[Running]:
        """Who was not told everything, or not heard to the end, is not asked again: what comes next is no answer."""
        self._owed = 1
        try:
            yield self._process()
        finally:
            if self._owed:
                self.close()

    def _answer_to(self, running: Running, request: Request, contents: Iterable[bytes], limit_s: float) -> Answer:
        for piece in itertools.chain([encoded(request)], contents):
            try:
                running.write(piece, limit_s)
            except Broken:
                break  # it wants no more: what it has said tells why
        try:
            return self._answer(running, limit_s)
        except LaunchError:
            if isinstance(request, CodeTree):
                self._owed = 1  # it hangs up behind that
            raise

    def _pieces(self, running: Running, size: int, limit_s: float) -> Iterator[bytes]:
        while size:
            piece = running.read(min(size, _PIECE), limit_s)
            if not piece:
                raise Unreachable(f"{self.place.host.name}: it hung up")
            size -= len(piece)
            self._owed -= len(piece)
            yield piece


def _sizes(answer: Answer) -> list[int]:
    """Of what follows."""
    if isinstance(answer, RunReport):
        return [blob.size for blob in answer.blobs]
    if isinstance(answer, Tails):
        return [part.size for part in answer.parts]
    return [answer.size] if isinstance(answer, FileFollows) else []
