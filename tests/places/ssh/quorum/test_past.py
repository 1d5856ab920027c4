"""Break past fixes and rules of the pool's quorum in a copy of the launcher; tests must fail.

Each test may take a minute. What the code cannot do again, as its mechanism is gone:

- Hosts that were counted out weighed in the coordinator, or were missed by the others: voters are fixed for an attempt.
- Two rolls of voters were in force at once, and a changed number in a roll was believed: there are no rolls.
- A leader without enough hosts kept a leave of its own to start ranks: ranks wait for every host, or for a lease.
- A host that was cut off as the run ended stayed for a lease, or left too early: it is told by a process of its own.
- Ranks of three suspended hosts were held for a coordinator that might be replaced: they end with their lease.
"""

from pathlib import Path

import pytest

import launcher
from tests.inner_pytest import assert_can_be_made, assert_noticed

POOL, HOST = "places/ssh", "places/ssh/host"
CORE, CORES, EXPLORED = f"{POOL}/quorum/core.py", f"{POOL}/quorum/test_core.py", f"{POOL}/quorum/test_exploration.py"
BALLOT, LEADER, FOLLOWER, STATE = (f"{HOST}/{name}.py" for name in ("ballot", "leader", "follower", "supervisor_state"))
COPIES, WAITING = f"{HOST}/record_copies.py", f"{HOST}/host_supervisor.py"
BACK = f"{POOL}/comeback/returning_supervisor.py"
BALLOTS, ELECTIONS, SUPERVISORS, COPIED, CUT = (
    f"{HOST}/test_{name}.py" for name in ("ballot", "election", "supervisors", "record_copies", "coordinators_quorum")
)
APART = "node/test_disks_apart.py"
BUDGET_S = 60

VOTES = {
    "four hosts go on as two halves": (
        CORE, "return 2 * there > len(self.voters) or (candidate == self.leader and 2 * there ==",
        "return 2 * there > len(self.voters) or (2 * there ==", CORES, "a_leader_needs_half",
    ),
    "a take-over loses history": (
        CORE, "if not self.is_as_new(asked.records, mine):", "if False:", EXPLORED, "no_state_breaks",
    ),
    "a host votes for two in one attempt": (
        CORE, "if asked.attempt < self.next_number:", "if asked.attempt < self.newest.attempt:",
        EXPLORED, "no_state_breaks",
    ),
    "a vote is written over the one before": (
        "run/durable.py", "patiently(lambda: _replace(path, data, fsync=fsync))", "path.write_bytes(data)",
        BALLOTS, "power_cut",
    ),
    "a host that cannot read its votes votes anew": (
        BALLOT, "kept = read_sealed(self.path, Voter) if on_disk else None",
        "try:\n            kept = read_sealed(self.path, Voter)\n        except Exception:\n            kept = None",
        BALLOTS, "does_not_come_back",
    ),
    "votes of before keep a host from a run that is resumed": (
        BALLOT, "tuple(hosts), run.attempt(begun).voter", "tuple(hosts), run.attempt(1).voter", BALLOTS, "resumes",
    ),
    "a vote is believed of which a disk has changed a number": (
        "run/durable.py", "if zlib.crc32(sealed.record) != sealed.crc32:", "if False:", SUPERVISORS, "one_number",
    ),
    "a candidate votes for another": (
        STATE, "self.ballot.keep(self.ballot.voter.stand(number))", "self.ballot.voter.stand(number)",
        SUPERVISORS, "a_candidate_has_given",
    ),
    "an attempt is accepted without its history": (
        CORE, 'return "" if mine.digest == said.records.digest else "it lacks some of the leader\'s history"',
        'return ""', CORES, "attempt_is_accepted_once",
    ),
    "a host that has voted for a newer attempt confirms entries of the leader before": (
        STATE, " and not record_copies.is_history(replica.name)", "", SUPERVISORS, "no_history_of",
    ),
    "an entry is committed on a host that has not accepted the attempt": (
        COPIES, "if number in accepted else 0", "if True else 0", COPIED, "as_they_confirm_it",
    ),
    "an attempt counts that too few have accepted": (
        LEADER, "not enough(supervisor, took, leads=leads):", "False:", SUPERVISORS, "too_few_take_up",
    ),
    "a host that came back votes in an attempt that it is no voter of": (
        STATE, "return self.host in names and self.ballot.voter.has_vote", "return True", SUPERVISORS, "has_no_vote",
    ),
    "a host speaks for another": (
        STATE, "if known is not None and asker in addresses_of(known.address):", "if known is not None:",
        ELECTIONS, "speaks_for_another",
    ),
}  # fmt: skip

LEADERS = {
    "ranks start by a message from before a suspend": (
        "node/lifeline.py", "while self._lease.until <= boottime():", "while False:",
        "node/test_hostile_agent.py", "under_a_lease",
    ),
    "a leader counts a host that has voted for another": (
        CORE, "return self.has_vote and self.voted[0] == self.newest.attempt", "return self.has_vote",
        CORES, "not_counted_as_heard",
    ),
    "the agent of a host that has voted for another is brought back, and joins the leader before": (
        FOLLOWER, " or supervisor.ballot.has_voted_past(supervisor.attempt.number)", "",
        SUPERVISORS, "is_not_brought_back",
    ),
    "a coordinator is adopted on a host that has voted for another": (
        BACK, "        if not leads:\n", "        if False:\n", SUPERVISORS, "leads_no_more",
    ),
    "both sides of a cut go on: the coordinator does not count its voters": (
        "coordinator/attempt.py", "return self.nodes.quorum_shortfall(self.nodes.followers(self.mono))", "return None",
        APART, "need_nobody_else",
    ),
    "both sides of a cut go on: a generation is opened with too few voters": (
        "coordinator/gathering.py",
        "own >= self._least and self._nodes.quorum_shortfall(*groups, self._nodes.only_voting) is None",
        "own >= self._least", CUT, "guest_has_no_weight",
    ),
    "a host without a vote weighs in the coordinator": (
        "plan/on_hosts.py", "return frozenset(node.index for node in plan.nodes) - {*plan.away}",
        "return frozenset(node.index for node in plan.nodes)", CUT, "guest_has_no_weight",
    ),
    "ranks start with hosts that may have elected another": (
        "coordinator/opening.py", " and attempt.outvoted() is None:", ":", APART, "elected_another",
    ),
    "an agent that joins again counts from when it came": (
        "coordinator/attendance.py", "        if not known:  # else it may", "        if True:  # else it may",
        APART, "joins_again",
    ),
    "a heartbeat renews a lease after a suspend": (
        "node/lifeline.py", "sent_at >= self._leased_at and not is_over:", "sent_at >= self._leased_at:",
        "node/test_hostile_agent.py", "another_host_may_lead",
    ),
    "a host whose agent was killed elects another leader at once": (
        "supervisor/agent_processes.py", " and self.killed_under_lease is None)", ")", SUPERVISORS, "until_the_lease",
    ),
    "a host has a leader again in the middle of its vote": (
        STATE, "        with self._lock:\n            self.ballot.leaderless = False",
        "        if True:\n            self.ballot.leaderless = False", SUPERVISORS, "being_written",
    ),
    "a host that had followed again votes too early": (
        BACK, "may_vote_from(led_at, rules.lease_s) and is_missed", "may_vote_from(0.0, rules.lease_s) and is_missed",
        SUPERVISORS, "had_followed_again",
    ),
    "a message by which an agent joins counts from when it came": (
        "coordinator/attendance.py", "min(node.connected_at, self._ledger.mono)", "self._ledger.mono",
        APART, "elected_another",
    ),
    "a heartbeat that was long on its way counts from when it came": (
        "coordinator/nodes.py", "max(node.follows_from, node.answers[answered] - took_s)", "mono",
        APART, "long_on_its_way",
    ),
    "what a leader slept through is forgiven though a host that was cut off may have elected another": (
        "plan/on_hosts.py", "hosts = len(plan.nodes)\n    return bool",
        "hosts = len(plan.nodes) - len(plan.away)\n    return bool", CUT, "suspend_of_the_leader",
    ),
    "ranks start while silent ones run": (
        CORE, "return opened_at if all_ended else opened_at + lease_s", "return opened_at",
        EXPLORED, "no_state_breaks and LeaseWorld",
    ),
    "ranks start while those of a host run that missed the attempt": (
        LEADER, 'ended = {node.host for node in known if node.state in ("lost", "waiting")}',
        "ended = {node.host for node in known}", SUPERVISORS, "ranks_start_once",
    ),
    "a leader whose run was taken over changes it": (
        STATE, "if one.settled and one.attempt >= self.attempt.number and one.led_by != self.host:", "if False:",
        SUPERVISORS, "changes_nothing",
    ),
    "a supervisor leads whose coordinator is frozen": (
        BALLOT, "if not (one.leads and one.attempt == attempt and one.silent_s > patience_s)", "if True",
        SUPERVISORS, "whose_coordinator_is_frozen",
    ),
}  # fmt: skip

RUNS_THAT_STAND_STILL = {
    "a leader waits for hosts that have voted for a newer attempt": (
        LEADER, "return not started and any(one.voted_for > number for one in there.values())", "return False",
        SUPERVISORS, "voted_for_a_newer",
    ),
    "a host that has voted for a newer attempt never comes back to the one that runs": (
        f"{HOST}/attempt_on_host.py", "with suppress(Fenced) if again else nullcontext():", "with nullcontext():",
        SUPERVISORS, "voted_for_a_newer",
    ),
    "a number that another has the votes for is asked for for ever": (
        LEADER, "supervisor.stand(max([used, *(one.voted_for for one in there.values())]))", "supervisor.stand(used)",
        ELECTIONS, "for_ever",
    ),
    "a host without a vote holds a take-over up": (
        FOLLOWER, "answers = {number: one for number, one in answers.items() if one.has_vote}", "pass",
        ELECTIONS, "holds_nobody_up",
    ),
    "a host waits for a leader that waits for it to miss a leader": (
        FOLLOWER, "without |= {number: one for number, one in answers.items() if one.led_by == supervisor.host}",
        "pass", SUPERVISORS, "accepted_an_attempt",
    ),
    "a voter of an attempt has no vote, as one before it is not settled": (
        CORE, "return self.me in self.newest.voters",
        "return all(self.me in opening.voters for opening in self.openings)", CORES, "not_settled",
    ),
    "a host with older records comes first": (
        BALLOT, "return not any((-one.accepted, -one.history, number) < mine", "return not any(number < self.me",
        SUPERVISORS, "older_history",
    ),
    "on one disk each takes another for the next in line": (
        BALLOT, "if not self._on_disk:\n            return all(", "if False:\n            return all(",
        f"{HOST}/test_supervisor_rpc.py", "lowest_number",
    ),
    "a host whose agent has left waits for a lost leader for ever": (
        FOLLOWER, "waits = self._supervisor.ballot.leaderless or self._is_left()",
        "waits = self._supervisor.ballot.leaderless", SUPERVISORS, "has_no_agent",
    ),
    "a host that missed an attempt, or the end of its run, waits": (
        STATE, "self.ballot.outrun_by = max(replica.attempt, self.ballot.outrun_by)", "pass",
        SUPERVISORS, "leaves_once_it_is_told",
    ),
    "hosts wait in a queue for a leader that is gone": (
        WAITING, "            self._take_over.open()\n", "            pass\n", SUPERVISORS, "waits_without_a_leader",
    ),
    "a leader that waits for slots asks for votes for ever, and keeps others from leading": (
        WAITING, "    supervisor.ballot.leaderless = number is None\n", "    pass\n",
        ELECTIONS, "newer_records_from_leading",
    ),
    "a host that comes back before the run has begun never waits with the others": (
        BACK, "elif is_awaited(", "elif False and is_awaited(", SUPERVISORS, "before_the_run_has_begun",
    ),
    "a leader that was lost as it told hosts to begin is not missed": (
        BACK, "    there = _there(supervisor)\n    led_by",
        "    there = _there(supervisor)\n    if not all(one.began for one in there.values()): return False\n    led_by",
        ELECTIONS, "third_of_three",
    ),
    "hosts that come back do not count each other": (
        BACK, "if isinstance(one, SupervisorStatus | Returning)}", "if isinstance(one, SupervisorStatus)}",
        ELECTIONS, "come_back_elect",
    ),
    "only a leader that comes back takes part in an election": (
        BACK, "    return leaderless.issuperset(", "    return supervisor.leads and leaderless.issuperset(",
        ELECTIONS, "come_back_elect",
    ),
    "a leader that had taken an attempt back takes part in no election": (
        BACK, "    return not supervisor.has_ended()\n",
        "    return not supervisor.has_ended() and number == max(known)\n", ELECTIONS, "taken_back",
    ),
    "hosts leave for an attempt that has come to nothing": (
        STATE, "if one.settled and one.attempt", "if one.attempt", SUPERVISORS, "may_have_come_to_nothing",
    ),
    "followers leave as the leader is lost before its end is copied": (
        FOLLOWER, "return ended or not supervisor.plan.disks_apart", "return True", SUPERVISORS, "knows_no_end",
    ),
    "a run on hold is begun by an election": (
        BACK, "                    if has_begun:\n", "                    if True:\n",
        SUPERVISORS, "waits_for_its_turn",
    ),
    "a host enters an attempt that its vote has fenced": (
        BALLOT, "self.accepted = None  # its leader", "pass  # its leader", SUPERVISORS, "had_accepted",
    ),
    "a host that was silent as the others began leaves for good": (
        STATE, "if self.gpus is None:\n                raise", "if not self.prepared:\n                raise",
        SUPERVISORS, "begins_later",
    ),
    "hosts keep what they have prepared though not all have": (
        WAITING, "by_all=ready.began), prepared)", "by_all=ready.began), ())", SUPERVISORS, "lets_go",
    ),
    "the history of a candidate is refused whose last attempt is older than one that came to nothing": (
        BALLOT, "if self.comes_before(replica):", "if False:",
        CUT, "beside_a_new_leader",
    ),
    "a damaged line of one host's history holds all up": (
        BALLOT, "if _is_event(line)]", "]", SUPERVISORS, "damaged_on_one_host",
    ),
    "a supervisor that waits for its disk seems to be gone": (
        STATE, "with self._shown:\n            return self._status()",
        "with self._lock:\n            return self._status()",
        SUPERVISORS, "waits_for_its_disk",
    ),
    "a slow disk never acknowledges a record": (
        STATE,
        "if why or (self._kept.get(replica.name) == replica and record_copies.is_there(self.run, replica, names)):",
        "if why:", SUPERVISORS, "only_where_it_is_not_there",
    ),
}  # fmt: skip

RECORDS = {
    "a host that takes over writes an end that too few voters know of": (
        FOLLOWER, "        return open_next(supervisor, elected, end.cause, leads=False)\n",
        ("        if end.state is not State.QUEUED:\n"
        "            write_end(supervisor.run, supervisor.attempt, end, supervisor.plan)\n"
        "            return None\n"
        "        return open_next(supervisor, elected, end.cause, leads=False)\n"),
        ELECTIONS, "writes_no_end_before",
    ),
    "an end that a host writes which takes over is an entry of the attempt before": (
        FOLLOWER, "        return open_next(supervisor, elected, end.cause, leads=False)\n",
        ("        if end.state is not State.QUEUED:\n"
        "            from launcher.places.ssh.host.leader import copy_records, send_end\n"
        "            copy_records(supervisor.run, supervisor.attempt, supervisor.rpc, (), elected.others)\n"
        "            write_end(supervisor.run, supervisor.attempt, end, supervisor.plan)\n"
        "            send_end(supervisor)\n"
        "            return None\n"
        "        return open_next(supervisor, elected, end.cause, leads=False)\n"),
        ELECTIONS, "is_not_undone",
    ),
    "a run ends in another way than its history announces": (
        LEADER, "end = announced_end(supervisor) or announce_end(supervisor.run, supervisor.attempt, end)",
        "announce_end(supervisor.run, supervisor.attempt, end)", ELECTIONS, "before_half_of_the_voters",
    ),
    "what a lost leader had noted alone is kept": (
        COPIES, "if known < len(piece) or cuts:", "if known < len(piece):",
        SUPERVISORS, "beyond_a_new_leaders",
    ),
    "an old leader's longer history is kept after a new one's": (
        COPIES, "os.ftruncate(fd, at + known)", "pass", COPIED, "longer_history",
    ),
    "a history that was cut short keeps a host from all news": (
        COPIES, 'self._sent[number][f"{name} bytes"] = 0', "pass", COPIED, "cut_short",
    ),
    "a lost leader's last failures of a role beside the main one are forgotten": (
        COPIES, "copies.copied = self._held_by_half(name)", "copies.copied = inf", COPIED, "failure_of_a_role",
    ),
    "bytes that are no text end a leader's supervisor": (
        COPIES, "with contextlib.suppress(UnicodeDecodeError):\n        return piece.decode()", "return piece.decode()",
        COPIED, "lines_of_a_history",
    ),
    "hosts are left alone for a record that is damaged on the leader's disk": (
        COPIES, "data = copied.path.read_bytes()\n            copied.check(data)", "data = copied.path.read_bytes()",
        COPIED, "no_host_is_left_alone",
    ),
    "a record takes the place of another kind of record": (
        COPIES, "try:\n        copied.check(data)", "try:\n        pass", COPIED, "takes_the_place_of_none",
    ),
    "a host whose copy of the coordinator's address is damaged is lost to the run": (
        COPIES, "now // self._renew_s if name.endswith(ENDPOINT) else 0", "0", COPIED, "told_again_though",
    ),
    "a piece of the history that is in memory only is confirmed": (
        COPIES, "os.pwrite(fd, piece, at)  #", "os.pwrite(fd, piece[known:], at + known)  #", COPIED, "written_again",
    ),
    "a damaged address of the coordinator is not mended": (
        "coordinator/server.py", "if readable(path, Endpoint) != record:", "if not path.exists():",
        "coordinator/test_server.py", "where_it_is_found",
    ),
    "an end counts as told that a host did not take": (
        COPIES, "        return taken\n", "        return whom\n", SUPERVISORS, "has_not_heard_how_it_ended",
    ),
}  # fmt: skip

PAST = VOTES | LEADERS | RUNS_THAT_STAND_STILL | RECORDS


@pytest.mark.parametrize("name", PAST)
def test_it_can_be_brought_back(name):
    assert_can_be_made(PAST[name], Path(launcher.__file__).parent)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAST)
def test_it_is_found_again(name, tmp_path):
    assert_noticed(PAST[name], tmp_path, timeout_s=BUDGET_S)
