"""Hosts with a real sshd and a disk each, and a user at a machine of their own who reaches them."""

import random

import pytest
from ssh_desk import Desk

from tests.lab.fixtures import hosts, lab_possible, open_folder, shared_hosts, shared_lab
from tests.lab.hosts import HostLab
from tests.sizes import SEED

__all__ = ["hosts", "lab_possible", "shared_hosts", "shared_lab"]


@pytest.fixture
def desk(tmp_path, hosts):
    """A project and a state folder here; when the test is over, no process of its runs may be left on any host."""
    desk = Desk(tmp_path, hosts)
    yield desk

    def over():
        for late_messages in desk.own("ssh.host.late_messages"):  # it waits for hosts that the test has taken away
            desk.kill(late_messages)
        return not desk.everything()

    desk.until("the end of every process of its runs", over)


@pytest.fixture
def draw():
    print("seed", SEED)
    return random.Random(SEED)


@pytest.fixture
def pool_of(tmp_path, lab_possible):
    """A user's desk at a pool of other hosts."""
    up = []

    def make(**how):
        folder = open_folder()
        lab = HostLab(folder.__enter__(), **how)
        lab.up()
        up.append((folder, lab))
        return Desk(tmp_path, lab)

    yield make
    for folder, lab in up:
        lab.down()
        folder.__exit__(None, None, None)
