"""Attaching to a rank that waits in a breakpoint(): what is typed goes to its debugger, what that says comes back."""

import contextlib
import os
import select
import signal
import socket
from pathlib import Path

from launcher.errors import Refused
from launcher.node.inside.talk import Talk
from launcher.node.inside.words import PIECE_BYTES, CommandEnded, Given, InputEnds, Said, Signalled
from launcher.run.layout import debug_socket
from launcher.run.processes import signal_process
from launcher.run.records import RankProcess


def attach(talk: Talk, rank: RankProcess) -> None:
    """Connect a visitor to the rank's debugger until either of them ends. The rank stays at its prompt if the visitor
    leaves.
    """
    with _connected(rank) as debugger, contextlib.suppress(ConnectionError):  # the rank has ended
        _pass_on(talk, rank, debugger)
    talk.tell(CommandEnded())


def _pass_on(talk: Talk, rank: RankProcess, debugger: socket.socket) -> None:
    while True:
        ready = [talk.source] if talk.has_more else select.select([talk.source, debugger.fileno()], [], [])[0]
        if debugger.fileno() in ready:
            data = debugger.recv(PIECE_BYTES)
            if not data:
                return
            talk.tell(Said(data))
        for word in talk.hear() if talk.source in ready else ():
            match word:
                case Given(data=data):
                    debugger.sendall(data)
                case InputEnds():
                    debugger.shutdown(socket.SHUT_WR)  # it answers what was said, and lets go at its next prompt
                case Signalled(number=signal.SIGQUIT):
                    return
                case Signalled(number=signal.SIGINT):
                    signal_process(rank.process, signal.SIGINT)  # its debugger takes it, at a prompt and at work


def _connected(rank: RankProcess) -> socket.socket:
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
