"""Sending by apprise, a library that knows over a hundred services by their URLs; needs the extra `notify`."""

import contextlib
import logging
import threading
from collections.abc import Iterator

import apprise

_LOG = logging.getLogger("apprise")
_ONE_AT_A_TIME = threading.Lock()  # it logs from threads of its own: another message's words could not be told apart


def opened(url: str) -> apprise.Apprise | None:
    """Return the service of this URL, or None if apprise knows none of such a URL."""
    service = apprise.Apprise()
    with _said():
        return service if service.add(url) else None


def send(url: str, title: str, text: str) -> str:
    """Send a message; return "" once the service took it, or else apprise's error, which may contain secrets."""
    service = opened(url)
    if service is None:
        return "apprise knows no service of such a URL"
    with _said() as words:
        done = service.notify(body=text, title=title, body_format=apprise.NotifyFormat.TEXT)
    return "" if done else " ".join(words) or "apprise does not say why"


@contextlib.contextmanager
def _said() -> Iterator[list[str]]:
    """Give what apprise logs meanwhile, which then goes nowhere else: it may hold secrets."""
    words = list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign] # one use of it
    with _ONE_AT_A_TIME:
        _LOG.propagate = False
        _LOG.addHandler(handler)
        try:
            yield words
        finally:
            _LOG.removeHandler(handler)
