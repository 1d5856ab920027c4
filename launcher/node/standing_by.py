"""An agent that boots before there is anything for it to do: `python -m launcher.node RUN_DIR @FD NODE`.

On that descriptor, a socket, it hears what it is to be: the words and descriptors that `AgentPlace.take`
(`supervisor/agent_processes.py`) tells it.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence

from launcher.node.ranks.lease import renumber

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
    renumber(os.environ, dict(zip(heard["fds"], fds, strict=True)))
    argv: Sequence[str] = heard["argv"]
    return argv[-len(words) :]
