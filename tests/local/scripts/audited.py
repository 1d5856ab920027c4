"""Ranks that write a line for each action into one file, with the machine's own time, for tests/chaos/audit.py."""

import json
import os
import time


class Audit:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.me = {"host": os.uname().nodename, "pid": os.getpid()}

    def note(self, what, step):
        # Looked up each time: a rank that stays gets another generation.
        names = {"attempt": "LAUNCH_ATTEMPT", "generation": "LAUNCH_GENERATION", "rank": "RANK"}
        who = {name: int(os.environ[variable]) for name, variable in names.items()}
        line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "what": what, "step": step, **who, **self.me}
        os.write(self.file, json.dumps(line).encode() + b"\n")
