"""Read which runs hold slots (GPUs or CPU slots) of a machine and which wait for them. Runs announce this by the names
of abstract unix sockets, which the kernel shows to every user.

    launch/gpu/3                                the lock of a GPU
    launch/held/gpu/3/ann/vit-9x2d              whose it is
    launch/held/cpu/8/ann/prep-2b4c             eight CPU slots, and whose they are
    launch/waits/19aa5d3f0c1/gpu/4/ann/vit-9x2d     a place in the queue: since when (ms), what for, who
    launch/waits/19aa5d3f0c1.10/gpu/4/ann/vit-7k3f  one of priority 10 among the runs of its user
    launch/alone/ann/vit-9x2d                   it has lost its leader, and may have been ended elsewhere

The file uses only the standard library and runs on Python 3.8. Names are not verified: each user writes their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

TABLE = "/proc/net/unix"
GPU, CPU = "gpu", "cpu"
_LONGEST = 107  # bytes of an abstract name, without the NUL that it begins with
_STREAM = "0001"
_KIND, _WHO = rf"(?P<kind>{GPU}|{CPU})", r"(?P<user>[^/\s]+)/(?P<run>[^/\s]+)"
_LOCK = re.compile(rf"launch/{_KIND}/(?P<number>[\w.-]{{1,40}})", re.ASCII)
_HELD = re.compile(rf"launch/held/{_KIND}/(?P<number>[\w.-]{{1,40}})/{_WHO}", re.ASCII)
_ALONE = re.compile(rf"launch/alone/{_WHO}", re.ASCII)
_SINCE = r"(?P<stamp>[0-9a-f]{1,16})(?:\.(?P<priority>-?\d{1,4}))?"
_WAITS = re.compile(rf"launch/waits/{_SINCE}/{_KIND}/(?P<number>\d{{1,6}})/{_WHO}", re.ASCII)


@dataclass(frozen=True)
class Demand:
    """The slots that a run needs on each host: GPUs, or CPU slots if `gpus` is 0."""

    gpus: int
    cpus: int


@dataclass(frozen=True)
class SlotHolder:
    """An announcement of held slots: `number` is the number of a GPU, or a count of CPU slots.

    User and run are empty if only the lock of a GPU is known.
    """

    kind: str  # gpu or cpu
    number: str
    user: str
    run: str


@dataclass(frozen=True)
class SlotWaiter:
    """A run that waits for slots: since when (`stamp`, Unix time in ms), whose it is, and what it needs. `priority`
    counts among runs of the same user; the highest is served first.
    """

    stamp: int
    user: str
    run: str  # its id
    demand: Demand
    priority: int = 0  # among runs of the same user

    @property
    def kind(self) -> str:
        """Return the kind of slot for which the run waits: GPU if it needs any GPU, else CPU."""
        return GPU if self.demand.gpus else CPU

    @property
    def turn(self) -> tuple[int, str]:
        """Return the sort key of the run's position in the queue: its time of arrival, then its id. Priority does not
        count here, because it only lets runs of one user exchange their positions (`Occupancy.before`).
        """
        return self.stamp, self.run


@dataclass(frozen=True)
class Occupancy:
    """The runs that hold slots of a machine, and those that wait for them, in order of arrival.

    Runs in `alone` receive nothing from the host that leads them, and may have been ended elsewhere.
    """

    held: tuple[SlotHolder, ...]
    waiting: tuple[SlotWaiter, ...]
    alone: frozenset[str] = frozenset()  # runs that receive nothing from the host that leads them

    def taken(self, kind: str) -> tuple[SlotHolder, ...]:
        """Return the holders of slots of `kind`, which is GPU or CPU."""
        return tuple(holder for holder in self.held if holder.kind == kind)

    def before(self, one: SlotWaiter) -> frozenset[SlotWaiter]:
        """Return the waiters for the same kind of slot that are served before `one`.

        Runs of one user exchange positions only among themselves, by priority and then by arrival, so that other users
        wait no longer. Before `one` are the runs of its user that this puts first, and other users' runs that came
        before the position that is left for `one`.
        """
        same = [other for other in self.waiting if other.kind == one.kind and other.turn != one.turn]
        own = sorted([one, *(other for other in same if other.user == one.user)], key=lambda other: other.turn)
        first = [other for other in own if (-other.priority, other.turn) < (-one.priority, one.turn)]
        place = own[len(first)].turn
        return frozenset(first) | {other for other in same if other.user != one.user and other.turn < place}


def occupancy(table: str | None = None) -> Occupancy:
    """Return which runs hold slots and which wait, from the kernel's table of unix sockets or, if `table` is given,
    from this text in the form of /proc/net/unix. A lock on a GPU that names no run counts as a holder without a name.
    """
    if table is None:
        # A row can be missed where another goes while the table is read, and hardly twice.
        table = _read() + _read()
    names = sorted(set(_names(table)))
    locks = {(found["kind"], found["number"]): "" for found in map(_LOCK.fullmatch, names) if found}
    held, waiting, alone = [], [], set()
    for name in names:
        found = _HELD.fullmatch(name) or _WAITS.fullmatch(name) or _ALONE.fullmatch(name)
        who = found and (unquote(found["user"]), unquote(found["run"]))
        if not found or not who or not all(word.isprintable() for word in who):
            continue
        if "kind" not in found.groupdict():
            alone.add(who[1])
            continue
        kind, number = found["kind"], found["number"]
        if "stamp" in found.groupdict():
            demand = Demand(int(number), 0) if kind == GPU else Demand(0, int(number))
            waiting.append(SlotWaiter(int(found["stamp"], 16), *who, demand, int(found["priority"] or 0)))
        elif number.isdigit() if kind == CPU else locks.pop((kind, number), None) is not None:
            held.append(SlotHolder(kind, number, *who))
    held += [SlotHolder(kind, number, "", "") for kind, number in locks if kind == GPU]
    held.sort(key=lambda holder: (holder.kind, len(holder.number), holder.number))
    return Occupancy(tuple(held), tuple(sorted(waiting, key=lambda waiter: waiter.turn)), frozenset(alone))


def lock_name(gpu: str) -> str:
    """Return the name of the abstract unix socket that a process binds to lock a GPU. `gpu` is the GPU's name in
    CUDA_VISIBLE_DEVICES, usually its number; a run that names the same GPU by its UUID binds another socket, so neither
    run sees that the other has it.
    """
    return f"launch/{GPU}/{gpu}"


def held_name(kind: str, number: str, user: str, run: str) -> str:
    """Return the socket name by which a run announces the slots that it holds. `kind` is gpu or cpu, `number` a GPU's
    number or a count of CPU slots.
    """
    return _signed(f"launch/held/{kind}/{number}", user, run)


def alone_name(user: str, run: str) -> str:
    """Return the socket name by which this user's run, which has slots here but is led by another host, announces that
    this machine receives nothing from that host any more. Runs that wait for the slots show it to their users.
    """
    return _signed("launch/alone", user, run)


def waits_name(waiter: SlotWaiter) -> str:
    """Return the socket name by which a run announces that it waits."""
    number = waiter.demand.gpus or waiter.demand.cpus
    since = f"{waiter.stamp:x}.{waiter.priority}" if waiter.priority else f"{waiter.stamp:x}"
    return _signed(f"launch/waits/{since}/{waiter.kind}/{number}", waiter.user, waiter.run)


def _signed(head: str, user: str, run: str) -> str:
    """Return the socket name `HEAD/USER/RUN`, where `head` says what the run announces, such as `launch/held/gpu/3`. If
    it would be too long for a socket, the user's name is shortened first, then the run's id.
    """
    room = _LONGEST - len(head) - 2
    run = _cut(run, room - 1)
    return f"{head}/{_cut(user, room - len(run))}/{run}"


def _cut(text: str, room: int) -> str:
    """Return the text percent-quoted for a socket name. It is cut at its end, before quoting, so that the quoted form
    has at most `room` characters.
    """
    while len(quoted := quote(text, safe="")) > room:
        text = text[:-1]
    return quoted


def _read() -> str:
    """Return the kernel's table of unix sockets."""
    with open(TABLE, encoding="utf-8", errors="replace") as file:
        return file.read()


def _names(table: str) -> list[str]:
    """Return the names of the launcher's abstract sockets in `table`, the text of /proc/net/unix, without the leading
    @ of each.
    """
    rows = (row.split(" ") for row in table.splitlines() if "@launch/" in row)
    return [row[-1][1:] for row in rows if len(row[-1]) > 1 and row[-1][0] == "@" and _STREAM in row[:-1]]
