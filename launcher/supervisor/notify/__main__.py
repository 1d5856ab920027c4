"""`python -m launcher.supervisor.notify RUN_DIR ATTEMPT LINGER_S`: send notifications of one attempt of a run."""

import os
import sys
from pathlib import Path

from launcher.run.layout import RunDir
from launcher.supervisor.notify.sender import send_all

if __name__ == "__main__":
    os.umask(0o077)
    os.nice(5)
    send_all(RunDir(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]))
    sys.stderr.flush()
    os._exit(0)  # a thread that still waits for an answer is not waited for
