"""Write the output of a background process to its log file."""

import os
from pathlib import Path

from launcher.run.patience import patiently

_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW


def log_to(path: Path) -> None:
    """Append from now on all that this process writes to stdout and stderr to the file at `path`, which is made if it
    does not exist. Raise OSError if it cannot be opened.
    """
    log = patiently(lambda: os.open(path, _LOG, 0o600))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
