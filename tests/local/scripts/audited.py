"""What ranks do, each deed a line of one file for all, with the machine's own time: tests/chaos/audit.py reads it."""

import json
import os
import time


class Audit:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.me = {"host": os.uname().nodename, "pid": os.getpid()}

    def note(self, what, step):
        who = {
            name: int(os.environ[f"LAUNCH_{name.upper()}"]) for name in ("attempt", "generation")
        }  # of one that stays
        who["rank"] = int(os.environ["RANK"])
        line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "what": what, "step": step, **who, **self.me}
        os.write(self.file, json.dumps(line).encode() + b"\n")
