"""The search for secrets finds them."""

import subprocess
import tempfile
from pathlib import Path

from hostile import CANARY, command_lines, files_with, open_to_others, others_see


def test_in_files_and_by_the_bits_of_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    tmp_path.chmod(0o700)
    (tmp_path / "a" / "b").chmod(0o701)
    file = tmp_path / "a" / "x"
    file.write_text(f"TOKEN={CANARY}\n")
    file.chmod(0o644)
    (tmp_path / "a").chmod(0o700)
    assert files_with(CANARY, tmp_path) == [file]
    assert open_to_others(tmp_path) == ["701 a/b", "644 a/x"]


def test_on_a_command_line_that_was_there_for_a_moment():
    with command_lines() as lines:
        for _ in range(100):  # who looks may be asleep just then
            if not shows_canary(lines.copy()):
                subprocess.run(["sh", "-c", "sleep 0.2", CANARY])
    assert shows_canary(lines)


def shows_canary(lines):
    return any(CANARY.encode() in line for line in lines)


def test_as_somebody_else_where_they_may_look():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        file = Path(name, "x")
        file.write_text(CANARY)
        assert CANARY.encode() not in others_see(name)
        Path(name).chmod(0o755)
        file.chmod(0o644)
        assert CANARY.encode() in others_see(name)
        file.unlink()
        sleeper = subprocess.Popen(["sh", "-c", "read x", CANARY], stdin=subprocess.PIPE)
        assert CANARY.encode() in others_see(name)
        sleeper.communicate()
