"""The common part of all labs: nodes on a bridge that start together and leave nothing behind."""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.lab import claims
from tests.lab.claims import TAG, claim, release
from tests.lab.nodes import BOUND_S, LabError

if TYPE_CHECKING:
    from tests.lab.nodes import Namespace, Node


class Lab(ABC):
    """Up inside the `with`, or between up() and down()."""

    def __init__(self, folder: Path, *, stays: bool = False):
        self.folder = folder.absolute()
        self.stays = stays
        self.logs = self.folder / "log"
        self.own_etc = self.folder / "own-etc"  # what nodes have in /etc instead of this machine's
        self.hosts = self.own_etc / "hosts"
        self.env: Mapping[str, str] = {}  # what its users have in theirs
        self.parts: Sequence[Namespace] = ()

    @abstractmethod
    def come_up(self) -> None:
        """Fill `parts` and start them; the subnet and the folder are there."""

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        self.own_etc.mkdir(exist_ok=True)
        self.own_etc.chmod(0o755)  # it becomes their /etc
        self.claim = claim(self.folder, stays=self.stays)
        try:
            self.come_up()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Leave nothing but configuration and logs."""
        for each in self.parts:
            each.kill()
        release(self.claim)

    def traces(self) -> list[str]:
        """Return what the lab has left on this machine, except configuration and logs in its folder."""
        mark, bridge = str(self.folder), self.claim.bridge
        found = [f"process {pid}" for pid in claims.tagged(mark)]
        found += [f"inside {pid}" for pid in claims.pids() if mark.encode() in claims.read(pid, "cmdline")]
        if not any(each.bridge == bridge and each.folder != mark for each in claims.claims()):  # it may have gone on
            found += [f"link {name}" for name in os.listdir("/sys/class/net") if f"{name}-".startswith(f"{bridge}-")]
        found += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if mark in line]
        found += [f"claim {each}" for each in claims.claims() if each.folder == mark]
        found += [f"device {path}" for path in self.folder.rglob("*") if not path.is_dir() and not path.is_file()]
        return found

    def run(
        self, *argv: str, timeout: float = BOUND_S, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a client of this lab, or any program, on the submitter's machine, which is this one."""
        whole = {**os.environ, **self.env, TAG: str(self.folder), **(env or {})}
        return subprocess.run(argv, timeout=timeout, env=whole, cwd=cwd, capture_output=True, text=True, check=False)


class ClusterLab(Lab):
    """A lab with a batch system: its clients speak of jobs, and its daemons are repaired between tests."""

    control: "Namespace"
    nodes: "Sequence[Node]"

    @abstractmethod
    def idle(self) -> bool:
        """True where all nodes are well and there is no job."""

    @abstractmethod
    def clear(self) -> None:
        """Undo everything that a test has done."""

    def all_idle(self) -> bool:
        """True where `idle` is; a daemon that has ended raises LabError."""
        for each in (self.control, *self.nodes):
            each.check()
        return self.idle()

    def ask(self, *argv: str) -> str:
        """What a client says; it must succeed."""
        done = self.run(*argv)
        if done.returncode:
            raise LabError(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def well(self) -> None:
        """Idle, and what has ended by itself since the last test is back; what it left in its log is shown."""
        try:
            self.control.check()
        except LabError as error:
            print(f"the lab is repaired: {error}", file=sys.stderr)
        if not self.idle():
            self.clear()
