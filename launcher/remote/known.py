"""What this user's state folder holds of remote runs. Cheap to import: every `launch status` does.

<state>/launch/remote/
  <run id>.json          a run that is on a login node, and how to get there
  asked/<token>.json     a submit that has not been answered yet
  answers/<cluster>.json what its login node said last of each run
"""

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from launcher.errors import NoSuchRun
from launcher.rundir import registry
from launcher.rundir.durable import Damaged, make_dir, read_record, sync_dir, write_record
from launcher.rundir.layout import RunDir
from launcher.rundir.records import ProcessId
from launcher.status.derive import RunStatus

if TYPE_CHECKING:
    from launcher.remote.wire import Outcome

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_SUFFIX = ".json"
_SHOWN = 8


class Login(msgspec.Struct, frozen=True):
    """How to get to a cluster whose programs are on another machine."""

    cluster: str  # as the user calls it
    login: str  # for ssh
    launch: str  # the program there
    folder: str  # where code and runs are kept there


class RemoteRun(msgspec.Struct, frozen=True):
    """<run id>.json"""

    run: str
    name: str
    login: Login
    on: str  # what the cluster is called there
    path: str  # its run directory there
    submitted_at: float
    spec: str  # as submitted from here, absolute

    @property
    def place(self) -> str:
        """Its run directory, as it is named from here."""
        return f"{self.login.login}:{self.path}"


class Asked(msgspec.Struct, frozen=True):
    """asked/<token>.json: on disk before the login node hears of it."""

    token: str
    login: Login
    name: str
    on: str
    spec: str
    asked_at: float
    by: ProcessId


class Seen(msgspec.Struct, frozen=True):
    """answers/<cluster>.json, of each run: what was said last."""

    at: float
    status: RunStatus


class _Age(msgspec.Struct, frozen=True):
    submitted_at: float = 0.0


def runs() -> list[RemoteRun]:
    """Every remote run of this user; a record that is none is passed over."""
    found = []
    for name in _names(_folder()):
        with contextlib.suppress(Damaged, FileNotFoundError):
            if (record := read_record(_folder() / name, RemoteRun)) is not None:
                found.append(record)
    return found


def any_known() -> bool:
    """Whether there is anything to ask about."""
    return bool(_names(_folder()) or _names(_folder() / "asked"))


def find(ref: str) -> RemoteRun | None:
    """The remote run that this id, unique beginning of one, or `last` means; None where it means no remote run."""
    here = {run.run: run for run in runs()}
    if not here:
        return None
    if ref == registry.LAST:
        newest = max(here.values(), key=lambda run: (run.submitted_at, run.run))
        return newest if newest.submitted_at > _newest_local() else None
    local = [run_id for run_id, path in registry.registered() if path.is_dir()]
    if ref in here or ref in local:
        return here.get(ref)
    matches = sorted(run_id for run_id in {*here, *local} if ref and run_id.startswith(ref))
    if len(matches) > 1 and any(run_id in here for run_id in matches):
        more = ", ..." if len(matches) > _SHOWN else ""
        raise NoSuchRun(
            f"{ref}: expected the id of one run, got the beginning of {len(matches)}",
            f"hint: {', '.join(matches[:_SHOWN])}{more}",
        )
    return here.get(matches[0]) if matches else None


def save(run: RemoteRun) -> None:
    if not _ID.fullmatch(run.run) or run.run == registry.LAST:
        raise Damaged(f"{run.login.login}: expected the id of a run, got {run.run[:100]!r}")
    make_dir(_folder())
    write_record(_folder() / f"{run.run}{_SUFFIX}", run)


def asked() -> list[Asked]:
    """The submits that were begun and never answered."""
    found = []
    for name in _names(_folder() / "asked"):
        with contextlib.suppress(Damaged, FileNotFoundError):
            if (record := read_record(_folder() / "asked" / name, Asked)) is not None:
                found.append(record)
    return found


def note_asked(asked: Asked) -> None:
    """Intent is on disk before the effect."""
    make_dir(_folder() / "asked")
    sync_dir(_folder())
    write_record(_asked_file(asked), asked)


def forget_asked(asked: Asked) -> None:
    _asked_file(asked).unlink(missing_ok=True)


def settle(asked: Asked, outcome: "Outcome") -> list[RemoteRun]:
    """Note down what became of a submit; gives the runs that there are."""
    place = (asked.name, asked.login, asked.on)
    found = [RemoteRun(made.run, *place, made.path, asked.asked_at, asked.spec) for made in outcome.runs]
    for run in found:
        save(run)
    forget_asked(asked)
    return found


def answers(cluster: str) -> dict[str, Seen]:
    """What was last said of each run there; nothing where it was said in the words of another version."""
    with contextlib.suppress(Damaged):
        return read_record(_answers_file(cluster), dict[str, Seen]) or {}
    return {}


def keep_answers(cluster: str, seen: dict[str, Seen]) -> None:
    make_dir(_folder() / "answers")
    write_record(_answers_file(cluster), seen)


def forget_answer(run: RemoteRun) -> None:
    """What was last said of it does not hold any more."""
    left = {one: seen for one, seen in answers(run.login.cluster).items() if one != run.run}
    keep_answers(run.login.cluster, left)


def index_folder() -> Path:
    """Where it is kept what each file of a project hashed to."""
    make_dir(_folder() / "index")
    return _folder() / "index"


def _newest_local() -> float:
    with contextlib.suppress(NoSuchRun):
        run = RunDir(registry.find(registry.LAST))
        for file in (run.state, run.plan):
            with contextlib.suppress(Damaged, OSError):
                if (age := read_record(file, _Age)) is not None:
                    return age.submitted_at
    return 0.0


def _names(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name.endswith(_SUFFIX) and _ID.fullmatch(name.removesuffix(_SUFFIX)))


def _asked_file(asked: Asked) -> Path:
    return _folder() / "asked" / f"{asked.token}{_SUFFIX}"


def _answers_file(cluster: str) -> Path:
    return _folder() / "answers" / f"{cluster}{_SUFFIX}"


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "launch" / "remote"
