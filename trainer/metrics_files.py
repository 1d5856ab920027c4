"""Name and read the metrics files that a training writes; needs no torch.

If nodes share no disk each attempt has a file of its own: the first rank of the next attempt may run on another node,
and launch collects the files by their names.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

FILE = "metrics.jsonl"
START = "start"  # a line with the step from which a start goes on: lines of later steps before it are void
ATTEMPT = "attempt"  # of that start, where launch made it
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP)


def of_attempt(attempt: int | str) -> str:
    """Return the name of an attempt's metrics file, such as `metrics.a0002.jsonl`, for nodes that share no disk.

    `attempt` is its number, or a text such as `*` to put in the number's place.
    """
    number = attempt if isinstance(attempt, str) else f"{attempt:04d}"
    return f"metrics.a{number}.jsonl"


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return one dict per step, in order, from the metrics files in `folder`.

    A step that was repeated after a kill is in it once, as repeated; a line that a kill cut short is left out. Raises
    OSError if a file cannot be read.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in _lines(files_in(Path(folder)) or [Path(folder) / FILE]):
        if isinstance(start := line.get(START), int):
            steps = {step: known for step, known in steps.items() if step <= start}
        elif isinstance(step := line.get("step"), int):
            steps.setdefault(step, {}).update(line)
    return [steps[step] for step in sorted(steps)]


def starts_in(folder: str | os.PathLike[str]) -> list[int]:
    """Return the step at which each start (launch of the training's ranks) began, in the order of the starts.

    Raises OSError if a file cannot be read.
    """
    found = [line.get(START) for line in _lines(files_in(Path(folder)))]
    return [start for start in found if isinstance(start, int)]


def files_in(folder: Path) -> list[Path]:
    """Return the metrics files in `folder`, or an empty list if it does not exist or cannot be read."""
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
    """Open a regular file for reading without blocking on a FIFO. Raises OSError if `path` is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "expected a file", str(path))
    return os.fdopen(fd, "rb")


def _lines(paths: list[Path]) -> list[dict[str, Any]]:
    """Return the decoded lines of all files, in the order of the run's attempts and their starts.

    A line that a kill cut short becomes an empty dict. Raises OSError if a file cannot be read.
    """
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
    """Return the attempt number in the first of these decoded lines, or 0 if that has none."""
    attempt = lines[0].get(ATTEMPT) if lines else 0
    return attempt if isinstance(attempt, int) else 0


def _parsed(text: bytes) -> dict[str, Any]:
    """Return a line of JSON as a dict, or an empty dict if it is none, as when a kill cut it short."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {key: _number(value) for key, value in line.items()} if isinstance(line, dict) else {}


def _number(value: Any) -> Any:
    """Return a metric as a number: NaN and infinity, which JSON has as "nan", "inf" and "-inf", become floats.

    Any other value is returned unchanged.
    """
    return float(value) if value in ("nan", "inf", "-inf") else value
