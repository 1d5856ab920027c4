"""Test the watchdog, which ends the ranks of an agent that cannot: how it counts, and what it does to processes."""

import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from launcher.clock import STEP_S
from launcher.node.ranks.lease import AfterSuspend, LeaseWatch
from launcher.run.processes import is_stopped
from tests.waits import until

LEASE_S = 15.0
BOUND_S = 150.0


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def looks(watch, clock, until, for_s, every_s=0.5):
    """Return what is left of the lease after this many looks."""
    end = clock.now + for_s
    while clock.now < end:
        clock.now += every_s
        watch.left_s(until)
    return watch.left_s(until)


@pytest.mark.parametrize("slept", AfterSuspend)
def test_a_lease_runs_out_before_an_awake_guard(clock, slept):
    watch, until = LeaseWatch(slept, clock), clock.now + LEASE_S
    assert looks(watch, clock, until, LEASE_S - 1) == 1
    assert looks(watch, clock, until, 1) == 0


@pytest.mark.parametrize("slept", AfterSuspend)
def test_one_that_slept_with_all_forgives_where_nobody_can_have_gone_on_without_it(clock, slept):
    watch, until = LeaseWatch(slept, clock), clock.now + LEASE_S
    assert looks(watch, clock, until, 5) == 10
    clock.now += 3600
    assert watch.left_s(until) == (10 - 3600 if slept is AfterSuspend.COUNTS else 10 - STEP_S)
    assert watch.needs_ruling(until) is (slept is AfterSuspend.ASKED)
    assert looks(watch, clock, until, 10) <= 0, "and no longer than it was owed"


def test_what_is_after_suspend_just_after_a_renewal_is_forgiven_too(clock):
    watch, until = LeaseWatch(AfterSuspend.FORGIVEN, clock), clock.now + LEASE_S
    looks(watch, clock, until, 1)
    renewed = clock.now + LEASE_S  # and before the guard looks again, all stand still
    clock.now += 3600
    assert watch.left_s(renewed) == LEASE_S - STEP_S


def test_an_answer_from_before_the_sleep_takes_no_forgiveness_away(clock):
    watch, until = LeaseWatch(AfterSuspend.ASKED, clock), clock.now + LEASE_S
    looks(watch, clock, until, 5)
    clock.now += 3600
    assert watch.left_s(until) == 10 - STEP_S
    late = until + 1
    assert watch.left_s(late) == 11 - STEP_S
    assert watch.needs_ruling(late)


def test_old_sleep_does_not_stretch_a_lease_that_is_renewed(clock):
    watch, until = LeaseWatch(AfterSuspend.FORGIVEN, clock), clock.now + LEASE_S
    looks(watch, clock, until, 1)
    clock.now += 3600
    watch.left_s(until)
    looks(watch, clock, clock.now + LEASE_S, 1)
    renewed = clock.now + LEASE_S
    assert looks(watch, clock, renewed, LEASE_S - 1) == 1
    assert not watch.needs_ruling(renewed)


AGENT = """
import mmap, os, signal, subprocess, sys, time
from launcher.run.processes import become_subreaper
from launcher.node.ranks.lease import AfterSuspend, start_watchdog
from launcher.clock import boottime

shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
clock = lambda: boottime() + shared[0]
become_subreaper()
guard = start_watchdog(AfterSuspend[sys.argv[2]], clock)
fork = "import os, time; os.fork() or os.setsid(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", fork], start_new_session=True, stdout=subprocess.DEVNULL)
below = lambda pid: open(f"/proc/{pid}/task/{pid}/children").read().split()
while len(below(os.getpid())) < 2 or not below(below(os.getpid())[1]):
    time.sleep(0.01)
guard.lease.until = clock() + 600
print("up", flush=True)
for line in sys.stdin:
    if line == "all slept\\n":
        shared[0] += 3600
    elif line == "one stands by\\n":
        guard.lease.standby = int(below(os.getpid())[1])
    else:
        guard.lease.until = clock() + float(sys.argv[1])
        print("renewed", flush=True)
"""


@contextmanager
def started(lease_s, slept=AfterSuspend.FORGIVEN):
    words, pipe = [sys.executable, "-c", AGENT, lease_s, slept.name], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as agent:
        assert agent.stdout.readline() == b"up\n"
        yield agent


def send_bytes(agent, words):
    """Write bytes to the agent's stdin."""
    agent.stdin.write(words)
    agent.stdin.flush()


def all_below(agent):
    """Return all processes below an agent, its watchdog first."""
    found, waiting = [], [agent.pid]
    while waiting:
        pid = waiting.pop()
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            below = [int(one) for one in file.read().split()]
        found += below
        waiting += below
    return found


def handles_of_all_below(agent):
    return [os.pidfd_open(pid) for pid in all_below(agent)]


def all_end(handles):
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], BOUND_S)
        os.close(handle)
        if not ended:
            return False
    return True


def test_all_below_a_frozen_agent_ends_with_its_lease_and_then_the_agent():
    with started("2") as agent:
        handles = handles_of_all_below(agent)
        assert len(handles) >= 2, "its guard, and a rank"
        send_bytes(agent, b"renewed\n")
        assert agent.stdout.readline() in (b"renewed\n", b""), "or has ended already"
        agent.send_signal(signal.SIGSTOP)
        assert all_end(handles)
        assert agent.wait(BOUND_S) == -signal.SIGKILL


def test_the_next_agent_outlives_the_lease_of_a_frozen_one_and_nothing_below_it_does():
    with started("2") as agent:
        guard, standby, below = handles_of_all_below(agent)
        send_bytes(agent, b"one stands by\nrenewed\n")
        assert agent.stdout.readline() == b"renewed\n"
        agent.send_signal(signal.SIGSTOP)
        assert agent.wait(BOUND_S) == -signal.SIGKILL
        assert all_end([guard, below])
        assert not select.select([standby], [], [], 0)[0]
        signal.pidfd_send_signal(standby, signal.SIGKILL)
        os.close(standby)


def test_a_guard_leaves_with_its_agent():
    with started("600") as agent:
        guard, *others = handles_of_all_below(agent)
        agent.kill()
        assert agent.wait(BOUND_S) == -signal.SIGKILL
        assert all_end([guard])
        for handle in others:
            signal.pidfd_send_signal(handle, signal.SIGKILL)  # no ranks, which the kernel ends with their agent
            os.close(handle)


def test_what_slept_longer_than_its_lease_is_held_still_until_it_is_renewed():
    """Somebody else may have its place by now: nothing is ended for that, and nothing goes on."""
    with started("600", AfterSuspend.ASKED) as agent:
        guard, *ranks = all_below(agent)
        (theirs,) = ranks[-1:]
        os.kill(theirs, signal.SIGSTOP)  # by whoever debugs it
        until("theirs is stopped", lambda: is_stopped(theirs))
        send_bytes(agent, b"all slept\n")
        until("all ranks are stopped", lambda: all(map(is_stopped, ranks)))
        assert not is_stopped(agent.pid) and not is_stopped(guard)
        os.kill(ranks[0], signal.SIGCONT)  # whoever woke the host comes to this one only now
        until("the first rank is stopped", lambda: is_stopped(ranks[0]))
        send_bytes(agent, b"renewed\n")
        until("the ranks go on", lambda: not any(map(is_stopped, ranks[:-1])))
        assert is_stopped(theirs)
        end(ranks)


def test_what_slept_longer_than_its_lease_ends_where_others_may_have_gone_on():
    with started("600", AfterSuspend.COUNTS) as agent:
        ranks = handles_of_all_below(agent)[1:]
        send_bytes(agent, b"all slept\n")
        assert all_end(ranks)


def end(pids):
    """Kill these processes. Ranks are not among them: the kernel ends ranks with their agent."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
