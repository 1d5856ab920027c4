"""Many processes that want slots of one host at the same time: `race.py LOG SEED RUNS GPUS CPUS QUEUE`.

With QUEUE 0 nobody waits for a turn. Each writes to LOG what it takes, and that it lets go before it does; half of them end as by kill -9.
"""

import os
import random
import signal
import sys
import time

from launcher.supervisor.slots.take import Demand, Slots

path, seed, runs, gpus, cpus, queue = sys.argv[1], *map(int, sys.argv[2:])
names = [str(number) for number in range(gpus)]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
ready, begin = os.pipe(), os.pipe()


def compete(number):
    draw = random.Random(seed * 1000 + number)
    demand = Demand(draw.randint(1, gpus), 0) if gpus else Demand(0, draw.randint(1, cpus))
    slots = Slots(f"run-{number}", draw.randint(1, 5), demand, names, cpus)
    if queue and draw.random() < 0.8:  # the others come late
        slots.enqueue()
    os.write(ready[1], b"1")
    os.read(begin[0], 1)
    if queue:
        slots.enqueue()
    while (taken := slots.try_take()) is None:
        time.sleep(draw.uniform(0.001, 0.01))
    what = " ".join(taken) if gpus else str(demand.cpus)
    os.write(log, f"{number} takes {what}\n".encode())
    time.sleep(draw.uniform(0, 0.02))
    os.write(log, f"{number} drops {what}\n".encode())
    if draw.random() < 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    slots.release()
    time.sleep(0.01)  # alive without slots
    os._exit(0)


children = []
for number in range(runs):
    children.append(os.fork())
    if not children[-1]:
        compete(number)
for _ in range(runs):
    os.read(ready[0], 1)
os.write(begin[1], b"1" * runs)
for child in children:
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
