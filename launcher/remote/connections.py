"""Keep one connection to each host for this process, shared by all callers and open until the process ends."""

import atexit
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from launcher.errors import LaunchError
from launcher.remote.connect import Line
from launcher.remote.parallel import connect_all
from launcher.remote.target import Target

Way = Line | LaunchError

_ways: dict[Target, Future[Way]] = {}  # open, or on their way
_lock = threading.Lock()


def lines_to(targets: Sequence[Target], tell: Callable[[str, str], None]) -> dict[str, Way]:
    """Return by name, for each target, an open connection or the error why there is none. An existing connection is
    used again.

    `tell` is called with the target's name and one line for each connection that had to be made.
    """
    mine: dict[Target, Future[Way]] = {}
    replaced: list[Future[Way]] = []
    with _lock:
        known = {target: _ways.get(target) for target in targets}
    ended = {target for target, way in known.items() if not _is_usable(way)}  # to find that out may take a while
    with _lock:
        for target, before in known.items():
            way = _ways.get(target)
            if way is None or (way is before and target in ended):
                mine[target] = _ways[target] = Future()
                replaced += [way] if way is not None else []
        found = {target.name: _ways[target] for target in targets}
    _close_lines(replaced)
    if mine:
        _make(mine, tell)
    return {name: way.result() for name, way in found.items()}


def _is_usable(way: Future[Way] | None) -> bool:
    """Return whether the connection is open, or is being opened by another thread; None means no connection."""
    if way is None or not way.done():
        return way is not None
    line = way.result()
    return isinstance(line, Line) and line.alive


def _make(mine: dict[Target, Future[Way]], tell: Callable[[str, str], None]) -> None:
    """Open the connections to the keys of `mine`, and set the future of each to its connection or an error. Even after
    an exception every future gets a result, so that no other thread waits for ever.

    `tell` is called with the target's name and one line for each connection.
    """
    made: dict[str, Way] = {}
    try:
        made = connect_all(list(mine), tell)
    finally:
        for target, way in mine.items():
            way.set_result(made.get(target.name) or LaunchError(f"{target.name}: interrupted"))


@atexit.register
def close() -> None:
    """Close all connections of this process that are open; those that other threads are still opening stay open until
    it has exited.
    """
    with _lock:
        ways = [way for way in _ways.values() if way.done()]
        _ways.clear()
    _close_lines(ways)


def _close_lines(ways: Sequence[Future[Way]]) -> None:
    """Wait until all these connections are opened or have failed, and close those that were opened."""
    for way in ways:
        line = way.result()
        if isinstance(line, Line):
            line.close()
