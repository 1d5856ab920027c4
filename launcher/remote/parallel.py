"""Log in to many hosts at once, to each sshd a few at a time, and run work on each, with failures as values."""

import contextlib
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from launcher.errors import LaunchError
from launcher.remote.connect import Line, connect
from launcher.remote.failures import Dropped
from launcher.remote.running import TURN_S
from launcher.remote.target import Target

AT_ONCE = 8  # sshd drops at random from its tenth unfinished login on (MaxStartups 10:30:100)
_LOGINS_AT_ONCE = 64  # none of their sshds has more than AT_ONCE; waiting for hosts takes longer than our own work
_TURN_S = 1.0
_PATIENCE_S = 60.0  # with a host that hangs up at once: others who log in there have their turn meanwhile
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 4.0

S = TypeVar("S")
T = TypeVar("T")


def connect_all(
    targets: Sequence[Target],
    tell: Callable[[str, str], None],
    *,
    patience_s: float = _PATIENCE_S,
) -> dict[str, Line | LaunchError]:
    """Connect to all targets; return the connections, for the caller to close, or errors by name, in the order given.

    `tell` is called in this thread with a target's name and "connected" or the error's first line, as soon as that is
    known. A host that closes the connection before it sends anything is tried again for `patience_s`.
    """

    def heard(name: str, result: Line | LaunchError) -> None:
        """Pass the result for one host to `tell`."""
        tell(name, "connected" if isinstance(result, Line) else result.lines[0])

    def patiently(target: Target) -> Line:
        """Return a connection, once it is the target's turn at its first sshd."""
        with turns[_first_sshd(target)]:
            return _patiently(target, patience_s)

    turns = {_first_sshd(target): threading.Semaphore(AT_ONCE) for target in targets}
    work = {target.name: partial(patiently, target) for target in targets}
    return _run_in_threads(work, _LOGINS_AT_ONCE, heard, Line.close)


def for_all(
    lines: Mapping[str, S], work: Callable[[str, S], T], *, at_once: int | None = None
) -> dict[str, T | LaunchError]:
    """Call `work(name, connection)` for each connection, in threads, and return by name its result or the LaunchError
    that it raised; at most `at_once` run at the same time, or all if it is None.
    """
    each = {name: partial(work, name, line) for name, line in lines.items()}
    return _run_in_threads(each, len(lines) if at_once is None else at_once)


def failures(results: Mapping[str, object]) -> dict[str, LaunchError]:
    """Return only those of the results that are errors, by name."""
    return {name: one for name, one in results.items() if isinstance(one, LaunchError)}


def answers(results: Mapping[str, T | LaunchError]) -> dict[str, T]:
    """Return only those of the results that are no errors, by name."""
    return {name: one for name, one in results.items() if not isinstance(one, LaunchError)}


def reasons(troubles: Mapping[str, LaunchError]) -> list[str]:
    """Return the first line of each error."""
    return [one.lines[0] for one in troubles.values()]


def _first_sshd(target: Target) -> str:
    """Return the name of the host that a login connects to first, a jump host or the target; "" if the user's own ssh
    logs in, whose configuration decides that.
    """
    return "" if target.transport == "openssh" else (*target.jumps, target)[0].hostname


def _patiently(target: Target, patience_s: float) -> Line:
    """Return a connection; if the host closes it before sending anything, try again for `patience_s`, then raise
    Dropped. Any other error, such as a refused key or login, is raised at once.
    """
    began, pause_s = time.monotonic(), _FIRST_PAUSE_S
    for tries in itertools.count(1):
        try:
            return connect(target)
        except Dropped as error:
            took_s = time.monotonic() - began
            if took_s >= patience_s:
                error.lines = (f"{error.lines[0]}, {tries} times in {took_s:.0f} s", *error.lines[1:])
                raise
        # So that not all that were dropped together come again together.
        time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError


def _run_in_threads(
    work: Mapping[str, Callable[[], T]],
    most: int,
    heard: Callable[[str, T | LaunchError], None] | None = None,
    undo: Callable[[T], None] | None = None,
) -> dict[str, T | LaunchError]:
    """Run the functions in `work` in threads, `most` at a time, and return the results or errors in the order of
    `work`.

    `heard` is called with each result as it comes. If this call is interrupted, `undo` is called with each result that
    is not returned. Threads are daemons, so that a program that ends, for instance by Ctrl-C, does not wait for a
    silent host.
    """
    futures = {name: Future[T]() for name in work}
    waiting = queue.SimpleQueue[str | None]()
    ended = queue.SimpleQueue[str]()
    given_up = threading.Event()

    def labour() -> None:
        """Take waiting work and do it until none is left."""
        while (name := waiting.get()) is not None and not given_up.is_set():
            try:
                futures[name].set_result(work[name]())
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                futures[name].set_exception(error)
            ended.put(name)

    size = min(most, len(work))
    for name in (*work, *[None] * size):
        waiting.put(name)
    for _ in range(size):
        threading.Thread(target=labour, daemon=True).start()
    results: dict[str, T | LaunchError] = {}
    try:
        for _ in work:
            one = _next(ended)
            try:
                results[one] = futures[one].result()
            except LaunchError as error:
                results[one] = error
            if heard is not None:
                heard(one, results[one])
    except BaseException:
        given_up.set()
        for future in futures.values():
            future.add_done_callback(partial(_undo, undo))  # at once, or when it is done
        raise
    return {name: results[name] for name in work}


def _next(ended: "queue.SimpleQueue[str]") -> str:
    """Return the next name whose work has finished.

    Waiting is done in short pieces, because Python handles a Ctrl-C that comes just before a wait only at its end.
    """
    while True:
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=TURN_S)


def _undo(undo: Callable[[T], None] | None, future: Future[T]) -> None:
    """Call `undo` with the result of the future, which is done. Do nothing if the future has an exception, or `undo` is
    None.
    """
    if undo is not None and future.exception() is None:
        undo(future.result())
