"""The process that sends an attempt's notifications: it reads the run's records and sends what is due. Each recipient
has a thread, and each delivery is recorded in events.jsonl.

Because of the threads, a recipient that hangs delays no other. The record of a delivery is written right after it, and
the next leader of a pool has that record too. A crash between the two sends the message a second time, but no message
is lost.
"""

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from launcher.clock import boottime
from launcher.errors import Fenced
from launcher.run.attempts import newest, read_plan
from launcher.run.durable import Damaged, append_line, read_lines, readable
from launcher.run.fence import check_fence
from launcher.run.layout import RunDir
from launcher.run.locks import locked
from launcher.run.patience import say, waiting_for_disks
from launcher.run.records import NOT_TOLD, TOLD, AttemptEnd, Event, RunState
from launcher.status.facts import role_dirs
from launcher.supervisor.notify.delivery import NotDelivered, deliver
from launcher.supervisor.notify.due import Glance, due, mark, note_of, settled
from launcher.supervisor.notify.message import Message, cleaned
from launcher.supervisor.notify.record import Notifying, Recipient

GIVE_UP_S = 6 * 3600.0  # a message this old is no news any more
LONGEST_PAUSE_S = 300.0
_FIRST_PAUSE_S, _DOUBLINGS = 2.0, 10
_LOOK_S = 1.0
_TURN_S = 15.0  # how long a process whose supervisor has exited waits for an earlier sender
_FOLLOWED_S = 5.0  # where another attempt follows, whose process sends what this one has not

Send = Callable[[Message], None]
Note = Callable[[str, Message, Recipient, str], None]


def pause_after(tries: int, after_s: float = 0.0) -> float:
    """Return the seconds to wait after `tries` failed tries: twice as many after each, at least `after_s`, for which
    the recipient's server may have asked, and at most LONGEST_PAUSE_S (five minutes).
    """
    doubled_s: float = _FIRST_PAUSE_S * 2 ** min(tries - 1, _DOUBLINGS)
    return min(max(doubled_s, after_s), LONGEST_PAUSE_S)


class RecipientThread:
    """A thread that sends messages to one recipient in order, and records for each whether it was delivered.

    A message that fails is tried again, after growing pauses, for six hours, unless the error excludes a later success;
    then it is recorded as not delivered. The ones after it wait until then.
    """

    def __init__(self, recipient: Recipient, send: Send, note: Note, clock: Callable[[], float] = boottime) -> None:
        self.recipient = recipient
        self._send, self._note, self._clock = send, note, clock
        self._waiting: deque[Message] = deque()
        self._seen: set[str] = set()
        self._tries, self._longest_s = 0, LONGEST_PAUSE_S
        self._stopped = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name=recipient.id, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Return whether no message waits to be sent."""
        with self._changed:
            return not self._waiting

    def put(self, message: Message) -> None:
        """Queue the message, unless one with its `key` was queued before."""
        with self._changed:
            if message.key not in self._seen:
                self._seen.add(message.key)
                self._waiting.append(message)
                self._changed.notify()

    def hurry(self, longest_s: float) -> None:
        """Try again at once, and from now on wait at most `longest_s` seconds between tries."""
        with self._changed:
            self._longest_s = longest_s
            self._changed.notify()

    def give_up(self) -> None:
        """Stop the thread, and record the remaining messages as not sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            for message in self._waiting:
                self._note(NOT_TOLD, message, self.recipient, f"not reached in time, tried {self._tries} times")

    def _work(self) -> None:
        """Send queued messages, waiting for more, until `give_up` is called, which records the rest as not sent."""
        with waiting_for_disks():
            while (message := self._next()) is not None:
                self._deliver(message, self._clock())

    def _next(self) -> Message | None:
        """Wait for a message and return the oldest, which stays in the queue, or None once the thread is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            return None if self._stopped else self._waiting[0]

    def _deliver(self, message: Message, since: float) -> None:
        """Try to send the message until it is accepted, is refused in a way that excludes a later try, or six hours
        have passed since the time `since`; record the result. Return without a record once the thread is stopped.
        """
        self._tries = 0
        while (failed := self._try(message)) is not None:
            self._tries += 1
            if not failed.again or self._clock() - since >= GIVE_UP_S:
                break
            with self._changed:
                if not self._stopped:
                    self._changed.wait(min(pause_after(self._tries, failed.after_s), self._longest_s))
                if self._stopped:
                    return
        kind, problem = (TOLD, "") if failed is None else (NOT_TOLD, f"{failed.text}, tried {self._tries} times")
        with self._changed:
            if not self._stopped:
                self._note(kind, message, self.recipient, problem)
                self._waiting.popleft()

    def _try(self, message: Message) -> NotDelivered | None:
        """Try once to send the message; return the error if it was not delivered, else None."""
        try:
            self._send(message)
        except NotDelivered as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - a library's; its text may hold the address
            failed = NotDelivered(type(error).__name__, again=False)
        else:
            return None
        say(f"{message.kind}: {self.recipient.label}: {failed.text}")
        return failed


class Sender:
    """The sender of all notifications of one attempt. It finds messages that are due in the run's records, and puts
    them into the queues of its threads, one RecipientThread for each recipient, which deliver them.
    """

    def __init__(self, run: RunDir, number: int, what: Notifying) -> None:
        self._run, self._attempt, self._what = run, run.attempt(number), what
        self._secrets = (*what.secrets(), *(readable(run.secrets, dict[str, str]) or {}).values())
        self._first_role = _first_role(run, number)
        self._mark: object = None
        self._changed_at = boottime()
        self._threads = [RecipientThread(one, self._send_to(one), self._note) for one in what.recipients]

    def _send_to(self, recipient: Recipient) -> Send:
        """Return a function that sends one message to the recipient."""
        return lambda message: deliver(recipient, message, self._what, self._run.path)

    @property
    def fenced(self) -> bool:
        """Return whether a newer attempt exists, whose own sender then sends the remaining messages. Return False if
        that cannot be read.
        """
        try:
            check_fence(self._run, self._attempt.number)
        except Fenced:
            return True
        except (Damaged, OSError):
            return False
        return False

    def queue_due(self, *, over: bool = False) -> bool:
        """Queue each message that, by the run's records and the user's settings, should have been sent by now, unless
        its delivery or failure is recorded; return whether the run has ended. `over` means that the supervisor has
        exited, so that no more records will be written.
        """
        state, end = readable(self._run.state, RunState), readable(self._attempt.end, AttemptEnd)
        events, now = _events(self._run), boottime()
        if (now_is := mark(state)) != self._mark:
            self._mark, self._changed_at = now_is, now
        known = settled(events)
        roles = {path.name: _glance_of(RunDir(path)) for path in role_dirs(self._run)}
        if self._first_role:  # its restarts are the run's
            roles[self._first_role] = Glance((), state, readable(self._attempt.role_end, AttemptEnd))
        glance = Glance(events, state, end, now - self._changed_at, over, roles, bool(self._first_role))
        for message in due(self._what, glance, time.time()):
            for thread in self._threads:
                if (message.key, thread.recipient.id) not in known:
                    thread.put(cleaned(message, self._secrets))
        return (end is not None and end.state.ended) or (state is not None and state.state.ended)

    def finish(self, linger_s: float) -> None:
        """Send the remaining messages after the supervisor has exited, for at most `linger_s` seconds.

        Messages that then remain are recorded as given up if the run has ended. If another attempt follows, this stops
        after at most five seconds, and that attempt's sender sends them.
        """
        ended = self.queue_due(over=True)
        limit_s = linger_s if ended else min(linger_s, _FOLLOWED_S)
        for thread in self._threads:
            thread.hurry(limit_s / 10)
        until = boottime() + limit_s
        while boottime() < until and not self.fenced and not all(thread.idle for thread in self._threads):
            time.sleep(_LOOK_S / 10)
        if ended and not self.fenced:
            for thread in self._threads:
                thread.give_up()

    def _note(self, kind: str, message: Message, recipient: Recipient, problem: str) -> None:
        """Append to the run's events that a message was delivered (`kind` TOLD, `problem` "") or given up because of
        `problem` (`kind` NOT_TOLD).

        If that fails, it is only logged, and a later sender may send the message again.
        """
        event = note_of(time.time(), self._attempt.number, kind, message, recipient, problem)
        say(event.text)
        try:
            check_fence(self._run, self._attempt.number)
            append_line(self._run.events, event)
        except (Fenced, Damaged, OSError) as error:
            say(f"not noted: {error}")


def _first_role(run: RunDir, number: int) -> str:
    """Return the name of the role whose records are in the run's own folder, so that messages name it like the other
    roles.

    Return "" if the run has only one program, or a main role (no name is needed for it), or if the plan of attempt
    `number` cannot be read.
    """
    try:
        plan = read_plan(run, number)
    except (Damaged, OSError):
        return ""
    return plan.role if plan.ends_with_all else ""


def _glance_of(role: RunDir) -> Glance:
    """Return the records by which the notifications about a role, one program of a run of several, are chosen: its
    events, its state, and the end of its newest attempt. `role` is the role's own folder.
    """
    last = newest(role)
    end = readable(last.end, AttemptEnd) if last is not None else None
    return Glance(_events(role), readable(role.state, RunState), end)


def _events(run: RunDir) -> list[Event]:
    """Return the run's events, or an empty list if they cannot be read."""
    with contextlib.suppress(Damaged, OSError):
        return read_lines(run.events, Event)
    return []


def main(argv: Sequence[str]) -> NoReturn:
    """Send the notifications of one attempt at a low priority, and exit. `argv` is RUN_DIR ATTEMPT LINGER_S: for up to
    LINGER_S seconds after the supervisor has exited, notifications are still delivered.
    """
    os.umask(0o077)
    os.nice(5)
    send_all(RunDir(Path(argv[0])), int(argv[1]), float(argv[2]))
    sys.stderr.flush()
    os._exit(0)  # a thread that still waits for an answer is not waited for


def send_all(run: RunDir, number: int, linger_s: float) -> None:
    """Send the notifications of attempt `number` until stdin ends, which happens when the supervisor exits, and then
    the remaining ones, for up to `linger_s` seconds. Return earlier once a newer attempt exists, whose sender goes on.
    """
    stdin = select.poll()
    stdin.register(0, select.POLLIN)
    what = readable(run.notify, Notifying)
    with ExitStack() as stack:
        if what is None or not _lock_once_free(run, stdin, stack):
            return
        sender = Sender(run, number, what)
        sender.queue_due()
        while not stdin.poll(_LOOK_S * 1000) and not sender.fenced:
            sender.queue_due()
        sender.finish(linger_s)


def _lock_once_free(run: RunDir, stdin: "select.poll", stack: ExitStack) -> bool:
    """Wait until the previous attempt's sender has released the lock on sending, as it does when it sees the newer
    attempt; then put the lock, held, into `stack` and return True.

    Return False if the lock is not free 15 seconds after stdin has ended, that is after the supervisor has exited.
    """
    until: float | None = None
    while stack.enter_context(locked(run.notify_lock, optional=True)) is None:
        if stdin.poll(_LOOK_S * 1000) and until is None:
            until = boottime() + _TURN_S
        if until is not None and boottime() >= until:
            return False
    return True
