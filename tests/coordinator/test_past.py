"""Break past fixes in coordinators, agents and leases in a copy of the launcher; tests must fail.

Each test may take a minute. What the code cannot do again, as its mechanism is gone:

- A node that an agent of the same generation had left was waited for: agents that die alone have a time to come back.
- A guard had its second to end ranks after the lease, while all others waited for it: it has the lease's last second.
"""

from pathlib import Path

import pytest

import launcher
from tests.inner_pytest import assert_can_be_made, assert_noticed

TESTS, IN_PLACE = "coordinator/test_coordinator.py", "coordinator/test_coordinator_in_place.py"
COORDINATOR, ATTENDANCE, SERVER = (f"coordinator/{name}.py" for name in ("coordinator", "attendance", "server"))
LIFELINE, LEASE = "node/lifeline.py", "node/ranks/lease.py"
SUPERVISED = "supervisor/agent_processes.py"
BUDGET_S = 60

TWO_AT_ONCE = {
    "a new agent's node is taken for free of the ranks of the one before": (
        ATTENDANCE, "self._nodes.track_stale_agent(node)", "node.holds = 0",
        TESTS, "proves_nothing_about_the_one_before",
    ),
    "a node that cannot be seen is lost before its lease ends": (
        ATTENDANCE, "node.link = Presence.UNKNOWN\n", "self._lose(node, 'it cannot be reached')\n",
        TESTS, "is_not_a_dead_one",
    ),
    "nodes start ranks before all have ended theirs": (
        "coordinator/closing.py", "if not closing.waits:", "if True:", TESTS, "before_all_have_stopped",
    ),
    "ranks that were replaced go on, as their heartbeat is answered": (
        COORDINATOR, "if not node.is_replaced:  # its ranks", "if True:  # its ranks", TESTS, "no_leave_to_go_on",
    ),
    "ranks that were replaced may save before they end": (
        COORDINATOR, "if closing and not node.is_replaced else", "if closing else", TESTS, "no_leave_to_go_on",
    ),
    "a drained node's places are taken before its ranks have ended": (
        "coordinator/in_place/continuing.py", "if self._starts_in_place or attempt.leaving:",
        "if self._starts_in_place:", IN_PLACE, "drained or sick or killed_meanwhile",
    ),
    "a welcome renews a lease that has run out": (
        LIFELINE, "if self._lease.until > boottime():", "if True:",
        "node/test_hostile_agent.py", "renews_no_lease",
    ),
    "a lease counts from when the welcome came": (
        LIFELINE, "self._leased_from(self._joined_at)", "self._leased_from(boottime())",
        "node/test_hostile_agent.py", "welcome",
    ),
    "a late answer takes a sleeper's forgiveness away": (
        LEASE, "if until != self._until and until > self._clock():", "if until != self._until:",
        "node/test_lease.py", "from_before_the_sleep",
    ),
    "ranks outlive the lease of an agent that is frozen together with its watchdog": (
        SUPERVISED, "_AFTER_WATCHDOG_S = ENDING_S / 2", "_AFTER_WATCHDOG_S = 3600.0",
        "places/test_agent_processes.py", "between_the_end",
    ),
    "a fenced rank's late news opens a generation": (
        "coordinator/opening.py", "elif attempt.fenced:", "elif False:", TESTS, "opens_no_generation",
    ),
}  # fmt: skip

RUNS_THAT_STAND_STILL = {
    "a coordinator sleeps for ever: a silent node's agent and the one before are due at once": (
        ATTENDANCE, "while overdue := self._nodes.overdue(self._ledger.mono):",
        "if overdue := self._nodes.overdue(self._ledger.mono):", TESTS, "lost_in_the_same_moment",
    ),
    "the state is put off by every event": (
        SERVER, "return min(planned, now + max(", "return max(0, now + max(",
        "coordinator/test_server.py", "puts_the_state_off",
    ),
    "who was cut off never hears of rank 0": (
        COORDINATOR, "if generation.led:", "if False:", TESTS, "hears_of_rank_0_later",
    ),
    "a stop that was lost in a cut is not said again": (
        COORDINATOR, "        elif node.holds:\n", "        elif False:\n", TESTS, "a_stop_that_was_lost",
    ),
    "a start that was lost in a cut blocks the run": (
        COORDINATOR, "        if member:\n", "        if False:\n", TESTS, "a_start_that_was_lost",
    ),
    "what an agent said into a cut is not said again": (
        LIFELINE, "(message, *self._told, *self._unsaid)", "(message, *self._unsaid)",
        "node/test_hostile_agent.py", "sent_again",
    ),
    "a rank that ended behind a cut is not noticed": (
        "coordinator/watching.py", "if heartbeat.node in generation.returned:", "if False:", TESTS,
        "ended_behind_a_cut",
    ),
    "an agent that died alone is not waited for": (
        ATTENDANCE, "node.returns_by = self._ledger.mono + RETURN_S", "pass", TESTS, "died_alone",
    ),
    "agents that come together evict each other": (
        "wire/frames.py", "            if not self._has_room:\n                break\n",
        (
            "            for one in () if self._has_room else [*self._unproved][:1]:\n"
            "                self._forget(one), one.close()\n"
        ),
        "wire/test_frames.py", "none_gives_way",
    ),
    "a look at a log waits for the disk": (
        "node/ranks/reports/logfile.py", "self._behind.do(lambda: self._note(line))", "self._note(line)",
        "node/test_slow_disk.py", "does_not_wait",
    ),
    "what the coordinator slept through counts as its nodes' silence": (
        SERVER, "return Now(self._clock.now(), time.time(), boottime())",
        "return Now(self._clock.now() + self._clock.slept_s, time.time(), boottime())",
        "coordinator/test_server.py", "slept",
    ),
}  # fmt: skip

WRONG_ENDS = {
    "a run whose checkpoints are away begins anew": (
        "coordinator/closing.py", "elif found.cause is Cause.NO_CHECKPOINT and", "elif False and",
        "node/test_disks_apart.py", "never_begins_anew",
    ),
    "a restart that nobody else knows of is begun, and forgotten with its leader": (
        "coordinator/server.py", "self._held = []\n", "self._held = None\n",
        "places/ssh/host/test_record_copies.py", "between_a_failure",
    ),
    "an end is shown that nobody else knows of, and forgotten with its leader": (
        "coordinator/server.py", "if finish is not None and waits and self._ends and", "if False and",
        "places/ssh/host/test_record_copies.py", "as_the_run_ends",
    ),
    "restarts of earlier attempts are forgotten": (
        "coordinator/attempt.py", 'if event.kind in ("failure", "resumed")]', 'if event.kind == "resumed"]',
        TESTS, "restarts_of_earlier_attempts",
    ),
    "a node that somebody drains is a failure": (
        "coordinator/closing.py", "if found.planned and can_regroup:", "if False:", IN_PLACE, "no_budget_is_used",
    ),
    "one broken connection is blamed where a node went": (
        COORDINATOR, "closing.verdict = found  # its peers noticed before we did", "pass",
        TESTS, "real_culprit",
    ),
    "a run on hosts ends before its last checkpoint has a second copy": (
        "coordinator/watching.py", "if not attempt.plan.copies_last or attempt.current.settled:", "if True:",
        "node/test_disks_apart.py", "waits_for_its_second_copy",
    ),
    "a cancel after a preemption is not heard": (
        COORDINATOR, 'and (kind != "cancel" or attempt.stop == "cancel")', "", TESTS, "cancel_beats_preempt",
    ),
}  # fmt: skip

PAST = TWO_AT_ONCE | RUNS_THAT_STAND_STILL | WRONG_ENDS


@pytest.mark.parametrize("name", PAST)
def test_it_can_be_brought_back(name):
    assert_can_be_made(PAST[name], Path(launcher.__file__).parent)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAST)
def test_it_is_found_again(name, tmp_path):
    assert_noticed(PAST[name], tmp_path, timeout_s=BUDGET_S)
