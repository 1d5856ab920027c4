"""An attempt arrives on a host: its code and records are put there, and its keeper stands by until it is told to go."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from launcher.clusters.keeping.standby import StandbyKeeper
from launcher.clusters.ssh.host import presence
from launcher.clusters.ssh.messages import CodeTree, GoAhead, Keepers, Ok, Open, Opened, Up, read_answer, read_request
from launcher.errors import LaunchError
from launcher.hostlink.rpc.wire import encoded
from launcher.hostlink.shipping import kept_trees
from launcher.rundir import drafts
from launcher.rundir.code_list import list_frozen
from launcher.rundir.durable import create_record, make_dir, sync_dir, write_bytes, write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Event
from launcher.rundir.tree_copy import copy_tree

_KEEPER = "launcher.clusters.ssh.host.keeper"
_CHUNK = 1 << 20


class AttemptReceiver:
    """What a submitter does here, from Open to GoAhead."""

    def __init__(self, asked: IO[bytes], say: Callable[..., None]) -> None:
        self._asked, self._say = asked, say
        self._keeper: StandbyKeeper | None = None
        self.amid_code = False  # what comes next is no request but the rest of the contents

    def open(self, run: RunDir, opening: Open) -> None:
        blobs = {blob.name: self._exactly(blob.size) for blob in opening.blobs}
        workdir = Path(opening.workdir)
        for name in ("runs", "code"):
            make_dir(workdir / name)
        with presence.held(run) as lock:
            store = kept_trees.tree(workdir / "code", opening.code)
            needs_code = not kept_trees.have(store.parent, store.name)
            self._say(Opened(needs_code))
            if needs_code:
                self._take_code(store)
            if run.path.is_dir():
                bring_up_to_date(run, opening.intent.attempt, blobs)
            else:
                _make(run, opening, blobs, store)
            words = [str(_add_attempt(run, opening)), str(opening.node), ",".join(opening.gpus)]
            self._keeper = StandbyKeeper(_KEEPER, run.path, words, keep=[lock.fileno()])
        self._say(Up(_port_of(self._keeper)))

    def pass_on(self, word: Keepers | GoAhead) -> None:
        if self._keeper is None:
            raise LaunchError("there is no keeper that could be told")
        self._keeper.tell(encoded(word))
        self._say(Ok())

    def _take_code(self, store: Path) -> None:
        """Keep the user's code under its digest, once it is proved to be that."""
        self.amid_code = True
        code = read_request(self._asked.readline())
        if not isinstance(code, CodeTree):
            raise LaunchError("expected the code that was asked for")
        kept_trees.keep(store.parent, store.name, code.files, self._exactly, links_out=True)
        self.amid_code = False

    def _exactly(self, size: int) -> bytes:
        data = self._asked.read(size)
        if len(data) < size:
            raise EOFError
        return data


def _make(run: RunDir, opening: Open, blobs: dict[str, bytes], store: Path) -> None:
    """The run's folder on this host: whole, or not at all."""
    drafts.remove_orphans(run.path.parent)
    draft = RunDir(drafts.new_draft(run.path.parent))
    make_dir(draft.path)
    try:
        draft.code.mkdir(mode=0o700)
        copy_tree(list_frozen(store), store, draft.code, writable=True)
        for name, content in blobs.items():
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


def bring_up_to_date(run: RunDir, attempt: int, blobs: dict[str, bytes]) -> None:
    """What has happened to it elsewhere since: other hosts' attempts, what a person forgave, and that it is resumed."""
    if run.avoided.name in blobs:
        write_bytes(run.avoided, blobs[run.avoided.name])
    before = run.events.read_bytes() if run.events.exists() else b""
    events = _continued(before, blobs.get(run.events.name, b""), attempt)
    if events != before:
        write_bytes(run.events, events)


def _continued(before: bytes, told: bytes, attempt: int) -> bytes:
    """The history as it is told, where that continues ours; else ours and what is told of the attempt that begins."""
    if told.startswith(before):
        return told
    known = set(before.splitlines())
    new = [line for line in told.splitlines() if line not in known and _is_of(line, attempt)]
    mended = before if not before or before.endswith(b"\n") else before + b"\n"
    return mended + b"".join(line + b"\n" for line in new)


def _is_of(line: bytes, attempt: int) -> bool:
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=Event).attempt == attempt
    return False


def _add_attempt(run: RunDir, opening: Open) -> int:
    attempt = run.attempt(opening.intent.attempt)
    make_dir(run.attempts)
    make_dir(attempt.path)
    write_record(attempt.plan, opening.plan)
    with contextlib.suppress(FileExistsError):
        create_record(attempt.intent, opening.intent)
    raise_fence(run, attempt.number)
    return attempt.number


def _port_of(keeper: StandbyKeeper) -> int:
    """Where it listens, once it is up."""
    answer = read_answer(keeper.report())
    if not isinstance(answer, Up):
        raise LaunchError("the keeper of the run said something else than where it is")
    return answer.port
