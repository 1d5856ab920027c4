"""What people who wait for a cluster are told meanwhile; whoever shows it listens."""

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def listen(show: Callable[[str], None]) -> None:
    """Have every line shown from now on."""
    _listeners.append(show)


def say(text: str) -> None:
    for show in _listeners:
        show(text)
