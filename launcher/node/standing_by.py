"""An agent that boots before there is anything for it to do: `python -m launcher.node RUN_DIR @FD NODE`.

An agent that dies may have left a process that stands by to be the next one: its zygote's standby (`zygote.py`).
On that descriptor, a socket, it hears what it is to be: the words and descriptors that `AgentPlace.take`
(`supervisor/agent_processes.py`) tells it.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, MutableMapping, Sequence

from launcher.node.ranks.lease import LEASE

GATE = "LAUNCH_NEXT_AGENT"  # the descriptor at which an agent's supervisor says what the next one is to be
_SIGN = "@"
_MOST_BYTES, _MOST_FDS = 1 << 16, 250  # Linux's own limit is 253 to a message


def heard_at(fd: int) -> str:
    """What stands where the attempt's number would, which is not known yet."""
    return f"{_SIGN}{fd}"


def tell(waiting: socket.socket, words: Mapping[str, object], fds: Sequence[int] = ()) -> None:
    """A line of JSON, with descriptors, to a process that waits for it. Raises OSError where it has ended."""
    line = json.dumps(words).encode() + b"\n"
    sent = socket.send_fds(waiting, [line], [*fds])
    if sent < len(line):  # one that has heard all of it may have closed its end: no error, then
        waiting.sendall(line[sent:])


def told(words: Sequence[str]) -> Sequence[str] | None:
    """An agent's own words: these, or if it stands by those that it hears in the end; None: nobody needs it.

    What it hears with them it takes on: environment, output, and descriptors that it holds by having them open.
    """
    if not words[1].startswith(_SIGN):
        return words
    with socket.socket(fileno=int(words[1].removeprefix(_SIGN))) as gate:
        line, fds, _, _ = socket.recv_fds(gate, _MOST_BYTES, _MOST_FDS)
        while line and not line.endswith(b"\n"):
            more = gate.recv(_MOST_BYTES)
            line = line + more if more else b""
    if not line:
        return None
    heard = json.loads(line)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(heard["env"])
    numbers = dict(zip(heard["fds"], fds, strict=True))
    for name in (LEASE, GATE):
        if name in os.environ:
            os.environ[name] = str(numbers.get(int(os.environ[name]), -1))
    argv: Sequence[str] = heard["argv"]
    return argv[-len(words) :]


def gate_from(environ: MutableMapping[str, str]) -> int | None:
    """The descriptor at which whoever stands by hears what the next agent is to be; None where there is none.

    It is a socket that our parent has made: a container passes variables on, and not descriptors.
    """
    word = environ.pop(GATE, "")
    if not word.isdecimal():
        return None
    try:
        with socket.socket(fileno=os.dup(int(word))) as gate:
            credentials = gate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    if struct.unpack("3i", credentials)[0] != os.getppid():
        return None
    os.set_inheritable(int(word), False)
    return int(word)
