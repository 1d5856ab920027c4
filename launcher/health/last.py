"""Store the last result of `launch doctor` for a cluster in the user's state folder, for the board."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from launcher.errors import LaunchError
from launcher.health.findings import Finding
from launcher.run.durable import make_dir, readable, write_record
from launcher.run.ownership import is_ours_alone, refuse_exposed
from launcher.run.registry import state_folder


class CheckUp(msgspec.Struct, frozen=True):
    """The findings of the last `launch doctor` for a cluster, its time, and whether nodes took part in a trial."""

    at: float  # Unix time of the check
    trial: bool  # made with `--try`: nodes examined themselves and each other
    findings: tuple[Finding, ...]


def keep(cluster: str, findings: Sequence[Finding], *, trial: bool) -> None:
    """Store the findings about `cluster` with the time, in place of the last ones; `last_check_up` reads them. `trial`
    is True if a trial job was run.

    A failure to store them is ignored, because `launch doctor` has printed them.
    """
    with contextlib.suppress(OSError, LaunchError):
        folder = _file(cluster).parent
        make_dir(folder)
        refuse_exposed(folder, "state", "hint: XDG_STATE_HOME names another folder for what was found of clusters")
        write_record(_file(cluster), CheckUp(time.time(), trial, tuple(findings)), fsync=False)


def last_check_up(cluster: str) -> CheckUp | None:
    """Return the last stored findings for the cluster, or None if there are none, they are invalid, or another user
    could have written them.
    """
    with contextlib.suppress(FileNotFoundError):
        if is_ours_alone(_file(cluster).parent):
            return readable(_file(cluster), CheckUp)
    return None


def _file(cluster: str) -> Path:
    """Return the path of the file for the result of this cluster's last check; the file need not exist."""
    name = quote(cluster, safe="")
    return state_folder() / "check-ups" / f"{name.replace('.', '%2E')}.json"
