"""Ignores SIGTERM, and has started processes in each of the ways in which they could outlive a cancel."""

import json
import multiprocessing
import os
import signal
import subprocess
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "601"], start_new_session=True)
subprocess.Popen(["env", "-i", "setsid", "sleep", "602"])
multiprocessing.get_context("fork").Process(target=time.sleep, args=(603,)).start()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(604)
    os._exit(0)
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
step = 0
while True:
    step += 1
    wire.write(json.dumps({"step": step}) + "\n")
    time.sleep(0.05)
