"""The terminal in README.md: `python -m tests.docs.picture` records it and writes `.github/terminal.svg`."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / ".github" / "terminal.svg"
_COLUMNS = 118
_KILLED_AT = "step 30/60"
_TRAINING = ["submit", "jobs/resnet_ddp.yaml", "--set", "run.args.max-steps=60", "--follow"]
_KILLING = " " * 40 + "# in another terminal: kill -9 {pid}\n"


def record(runs: Path) -> str:
    """Train, kill a rank on the way and look at the run; return what a terminal would show."""
    shown = [f"$ launch {' '.join(_TRAINING)}\n"]
    pid = None
    for line in _lines(_TRAINING, runs):
        shown.append(line)
        if pid is None and _KILLED_AT in line:
            pid = _pid_of_rank_1(runs)
            os.kill(pid, signal.SIGKILL)
            shown.append(_KILLING.format(pid=pid))
    shown += ["\n$ launch status\n", *_lines(["status"], runs)]
    return "".join(shown)


def _lines(args: list[str], runs: Path) -> Iterator[str]:
    """Run `launch` with these arguments in a terminal; yield its lines, with their colours."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "launcher.cli.main", *args],
        cwd=ROOT,
        env=_environment(runs),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ):
        os.close(slave)
        with open(master, encoding="utf-8", errors="replace", newline="\n") as terminal:
            try:
                yield from (line.replace("\r\n", "\n").rpartition("\x1b[K")[2] for line in terminal)
            except OSError:
                return  # the end of a terminal reads as an error


def _environment(runs: Path) -> dict[str, str]:
    return os.environ | {
        "COLUMNS": str(_COLUMNS), "LAUNCH_RUNS": str(runs), "XDG_STATE_HOME": str(runs), "TERM": "xterm-256color"
    }  # fmt: skip


def _pid_of_rank_1(runs: Path) -> int:
    answer = subprocess.check_output(
        [sys.executable, "-m", "launcher.cli.main", "status", "last", "--json"], cwd=ROOT, env=_environment(runs)
    )
    return int(json.loads(answer)["ranks"][1]["pid"])


def drawn(shown: str) -> str:
    """Return the picture of what a terminal shows, in fonts that the reader has."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(shown))
    svg = console.export_svg(title="launch", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        PICTURE.write_text(drawn(record(Path(folder))))
