"""Fetch files that a run behind a login node has written: logs and metrics as they grow, outputs, and chosen
checkpoints. A Held names a checkpoint, and the files of it that a machine has.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.copies import news
from launcher.copies.mirror import fetch as mirror
from launcher.copies.mirror import logs, tails
from launcher.copies.mirror.holders import Holders
from launcher.errors import LaunchError, Unreachable
from launcher.ids import RunId
from launcher.places.login.address import KIND, Address, address_of
from launcher.places.login.lines import ask
from launcher.places.login.messages import (
    PIECE_BYTES,
    AskCheckpoints,
    AskLogs,
    AskOutputs,
    AskStock,
    GivePiece,
    KeepPiece,
    LogNews,
)
from launcher.remote.parallel import failures
from launcher.run.attempts import attempts, last_attempt
from launcher.run.durable import read_record
from launcher.run.layout import AttemptDir, RunDir, parse_log_folder
from launcher.run.records import AttemptEnd, Handle, Intent
from launcher.status.checkpoints import Checkpoint
from trainer.checkpoint_files.partial import Held

_STEP_S = 0.5  # a login node is not asked for logs more often than that
_ANSWER_S = 30.0
_STOCK_S = 3600.0  # for what a login node itself has to fetch first
_LONG_S = 86_400.0  # for every byte of all checkpoints to be read there
_MOST_ANSWERS = 4096  # of eight mebibytes of logs each
_MOST_FILES = 100_000
_MOST_MANIFEST = 64 << 20
_METRICS = re.compile(r"(roles/[^/]+/)?metrics/")

T = TypeVar("T")

_asked_at: dict[Path, float] = {}
_passed_over: dict[tuple[Path, Address, RunId], dict[str, int]] = {}  # files there that are not to come here


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run on a login node, to which attempts of a run on this machine belong.

    `run` is the run on this machine, `there` its id on the login node, and `first` the number that the first attempt
    submitted there has in `run`.
    """

    run: RunDir  # on this machine
    address: Address  # how the login node is reached
    there: RunId  # its id on the login node
    first: int  # number in `run` of the first attempt there; those before it were elsewhere


def remote_runs(run: RunDir) -> list[RemoteRun]:
    """Return the runs on login nodes to which attempts of this run belong, the oldest first."""
    found: dict[tuple[Address, RunId], int] = {}
    for attempt in attempts(run):
        handle = read_record(attempt.handle, Handle)
        if handle is not None and handle.cluster_kind == KIND and (there := handle.run_there()):
            found.setdefault((address_of(run, attempt), there), attempt.number)
    return [RemoteRun(run, *place, first) for place, first in found.items()]


def is_there(attempt: AttemptDir) -> bool:
    """Return whether the attempt's ranks write on a cluster behind a login node, and not on this machine."""
    intent = read_record(attempt.intent, Intent)
    return intent is None or intent.cluster_kind == KIND


# -- logs and metrics


def bring_logs(run: RunDir) -> None:
    """Copy new logs and metrics from all login nodes of the run. Do nothing once it has ended and all were copied, or
    if it goes on and this process tried less than half a second ago.

    Raise LaunchError if a login node does not answer and the run has no logs here yet; if it has some, they stay as
    they are.
    """
    end = read_record(last_attempt(run).end, AttemptEnd)
    now = time.monotonic()
    if end is None and now - _asked_at.get(run.path, -_STEP_S) < _STEP_S:
        return
    _asked_at[run.path] = now
    troubles: dict[str, LaunchError] = {}

    def bring(_: Sequence[AttemptDir]) -> dict[str, LaunchError]:
        """Copy what is new, and return why some login nodes could not be asked."""
        troubles.update(_bring(run))
        return troubles

    logs.bring_logs(run, is_there, bring)
    if troubles and not run.logs.exists():
        raise next(iter(troubles.values()))


def _bring(run: RunDir) -> dict[str, LaunchError]:
    """Copy new logs and metrics from all login nodes; return by address the error of each that did not answer."""
    known = logs.known(run, is_there)
    troubles = {}
    for remote in remote_runs(run):
        try:
            _bring_from(remote, known)
        except LaunchError as error:
            troubles[str(remote.address)] = error
    return troubles


def _bring_from(remote: RemoteRun, here: dict[str, int]) -> None:
    """Copy new logs and metrics from one login node; `here` has the size in bytes of each file on this machine. Raise
    LaunchError for data that were not requested, and Unreachable if there is more than one call fetches: the next call
    continues where this one ended.

    If earlier attempts were elsewhere, their metrics files may have the same names, so `remote.first`, the number of
    the first attempt on this login node, is added to the names.
    """
    mark = f".a{remote.first:04d}.jsonl" if remote.first > 1 else ".jsonl"
    known = {
        name.removesuffix(mark) + ".jsonl" if _is_metrics_file(name) else name: size
        for name, size in here.items()
        if not _is_metrics_file(name) or name.endswith(mark)
    }
    folders = logs.folders_of(remote.run)
    passed_over = _passed_over.setdefault((remote.run.path, remote.address, remote.there), {})
    known |= passed_over
    for _ in range(_MOST_ANSWERS):
        answer = ask(remote.address, AskLogs(remote.there, known, folders), LogNews, timeout_s=_ANSWER_S)
        brought = False
        for tail in answer.tails:
            if tail.at != known.get(tail.name, 0) or len(known) > _MOST_FILES:
                raise LaunchError(
                    f"{remote.address}: {tail.name[:100]!r} from byte {tail.at} on: this was not requested"
                )
            brought = brought or bool(tail.content) or tail.name not in known
            if not tail.is_plainly_named or not _is_log_of(remote, tail.name):
                if not passed_over:
                    news.say(f"{remote.address}: passed over what cannot be a log of the run: {tail.name[:100]!r}")
                known[tail.name] = passed_over[tail.name] = logs.ALL
                continue
            known[tail.name] = tail.at + len(tail.content)
            name = tail.name.removesuffix(".jsonl") + mark if _is_metrics_file(tail.name) else tail.name
            tails.put(remote.run.path, folders, tail._replace(name=name))
        if not answer.more or not brought:
            return
    raise Unreachable(f"{remote.address}: there is more of the run's logs than comes at once", "hint: again")


def _is_log_of(remote: RemoteRun, name: str) -> bool:
    """Return whether the login node of `remote` may send a log or metrics file of this name; others are not accepted.

    A log of the main role must be of an attempt from `remote.first` on, since earlier ones ran elsewhere. Other roles
    number their attempts by themselves, so a log of any attempt of theirs is accepted, and so is any metrics file.
    """
    if _is_metrics_file(name):
        return True
    above = name.split("/")
    found = parse_log_folder(above[-2])
    return found is not None and (above[0] == remote.run.roles.name or found[0] >= remote.first)


def _is_metrics_file(name: str) -> bool:
    """Return whether the file is one of metrics, of the run or one of its roles, rather than a log; `name` is its path
    in the run's folder.
    """
    return _METRICS.match(name) is not None


# -- what ranks have written beside their code


def bring_outputs(run: RunDir, draft: Path, _frozen: Collection[str]) -> list[Path]:
    """Copy the files that ranks wrote into their folder of code to folders below `draft`. Return one folder for each
    login node that has such files; their paths in it are those in the folder of code.

    The login node itself distinguishes such files from code, so `_frozen` is not used.
    """
    folders = []
    for number, remote in enumerate(remote_runs(run)):
        folder = draft / f"{number:03d}" / remote.address.login.replace("/", "_")
        tails.bring(folder, (run.code.name,), {}, partial(_outputs_of, remote), str(remote.address))
        folders.append(folder / run.code.name)
    return [folder for folder in folders if folder.is_dir()]


def _outputs_of(remote: RemoteRun, known: dict[str, int]) -> tuple[tuple[tails.Tail, ...], bool]:
    """Return (pieces of the files that ranks wrote beside their code, whether there are more). The login node sends
    what each file has beyond the size that `known` has for it.
    """
    answer = ask(remote.address, AskOutputs(remote.there, known), LogNews, timeout_s=_ANSWER_S)
    return answer.tails, answer.more


# -- checkpoints


def fetch(run: RunDir, checkpoint: str) -> list[str]:
    """Copy logs, metrics and checkpoints to this machine; return lines for the user about what was copied.

    `checkpoint` is `newest` (with it the best one), `none`, or a step. Raise Unreachable if a login node's logs could
    not be copied, after copying the rest.
    """
    return mirror.fetch(
        run,
        checkpoint,
        theirs=is_there,
        bring_logs=lambda: _bring(run.whole),
        holders=lambda: holders_of(run, checkpoint),
    )


def bring_newest(run: RunDir) -> None:
    """Copy the run's newest checkpoint that can be fetched, from which it would continue elsewhere, and its best one to
    this machine; then also the new logs and metrics of those of its login nodes that answer.

    Raise NotTransferred if there are checkpoints and none can be fetched. Raise Unreachable if none is found although a
    login node that does not answer may have one, unless the user has allowed to begin without.
    """
    mirror.bring_newest(run, holders_of(run))
    _bring(run)


def checkpoints(run: RunDir, *, verify: bool) -> list[Checkpoint]:
    """Return the run's checkpoints on the login node to which it was sent last; an empty list if it was sent to none.

    With `verify`, the login node compares every byte with the manifests. Raise Unreachable if it does not answer.
    """
    if not (there := remote_runs(run.whole)):
        return []
    last = there[-1]
    limit_s = _LONG_S if verify else _ANSWER_S
    found = ask(last.address, AskCheckpoints(last.there, verify, _role_of(run)), list[Checkpoint], timeout_s=limit_s)
    return [msgspec.structs.replace(one, path=f"{last.address.login}:{one.path}") for one in found]


def _role_of(run: RunDir) -> str:
    """Return the name of the role whose folder this is, or "" for the folder of a whole run."""
    return "" if run.whole == run else run.id


def holders_of(run: RunDir, checkpoint: str = "newest") -> Holders:
    """Ask the login nodes of a run which checkpoints they have, and return them as machines that have checkpoints of
    it. Those that do not answer are listed in the result as silent.

    `checkpoint` is what is to be fetched: `newest` or a step.
    """
    disks = {
        f"{remote.address.login}:{remote.there}": LoginDisk(remote.address, remote.there, checkpoint, _role_of(run))
        for remote in remote_runs(run.whole)
    }
    held: dict[str, Sequence[Held] | LaunchError] = {}
    for name, disk in disks.items():
        try:
            held[name] = disk.held()
        except LaunchError as error:
            held[name] = error
    silent = failures(held)
    home = run.path / mirror.checkpoint_folder(run)
    return Holders(home, disks, {name: one for name, one in held.items() if not isinstance(one, LaunchError)}, silent)


@dataclass(frozen=True, slots=True)
class LoginDisk:
    """A login node as a machine that has checkpoints of a run.

    `there` is the run's id on it. `checkpoint` says which one will be fetched ("newest", a step or "none"), so that the
    login node can first copy it from other hosts. `token` is needed only to send files: it is the submit token of the
    run that gets them, which is about to be created there.
    """

    address: Address
    there: RunId
    checkpoint: str = "newest"
    role: str = ""  # a role other than the main one; "": the run
    token: str = ""  # submit token of a run that is about to be created there

    def held(self) -> Sequence[Held]:
        """Return which files of each checkpoint the login node has."""
        return ask(self.address, AskStock(self.there, self.checkpoint, self.role), list[Held], timeout_s=_STOCK_S)

    def give(self, wanted: Held, name: str, take: Callable[[Iterator[bytes]], T]) -> T:
        """Call `take` with the bytes of the file `name` of the checkpoint `wanted` as they arrive, and return its
        result; an empty name stands for the manifest.
        """
        return take(self._pieces(wanted, name))

    def _pieces(self, wanted: Held, name: str) -> Iterator[bytes]:
        """Yield the bytes of the file `name` of the checkpoint `wanted`, requested in pieces of PIECE_BYTES; an empty
        name stands for the manifest. Raise Unreachable if the login node does not answer.
        """
        at, piece = 0, b" " * PIECE_BYTES
        while len(piece) == PIECE_BYTES and (name or at < _MOST_MANIFEST):
            request = GivePiece(self.there, wanted.step, wanted.kind, name, at, self.role)
            piece = ask(self.address, request, bytes, timeout_s=_ANSWER_S)
            yield piece
            at += len(piece)

    def keep(self, wanted: Held, name: str, size: int, manifest: bytes, pieces: Iterable[bytes]) -> None:
        """Send the file `name` of the checkpoint `wanted` to the login node, in pieces; the run there is found by its
        submit token. `pieces` yields the `size` bytes; `manifest` is the content of the checkpoint's manifest.
        """
        at = 0
        for piece in pieces:
            at += len(piece)
            request = KeepPiece(
                self.address.folder, self.token, manifest, wanted.kind, name, at - len(piece), piece, size
            )
            ask(self.address, request, type(None), timeout_s=_ANSWER_S)
