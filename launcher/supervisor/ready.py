"""Check whether a role is ready, in the way that its spec names."""

import contextlib
import os
import socket
from collections.abc import Collection
from pathlib import Path

from launcher.plan.model import Plan
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import Readiness

_ANSWER_S = 0.5
_PAGES = 256
_MOST = 16 << 20  # of a log that is looked through


def is_ready(way: Readiness, run: RunDir, attempt: AttemptDir, plan: Plan, addresses: Collection[str]) -> bool:
    """Return whether each rank of the role is ready."""
    if way.file is not None:
        return Path(plan.run_dir, plan.workdir, way.file).exists()
    if way.log is not None:
        return _have_logged(run, attempt, way.log, len(addresses))
    return all(_answers(address, way.path) for address in addresses)


def _have_logged(run: RunDir, attempt: AttemptDir, text: str, ranks: int) -> bool:
    """Return whether the logs of exactly `ranks` ranks of the newest generation contain the text."""
    folders = sorted(run.logs.glob(f"a{attempt.number:04d}.g*"))
    found = 0
    for log in folders[-1].glob("rank-*.log") if folders else ():
        with contextlib.suppress(OSError), open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as lines:
            found += text.encode() in lines.read(_MOST)
    return found == ranks


def _answers(address: str, path: str | None) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _ANSWER_S) as line:
            if path is None:
                return True
            line.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            head = line.recv(64)
            for _ in range(_PAGES):  # who answers is let to say all
                if not line.recv(4096):
                    break
    except OSError:
        return False
    return head.startswith(b"HTTP/1.") and head[8:12] == b" 200"
