"""Record a version on the day of its release, for the tests of later versions."""

import subprocess
import sys

import older

from launcher.states import VERSION


def test_this_version_can_be_recorded(tmp_path):
    older.record(tmp_path)
    env = older.unpack(VERSION, tmp_path / "code", tmp_path)
    where = "import launcher.cli.main; print(launcher.cli.main.__file__)"
    done = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.startswith(env["PYTHONPATH"]), done.stderr
    options = (tmp_path / f"spec-{VERSION}.txt").read_text().splitlines()
    assert "run.script=train.py" in options and len(options) > 100
