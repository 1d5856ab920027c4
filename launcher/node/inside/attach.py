"""Attach a visitor to a rank that waits in a breakpoint: relay input to its debugger and output back."""

import contextlib
import os
import select
import signal
import socket
from pathlib import Path

from launcher.errors import Refused
from launcher.node.inside.visit_messages import PIECE_BYTES, CommandEnded, Given, InputEnds, Output, Signalled
from launcher.node.inside.visitor import VisitorConnection
from launcher.run.layout import debug_socket
from launcher.run.processes import signal_process
from launcher.run.records import RankProcess


def attach(visitor: VisitorConnection, rank: RankProcess) -> None:
    """Connect a visitor to the rank's debugger until either of them ends; the rank stays at its prompt if the
    visitor leaves.
    """
    with _connected(rank) as debugger, contextlib.suppress(ConnectionError):  # the rank has ended
        _pass_on(visitor, rank, debugger)
    visitor.send(CommandEnded())


def _pass_on(visitor: VisitorConnection, rank: RankProcess, debugger: socket.socket) -> None:
    """Relay between the visitor and the debugger until either of them ends."""
    while True:
        ready = [visitor.source] if visitor.has_more else select.select([visitor.source, debugger.fileno()], [], [])[0]
        if debugger.fileno() in ready:
            data = debugger.recv(PIECE_BYTES)
            if not data:
                return
            visitor.send(Output(data))
        for word in visitor.receive() if visitor.source in ready else ():
            match word:
                case Given(data=data):
                    debugger.sendall(data)
                case InputEnds():
                    debugger.shutdown(socket.SHUT_WR)  # it answers the input, and detaches at its next prompt
                case Signalled(number=signal.SIGQUIT):
                    return
                case Signalled(number=signal.SIGINT):
                    signal_process(rank.process, signal.SIGINT)  # its debugger takes it, at a prompt and at work


def _connected(rank: RankProcess) -> socket.socket:
    """Return a connection to the rank's debugger; raise Refused if the rank waits in no breakpoint."""
    path = debug_socket(Path(rank.environment["LAUNCH_PROGRESS"]))
    debugger = socket.socket(socket.AF_UNIX)
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            debugger.connect(f"/proc/self/fd/{fd}/{path.name}")  # a whole path may be too long for a socket
        finally:
            os.close(fd)
    except (FileNotFoundError, ConnectionError):
        debugger.close()
        hint = "hint: it waits in one once it has come to a breakpoint() in its Python code; `launch status` says so"
        raise Refused(f"rank {rank.rank} is in no breakpoint", hint) from None
    return debugger
