"""Runs of whole pools in virtual time: safe whatever befalls them, and alive once it is over."""

import random
from collections import Counter
from contextlib import ExitStack
from functools import partial
from unittest import mock

import pytest

from launcher.coordinator.nodes import NodeTable
from launcher.coordinator.server import CopyHold
from launcher.places.ssh.host import ballot, follower, leader
from launcher.places.ssh.host.ballot import Ballot
from launcher.places.ssh.host.record_copies import copy_records
from launcher.places.ssh.quorum.core import Opening, Voter
from launcher.run import durable
from tests.places.ssh.simulator.pool import Broken, play
from tests.sizes import SCALE, SEED

LEAST, MOST_DAILY = 20, 150
NIGHTLY = 1_000 * SCALE
MOST = 150  # seeds in which a rule that is left out is missed

RARE = (
    "two candidates stand for one attempt",
    "a leader is lost between prepare and commit",
    "a leader is lost between opening and settling",
    "a host that has just restarted is asked for its vote",
    "power is cut while a vote is written",
    "a supervisor leaves, as the run goes on without it",
    "a host comes back",
    "a supervisor adopts an agent",
    "a supervisor adopts a coordinator",
    "a restart begins once its failure is copied",
    "a run without a quorum is interrupted",
    "a leader is lost as the run ends",
    "a supervisor ends a run",
)


def play_all(seeds, least=0):
    """Play these runs: all, or after `least` of them only until each rare state was reached. Return who was not."""
    reached, runs = Counter(), 0
    for seed in seeds:
        if least and runs >= least and not {*RARE} - {*reached}:
            break
        reached.update({*play(seed).reached})
        runs += 1
    print("\n".join(f"{count:6} of {runs} runs: {state}" for state, count in reached.most_common()))
    return {*RARE} - {*reached}


def test_a_pool_is_safe_in_any_storm_and_alive_after_it():
    assert not play_all(range(MOST_DAILY), LEAST), "too weak: none of these runs has come to that"


FOUND = {
    "a leader that is back waits for hosts that have voted for another": 314363339,
    "a machine wakes from a suspend with a message to start ranks that were replaced": 1065,
    "the agent of a host that has voted for another joins the leader before": 2296847356,
    "a supervisor is lost as it ends a run": 1016,
    "power is cut while a request that comes twice is answered": 755,
    "a leader loses power once only some hosts have begun": 1345271838,
    "a host opens an attempt that too few others accept": 3820371594,
    "what a host has said to its leader comes after it has elected another": 3466625228,
    "a host that has voted for a newer attempt confirms the end of the run": 3456832911,
    "a host had begun an attempt that its leader had not": 4293372583,
    "all hosts come back, and each waits for another": 519060740,
    "a leader comes back that had taken an attempt back": 2286808532,
    "a host follows one that is back and has no leader itself": 3261988185,
    "a host takes part in an election and leads nobody": 2843607341,
}


@pytest.mark.parametrize("fault", FOUND)
def test_what_a_seed_has_found_is_not_found_again(fault):
    play(FOUND[fault])


def test_a_seed_plays_the_same_run_again():
    assert play(3).trace == play(3).trace


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_pool_is_safe_and_alive_in_many_storms():
    chance = random.Random(SEED)
    assert not play_all([chance.randrange(1 << 32) for _ in range(NIGHTLY)])


# -- what goes wrong is noticed


def half(opening, together, candidate):
    return 2 * len(opening.voters & {*together}) >= len(opening.voters)


def lowest(ballot, own, leaderless):
    return all(ballot.me < number for number in leaderless)


OPEN_NEXT = leader.open_next


def end_at_once(supervisor, elected, cause, *, leads):
    if (end := leader.announced_end(supervisor)) is None:
        return OPEN_NEXT(supervisor, elected, cause, leads=leads)
    leader.write_end(supervisor.run, supervisor.attempt, end, supervisor.plan)
    leader.send_end_to_others(supervisor)
    return None


def end_before_it_is_accepted(supervisor, elected, cause, *, leads):
    if leader.announced_end(supervisor) is not None:
        copy_records(supervisor.run, supervisor.attempt, supervisor.rpc, supervisor.role_names, elected.others)
    return end_at_once(supervisor, elected, cause, leads=leads)


def write_without_fsync(path, record):
    with mock.patch.object(durable, "write_record", partial(durable.write_record, fsync=False)):
        durable.write_sealed(path, record)


def counts_from_receipt(nodes, node, seq, answered, took_s, mono):
    if answered in node.answers:
        node.follows_from = mono
        node.answers = {one: at for one, at in node.answers.items() if one > answered}
    node.answers[seq] = mono


SABOTAGED = {
    "a candidate needs half of the voters": [(Opening, "carried_by", half)],
    "an attempt counts that too few have accepted": [(leader, "enough", lambda *_, **__: True)],
    "a restart does not wait for the copy of its failure": [(CopyHold, "is_copied", lambda *_: True)],
    "who takes over a run whose end was announced goes on with it": [
        (leader, "announcement", lambda *_, **__: None),
    ],
    "an end by who takes over is written before it is copied": [
        (follower, "open_next", end_at_once), (leader, "open_next", end_at_once),
    ],
    "an end by who takes over is an entry of the attempt before": [
        (follower, "open_next", end_before_it_is_accepted), (leader, "open_next", end_before_it_is_accepted),
    ],
    "a host leaves as it gets the history before its attempt": [(Ballot, "comes_before", lambda *_: False)],
    "a vote is not fsynced": [(ballot, "write_sealed", write_without_fsync)],
    "a lease counts from when a heartbeat was received": [(NodeTable, "answer", counts_from_receipt)],
    "a candidate does not keep its own vote": [(Voter, "stand", lambda voter, number: voter)],
    "a candidate's history does not replace the voter's": [(Ballot, "elected", lambda *_: False)],
    # alone either hides the other: the host with the newest history stands first
    "histories are compared neither for the turn nor for the vote": [
        (Voter, "is_as_new", lambda *_: True), (Ballot, "is_next_in_line", lowest),
    ],
}  # fmt: skip


def first_broken():
    for seed in [*FOUND.values(), *range(MOST)]:
        try:
            play(seed)
        except Broken as broken:
            return f"seed {seed}: {broken}"
    return ""


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", SABOTAGED)
def test_a_rule_that_is_left_out_is_missed(rule):
    with ExitStack() as stack:
        for place, name, without in SABOTAGED[rule]:
            stack.enter_context(mock.patch.object(place, name, without))
        found = first_broken()
    print(f"{rule}: {found}")
    assert found
