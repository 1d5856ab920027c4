"""Keep the leader's records on every host, so that any of them can report on the run and take it over. The leader is
the host whose coordinator decides on restarts, and the voters are the hosts that elect it.

The leader sends what is new twice a second, and at once when its coordinator sets an event; hosts that share its
disk have them anyway. A record that is damaged on its disk is not sent, so the others keep the one before; of the
history each intact line is. The coordinator's address is sent again and again, so that a damaged copy does not hide
it.
"""

import contextlib
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from launcher.coordinator.history_copies import HistoryCopies
from launcher.decoding import decoder_of
from launcher.errors import LaunchError
from launcher.ids import attempt_token, role_secret
from launcher.places.ssh.host.supervisor_messages import Replica, granted
from launcher.places.ssh.host.supervisor_rpc import HEAR_S, SupervisorRpc
from launcher.plan.on_hosts import quorum
from launcher.run.attempts import attempts
from launcher.run.durable import NOT_JSON, make_dir, readable, sync_dir, write_bytes
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Endpoint, Event, Exclusion, Intent, RunState, StopRequest
from launcher.run.shared_event import SharedEvent

_WHOLE = -1
_PIECE = 256 << 10
_ASK_S, QUIET_S = 1.0, 5.0
EVERY_S = 0.5

EVENTS, ENDPOINT = "events", "endpoint"
_OF_ROLE = re.compile(r"(?P<role>[a-z0-9_-]{1,60}) (?P<attempt>[0-9]{1,9}) (?P<record>[a-z]{1,20})", re.ASCII)
_READ_AND_WRITE = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class KeptRecord:
    """A file that the leader copies to every host: one record of type `kind` or, if it is a history (a file of
    events), lines of that type.
    """

    path: Path  # where this host has its copy
    kind: Any  # the class or other type of a record, which msgspec decodes from JSON

    def check(self, data: bytes) -> None:
        """Decode the data as a record of this type; raise one of the errors in `launcher.run.durable.NOT_JSON` if it is
        none.
        """
        decoder_of(self.kind).decode(data)


class RoleAttempt(NamedTuple):
    """An attempt of a side role: one of the run's programs beside its main one, with attempts of its own."""

    role: str  # the name of the role's run folder
    attempt: int  # its number


def opens(name: str) -> RoleAttempt | None:
    """Return which attempt of a side role begins when the record `name` arrives, or None if the record begins none.

    `name` is the record's name in messages between hosts. An attempt begins with the record that has the address of its
    coordinator.
    """
    found = _OF_ROLE.fullmatch(name)
    return RoleAttempt(found["role"], int(found["attempt"])) if found and found["record"] == ENDPOINT else None


def history_of(role: str, attempt: int) -> str:
    """Return the name that messages between hosts use for the history of a role: the file with the events of all its
    attempts. The number of its present attempt is a part of the name, though the file is one for all.
    """
    return f"{role} {attempt} {EVENTS}"


def replicated(run: RunDir, attempt: AttemptDir, roles: Collection[str] = ()) -> dict[str, KeptRecord]:
    """Return the records that the leader copies to the other hosts, each as a KeptRecord (its file and its type): those
    of the run's attempt, such as the state, the events and the coordinator's address, and those of the newest attempt
    of each role in `roles`.

    The keys are the names by which messages refer to them, such as `state`, or `ROLE NUMBER state` for attempt NUMBER
    of a role.
    """
    found = _of_run(run, attempt)
    for role in roles:
        of_role = RunDir(run.roles / role)
        if there := attempts(of_role):
            last = there[-1]
            records = _of_role(of_role, last)
            if not is_within(attempt, role, last):
                del records[ENDPOINT]  # other hosts would take it for a running attempt
            found |= {f"{role} {last.number} {name}": one for name, one in records.items()}
    return found


@functools.cache
def is_within(attempt: AttemptDir, role: str, of_role: AttemptDir) -> bool:
    """Return whether the attempt `of_role` of the role `role` (a program of the run with attempts of its own) was
    opened within the run's attempt `attempt`: whether the secret token in its intent derives from that of `attempt`.
    Return False if one of the intents cannot be read.
    """
    whole, own = readable(attempt.intent, Intent), readable(of_role.intent, Intent)
    return (
        whole is not None
        and own is not None
        and own.token == attempt_token(role_secret(whole.token, role), of_role.number)
    )


def _named(run: RunDir, replica: Replica, roles: Collection[str]) -> KeptRecord | None:
    """Return where the record is kept here of which the leader has sent the copy `replica`; None if no record of the
    run, or of its side roles `roles`, has its name.
    """
    found = _OF_ROLE.fullmatch(replica.name)
    if found is None:
        return _of_run(run, run.attempt(replica.attempt)).get(replica.name)
    if found["role"] not in roles:
        return None
    role = RunDir(run.roles / found["role"])
    return _of_role(role, role.attempt(int(found["attempt"]))).get(found["record"])


def _of_role(run: RunDir, attempt: AttemptDir) -> dict[str, KeptRecord]:
    """Return the records of a role's attempt that are copied to other hosts: the coordinator's address, the end, the
    history and the state. They have the same short names as those of the run, such as `state`; the caller adds the role
    and attempt.
    """
    of_run = _of_run(run, attempt)
    return {name: of_run[name] for name in (ENDPOINT, "end", EVENTS, "state")}


def is_history(name: str) -> bool:
    """Return whether a record is a history of events: its `name` in messages is EVENTS, or ends with a space and EVENTS
    if it is that of a role.
    """
    return name.rpartition(" ")[2] == EVENTS


def _of_run(run: RunDir, attempt: AttemptDir) -> dict[str, KeptRecord]:
    """Return the records to copy of a run and its attempt `attempt`, by the names that messages give them; their files
    need not exist yet. A side role, which has a run folder too, is copied with only some of them (`_of_role`).
    """
    return {
        ENDPOINT: KeptRecord(attempt.endpoint, Endpoint),
        "avoided": KeptRecord(run.avoided, list[Exclusion]),
        "stop": KeptRecord(attempt.stop, StopRequest),
        "end": KeptRecord(attempt.end, AttemptEnd),  # before what follows from it
        EVENTS: KeptRecord(run.events, Event),
        "state": KeptRecord(run.state, RunState),
    }


def put(run: RunDir, replica: Replica, roles: Collection[str] = (), *, cuts: bool = False) -> None:
    """Write what the leader has sent in `replica`: a whole record, or a piece of a history (a file of events) at its
    offset. Raise LaunchError if neither the run nor one of its `roles` has a record of that name, if the content is no
    such record, or if the history on this host ends before the piece's offset.

    With `cuts`, a piece with `ends` set, the last of the sender's history, also cuts off what this host has after it.
    """
    copied = _named(run, replica, roles)
    if copied is None:
        raise LaunchError(f"no record is called {replica.name[:40]!r}")
    data, in_pieces = replica.data.encode(), is_history(replica.name)
    if in_pieces != (replica.at != _WHOLE):
        raise LaunchError(f"{replica.name}: expected {'a piece' if in_pieces else 'a whole record'}")
    make_dir(copied.path.parent)
    if in_pieces:
        _put_piece(copied.path, replica.at, data, cuts=cuts and replica.ends)
        return
    try:
        copied.check(data)
    except NOT_JSON as error:
        raise LaunchError(f"{replica.name}: what the leader sent is not such a record: {error}") from error
    write_bytes(copied.path, data)


def is_there(run: RunDir, replica: Replica, roles: Collection[str] = ()) -> bool:
    """Return whether the leader's data in `replica` is already in the record's file on this host. A record must be
    equal as a whole; a piece of a history must be in the file at the piece's offset.

    `roles` names the run's other roles, which have records, too.
    """
    copied = _named(run, replica, roles)
    if copied is None:
        return False
    data = replica.data.encode()
    try:
        with copied.path.open("rb") as file:
            file.seek(max(0, replica.at))
            return file.read(len(data) + (replica.at == _WHOLE)) == data
    except OSError:
        return False


def _put_piece(path: Path, at: int, piece: bytes, *, cuts: bool) -> None:
    """Write a piece of the leader's events.jsonl at byte `at` of this host's file. Where the file has other bytes than
    the piece, it is another leader's history: it is cut off at the first of these before the rest is written.

    If the whole piece is there already, what follows it in the file is kept, or, with `cuts`, cut off. Raise
    LaunchError if the file ends before byte `at`.
    """
    fd = os.open(path, _READ_AND_WRITE, 0o600)
    try:
        if at > os.fstat(fd).st_size:
            raise LaunchError(f"{path}: what comes before byte {at} is not here")
        known = len(os.path.commonprefix([os.pread(fd, len(piece), at), piece]))  # noqa: RUF071 - bytes, not paths
        if known < len(piece) or cuts:
            os.ftruncate(fd, at + known)
        os.pwrite(fd, piece, at)  # also what is there: it may be in memory only, after an fsync that failed
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_dir(path.parent)


def copy_records(
    run: RunDir, attempt: AttemptDir, rpc: SupervisorRpc, roles: Collection[str], whom: Collection[int]
) -> None:
    """Send the hosts with the numbers `whom` all records of the attempt and of the `roles` beside the main one, and the
    run's whole history in pieces of 256 KiB.

    A host that refuses a record or a piece, or does not answer, is asked again with each further piece; after the last
    one nothing more is sent.
    """
    copies = RecordReplicator(run, attempt, rpc, roles, whom=whom, renew_s=inf, quiet_s=0.0, cuts=True)
    copies.close()
    with contextlib.suppress(FileNotFoundError):
        for _ in range(run.events.stat().st_size // _PIECE + 1):
            copies.send()


class RecordReplicator:
    """A thread that sends new records to other hosts until it is closed, and the coordinator's address again every
    `renew_s` seconds.
    """

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        rpc: SupervisorRpc,
        roles: Collection[str] = (),
        *,
        whom: Collection[int] | None = None,
        renew_s: float = 10.0,
        quiet_s: float = QUIET_S,
        cuts: bool = False,
        voters: Collection[int] = (),
        accepted: Callable[[], Collection[int]] = tuple,
        copies: Callable[[], Mapping[str, HistoryCopies]] = dict,
        records_due: SharedEvent | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        """Start sending; a host that did not answer is skipped for `quiet_s`, so that the others need not wait.

        How much of a history half of the attempt's voters have (this host and `voters`) is passed to its coordinator
        by `copies`, by the history's name on the wire. A voter counts once it is among those that have `accepted` the
        attempt: until then it may vote for a host without what it has. Each coordinator sets `records_due` after it
        wrote what is to be sent at once; it is closed with this.
        """
        self._run, self._attempt, self._rpc, self._roles = run, attempt, rpc, roles
        self._renew_s, self._quiet_s, self._cuts = renew_s, quiet_s, cuts
        self._voters, self._accepted, self._copies, self._every_s = tuple(voters), accepted, copies, every_s
        self._sent: dict[int, dict[str, object]] = {number: {} for number in (rpc.others if whom is None else whom)}
        self._quiet_until: dict[int, float] = {}
        self._over, self._records_due = False, records_due or SharedEvent()
        self._thread = threading.Thread(target=self._work, name="replicator", daemon=True)
        self._thread.start()

    def close(self) -> list[int]:
        """Stop the thread, send what is not sent yet, and return the numbers of the hosts that have not accepted the
        record of the attempt's end.

        Each host is tried once more, even one that did not answer lately. If the attempt has no such record, the
        numbers of all hosts are returned.
        """
        self._over = True
        self._records_due.set()
        self._thread.join()
        self._records_due.close()
        self._quiet_until.clear()
        self.send()
        return self.lacking_end()

    def lacking_end(self) -> list[int]:
        """Return the numbers of the hosts that have not accepted the record of the attempt's end."""
        return [number for number, names in self._sent.items() if "end" not in names]

    def _work(self) -> None:
        """Call `send` every `every_s` seconds, and at once when a coordinator sets `records_due`, until the thread is
        asked to close.
        """
        self._records_due.wait(self._every_s)
        while not self._over:
            self.send()
            self._records_due.wait(self._every_s)

    def send(self) -> None:
        """Send each other host the records that have changed since it accepted them, and the next events of the
        histories (the events.jsonl files), at most 256 KiB of each. A host that refuses a record, or does not
        answer, is skipped for a while; a later call sends it what it lacks.

        Histories are sent last, up to the size that they had before any record was read: a host that has an event also
        has the state that was written before it.
        """
        self._report_copied()
        records, found = replicated(self._run, self._attempt, self._roles), dict[str, os.stat_result]()
        for name in sorted(records, key=lambda name: not is_history(name)):
            with contextlib.suppress(FileNotFoundError):
                found[name] = records[name].path.stat()
        for name in sorted(found, key=is_history):
            copied, status = records[name], found[name]
            now = time.monotonic()
            turn = now // self._renew_s if name.endswith(ENDPOINT) else 0
            mark = (status.st_ino, status.st_size, status.st_mtime_ns, turn)
            reached = [number for number in self._sent if self._quiet_until.get(number, 0.0) <= now]
            behind = [number for number in reached if self._sent[number].get(name) != mark]
            if not behind:
                continue
            if is_history(name):
                took = self._send_events(name, copied, behind, status.st_size)
            else:
                took = self._send_whole(name, copied, behind)
            for number in took:
                self._sent[number][name] = mark

    def _send_whole(self, name: str, copied: KeptRecord, whom: list[int]) -> list[int]:
        """Send the whole file of the record `copied`, under the name `name`, to the hosts with the numbers `whom`;
        return the numbers of those that accepted it. Nothing is sent if the file is missing or is no valid record.
        """
        with contextlib.suppress(FileNotFoundError, *NOT_JSON):
            data = copied.path.read_bytes()
            copied.check(data)
            return self._send_to(self._replica(name, _WHOLE, data.decode()), whom)
        return []

    def _send_events(self, name: str, copied: KeptRecord, whom: list[int], size: int) -> list[int]:
        """Send each of the hosts `whom`, which are numbers, the next events that it lacks of the first `size` bytes of
        the history `copied`, at most 256 KiB in one call; return the hosts that then have all of them.

        `name` is the history's name in messages. A host that refuses a part may have lost what comes before it, as this
        host may have; then later calls send everything again.
        """
        done = []
        for number in whom:
            at = self._bytes_of(number, name)
            with copied.path.open("rb") as file:
                file.seek(max(0, at - 1))
                if at and file.read(1) != b"\n":
                    at = file.seek(0)
                piece = file.read(min(_PIECE, max(0, size - file.tell())))
            whole = piece[: piece.rfind(b"\n") + 1]
            replica = self._replica(name, at, _text(whole))
            if len(piece) < _PIECE:
                replica = msgspec.structs.replace(replica, ends=self._cuts)
            if whole and not self._send_to(replica, [number]):
                self._sent[number][f"{name} bytes"] = 0
                continue
            self._sent[number][f"{name} bytes"] = at + len(whole)
            self._report_copied()
            if len(piece) < _PIECE:
                done.append(number)
        return done

    def _report_copied(self) -> None:
        """Tell each coordinator on this host (a run of several programs has one for each) how many bytes of its history
        at least half of the voters have, this host included.
        """
        for name, copies in self._copies().items():
            copies.copied = self._held_by_half(name)

    def _held_by_half(self, name: str) -> float:
        """Return how many bytes of the event file `name` at least half of the voters have; infinity if this host, the
        leader, is half of them by itself.
        """
        accepted = self._accepted()
        return held_by_half([self._bytes_of(number, name) if number in accepted else 0 for number in self._voters])

    def _bytes_of(self, number: int, name: str) -> int:
        """Return how many bytes of the event file `name` the host with this number has confirmed to have; 0 if it has
        confirmed none yet, or did not accept the last piece.
        """
        at = self._sent[number].get(f"{name} bytes", 0)
        if not isinstance(at, int):
            raise TypeError("expected a number of bytes")
        return at

    def _replica(self, name: str, at: int, data: str) -> Replica:
        """Return the message with a piece `data` of the record `name`, which begins at byte `at`; -1 means that it is
        the whole record.
        """
        return Replica(self._rpc.me, self._attempt.number, name, at, data)

    def _send_to(self, replica: Replica, whom: list[int]) -> list[int]:
        """Send the record in `replica` to the hosts with the numbers `whom`, and return the numbers of those that
        accepted it. Hosts that refused it, or did not answer in time, are skipped for a while.
        """
        taken = granted(self._rpc.ask(replica, whom, HEAR_S))
        now = time.monotonic()
        self._quiet_until |= {number: now + self._quiet_s for number in whom if number not in taken}
        return taken


def held_by_half(others: Sequence[int]) -> float:
    """Return how many bytes of the history at least half of the voters have, with the leader counted; infinity if the
    leader alone is half of them.

    `others` has the number of bytes that each voter but the leader has; the leader has all.
    """
    needed = quorum(len(others) + 1) - 1
    return sorted(others, reverse=True)[needed - 1] if needed else inf


def _text(piece: bytes) -> str:
    """Return the bytes as text with as many bytes in UTF-8. If they are not UTF-8, each byte beyond ASCII becomes `?`,
    so that only the lines with such bytes are lost as records.
    """
    with contextlib.suppress(UnicodeDecodeError):
        return piece.decode()
    return bytes(byte if byte < 128 else ord("?") for byte in piece).decode()
