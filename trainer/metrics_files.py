"""The files of metrics that a training writes: what they are called, and what they say in the end. Needs no torch.

Where each node has a disk of its own, an attempt has a file of its own: the first rank of the next one may be on
another node, and their files are brought together by their names.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

FILE = "metrics.jsonl"
START = "start"  # a line that says from which step on a start goes on: what was written of later steps is void
ATTEMPT = "attempt"  # of that start, where launch made it
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP)


def of_attempt(attempt: int | str) -> str:
    """The file of an attempt, where disks are apart."""
    number = attempt if isinstance(attempt, str) else f"{attempt:04d}"
    return f"metrics.a{number}.jsonl"


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """One dict a step, in order, as the training went in the end.

    What a killed start had written of steps that were done again is left out, and a line cut short by a kill too.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in _lines(files_in(Path(folder)) or [Path(folder) / FILE]):
        if isinstance(start := line.get(START), int):
            steps = {step: known for step, known in steps.items() if step <= start}
        elif isinstance(step := line.get("step"), int):
            steps.setdefault(step, {}).update(line)
    return [steps[step] for step in sorted(steps)]


def starts_in(folder: str | os.PathLike[str]) -> list[int]:
    """The steps from which its starts went on, in their order."""
    found = [line.get(START) for line in _lines(files_in(Path(folder)))]
    return [start for start in found if isinstance(start, int)]


def files_in(folder: Path) -> list[Path]:
    """Return the files of metrics in `folder`; what has such a name and is no file is left out."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return []
    begin, end = of_attempt("*").split("*")
    ours = [FILE] * (FILE in names) + [name for name in names if name.startswith(begin) and name.endswith(end)]
    return [path for name in ours if (path := folder / name).is_file()]


def open_file(path: Path) -> BinaryIO:
    """To read from. Raises OSError for what is no file, and does not wait for it as one waits for a FIFO's writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "expected a file", str(path))
    return os.fdopen(fd, "rb")


def _lines(paths: list[Path]) -> list[dict[str, Any]]:
    """Of all files, start by start in the order of their attempts."""
    starts: list[list[dict[str, Any]]] = []
    for path in paths:
        starts.append([])
        with open_file(path) as file:
            text = file.read()
        for line in map(_parsed, text.splitlines()):
            if START in line:
                starts.append([])
            starts[-1].append(line)
    starts.sort(key=_attempt_of)
    return [line for lines in starts for line in lines]


def _attempt_of(lines: list[dict[str, Any]]) -> int:
    attempt = lines[0].get(ATTEMPT) if lines else 0
    return attempt if isinstance(attempt, int) else 0


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {key: _number(value) for key, value in line.items()} if isinstance(line, dict) else {}


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
