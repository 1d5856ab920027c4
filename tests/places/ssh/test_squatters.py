"""Another user who has taken the names of our unix sockets before we came: they keep us waiting, and hear nothing."""

import json
import os
import socket
import subprocess
import sys

import pytest

from launcher.errors import LaunchError
from launcher.places.ssh.host import presence
from launcher.run.layout import RunDir
from launcher.supervisor.slots.table import GPU, Demand, SlotWaiter, held_name, lock_name, waits_name
from launcher.supervisor.slots.take import Slots, _user
from tests.other_users import MALLORY
from tests.waits import until

RUN, STAMP, WANTED = "job-1a2b", 7, Demand(1, 0)
DEVICE = f"squat{os.getpid()}"  # all who test on this machine see its names
UID = MALLORY if os.geteuid() == 0 else os.geteuid()

# Takes these names; at each line on stdin it tells which of them it has heard anything on, or of anybody.
SQUATTER = """
import json, os, select, socket, sys
uid = int(sys.argv[1])
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
taken = {}
for kind, name in json.loads(sys.argv[2]):
    one = socket.socket(socket.AF_UNIX, getattr(socket, kind))
    one.bind("\\0" + name)
    if kind == "SOCK_STREAM":
        one.listen()
    taken[one] = name
print(os.getuid(), flush=True)
for line in sys.stdin:
    heard = select.select(list(taken), [], [], 0)[0]
    print(json.dumps(sorted(taken[one] for one in heard)), flush=True)
"""


class Squatter:
    def __init__(self, names):
        words = [sys.executable, "-c", SQUATTER, str(UID), json.dumps(names)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == f"{UID}\n"

    def heard(self):
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "runs" / RUN)


def names_of(run):
    """Every name that a run takes on a host for as long as it needs it."""
    waiter = SlotWaiter(STAMP, _user(), RUN, WANTED)
    of_slots = [lock_name(DEVICE), held_name(GPU, DEVICE, _user(), RUN), waits_name(waiter)]
    return [("SOCK_DGRAM", presence._name(run).removeprefix("\0")), *(("SOCK_STREAM", name) for name in of_slots)]


def test_they_hear_nothing_and_are_told_nothing(run):
    names = names_of(run)
    with Squatter(names) as mallory:
        assert presence.is_held(run)
        with pytest.raises(LaunchError, match="has its supervisor there already"), presence.held(run, 0.0):
            pass
        slots = Slots(RUN, STAMP, WANTED, [DEVICE], 1)
        with pytest.raises(LaunchError, match="waits here already, in another process"):
            slots.enqueue()
        assert slots.try_take() is None
        assert "has 1" in slots.ahead()
        assert mallory.heard() == []
        for kind, name in names:  # what the rest rests on: they would have heard a word, or a caller
            with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as caller:
                caller.connect(f"\0{name}")
                if kind == "SOCK_DGRAM":
                    caller.send(b"word")
        assert mallory.heard() == sorted(name for _, name in names)


def test_once_they_have_gone_all_is_ours(run):
    with Squatter(names_of(run)):
        pass
    with presence.held(run):
        assert presence.is_held(run)
    slots = Slots(RUN, STAMP, WANTED, [DEVICE], 1)
    slots.enqueue()
    until("its turn", lambda: slots.try_take() == (DEVICE,))
    slots.release()
