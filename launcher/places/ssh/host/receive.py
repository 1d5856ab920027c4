"""Receive an attempt on a host: write its code and records, and start its supervisor, which waits for the
message to begin.
"""

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import LaunchError
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.presence import HostIndex
from launcher.places.ssh.messages import CodeTree, GoAhead, Open, Opened, Supervisors
from launcher.remote.rpc.server import Body
from launcher.remote.rpc.wire import encoded
from launcher.remote.shipping import kept_trees
from launcher.run import drafts
from launcher.run.attempts import newest
from launcher.run.code.copying import copy_tree
from launcher.run.code.listing import list_frozen
from launcher.run.durable import create_record, make_dir, read_record, record_in, sync_dir, write_bytes, write_record
from launcher.run.fence import raise_fence
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.supervisor.forked import fork_supervisor
from launcher.supervisor.standby import BOOT_S, StandbySupervisor

_SUPERVISOR = "launcher.places.ssh.host.host_supervisor:HostSupervisor"
_RETURNS = "launcher.places.ssh.comeback.returning_supervisor:ReturningSupervisor"


class _PlanNode(msgspec.Struct, frozen=True):
    """A node of a plan, of which only the host is decoded."""

    host: str  # its name in the pool


class _Disks(msgspec.Struct, frozen=True):
    """The part of a plan that shows whether its hosts, by node, share the disk on which runs are kept."""

    nodes: tuple[_PlanNode, ...]
    disks_apart: bool  # each host keeps runs on a disk of its own; else on one that all share


class _OpenedOn(msgspec.Struct, frozen=True):
    """The record in an attempt's folder that names the first host which opened the attempt in this folder. If a host
    finds the name of another one in it, the two share a disk, although by the plan each has its own.
    """

    host: str


class AttemptReceiver:
    """The part of a host's server that receives an attempt: from the message Open, with which its records come, to
    GoAhead, on which it begins.
    """

    def __init__(self) -> None:
        self._supervisor: StandbySupervisor | None = None

    def open(self, run: RunDir, opening: Open, body: Body) -> Opened:
        """Write the attempt's records, which `body` yields, and start its supervisor; return the port on which it
        listens.

        Return Opened without a port if the code has to be sent first, or if another host has the same disk, though the
        plan says that each has its own. Then no supervisor was started.
        """
        records = {one.name: body.exactly(one.size) for one in opening.records}
        workdir = run.path.parent.parent
        for name in ("runs", "code"):
            make_dir(workdir / name)
        store = kept_trees.tree(workdir / "code", opening.code)
        if not kept_trees.have(store.parent, store.name):
            return Opened(None)
        with presence.held(run) as lock:
            if run.path.is_dir():
                bring_up_to_date(run, opening.intent.attempt, records)
            else:
                _make(run, opening, records, store)
            if _on_one_disk(run, opening):
                return Opened(None, on_one_disk=True)
            words = [str(_add_attempt(run, opening)), str(opening.node), ",".join(opening.gpus)]
            mine = presence.host_index_file(run.attempt(opening.intent.attempt), apart=_disks(opening).disks_apart)
            write_record(mine, HostIndex(opening.node, opening.gpus, sys.executable))
            self._supervisor = StandbySupervisor(_SUPERVISOR, run.path, words, [lock.fileno()], fork_supervisor)
        return decoder_of(Opened).decode(self._supervisor.report())

    def pass_on(self, word: Supervisors | GoAhead) -> None:
        """Send the message to the supervisor that was started: the addresses of all supervisors of the run
        (Supervisors), or that it is to begin (GoAhead). Raise LaunchError if none was started.
        """
        if self._supervisor is None:
            raise LaunchError("there is no supervisor that could be told")
        self._supervisor.send(encoded(word))


def come_back(run: RunDir) -> str:
    """Start the run's supervisor on this host again if it is missing, to take part in the attempt that continues on the
    other hosts; return "" if it was started, else why not: it runs already, the run has ended or had no part on this
    host, or its part was on another host of the same name.
    """
    from launcher.supervisor.attempt_end import has_ended  # late: a submit needs none of it

    if presence.is_held(run):
        return "its supervisor is there"
    found, last = presence.begun(run), newest(run)
    mine = presence.taken(found[0]) if found is not None else None
    if found is None or last is None or mine is None or has_ended(run, last):
        return "nothing of it runs here, as far as this host knows"
    if not presence.is_here(found[1][mine.node].address):
        return "this host's place in the run is another host's of the same name"
    with presence.held(run) as lock:
        supervisor = StandbySupervisor(_RETURNS, run.path, [str(found[0].number)], keep=[lock.fileno()])
        supervisor.report(BOOT_S)
        supervisor.close()
    return ""


def take_code(workdir: Path, code: CodeTree, body: Body) -> None:
    """Store the user's code, whose contents `body` yields, under its digest in the folder `code` of `workdir`. Raise
    BadInput if the list of files is invalid or the contents do not have this digest; then nothing is stored.
    """
    kept_trees.keep(workdir / "code", code.digest, code.files, body.some, links_out=True)


def _make(run: RunDir, opening: Open, records: dict[str, bytes], store: Path) -> None:
    """Create the run's folder on this host, complete or not at all, with the code in `store` and the contents `records`
    by file name.
    """
    drafts.remove_orphans(run.path.parent)
    draft = RunDir(drafts.new_draft(run.path.parent))
    make_dir(draft.path)
    try:
        draft.code.mkdir(mode=0o700)
        copy_tree(list_frozen(store), store, draft.code)
        for name, content in records.items():
            if "/" in name or name.startswith("."):
                raise LaunchError(f"expected the name of a record, got {name[:100]!r}")
            write_bytes(draft.path / name, content)
        write_record(draft.plan, opening.plan)
        try:
            os.rename(draft.path, run.path)
        except OSError:
            if not run.path.is_dir():  # else another host of a shared disk was quicker
                raise
        sync_dir(run.path.parent)
    finally:
        drafts.remove(draft.path)


def bring_up_to_date(run: RunDir, attempt: int, records: dict[str, bytes]) -> None:
    """Write the sent `records`, contents by file name, of what happened to the run elsewhere, to the run's folder.

    The records of the nodes to avoid and of who is notified replace those here. The sent history of events replaces
    this host's if it begins with all of it. Otherwise only the sent events of attempt number `attempt`, the one that
    begins now, are appended to this host's.
    """
    if run.avoided.name in records:
        write_bytes(run.avoided, records[run.avoided.name])
    if run.notify.name in records:
        write_bytes(run.notify, records[run.notify.name])
    before = run.events.read_bytes() if run.events.exists() else b""
    events = _continued(before, records.get(run.events.name, b""), attempt)
    if events != before:
        write_bytes(run.events, events)


def _continued(before: bytes, told: bytes, attempt: int) -> bytes:
    """Return the content of the run's events file on this host, given the one there (`before`) and the one that the
    submitter sent (`told`).

    It is `told` if that continues `before`. Otherwise it is `before`, followed by the sent events of attempt number
    `attempt`, the one that begins.
    """
    if told.startswith(before):
        return told
    known = set(before.splitlines())
    new = [line for line in told.splitlines() if line not in known and _is_of(line, attempt)]
    mended = before if not before or before.endswith(b"\n") else before + b"\n"
    return mended + b"".join(line + b"\n" for line in new)


def _is_of(line: bytes, attempt: int) -> bool:
    """Return whether `line`, a line of a run's events.jsonl, is an event of attempt number `attempt`; a line that
    cannot be decoded is not.
    """
    event = record_in(line, Event)
    return event is not None and event.attempt == attempt


def _disks(opening: Open) -> _Disks:
    """Return a part of the message's plan: its hosts, by node, and whether each keeps its runs on a disk of its own
    instead of one that all share.
    """
    return decoder_of(_Disks).decode(opening.plan)


def _on_one_disk(run: RunDir, opening: Open) -> bool:
    """Return whether this host shares a disk with another host of the attempt, though the plan says that each has its
    own; False if the plan says that they share one.

    Each host writes its name into the attempt's record of who opened it, unless that exists; one that finds another's
    name there shares that host's disk.
    """
    plan = _disks(opening)
    if not plan.disks_apart:
        return False
    attempt, me = run.attempt(opening.intent.attempt), plan.nodes[opening.node].host
    make_dir(attempt.path)
    with contextlib.suppress(FileExistsError):
        create_record(attempt.opened_on, _OpenedOn(me))
    opened = read_record(attempt.opened_on, _OpenedOn)
    return opened is not None and opened.host != me


def _add_attempt(run: RunDir, opening: Open) -> int:
    """Write the plan and the intent of the attempt that `opening` announces, and return the attempt's number.

    Older attempts can write no checkpoints afterwards. Raise Fenced if a newer attempt has done the same to this one.
    """
    attempt = run.attempt(opening.intent.attempt)
    make_dir(run.attempts)
    make_dir(attempt.path)
    write_record(attempt.plan, opening.plan)
    with contextlib.suppress(FileExistsError):
        create_record(attempt.intent, opening.intent)
    raise_fence(run, attempt.number)
    return attempt.number
