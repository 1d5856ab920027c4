"""A command of `launch` on the login node, as if it ran here: its output as it comes, its exit code, its Ctrl-C."""

import os
import sys
import time
from collections.abc import Sequence

from launcher.clusters.clusters_file import ClusterEntry, login_of
from launcher.errors import BadInput, Exit, Refused
from launcher.remote import known
from launcher.remote.known import Login, RemoteRun
from launcher.remote.places import now
from launcher.remote.ssh import Broken, Connection, Silent
from launcher.remote.wire import EXIT_CODE, STDERR, STDOUT, Command, Confused, Terminal, encoded
from launcher.rundir.durable import write_all

_LAST_WORDS_S = 5.0
_SHOWN_ALIKE = ("TERM", "COLORTERM", "NO_COLOR")


def forward(run: RemoteRun, verb: str, argv: Sequence[str] = ()) -> int:
    """`launch VERB ARGV` where the run is; `argv` names the run by its id."""
    if verb == "resume":
        known.forget_answer(run)  # it may have ended, and will be asked about again
    return _carried(now(run.login), verb, argv)


def command(place: ClusterEntry, verb: str, argv: Sequence[str] = ()) -> int:
    """`launch VERB ARGV` on the cluster's login node."""
    way = login_of(place)
    if way.node is None:
        raise BadInput(f"{place.name}: has no login node")
    return _carried(Login(place.name, way.node, way.launch, way.folder), verb, argv)


def _carried(login: Login, verb: str, argv: Sequence[str]) -> int:
    request = Command((verb, *argv), _terminal())
    try:
        encoded(request)
    except UnicodeEncodeError:
        raise BadInput(f"launch {verb}: expected text, got bytes that are none") from None
    with Connection(login) as connection:
        connection.greet()
        connection.send(request)
        try:
            return _shown(connection)
        except KeyboardInterrupt:
            connection.hang_up()
            return _last_words(connection)


def refuse_to_move(run: RemoteRun, on: str) -> None:
    """Raises Refused where another cluster is named than the one that the run is on."""
    if on != run.login.cluster:
        raise Refused(
            f"{run.run} is on {run.login.cluster}, with its code and checkpoints: it cannot go on with {on}",
            "hint: without --on it goes on where it is",
        )


def _last_words(connection: Connection) -> int:
    """What it says to the Ctrl-C that it got there, where it says it soon."""
    try:
        return _shown(connection, time.monotonic() + _LAST_WORDS_S)
    except (Broken, Silent, KeyboardInterrupt):
        return Exit.INTERRUPTED


def _shown(connection: Connection, deadline: float | None = None) -> int:
    """Copy its output to ours until it ends. Raises Broken where nobody saw its end."""
    streams = {STDOUT: sys.stdout, STDERR: sys.stderr}
    while True:
        channel, data = connection.frame(deadline)
        if channel == EXIT_CODE:
            return int(data)
        if channel not in streams:
            raise Confused(f"a frame of channel {channel}")
        streams[channel].flush()
        write_all(streams[channel].fileno(), data)


def _terminal() -> Terminal | None:
    out, err = sys.stdout.isatty(), sys.stderr.isatty()
    if not (out or err):
        return None
    size = os.get_terminal_size((sys.stdout if out else sys.stderr).fileno())
    environment = {name: os.environ[name] for name in _SHOWN_ALIKE if name in os.environ}
    return Terminal(size.columns, size.lines, environment, out, err)
