"""The visitor's end of a connection to a rank's node: a `launch` command, the visitor, starts a process of the launcher
there, the host, sends it a question, and receives its answers.
"""

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from launcher.errors import LaunchError, Refused
from launcher.node.inside.visit_messages import (
    LONGEST_LINE,
    PIECE_BYTES,
    AskStacks,
    CommandEnded,
    FromHost,
    FromVisitor,
    KilledHere,
    KillHere,
    Question,
    RankStacks,
    VisitDeclined,
)
from launcher.remote.failures import Broken, Silent
from launcher.remote.program import ProgramChannel
from launcher.remote.rpc.client import GREETING_S, remote_error
from launcher.remote.rpc.wire import WIRE, Garbled, OtherVersion, decoded, encoded, read_greeting
from launcher.remote.running import ClosedAtTheEnd, Running
from launcher.run.durable import readable, write_all
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import RunState
from launcher.states import VERSION

_STACKS_S = 120.0
_KILL_S = 60.0
_RELAY_S = 60.0
_MOST_NOISE = 1000  # lines that a login shell may print before the greeting
_words: msgspec.json.Decoder[FromHost] = msgspec.json.Decoder(FromHost)


def host_command(python: str, run_dir: str, attempt: AttemptDir, node: int) -> list[str]:
    """Return the command line that starts the host process for node `node`; `python` is the interpreter's path on that
    node, and `run_dir` the run directory's.
    """
    return [python, "-P", "-m", "launcher.programs", "visit", run_dir, str(attempt.number), str(node)]


def host_here(
    run: RunDir, attempt: AttemptDir, node: int, environment: Mapping[str, str], before: Sequence[str] = ()
) -> Running:
    """Start a host process that answers for node `node` of this attempt, with the variables `environment`, and return
    the connection to its stdin and stdout.

    `before` is the beginning of a command line that runs the rest on that node, such as `srun`; empty means that the
    node is on this machine.
    """
    argv = [*before, *host_command(sys.executable, str(run.path), attempt, node)]
    return Running(f"node {node}", ProgramChannel(argv, environment))


def machine_of(run: RunDir, node: int) -> str:
    """Return the cluster's name for the node's machine, as the coordinator last recorded it; raise Refused if none is
    recorded.
    """
    state = readable(run.state, RunState)
    found = next((each.host for each in (state.nodes if state is not None else ()) if each.node == node), "")
    if not found:
        raise Refused(f"node {node} of {run.path.name}: its machine is not recorded")
    return found


def relay(running: Running, source: int, sink: int) -> None:
    """Copy bytes from the descriptor `source` to the host and from the host to the descriptor `sink`. Return as soon as
    `source` ends or the host closes its side, even if the other direction has not ended. Raise Silent if the host
    accepts no data for a minute.
    """
    while True:
        ready = select.select([source, running.ready_fd], [], [])[0]
        if source in ready:
            data = os.read(source, PIECE_BYTES * 2)
            if not data or not running.feed(data, _RELAY_S):
                return
        try:
            while said := running.read(PIECE_BYTES * 2, 0.0):
                write_all(sink, said)
        except (Silent, BrokenPipeError):
            continue
        return


class Visit(ClosedAtTheEnd):
    """A connection to a rank's node, over which one question goes out and messages go both ways until the answer is
    complete.
    """

    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def ready_fd(self) -> int:
        """Return a descriptor that is readable once a message may have come, for use with select."""
        return self._running.ready_fd

    def ask(self, question: Question) -> None:
        """Wait for the host's greeting and send the question; raise a LaunchError if no greeting comes or the host has
        another version.
        """
        until = time.monotonic() + GREETING_S
        for _ in range(_MOST_NOISE):
            line = self._running.readline(max(0.0, until - time.monotonic()))
            if not line:
                raise self._broken("cannot be looked into")
            if (there := read_greeting(line.rstrip(b"\n"))) is not None:
                if there.wire != WIRE:
                    raise OtherVersion(f"{self._running.who}: launch {there.launch[:40]} is there, and {VERSION} here")
                self._running.write(encoded(question))
                return
        raise Garbled(f"{self._running.who}: no greeting, but much else")

    def send(self, message: FromVisitor) -> None:
        """Send a message; raise Broken if the connection has ended."""
        self._running.write(encoded(message))

    def received(self) -> Iterator[FromHost]:
        """Yield the messages that have arrived, without waiting. Raise the error that the host sent if it has declined
        the question, or Broken if the connection has ended.
        """
        word: FromHost | None = None
        while not isinstance(word, CommandEnded):
            try:
                word = self._next(0.0)
            except Silent:
                return
            yield word

    def stacks(self, question: AskStacks) -> list[RankStacks]:
        """Send the question, and return the stacks of all ranks that it names once the host has sent them. Raise Silent
        after two minutes, or Broken if the connection ends.
        """
        self.ask(question)
        found = list[RankStacks]()
        until = time.monotonic() + _STACKS_S
        while not isinstance(word := self._next(max(0.0, until - time.monotonic())), CommandEnded):
            if isinstance(word, RankStacks):
                found.append(word)
        return found

    def kill(self, question: KillHere) -> int:
        """Have the host kill the processes that the question names, and return how many it ended. Raise Silent if no
        answer comes within a minute, or Broken if the connection ends.
        """
        self.ask(question)
        word = self._next(_KILL_S)
        if not isinstance(word, KilledHere):
            raise Garbled(f"{self._running.who}: another answer than was asked for")
        return word.processes

    def close(self) -> None:
        """Close the connection; the host then ends what it has started."""
        self._running.close()

    def _next(self, limit_s: float) -> FromHost:
        """Return the next message. Raise the host's refusal, Silent if no message comes within `limit_s`, or Broken if
        the connection ends.
        """
        line = self._running.readline(limit_s)
        if not line:
            raise self._broken("the connection broke: what was started there is ended")
        if len(line) > 2 * LONGEST_LINE:
            raise Garbled(f"{self._running.who}: a line of {len(line)} bytes")
        message = decoded(line, _words)
        if isinstance(message, VisitDeclined):
            raise remote_error(message.lines, message.exit_code)
        return message

    def _broken(self, what: str) -> LaunchError:
        """Return the error for a connection that broke: `what` says how, and the last lines that the host printed
        follow.
        """
        return Broken(f"{self._running.who}: {what}", *self._running.last_error_lines(4))
