"""What the process does: looks at the records, and has a thread for each recipient send what is due.

What was taken is noted in events.jsonl right afterwards, where the next coordinator's host has it too. So each message
goes out once; where the machine dies between the two it goes out twice, rather than never.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launcher.clock import boottime
from launcher.errors import Fenced
from launcher.notify.delivery import NotDelivered, deliver
from launcher.notify.due import Glance, due, mark, note_of, settled
from launcher.notify.message import Message, cleaned
from launcher.notify.outbox import Outbox
from launcher.notify.record import Notifying, Recipient
from launcher.rundir.durable import Damaged, append_line, read_lines, readable
from launcher.rundir.fence import check_fence
from launcher.rundir.layout import RunDir
from launcher.rundir.patience import say, waiting_for_disks
from launcher.rundir.records import NOT_TOLD, TOLD, AttemptEnd, Event, RunState

_FOLLOWED_S = 5.0  # where another attempt follows, whose process sends what this one has not
_WAKE_S = 0.5

Note = Callable[[str, Message, Recipient, str], None]


class RecipientThread:
    """Sends to one recipient, one message after the other, until it is stopped; `note` is told how each one ended."""

    def __init__(self, recipient: Recipient, what: Notifying, folder: Path, note: Note) -> None:
        self.recipient = recipient
        self._what, self._folder, self._note = what, folder, note
        self._outbox = Outbox()
        self._lock = threading.Condition()
        self._stopped = False
        threading.Thread(target=self._work, name=recipient.id, daemon=True).start()

    @property
    def idle(self) -> bool:
        with self._lock:
            return self._outbox.empty

    def put(self, message: Message) -> None:
        with self._lock:
            self._outbox.put(message, boottime())
            self._lock.notify()

    def hurry(self, longest_s: float) -> None:
        with self._lock:
            self._outbox.hurry(longest_s, boottime())
            self._lock.notify()

    def give_up(self) -> None:
        """What has not gone out by now will not."""
        with self._lock:
            self._stopped = True
            for message in self._outbox.rest():
                self._note(NOT_TOLD, message, self.recipient, f"not reached in time, tried {self._outbox.tries} times")

    def _work(self) -> None:
        with waiting_for_disks():
            while True:
                with self._lock:
                    if self._stopped:
                        return
                    message = self._outbox.to_try(boottime())
                    if message is None:
                        self._lock.wait(_WAKE_S)
                        continue
                self._try(message)

    def _try(self, message: Message) -> None:
        try:
            deliver(self.recipient, message, self._what, self._folder)
        except NotDelivered as error:
            self._tried(message, error.text, again=error.again, after_s=error.after_s)
        except Exception as error:  # noqa: BLE001 - of a library: the others go on, and no word of it holds an address
            self._tried(message, type(error).__name__, again=False)
        else:
            with self._lock:
                if not self._stopped:
                    self._note(TOLD, message, self.recipient, "")
                    self._outbox.done()

    def _tried(self, message: Message, problem: str, *, again: bool, after_s: float = 0.0) -> None:
        say(f"{message.kind}: {self.recipient.label}: {problem}")
        with self._lock:
            if self._stopped:
                return
            too_late = self._outbox.failed(boottime(), after_s)
            if not again or too_late:
                self._note(NOT_TOLD, message, self.recipient, f"{problem}, tried {self._outbox.tries} times")
                self._outbox.done()


class Sender:
    """Tells of one attempt of a run."""

    def __init__(self, run: RunDir, number: int, what: Notifying) -> None:
        self._run, self._attempt, self._what = run, run.attempt(number), what
        self._secrets = (*what.secrets(), *(readable(run.secrets, dict[str, str]) or {}).values())
        self._mark: object = None
        self._changed_at = boottime()
        self._threads = [RecipientThread(one, what, run.path, self._note) for one in what.recipients]

    @property
    def fenced(self) -> bool:
        """A newer attempt exists: its process tells of what there is."""
        try:
            check_fence(self._run, self._attempt.number)
        except Fenced:
            return True
        except (Damaged, OSError):
            return False
        return False

    def look(self, *, over: bool = False) -> bool:
        """Put what is due into the outboxes; True where the run has ended. `over`: nothing more will be written."""
        state, end = readable(self._run.state, RunState), readable(self._attempt.end, AttemptEnd)
        events, now = _events(self._run), boottime()
        if (now_is := mark(state)) != self._mark:
            self._mark, self._changed_at = now_is, now
        known = settled(events)
        for message in due(self._what, Glance(events, state, end, now - self._changed_at, over), time.time()):
            for thread in self._threads:
                if (message.key, thread.recipient.id) not in known:
                    thread.put(cleaned(message, self._secrets))
        return (end is not None and end.state.ended) or (state is not None and state.state.ended)

    def finish(self, linger_s: float) -> None:
        """The keeper is gone: send what there is left, for so long at most."""
        ended = self.look(over=True)
        limit_s = linger_s if ended else min(linger_s, _FOLLOWED_S)
        for thread in self._threads:
            thread.hurry(limit_s / 10)
        until = boottime() + limit_s
        while boottime() < until and not self.fenced and not all(thread.idle for thread in self._threads):
            time.sleep(_WAKE_S / 5)
        if ended and not self.fenced:
            for thread in self._threads:
                thread.give_up()

    def _note(self, kind: str, message: Message, recipient: Recipient, problem: str) -> None:
        """Of what could not be noted the log says so: it may be told once more by the next attempt."""
        event = note_of(time.time(), self._attempt.number, kind, message, recipient, problem)
        say(event.text)
        try:
            check_fence(self._run, self._attempt.number)
            append_line(self._run.events, event)
        except (Fenced, Damaged, OSError) as error:
            say(f"not noted: {error}")


def _events(run: RunDir) -> list[Event]:
    with contextlib.suppress(Damaged, OSError):
        return read_lines(run.events, Event)
    return []
