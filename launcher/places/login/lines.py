"""This process's connections to login nodes: they stay open between questions, all nodes are asked at once, and one
that did not answer is not asked again for 30 seconds. `kind` is the type in which an answer is decoded.
"""

import atexit
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from launcher.errors import LaunchError, Unreachable
from launcher.places.login.address import Address
from launcher.places.login.messages import Request
from launcher.remote.failures import SilentMachines
from launcher.remote.parallel import for_all
from launcher.remote.rpc.client import Broken, RemoteLaunch, Silent
from launcher.remote.rpc.wire import Garbled

ANSWER_S = 120.0  # for an answer that needs no disk to be walked and no tree to be sent
_PAUSES_S = (0.5, 2.0, 5.0)  # before each further try

T = TypeVar("T")

_open: dict[Address, tuple[RemoteLaunch, frozenset[str]]] = {}
silent = SilentMachines[Address]()  # to those who watch


@contextlib.contextmanager
def line_to(address: Address, *, without: Collection[str] = (), compress: bool = False) -> Iterator[RemoteLaunch]:
    """Yield a connection to the login node: an open one of this process, or else a new one. It stays open for later use
    unless it breaks. Raise Unreachable if the login node does not answer.

    The ssh process of the connection does not get the environment variables named in `without`; with `compress` a new
    connection is compressed.
    """
    line = _taken(address, frozenset(without), compress=compress)
    try:
        line.greet()
        yield line
    except BaseException as error:
        if isinstance(error, LaunchError) and not isinstance(error, Unreachable | Garbled):
            _open[address] = (line, frozenset(without))  # that was an answer too
        else:
            line.close()
        raise
    _open[address] = (line, frozenset(without))


def ask(address: Address, request: Request, kind: type[T], *, timeout_s: float) -> T:
    """Return the login node's answer. Use an open connection if this process has one, and connect once more if that
    connection has broken. Raise Unreachable if there is no answer within `timeout_s`.
    """
    if address in _open:
        with contextlib.suppress(Broken):
            return _asked(address, request, kind, timeout_s)
    return _asked(address, request, kind, timeout_s)


def _asked(address: Address, request: Request, kind: type[T], timeout_s: float) -> T:
    """Send the request over the open connection to the login node, or over a new one if there is none, and return the
    answer.

    Raise Broken if the connection ends before the answer, and Unreachable if no connection can be made or no answer
    comes within `timeout_s`.
    """
    with line_to(address) as line:
        return line.ask(request, kind, timeout_s=timeout_s)


def persistently(address: Address, work: Callable[[RemoteLaunch], T], *, without: Collection[str]) -> T:
    """Return the result of `work`. If the connection breaks, call `work` again with a new one, after pauses of 0.5, 2
    and 5 seconds; then raise Unreachable. Raise it at once if there was no connection at all, or if the login node does
    not answer.

    The ssh process does not get the environment variables named in `without`.
    """
    pauses = iter(_PAUSES_S)
    was_there = address in _open
    while True:
        try:
            with line_to(address, without=without, compress=True) as line:
                was_there = True
                return work(line)
        except Unreachable as error:
            was_there = was_there or isinstance(error, Broken)
            wait_s = next(pauses, None) if was_there and not isinstance(error, Silent) else None
            if wait_s is None:
                raise
            time.sleep(wait_s)


def ask_all(questions: Mapping[Address, Request], kind: type[T], limit_s: float) -> dict[Address, T | LaunchError]:
    """Ask each login node its question, all at the same time. Return by address each answer, or the error if none came
    within `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    # A connection that is slow to come keeps none of the others waiting.
    begun = for_all({str(index): pair for index, pair in enumerate(questions.items())}, lambda _, pair: _begun(*pair))
    answers: dict[Address, T | LaunchError] = {}
    for address, line in zip(questions, begun.values(), strict=True):
        try:
            if isinstance(line, LaunchError):
                raise line
            answers[address] = line.receive(kind, deadline)
            _open[address] = (line, frozenset())
        except LaunchError as error:
            answers[address] = error
            if isinstance(line, RemoteLaunch):
                line.close()
                silent.note(address, error)
    return answers


def _begun(address: Address, request: Request) -> RemoteLaunch:
    """Send the question without waiting for the answer, and return the connection on which the answer will come."""
    if (why := silent.why(address)) is not None:
        raise why
    line = _taken(address)
    try:
        line.send(request)
    except LaunchError as error:
        line.close()
        raise silent.note(address, error) from None
    return line


def _taken(address: Address, without: frozenset[str] = frozenset(), *, compress: bool = False) -> RemoteLaunch:
    """Return the open connection to the login node, which no other caller can use until it is put back, or a new one.

    The ssh process of the connection does not get the environment variables named in `without`; an open connection
    whose ssh process got one of them is closed. With `compress` a new connection is compressed.
    """
    line, kept_from = _open.pop(address, (None, frozenset()))
    if line is not None:
        if without <= kept_from:
            return line
        line.close()
    return RemoteLaunch(address, without=without, compress=compress)


@atexit.register
def _close_all() -> None:
    """Close all open connections; called at exit."""
    while _open:
        _, (line, _) = _open.popitem()
        line.close()
