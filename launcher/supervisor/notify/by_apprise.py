"""Send notifications by apprise, a library that reaches over a hundred services by their URLs; it needs the extra
`notify`.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator

import apprise

_LOG = logging.getLogger("apprise")
_ONE_AT_A_TIME = threading.Lock()  # it logs from threads of its own: messages could not be assigned to their sends


def opened(url: str) -> apprise.Apprise | None:
    """Return the apprise object for the URL, or None if apprise does not support the URL."""
    service = apprise.Apprise()
    with _said():
        return service if service.add(url) else None


def send(url: str, title: str, text: str) -> str:
    """Send a message to the URL's service. Return "" if the service accepted it, else apprise's error, which may
    contain secrets.
    """
    service = opened(url)
    if service is None:
        return "apprise knows no service of such a URL"
    with _said() as words:
        done = service.notify(body=text, title=title, body_format=apprise.NotifyFormat.TEXT)
    return "" if done else " ".join(words) or "apprise gives no reason"


@contextlib.contextmanager
def _said() -> Iterator[list[str]]:
    """Yield a list that collects apprise's log during the body. The log is shown nowhere else, because it may contain
    secrets.
    """
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
