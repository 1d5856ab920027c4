"""A run's process on a host: takes slots as it is told on stdin, one JSON request a line, and answers each.

taker.py RUN STAMP GPUS CPUS OF_GPUS OF_CPUS [UID]
"""

import json
import os
import subprocess
import sys

from launcher.supervisor.slots.take import Demand, Slots
from launcher.errors import LaunchError

run, stamp, gpus, cpus, of_gpus, of_cpus, *uid = sys.argv[1:]
if uid:
    os.setgroups([])
    os.setgid(int(uid[0]))
    os.setuid(int(uid[0]))
names = [name for name in of_gpus.split(",") if name]
slots = Slots(run, int(stamp), Demand(int(gpus), int(cpus)), names, int(of_cpus), host="node1")


def agent():
    """A process that has the slots as well."""
    return subprocess.Popen(["sleep", "600"], pass_fds=slots.fds).pid


VERBS = {
    "enqueue": slots.enqueue,
    "take": slots.try_take,
    "ahead": slots.ahead,
    "contested": slots.contested,
    "release": slots.release,
    "fds": lambda: slots.fds,
    "agent": agent,
}
for line in sys.stdin:
    try:
        answer = VERBS[line.strip()]()
    except LaunchError as error:
        answer = f"error: {error}"
    print(json.dumps(answer), flush=True)
