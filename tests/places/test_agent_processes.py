"""How long an agent that died is away, and what its supervisor does when its lease has run out."""

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from launcher.clock import lease_of_places, lease_of_ranks
from launcher.node.ranks.lease import Lease, Slept
from launcher.run.processes import descendants, end_all
from launcher.supervisor.agent_processes import AgentProcess, SupervisedLease


def test_deaths_in_a_row_make_it_stay_away_longer_and_a_long_life_makes_up_for_them():
    agent, now, away = AgentProcess([], {}, Path("agent.log")), 1000.0, []
    for lived_s in (1, 1, 1, 299, 301, 1):
        agent.started_at = now
        now += lived_s
        agent.stay_away(now)
        away.append(agent.returns_at - now)
        now = agent.returns_at
    assert away == [0.0, 1.0, 2.0, 4.0, 0.0, 1.0]


AGENT = """
import os, subprocess, sys, time
from launcher.run.processes import become_subreaper
from launcher.node.ranks.lease import Lease, Slept, post_guard
from launcher.clock import boottime

become_subreaper()
guard = post_guard(Slept.COUNTS, lease=Lease.taken_from(os.environ))
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
guard.lease.until = boottime() + float(sys.argv[1])
print(guard.pid, rank.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def agent(tmp_path):
    """`agent(lease_s)` starts one with a watchdog and a rank, as a supervisor does; its lease is never renewed."""
    made = []

    def start(lease_s):
        words, log = [sys.executable, "-c", AGENT, str(lease_s)], tmp_path / "node" / "agent.log"
        one = AgentProcess(words, {**os.environ}, log, slept=Slept.COUNTS)
        one.start()
        made.append(one)
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        return one, [os.pidfd_open(int(pid)) for pid in log.read_text().split()]

    yield start
    for one in made:
        end_all(lambda one=one: [one.pid, *descendants(one.pid)])
        os.waitpid(one.pid, 0)


def ended(handle, within_s=0.0):
    return bool(select.select([handle], [], [], within_s)[0])


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
def test_ranks_end_with_their_lease_where_agent_and_watchdog_are_frozen_or_the_watchdog_is_killed(agent, fate):
    one, (watchdog, rank) = agent(1.0)
    os.kill(one.pid, signal.SIGSTOP)
    signal.pidfd_send_signal(watchdog, fate)
    deadline = time.monotonic() + 150.0
    while (next_look_s := one.enforce_lease()) is not None:
        assert time.monotonic() < deadline
        time.sleep(next_look_s)
    assert ended(rank), "which nobody else has ended"
    assert ended(os.pidfd_open(one.pid), 150.0), "and the agent, which did not leave"


def test_a_supervisor_leaves_to_the_watchdog_what_that_can_do(agent):
    one, (_, rank) = agent(600)
    assert 0 < one.enforce_lease() <= 1.0
    assert not ended(rank)


def test_a_supervisor_acts_between_the_end_of_a_lease_and_the_moment_at_which_others_take_the_places():
    lease, now = Lease(), [1000.0]
    lease.until = 1000.0 + lease_of_ranks(5.0)
    supervised = SupervisedLease(lease, Slept.COUNTS, lambda: now[0])
    while not (due := supervised.due()).end:
        assert due.look_s <= 1.0, "else it would take its own wait for sleep"
        now[0] += due.look_s
    assert lease.until < now[0] < 1000.0 + lease_of_places(5.0)
    assert not due.kill, "it may leave by itself"
    now[0] += due.look_s
    assert supervised.due().kill


def test_what_a_supervisor_and_all_below_it_slept_through_is_forgiven_where_the_coordinator_decides():
    lease, now = Lease(), [1000.0]
    lease.until = 1004.0
    supervised = {slept: SupervisedLease(lease, slept, lambda: now[0]) for slept in Slept}
    now[0] += 3600.0
    assert [slept for slept in Slept if supervised[slept].due().end] == [Slept.COUNTS]
