"""An agent process that starts before it has an attempt to serve: `python -m launcher.node RUN_DIR @FD NODE`. For
a run on this machine, the supervisor starts it while `launch submit` still prepares the run, to become the agent of
node 0. Later it is the standby of a dead agent's zygote (`zygote.py`), and becomes the next agent.

Over the descriptor FD, a socket, it receives the arguments and descriptors that `AgentPlace.take`
(`supervisor/agent_processes.py`) sends.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, MutableMapping, Sequence

from launcher.node.ranks.lease import LEASE
from launcher.run.shared_event import SHARED_EVENT

GATE = "LAUNCH_NEXT_AGENT"  # the descriptor at which the next agent receives its arguments from the supervisor
COORDINATOR = "coordinator"  # in place of NODE: no agent, but the coordinator of a plan that names its machine
_SIGN = "@"
_MOST_BYTES, _MOST_FDS = 1 << 16, 250  # Linux's own limit is 253 to a message


def standby_argument(fd: int) -> str:
    """Return the argument that stands in place of the attempt's number, which the process receives later over
    descriptor `fd`.
    """
    return f"{_SIGN}{fd}"


def send_arguments(waiting: socket.socket, words: Mapping[str, object], fds: Sequence[int] = ()) -> None:
    """Send the process at the other end of the socket `waiting` one line of JSON, `words`, together with the
    descriptors `fds`; raise OSError if the process has ended. `words` has its new arguments (`argv`), variables
    (`env`), and the numbers under which it expects the descriptors (`fds`).
    """
    line = json.dumps(words).encode() + b"\n"
    sent = socket.send_fds(waiting, [line], [*fds])
    if sent < len(line):  # a process that has received all of it may have closed its end: no error, then
        waiting.sendall(line[sent:])


def agent_arguments(words: Sequence[str]) -> Sequence[str] | None:
    """Return the arguments of the agent that this process is or becomes. They are `words`, the process's own, unless
    those name a descriptor (`@FD`): then this is a standby.

    A standby waits at the descriptor for the arguments of the agent that it becomes; environment, output and open
    descriptors come with them and replace its own. Return None if the sender closes the connection, because no agent is
    needed.
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
    for name in (LEASE, GATE, SHARED_EVENT):
        if name in os.environ:
            os.environ[name] = str(numbers.get(int(os.environ[name]), -1))
    argv: Sequence[str] = heard["argv"]
    return argv[-len(words) :]


def gate_from(environ: MutableMapping[str, str]) -> int | None:
    """Return the descriptor on which a standby receives the next agent's arguments, or None if the supervisor passed
    none in `environ`. The variable is removed from `environ`.

    None is returned as well if the descriptor is no socket that this process's parent made: a container passes
    variables but not descriptors, so that the number may be another file's.
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
