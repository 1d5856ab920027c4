"""What people who wait are told meanwhile; whoever shows it listens."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_FIRST_S, _EVERY_S = 1.0, 5.0
_listeners: list[Callable[[str], None]] = []
_watchers: list[Callable[[str], None]] = []


def listen(show: Callable[[str], None], *, watching: bool = False) -> None:
    """Have every line shown from now on; `watching`: also how far something is, which is of no use later."""
    _listeners.append(show)
    if watching:
        _watchers.append(show)


def say(text: str) -> None:
    for show in _listeners:
        show(text)


def counted(items: Sequence[T], doing: str, monotonic: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """Gives the items on; where that takes more than a second, whoever watches is told how far it is."""
    due = monotonic() + _FIRST_S
    for done, item in enumerate(items):
        if _watchers and monotonic() >= due:
            due = monotonic() + _EVERY_S
            for show in _watchers:
                show(f"{doing}: {done:,} of {len(items):,} files")
        yield item
