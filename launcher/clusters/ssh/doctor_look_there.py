"""Run on a host as text (`python -I -c TEXT ARGUMENTS`) by `launch doctor POOL`: what its folder takes,
whether processes outlive a login, what torch sees. Leaves nothing behind. The standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "launch-look: "
_LOGINCTL = ["loginctl", "show-session", "-p", "KillUserProcesses", "-p", "KillOnlyUsers", "-p", "KillExcludeUsers"]
_SEES = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_TORCH_S, _LOGINCTL_S = 60.0, 5.0


def main(arguments: str) -> None:
    asked = json.loads(arguments)
    sees, error = gpus_of_torch() if asked["torch"] else (0, "")
    found = {"refusals": refusals(asked["workdir"]), "killed": killed_at_logout(asked["user"])}
    print(MARK + json.dumps({**found, "sees": sees, "torch_error": error}), flush=True)


def refusals(workdir: str) -> list[str]:
    """What cannot be done with files there, or where the folder will be made."""
    there = workdir
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    try:
        folder = tempfile.mkdtemp(prefix=".launch-doctor-", dir=there)
    except OSError as error:
        return [f"new folders ({error.strerror or error})"]
    try:
        return [f"{what} ({said})" for what, trial in _TRIALS.items() if (said := _failure(trial, folder))]
    finally:
        shutil.rmtree(folder)


def _failure(trial: Callable[[str], None], folder: str) -> str:
    try:
        trial(folder)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _try_rename(folder: str) -> None:
    with open(f"{folder}/draft", "wb") as file:
        file.write(b"whole")
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{folder}/draft", f"{folder}/whole")
    with open(f"{folder}/whole", "rb") as file:
        if file.read() != b"whole":
            raise OSError(errno.EIO, "another content was read than was written")


def _try_lock(folder: str) -> None:
    """Somebody else must be kept out."""
    with open(f"{folder}/lock", "wb") as mine, open(f"{folder}/lock", "rb") as other:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise OSError(errno.ENOLCK, "two get the same lock")


def _try_link(folder: str) -> None:
    with open(f"{folder}/first", "wb"):
        os.link(f"{folder}/first", f"{folder}/second")


_TRIALS: dict[str, Callable[[str], None]] = {
    "fsync and rename": _try_rename,
    "flock": _try_lock,
    "hard links": _try_link,
    "symbolic links": lambda folder: os.symlink(folder, f"{folder}/link"),
    "FIFOs": lambda folder: os.mkfifo(f"{folder}/fifo", 0o600),
}


def killed_at_logout(user: str) -> bool:
    """Whether systemd-logind ends what a user has started when the login that started it ends."""
    try:
        with open("/proc/self/cgroup") as file:
            in_a_session = re.search(r"/session-[^/]+\.scope", file.read())
    except OSError:
        return False
    if not in_a_session or shutil.which(_LOGINCTL[0]) is None:
        return False
    try:
        done = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False  # it does not run here
    return kills(done.stdout, user)


def kills(settings: str, user: str) -> bool:
    """The same, by what logind says of itself. Lingering spares what the user's own systemd runs, nothing else."""
    said = dict(line.partition("=")[::2] for line in settings.splitlines())
    only = said.get("KillOnlyUsers", "").split()
    spared = user in said.get("KillExcludeUsers", "").split() or (only and user not in only)
    return said.get("KillUserProcesses") == "yes" and not spared


def gpus_of_torch() -> tuple[int, str]:
    """How many it sees; or the last line of what goes wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _SEES],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TORCH_S, check=False,
        )  # fmt: skip
        return int(done.stdout.split()[-1]), ""
    except subprocess.TimeoutExpired:
        return 0, f"import torch takes more than {_TORCH_S:g} s"
    except (IndexError, ValueError):
        return 0, (done.stderr.strip().splitlines() or [f"import torch ends with {done.returncode}"])[-1][:200]


if __name__ == "__main__":
    main(sys.argv[1])
