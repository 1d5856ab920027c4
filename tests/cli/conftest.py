import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from run_folder import RunFolder

from launcher.run import registry
from tests import documented

_BOUND_S = 150.0


class Desk:
    """A user's state folder, runs in it, and the real `launch` on them."""

    def __init__(self, root):
        self.root = root
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAUNCH_", "NO_COLOR"))}
        self.env = {**kept, "XDG_STATE_HOME": str(root / "state"), "TERM": "xterm", "TZ": "UTC"}

    def run(self, name="job-abcd"):
        """A folder for a run, and its entry in the registry."""
        folder = RunFolder(self.root / "runs" / name)
        registry.register(name, folder.path, fsync=False)
        return folder

    def launch(self, *words, check=0, env=None, cwd=None):
        done = subprocess.run(
            [sys.executable, "-m", "launcher.cli.main", *words],
            env={**self.env, **(env or {})},
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            timeout=_BOUND_S,
        )
        if check is not None:
            assert done.returncode == check, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        documented.check(words, done.stdout)
        return done

    def on_terminal(self, *words, env=None, until=None, then=lambda process: None, columns=100, keys=""):
        """Exit code and all that a terminal of so many columns got; `then` is called, and these keys are pressed,
        once `until` was shown."""
        ours, theirs = pty.openpty()
        subprocess.run(["stty", "rows", "30", "cols", str(columns)], stdin=theirs, check=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher.cli.main", *words],
            env={**self.env, **(env or {})},
            cwd=self.root,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            shown = self._until_closed(ours, process, until, then, keys)
            return process.wait(_BOUND_S), shown
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def _until_closed(self, ours, process, until, then, keys):
        shown, waiting = "", until is not None
        deadline = time.monotonic() + _BOUND_S
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536).decode(errors="replace")
                except OSError:  # the other end of a terminal closes so
                    return shown
            if waiting and until in shown:
                waiting = False
                then(process)
                os.write(ours, keys.encode())
        raise AssertionError(f"never ended; shown so far: {shown}")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Desk(tmp_path)
