"""What a trial's job runs on each of its nodes: looks around, is asked, calls the others, and leaves.

A node and the machine where it was asked for meet in the folder, which is that of runs: that they can is part of what
is tried.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from launcher.agent.interfaces import address_of
from launcher.agent.machine import this_machine
from launcher.agent.messages import WIRE_VERSION
from launcher.doctor.look_there import torch_of
from launcher.doctor.network.ways_there import OwnEnd, call, open_doors
from launcher.doctor.programs import text_of
from launcher.doctor.trial import records
from launcher.errors import LaunchError

T = TypeVar("T")
_STEP_S = 0.02
_TALK_S = 40.0  # file systems that cache may show a new file that late
_FOR_TALKING = 0.4  # of the time that there is, at most, and as much again; the rest is for torch


def talk_s(limit_s: float) -> float:
    """So long nodes are waited for; each of them waits twice as long for what it is asked."""
    return min(_TALK_S, _FOR_TALKING * limit_s)


def look_around(path: Path, me: str, address: str) -> None:
    """`me`: as the queue calls this node; `address`: by which the others reach it, as the queue's programs have it."""
    folder = records.TrialFolder(path)
    task = folder.get(records.TrialTask)
    if task is None:
        raise LaunchError(f"{folder.path} has nothing to do")
    began = time.monotonic()
    doors = tuple(_doors(address, task))
    folder.put(records.NodeGreeting(me, records.launcher_version(), platform.python_version(), doors), me)
    question = _wait_for(lambda: folder.get(records.TrialQuestion, me), began + 2 * talk_s(task.limit_s))
    if question is not None:
        folder.put(records.NodeTime(time.time()), me)
    calls = tuple(one for other in question.others for one in _calls(me, other, doors, task)) if question else ()
    left_s = began + task.limit_s - time.monotonic()
    torch = torch_of(task.rank_python, text_of("torch"), os.environ, max(1.0, left_s))
    folder.put(records.NodeReport(me, calls, torch, len(this_machine(os.environ).gpus)), me)
    _wait_for(lambda: folder.get(records.TrialTask) is None, began + task.limit_s)  # others may be about to call


def _doors(address: str, task: records.TrialTask) -> Iterator[records.Door]:
    """On the address that the queue's programs give, and on that of the interface."""
    places = {"": address}
    if task.interface is not None:
        try:
            places[task.interface] = address_of(task.interface)
        except LaunchError as error:
            yield records.Door(task.interface, error=error.lines[0])
    for name, where in places.items():
        opened = open_doors(OwnEnd(where, task.token, WIRE_VERSION))
        yield records.Door(name, where, opened.ports, opened.error and f"cannot listen on {where}: {opened.error}")


def _calls(
    me: str, other: records.NodeGreeting, doors: tuple[records.Door, ...], task: records.TrialTask
) -> Iterator[records.NodeCall]:
    own = {door.interface: door.address for door in doors}
    for door in (door for door in other.doors if not door.error):
        here = OwnEnd(own.get(door.interface, ""), task.token, WIRE_VERSION)
        found = call(here, door.address, door.ports, flood=False)
        took_ms = None if found.error else found.round_trip_s * 1000
        yield records.NodeCall(me, other.node, door.interface, door.address, found.port, took_ms, found.error)


def _wait_for(there: Callable[[], T | None], until: float) -> T | None:
    while not (found := there()) and time.monotonic() < until:
        time.sleep(_STEP_S)
    return found
