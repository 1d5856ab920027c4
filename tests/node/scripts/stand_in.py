"""Stands in for an agent that can be killed: has one rank forked, says which pids there are, and waits."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
zygote, order = sys.argv[1], json.loads(sys.argv[2])
ours, theirs = socket.socketpair()
child = subprocess.Popen(
    [sys.executable, zygote, "serve", str(theirs.fileno()), str(os.getpid())], pass_fds=[theirs.fileno()]
)
theirs.close()
lines = ours.makefile("rb")
ours.sendall(json.dumps({"op": "fork", "id": 1, "order": order}).encode() + b"\n")
print(child.pid, next(word["pid"] for word in map(json.loads, lines) if "pid" in word), flush=True)
signal.pause()
