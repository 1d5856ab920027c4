"""Ends only by SIGKILL, and has a child that does no better."""

import os
import signal

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child != 0:
    print(os.getpid(), child)
while True:
    signal.pause()
