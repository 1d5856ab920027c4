"""Report progress to users who wait: functions call `say`, and an interface that shows the lines registers a
listener.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_FIRST_S, _EVERY_S = 1.0, 5.0
_listeners: list[Callable[[str], None]] = []
_watchers: list[Callable[[str], None]] = []


def listen(show: Callable[[str], None], *, watching: bool = False) -> None:
    """Call `show`, besides earlier listeners, with every line from now on; with `watching`, also with lines about
    progress, which soon become outdated.
    """
    _listeners.append(show)
    if watching:
        _watchers.append(show)


def say(text: str) -> None:
    """Report a line to all listeners."""
    for show in _listeners:
        show(text)


def counted(items: Sequence[T], doing: str, monotonic: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """Yield the items, which are files, and report how many of them are done: after a second, and then every five
    seconds, with a line that begins with `doing`. Only listeners that asked for progress get it.
    """
    due = monotonic() + _FIRST_S
    for done, item in enumerate(items):
        if _watchers and monotonic() >= due:
            due = monotonic() + _EVERY_S
            for show in _watchers:
                show(f"{doing}: {done:,} of {len(items):,} files")
        yield item
