"""Report progress to users who wait; interfaces that show it register a listener."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_FIRST_S, _EVERY_S = 1.0, 5.0
_listeners: list[Callable[[str], None]] = []
_watchers: list[Callable[[str], None]] = []


def listen(show: Callable[[str], None], *, watching: bool = False) -> None:
    """Pass every line to `show` from now on; with `watching`, also lines on progress, which are of no use later."""
    _listeners.append(show)
    if watching:
        _watchers.append(show)


def say(text: str) -> None:
    """Report a line to all listeners."""
    for show in _listeners:
        show(text)


def counted(items: Sequence[T], doing: str, monotonic: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """Yield the items, and report progress to watchers once this takes more than a second."""
    due = monotonic() + _FIRST_S
    for done, item in enumerate(items):
        if _watchers and monotonic() >= due:
            due = monotonic() + _EVERY_S
            for show in _watchers:
                show(f"{doing}: {done:,} of {len(items):,} files")
        yield item
