"""The coordinator against simulated agents: starting, failing, regrouping, stopping."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.coordinator.attendance import RETURN_S
from launcher.coordinator.effects import Disconnected, Move, ProvenDead, Tick
from launcher.coordinator.opening import START_S
from launcher.run.hangs import Collective, Frame, GroupLook, HangKind, RankLook
from launcher.run.records import EXPLAINED, Event, GpuLoad, NodeLoad, NotFinite, ProcessId, RankExit, RankLoad
from launcher.spec.model import Budget, Recovery
from launcher.states import Cause, State
from launcher.wire.messages import (
    End,
    Exited,
    Fault,
    Heartbeat,
    HeartbeatAck,
    Join,
    Leads,
    Look,
    RankHeartbeat,
    Ready,
    Start,
    Started,
    Stop,
    Stopped,
    Welcome,
)

LEASE = Recovery().lease_s


def running(nodes: int = 2, **how: object) -> Cluster:
    cluster = Cluster(plan_of(nodes, **how))  # type: ignore[arg-type]
    cluster.boot()
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING
    return cluster


def acks_to(cluster: Cluster, node: int) -> set[object]:
    """Return the heartbeat acknowledgements that were sent to the node."""
    return {message for _, to, message in cluster.sent if to == node and isinstance(message, HeartbeatAck)}


# -- starting


def test_a_run_from_start_to_success() -> None:
    cluster = running(3)
    state = cluster.state()
    assert [rank.rank for rank in state.ranks] == [0, 1, 2, 3, 4, 5]
    assert all(rank.pid and rank.state == "running" for rank in state.ranks)
    assert (state.world_size, state.generation, state.step) == (6, 1, 3)
    assert [node.ranks for node in state.nodes] == [(0, 1), (2, 3), (4, 5)]
    cluster.finish_all()
    cluster.settle()
    assert (cluster.over.state, cluster.over.exit_code, cluster.over.cause) == (State.SUCCEEDED, 0, None)
    assert [node for _, node, message in cluster.sent if isinstance(message, End)] == [0, 1, 2]
    assert len(cluster.exits) == 6
    assert cluster.state().state is State.SUCCEEDED
    assert [event.kind for event in cluster.own_events] == [
        *["agent_joined"] * 3,
        "generation_opened",
        "training",
        "ended",
    ]
    assert cluster.recorded("generation_opened")[0].text == "generation 1: 6 ranks on node 0, 1, 2"


def test_start_tells_each_node_its_place_and_where_node_0_is() -> None:
    cluster = running(2)
    starts = cluster.starts(1)
    assert (starts[0].first_rank, starts[1].first_rank) == (0, 2)
    assert {start.master_addr for start in starts.values()} == {"127.0.0.1"}
    assert {start.master_port for start in starts.values()} == {20_000 + cluster.agents[0].process.pid}
    assert (starts[1].world_size, starts[1].group_rank, starts[1].group_world_size, starts[1].restarts) == (4, 1, 2, 0)


def test_nothing_starts_before_the_last_node_is_ready() -> None:
    cluster = Cluster(plan_of(3))
    cluster.boot(0, 1)
    cluster.boot(2, ready=False)
    cluster.advance(200)
    assert not cluster.starts(1)
    assert "2 of 3" in cluster.state().message
    cluster.make_ready(2)
    cluster.settle()
    assert sorted(cluster.starts(1)) == [0, 1, 2]


def test_after_the_wait_it_goes_on_with_what_there_is() -> None:
    cluster = Cluster(plan_of(4, least=2))
    cluster.boot(0, 3)
    cluster.advance(59.9)
    assert not cluster.starts(1)
    cluster.advance(0.2)
    assert sorted(cluster.starts(1)) == [0, 3]


def test_it_does_not_start_without_node_0() -> None:
    cluster = Cluster(plan_of(3, least=2))
    cluster.boot(0, ready=False)
    cluster.boot(1, 2)
    cluster.advance(100)
    assert not cluster.starts(1)
    cluster.make_ready(0)
    cluster.settle()
    assert sorted(cluster.starts(1)) == [0, 1, 2]


def test_nodes_that_never_come_are_given_up_for_a_new_attempt() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot(0)
    cluster.advance(1000)
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.NODE_LOST)
    assert "1 of at least 2 nodes" in cluster.recorded("failure")[0].text
    assert 299 <= cluster.mono - 100 <= 301


def test_a_node_that_is_silent_as_long_as_the_agent_before_it_is_lost_in_the_same_moment() -> None:
    cluster = Cluster(plan_of(3, spares=1))
    cluster.boot()
    cluster.advance(2.5)
    cluster.heartbeat(1)
    cluster.settle()
    cluster.kill(1, proof=False)
    cluster.boot(1)
    cluster.settle()
    cluster.advance(15, deliver=False)
    assert cluster.coordinator.next_deadline() is not None or cluster.state().nodes[1].state == "lost"


def test_a_spare_holds_its_place_until_it_is_needed() -> None:
    cluster = Cluster(plan_of(2, spares=1))
    cluster.boot(2, 0)
    cluster.advance(0.5)
    assert not cluster.starts(1)
    cluster.boot(1)
    cluster.advance(2)
    assert sorted(cluster.starts(1)) == [0, 1]
    assert [node.state for node in cluster.state().nodes] == ["up", "up", "spare"]


def test_a_node_that_has_just_become_ready_is_preferred_to_a_spare() -> None:
    """Its last heartbeat still said that it imported: the spare had its ranks from the start."""
    cluster = Cluster(plan_of(2, spares=1))
    cluster.boot(0, 2)
    cluster.boot(1, ready=False)
    cluster.agents[1].preparing = "importing torch"
    cluster.heartbeat(1)
    cluster.settle()
    cluster.feed(Ready(1))
    cluster.settle()
    assert sorted(cluster.starts(1)) == [0, 1]


def test_a_spare_stands_in_for_a_node_that_is_late_at_the_start() -> None:
    cluster = Cluster(plan_of(2, spares=1))
    cluster.boot(0, 2)
    cluster.advance(4.9)
    assert not cluster.starts(1)
    cluster.advance(0.2)
    assert sorted(cluster.starts(1)) == [0, 2]


def test_ranks_may_end_before_their_node_could_say_that_they_started() -> None:
    cluster = Cluster(plan_of(1, ranks_each=1))
    cluster.boot()
    cluster.deliver(0, up=True)
    cluster.feed(Exited(0, RankExit(1, 0, 0, 0, 7, code=0)))
    assert cluster.over.state is State.SUCCEEDED
    assert cluster.recorded("generation_opened")[0].text == "generation 1: 1 rank on node 0"


def test_nobody_forks_before_there_is_a_rank_0() -> None:
    cluster = Cluster(plan_of(3))
    cluster.boot()
    cluster.agents[0].mute_start = True
    cluster.advance(5)
    assert sorted(cluster.starts(1)) == [0, 1, 2]
    assert not [agent for agent in cluster.agents.values() if agent.ranks]
    cluster.fork(0)
    cluster.say(0, Leads(0, 1))
    cluster.advance(1)
    assert cluster.state().state is State.RUNNING


def test_who_was_cut_off_hears_of_rank_0_later() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot()
    cluster.agents[0].mute_start = True
    cluster.advance(2)
    cluster.cut(1)
    cluster.fork(0)
    cluster.say(0, Leads(0, 1))
    cluster.advance(1)
    assert cluster.state().state is State.STARTING
    cluster.connect(1)
    cluster.advance(1)
    assert cluster.state().state is State.RUNNING
    assert not cluster.recorded("failure")


def test_without_a_rank_0_nobody_else_is_to_blame() -> None:
    cluster = Cluster(plan_of(2, spares=1))
    cluster.boot()
    cluster.agents[0].mute_start = True
    cluster.advance(START_S + 3)
    assert "node 0 started no rank" in cluster.recorded("failure")[0].text
    assert not [event for event in cluster.recorded("agent_fault") if event.node != 0]


def test_a_node_that_never_starts_its_ranks_is_put_aside() -> None:
    cluster = Cluster(plan_of(2, least=1))
    cluster.boot()
    cluster.agents[1].mute_start = True
    cluster.advance(119)
    assert cluster.state().state is State.STARTING
    cluster.advance(3)
    assert cluster.recorded("failure")[0].cause is Cause.LAUNCHER_FAULT
    assert sorted(cluster.starts(2)) == [0]
    assert [node.state for node in cluster.state().nodes] == ["up", "lost"]


# -- ranks that fail


def test_a_killed_rank_closes_the_generation_and_opens_the_next_at_once() -> None:
    cluster = running(2)
    cluster.end_rank(1, signal=9)
    cluster.settle()
    assert sorted(node for node, _ in cluster.stops(1)) == [0, 1]
    assert {stop.grace_s for _, stop in cluster.stops(1)} == {0.0}
    assert cluster.starts(2)[1].restarts == 1
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank, failure.node, failure.step) == (Cause.KILLED, 1, 0, 3)
    assert cluster.state().restarts == {"killed": 1}
    assert cluster.state().state is State.RUNNING
    assert [event.kind for event in cluster.own_events][-5:] == [
        "generation_opened",
        "training",
        "failure",
        "regroup",
        "generation_opened",
    ]


def test_the_first_step_of_each_generation_is_noted() -> None:
    cluster = running(2)
    cluster.checkpoint = 3
    cluster.advance(2)
    cluster.end_rank(1, signal=9)
    cluster.settle()
    assert [(event.generation, event.step) for event in cluster.recorded("training")] == [(1, 1)]
    heartbeats = [
        RankHeartbeat(rank, 0.0, True, False, step=3) for rank in (0, 1)
    ]  # that was loaded, and is no new one
    cluster.feed(Heartbeat(0, 1, 2, tuple(heartbeats)))
    assert len(cluster.recorded("training")) == 1
    cluster.advance(3)
    assert [(event.generation, event.step) for event in cluster.recorded("training")][1:] == [(2, 4)]


def test_a_generation_that_goes_on_from_an_older_checkpoint_trains_from_its_first_step_on() -> None:
    cluster = running(2)
    cluster.checkpoint = 3
    cluster.advance(2)
    cluster.end_rank(1, signal=9)
    cluster.settle()
    for step in (2, 3):  # the one that was loaded, and the first that was made, which is the one of the damaged one
        noted = len(cluster.recorded("training"))
        heartbeats = [RankHeartbeat(rank, 0.0, True, False, step=step, checkpoint=2) for rank in (0, 1)]
        cluster.feed(Heartbeat(0, 1, 2, tuple(heartbeats)))
        assert len(cluster.recorded("training")) == noted + (step == 3)
    assert [(event.generation, event.step) for event in cluster.recorded("training")] == [(1, 1), (2, 3)]


def test_a_failure_tells_how_long_no_step_was_made() -> None:
    cluster = running(2)
    cluster.training = False
    cluster.advance(7)
    cluster.end_rank(1, signal=9)
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert 6 <= failure.still_s <= 8


def test_the_next_generation_gets_the_port_that_node_0_holds_now() -> None:
    cluster = running(2)
    first = cluster.starts(1)[0].master_port
    cluster.end_rank(1, signal=9)
    cluster.settle()
    assert cluster.starts(2)[0].master_port != first


@pytest.mark.parametrize("least", [3, 2])
def test_no_node_starts_before_all_have_stopped(least: int) -> None:
    """Be it that those that have are enough."""
    cluster = running(3, least=least)
    cluster.end_rank(0, signal=9)
    for node in (0, 1, 2):
        cluster.deliver(node, up=True)
    for node in (0, 1):
        cluster.deliver(node, up=False)
        cluster.deliver(node, up=True)
    assert not cluster.starts(2)
    assert cluster.state().state is State.REGROUPING
    cluster.settle()
    assert sorted(cluster.starts(2)) == [0, 1, 2]


def test_the_first_to_fail_by_itself_is_named_though_its_peers_fell_first() -> None:
    cluster = running(2)
    cluster.end_rank(0, code=1, error="RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    cluster.settle()
    assert not cluster.stops(1)
    cluster.end_rank(3, code=1, error="KeyError: 'x'", where="train.py:4 in step", tail=("Traceback", "KeyError: 'x'"))
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank, failure.where) == (Cause.USER_ERROR, 3, "train.py:4 in step")
    shown = cluster.state().failure
    assert shown is not None
    assert shown.tail == ("Traceback", "KeyError: 'x'")
    assert shown.log == "logs/a0001.g0001/rank-00003.log"


def test_ranks_that_fail_at_once_are_named_alike_by_the_restart_and_by_the_end() -> None:
    """Whichever of them is heard of first."""
    cluster = running(2)
    cluster.training = False
    for order in ((1, 2), (2, 1)):
        for rank in order:
            cluster.end_rank(rank, code=1, error="KeyError: 'x'", where="train.py:4 in step")
        for rank in order:
            cluster.deliver(rank // 2, up=True)
        cluster.settle()
    (restart,) = cluster.recorded("regroup")
    assert restart.brief == "restart 1 of 3: KeyError in train.py:4, rank 1"
    state = cluster.state()
    assert state.state is State.FAILED
    assert state.failure is not None
    assert (state.failure.rank, state.failure.summary) == (1, "rank 1 on node 0: KeyError: 'x' (train.py:4 in step)")
    assert state.failure.log == "logs/a0001.g0002/rank-00001.log"


def test_a_broken_connection_without_a_culprit_is_a_failure_of_its_own_after_a_second() -> None:
    cluster = running(2)
    cluster.end_rank(2, code=1, error="torch.distributed.DistNetworkError: Connection reset by peer")
    cluster.advance(0.9)
    assert not cluster.stops(1)
    cluster.advance(0.2)
    assert cluster.recorded("failure")[0].cause is Cause.COMMUNICATION
    assert cluster.state().generation == 2


def test_nobody_waits_for_a_culprit_where_no_rank_is_left() -> None:
    cluster = running(1)
    for rank in (0, 1):
        cluster.end_rank(rank, code=1, error="RuntimeError: Socket Timeout")
    cluster.settle()
    assert cluster.state().generation == 2


def test_a_rank_that_said_done_may_fall_at_its_end() -> None:
    cluster = running(1)
    cluster.end_rank(0, signal=6, done=True)
    cluster.end_rank(1, code=0)
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED


def test_failures_while_closing_change_nothing() -> None:
    cluster = running(2)
    cluster.end_rank(0, signal=9)
    cluster.deliver(0, up=True)
    cluster.end_rank(2, code=1, error="ValueError: late")
    cluster.end_rank(3, signal=11)
    cluster.settle()
    assert len(cluster.recorded("failure")) == 1
    assert cluster.recorded("failure")[0].rank == 0
    assert cluster.state().restarts == {"killed": 1}


def test_the_same_error_at_the_same_place_ends_the_run_with_its_text() -> None:
    cluster = running(1)
    cluster.training = False
    for generation in (1, 2):
        assert cluster.state().generation == generation
        cluster.end_rank(0, code=1, error="ValueError: bad shape", where="bad.py:2 in train")
        cluster.settle()
    assert (cluster.over.state, cluster.over.cause, cluster.over.exit_code) == (State.FAILED, Cause.USER_ERROR, 10)
    assert cluster.recorded("failure")[-1].text.startswith(
        "rank 0 on node 0: ValueError: bad shape (bad.py:2 in train)"
    )
    assert cluster.recorded("ended")[0].text == "the same error at the same place again, without progress"
    assert cluster.state().exit_code == 10


def test_the_delay_grows_while_there_is_no_progress() -> None:
    rules = Recovery(killed=Budget(20, 2.0, 5.0), no_progress=None)
    cluster = running(1, rules=rules)
    cluster.training = False
    for _ in range(5):
        cluster.end_rank(0, signal=9)
        cluster.advance(6)
    failed = [event.at for event in cluster.recorded("failure")]
    opened = [event.at for event in cluster.recorded("generation_opened")][1:]
    assert [round(after - before) for before, after in zip(failed, opened, strict=True)] == [0, 2, 4, 5, 5]
    assert cluster.own_events[-2].text == "a new generation follows in 5 s: restart 5 of 20 for killed"


def test_a_failure_tells_how_long_its_generation_ran() -> None:
    cluster = running(1)
    for seconds in (30, 700):
        cluster.advance(seconds)
        cluster.end_rank(0, signal=9)
        cluster.advance(2)
    ran = [event.ran_s for event in cluster.recorded("failure")]
    assert [round(one, -1) for one in ran] == [30, 700]
    assert all(event.ran_s == 0 for event in cluster.recorded("generation_opened"))


def test_a_run_without_a_newer_checkpoint_ends_with_its_own_cause() -> None:
    cluster = running(1, rules=Recovery(no_progress=3, killed=Budget(50, 0.01, 0.02)))
    cluster.checkpoint = 3
    cluster.advance(1)
    while cluster.end is None:
        cluster.end_rank(0, signal=9)
        cluster.advance(2)
    assert (cluster.end.state, cluster.end.cause, cluster.end.exit_code) == (State.FAILED, Cause.NO_PROGRESS, 19)
    assert sum(cluster.state().restarts.values()) == 3
    assert cluster.state().failure is not None
    assert cluster.state().failure.cause is Cause.KILLED  # type: ignore[union-attr]


def test_restarts_of_earlier_attempts_count() -> None:
    history = [
        Event(1.0, 1, "failure", "x", cause=Cause.NODE_LOST, step=5, checkpoint=4),
        Event(1.0, 1, "requeue", "x", cause=Cause.NODE_LOST),
    ]
    cluster = Cluster(plan_of(1, rules=Recovery(node_lost=Budget(1))), history, attempt=2)
    assert (cluster.state().step, cluster.state().checkpoint, cluster.state().restarts) == (5, 4, {"node_lost": 1})
    assert cluster.state().failure is not None
    cluster.boot()
    cluster.settle()
    assert cluster.starts(1)[0].restarts == 1
    told = [*history, Event(2.0, 1, EXPLAINED, "x", cause=Cause.PREEMPTED)]
    last = Cluster(plan_of(1), told, attempt=2).state()
    assert last.failure is not None
    assert (last.restarts, last.failure.cause) == ({"preempted": 1}, Cause.PREEMPTED)


# -- nodes that go, and come back


def test_a_dead_node_leaves_a_smaller_world_at_once() -> None:
    cluster = running(3, least=1)
    cluster.kill(1)
    cluster.settle()
    assert sorted(cluster.starts(2)) == [0, 2]
    assert cluster.starts(2)[2].first_rank == 2
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.node, failure.evidence) == (Cause.NODE_LOST, 1, "its process is gone")
    assert [event.node for event in cluster.recorded("agent_lost")] == [1]
    assert [node.state for node in cluster.state().nodes] == ["up", "lost", "up"]


def test_a_spare_takes_exactly_the_place_of_the_lost_node() -> None:
    cluster = running(3, spares=1)
    before = cluster.starts(1)
    cluster.kill(1)
    cluster.settle()
    after = cluster.starts(2)
    assert sorted(after) == [0, 2, 3]
    assert after[3].first_rank == before[1].first_rank
    assert after[2].first_rank == before[2].first_rank


def test_an_agent_that_died_alone_comes_back_and_the_attempt_goes_on() -> None:
    cluster = running(3)
    cluster.kill(2)
    cluster.settle()
    cluster.advance(RETURN_S - 1)
    assert not cluster.starts(2)
    cluster.boot(2)
    cluster.advance(1)
    assert sorted(cluster.starts(2)) == [0, 1, 2]
    assert cluster.state().restarts == {"node_lost": 1}


def test_too_few_nodes_are_left_so_a_new_attempt_is_asked_for() -> None:
    cluster = running(3)
    cluster.kill(2)
    cluster.advance(RETURN_S - 1)
    assert cluster.state().state is not State.QUEUED
    cluster.advance(2)
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.NODE_LOST)
    assert cluster.state().state is State.QUEUED
    assert cluster.state().exit_code is None
    assert cluster.state().restarts == {"node_lost": 2}  # one to wait for the node, one without it


def test_a_node_that_comes_back_is_taken_in_at_the_next_boundary() -> None:
    cluster = running(2, least=1)
    cluster.kill(1)
    cluster.settle()
    assert cluster.state().world_size == 2
    cluster.boot(1)
    cluster.advance(5)
    assert cluster.state().world_size == 2
    assert [node.state for node in cluster.state().nodes] == ["up", "spare"]
    cluster.end_rank(0, signal=9)
    cluster.advance(5)
    assert cluster.state().world_size == 4


def test_a_node_that_cannot_be_seen_is_not_a_dead_one_before_its_lease_ends() -> None:
    cluster = running(2, least=1)
    cluster.cut(1)
    cluster.settle()
    assert cluster.state().nodes[1].state == "unknown"
    cluster.advance(LEASE - 1.1)
    assert not cluster.stops(1)
    cluster.advance(2.2)
    assert sorted(cluster.starts(2)) == [0]
    assert "15 s" in cluster.recorded("agent_lost")[0].text


def test_a_node_that_is_back_within_its_lease_goes_on() -> None:
    cluster = running(2, least=1)
    cluster.cut(1)
    cluster.advance(5)
    cluster.connect(1)
    cluster.advance(60)
    assert cluster.state().generation == 1
    assert [node.state for node in cluster.state().nodes] == ["up", "up"]
    cluster.finish_all()
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED


@pytest.mark.parametrize("tells_again", [True, False])
def test_a_rank_that_ended_behind_a_cut_is_noticed(tells_again: bool) -> None:
    cluster = running(2)
    cluster.cut(1)
    cluster.end_rank(3, signal=11)
    if not tells_again:
        cluster.agents[1].told.clear()
    cluster.connect(1)
    cluster.advance(2)
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank) == (Cause.KILLED, 3)
    assert cluster.state().generation == 2


def test_a_start_that_was_lost_in_a_cut_does_not_block_the_run() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot()
    cluster.deliver(0, up=True)
    cluster.deliver(1, up=True)
    cluster.cut(1)
    cluster.connect(1)
    cluster.advance(5)
    assert cluster.state().state is State.RUNNING
    assert cluster.state().generation == 2
    assert [event.cause for event in cluster.recorded("failure")] == [Cause.NODE_LOST]


def test_a_stop_that_was_lost_in_a_cut_is_said_again() -> None:
    cluster = running(2)
    cluster.end_rank(0, signal=9)
    cluster.deliver(0, up=True)
    cluster.cut(1)
    cluster.connect(1)
    cluster.settle()
    assert [node for node, _ in cluster.stops(1)].count(1) == 2
    assert cluster.state().generation == 2


def test_a_frozen_agent_is_lost_at_the_end_of_its_lease_and_must_stop_its_ranks_if_it_thaws() -> None:
    cluster = running(2, least=1)
    cluster.freeze(1)
    cluster.advance(LEASE + 1)
    assert sorted(cluster.starts(2)) == [0]
    cluster.feed(Heartbeat(1, 99, 1))
    cluster.feed(Heartbeat(1, 100, 1))
    cluster.feed(Ready(1))
    assert cluster.stops(1)[-1][0] == 1
    assert not {HeartbeatAck(99), HeartbeatAck(100)} & acks_to(cluster, 1), (
        "what it holds still until it is answered would go on"
    )
    cluster.end_rank(0, signal=9)
    cluster.advance(1)
    assert sorted(cluster.starts(3)) == [0]
    cluster.feed(Stopped(1, 1))
    cluster.feed(Heartbeat(1, 101, 0))
    assert HeartbeatAck(101) in acks_to(cluster, 1)
    cluster.end_rank(0, signal=9)
    cluster.advance(2)
    assert sorted(cluster.starts(4)) == [0, 1]


def test_status_tells_of_replaced_ranks_as_long_as_nobody_has_seen_them_end() -> None:
    cluster = running(2, least=1)
    cluster.freeze(1)
    cluster.advance(LEASE + 1)
    assert sorted(cluster.starts(2)) == [0]
    assert "ranks that were replaced may still run on node 1, until it is reachable again" in cluster.state().message
    cluster.feed(Heartbeat(1, 99, 1))
    assert "may still run on node 1" in cluster.state().message, "it is told to end them"
    cluster.feed(Stopped(1, 1))
    assert "may still run" not in cluster.state().message


def test_status_tells_of_ranks_of_an_attempt_before_on_a_node_that_is_away() -> None:
    cluster = Cluster(replace(plan_of(3, least=2), away=(2,)), attempt=2)
    cluster.boot(0, 1)
    cluster.advance(3)
    assert "may still run on node 2" in cluster.state().message
    cluster.boot(2)
    cluster.advance(1)
    assert "may still run" not in cluster.state().message


def test_of_a_node_whose_end_is_proved_nothing_may_still_run() -> None:
    cluster = running(3, least=2)
    cluster.kill(1)
    cluster.settle()
    assert [node.state for node in cluster.state().nodes] == ["up", "lost", "up"]
    assert "may still run" not in cluster.state().message


def test_ranks_that_were_replaced_have_no_grace_and_no_leave_to_go_on_if_their_agent_joins_again() -> None:
    cluster = running(2, least=1)
    cluster.freeze(1)
    cluster.advance(LEASE + 1)
    cluster.ask_stop("preempt")
    cluster.deliver(0, up=True)
    assert cluster.stops(2) == [(0, Stop(2, cluster.plan.spec.recovery.grace_s))]
    cluster.feed(Join(1, "127.0.0.2", cluster.agents[1].process, 20_001, 1))
    cluster.feed(Heartbeat(1, 99, 1))
    assert cluster.stops(1)[-1] == (1, Stop(1, 0.0))
    assert HeartbeatAck(99) not in acks_to(cluster, 1)
    cluster.feed(Stopped(1, 1))
    cluster.feed(Heartbeat(1, 100, 0))
    assert HeartbeatAck(100) in acks_to(cluster, 1)


def test_a_new_agent_on_a_node_proves_nothing_about_the_one_before() -> None:
    cluster = running(2, least=1)
    cluster.advance(0.5)
    cluster.feed(Join(1, "127.0.0.2", ProcessId("host-1", "boot-1", 77, 1), 20_001))
    cluster.feed(Ready(1))
    assert not cluster.stops(1)
    assert cluster.state().nodes[1].state == "unknown"
    cluster.agents[1].connected = False
    for second in range(1, 20):
        cluster.feed(Heartbeat(1, second, 0))
        cluster.advance(1, until=lambda: len(cluster.open_starts) > 1)
    assert cluster.recorded("failure")[0].cause is Cause.NODE_LOST
    assert sorted(cluster.starts(2)) == [0, 1]
    assert cluster.recorded("failure")[0].at - cluster.recorded("generation_opened")[0].at >= LEASE


def test_a_machine_that_was_started_anew_has_no_ranks_left() -> None:
    cluster = running(2, least=1)
    cluster.agents[1].alive = False
    cluster.agents[1].ranks = []
    cluster.boot(1, machine="boot-2")
    cluster.settle()
    assert sorted(cluster.starts(2)) == [0, 1]


@pytest.mark.parametrize("after_s", [0.0, 3.0])
def test_the_real_culprit_of_broken_connections_is_the_node_that_went(after_s: float) -> None:
    """Be it known before the generation is closed for them, or while it is."""
    cluster = running(2, least=1)
    cluster.kill(1, proof=False)
    for rank in (0, 1):
        cluster.end_rank(rank, code=1, error="Connection closed by peer")
    cluster.settle()
    cluster.advance(after_s)
    assert not cluster.starts(2)
    assert cluster.state().state is (State.REGROUPING if after_s else State.RUNNING)
    cluster.feed(ProvenDead(1, "its process is gone"))
    cluster.settle()
    assert [event.cause for event in cluster.recorded("failure")] == [Cause.NODE_LOST]
    assert sorted(cluster.starts(2)) == [0]


def test_a_node_that_does_not_end_its_ranks_is_put_aside() -> None:
    cluster = running(2, least=1)
    cluster.agents[1].ignores_stop = True
    cluster.end_rank(0, signal=9)
    cluster.advance(29)
    assert not cluster.starts(2)
    cluster.advance(2)
    assert sorted(cluster.starts(2)) == [0]


def test_waiting_for_a_returning_node_rather_than_giving_up() -> None:
    cluster = running(2)
    cluster.end_rank(0, signal=9)
    cluster.deliver(0, up=True)
    for node in (0, 1):
        cluster.deliver(node, up=False)
    cluster.deliver(1, up=True)
    cluster.cut(1)
    cluster.deliver(1, up=True)
    cluster.settle()
    assert cluster.end is None
    assert not cluster.starts(2)
    cluster.connect(1)
    cluster.settle()
    assert sorted(cluster.starts(2)) == [0, 1]


# -- hangs


def hang_rules(seconds: float) -> Recovery:
    return Recovery(hang_after_s=seconds)


def test_a_frozen_rank_is_named_though_all_are_silent() -> None:
    cluster = running(2, rules=Recovery(hang_after_s=10, hang_auto=False))
    cluster.agents[1].ranks[1].frozen = True
    began = cluster.mono
    cluster.advance(60, until=lambda: bool(cluster.stops(1)))
    assert 10 <= cluster.mono - began <= 15
    stops = dict(cluster.stops(1))
    assert (stops[0].hung, stops[1].hung, stops[0].grace_s) == ((0, 1), (2, 3), 0.0)
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank) == (Cause.HANG, 3)
    assert "3: 3" in failure.evidence
    assert cluster.state().failure.log == "logs/a0001.g0001/rank-00003.log"  # type: ignore[union-attr]
    assert cluster.state().restarts == {"hang": 1}


def test_the_rank_that_is_furthest_behind_hangs() -> None:
    cluster = running(2, rules=hang_rules(10))
    cluster.agents[0].ranks[1].step = 2
    cluster.stuck = {1}
    cluster.advance(15)
    assert cluster.recorded("failure")[0].rank == 1


def test_one_silent_rank_that_used_to_report_hangs_though_the_others_go_on() -> None:
    cluster = running(2, rules=hang_rules(10))
    cluster.stuck = {2}
    for _ in range(14):
        for rank in cluster.agents[0].ranks + cluster.agents[1].ranks:
            if rank.number != 2:
                rank.active_at = cluster.mono
        cluster.advance(1)
    assert cluster.recorded("failure")[0].rank == 2
    assert [stop.hung for _, stop in cluster.stops(1)] == [(), (2,)]


def test_a_silent_rank_hangs_though_others_make_steps_all_the_while() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=hang_rules(10)))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    for second in range(1, 20):
        cluster.mono += 1
        silent = RankHeartbeat(1, float(second), True, False, 1)
        cluster.feed(Heartbeat(0, second, 1, (RankHeartbeat(0, 0.0, True, False, second + 1), silent)))
        cluster.settle()
    assert cluster.stops(1)[0][1].hung == (1,)


def test_a_rank_that_never_reported_may_be_silent_while_others_go_on() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=hang_rules(10)))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    for second in range(60):
        cluster.mono += 1
        cluster.feed(
            Heartbeat(
                0, second, 1, (RankHeartbeat(0, float(second), False, False), RankHeartbeat(1, 0.2, False, False))
            )
        )
    assert not cluster.recorded("failure")


def test_silence_before_the_first_report_has_a_limit_of_its_own() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=replace(hang_rules(10), hang_at_start_s=50.0)))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    silent = 0.0
    while not cluster.recorded("failure") and silent < 100:
        silent += 1
        cluster.mono += 1
        ranks = (RankHeartbeat(0, silent, False, False), RankHeartbeat(1, silent, False, False))
        cluster.feed(Heartbeat(0, int(silent), 1, ranks))
        cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert failure.cause is Cause.HANG
    assert 50 < silent < 55
    assert failure.text.endswith("has not reported anything since its start (recovery.hang_at_start)")


def test_once_one_that_reported_hangs_the_silent_ones_have_had_their_time_too() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=hang_rules(10)))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    for second in range(12):
        cluster.mono += 1
        ranks = (RankHeartbeat(0, float(second), True, False, 1), RankHeartbeat(1, float(second), False, False))
        cluster.feed(Heartbeat(0, second, 1, ranks))
        cluster.settle()
    assert cluster.stops(1)[0][1].hung == (0, 1)


def test_silence_is_no_hang_while_a_node_cannot_be_seen() -> None:
    cluster = running(2, least=1, rules=replace(hang_rules(5), lease_s=30))
    cluster.cut(1)
    cluster.training = False
    cluster.advance(20)
    assert not cluster.stops(1)
    cluster.advance(12)
    assert cluster.recorded("failure")[0].cause is Cause.NODE_LOST


def test_nobody_hangs_while_a_rank_waits_for_a_debugger() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=hang_rules(10)))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    silent = 0

    def pass_by(seconds: int, place: str) -> bool:
        nonlocal silent
        for _ in range(seconds):
            silent += 1
            cluster.mono += 1
            idle = RankHeartbeat(0, float(silent), True, False, 1)
            cluster.feed(Heartbeat(0, silent, 1, (idle, replace(idle, rank=1, breakpoint=place))))
            cluster.settle()
        return bool(cluster.stops(1))

    assert not pass_by(60, "train.py:8")
    assert not pass_by(9, "")
    assert pass_by(5, ""), "once it goes on all have their time anew, and no more"


def waiting_in(op: str, rank: int, line: int) -> RankLook:
    """A rank that is in its tenth collective, called at that line."""
    call = Collective(10, op, sizes=((4,),), dtypes=("Float",), frames=(Frame("/p/train.py", line, "step"),), age_s=9.0)
    return RankLook(rank, 0, 1, "S", answered=True, groups=(GroupLook("0", ranks=(0, 1), entered=10, last=(call,)),))


def hanging(rules: Recovery, *looks: RankLook, history: Sequence[Event] = ()) -> Cluster:
    """Return a cluster of two ranks that made thirty steps of a second each and then hang in the given way."""
    cluster = Cluster(plan_of(1, ranks_each=2, rules=rules), history)
    cluster.boot()
    cluster.advance(30)
    assert cluster.state().step
    cluster.seen = {look.rank: look for look in looks}
    cluster.training = False
    return cluster


OUT_OF_STEP = waiting_in("all_reduce", 0, 12), waiting_in("broadcast", 1, 88)


def test_ranks_that_are_out_of_step_are_found_from_the_runs_own_step_times() -> None:
    cluster = hanging(Recovery(), *OUT_OF_STEP)
    began = cluster.mono
    cluster.advance(60, until=lambda: bool(cluster.hangs))
    assert 15 <= cluster.mono - began <= 30  # twenty steps
    assert "rank 1 on node 0 in broadcast at train.py:88" in cluster.state().message
    assert not cluster.stops(1), "another look must show the same"
    cluster.advance(60, until=lambda: bool(cluster.stops(1)))
    assert cluster.mono - began <= 45
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank, failure.where) == (Cause.HANG, 1, "train.py:88")
    assert "all_reduce at train.py:12" in failure.text
    assert cluster.hangs[1].verdict.kind is HangKind.DIFFERENT_COLLECTIVES


def test_what_is_kept_of_a_hang_says_how_busy_the_gpus_of_each_rank_are() -> None:
    cluster = hanging(Recovery(), *OUT_OF_STEP)
    gpus = tuple(GpuLoad(index, 0, 0, busy) for index, busy in enumerate((100, 7, None)))
    ranks = (RankLoad(0, 1.0, 0, gpus=(1,)), RankLoad(1, 1.0, 0, gpus=(0, 2)))
    cluster.feed(Heartbeat(0, 90, 1, load=NodeLoad(0, 1.0, 8, 2.0, 10, 20, gpus=gpus, ranks=ranks)))
    cluster.advance(60, until=lambda: bool(cluster.hangs))
    assert [look.gpus_busy for look in cluster.hangs[1].ranks] == [(7,), (100,)]
    assert "its GPUs 7 % busy" in cluster.hangs[1].verdict.evidence[0]


def test_out_of_step_again_at_the_same_step_ends_the_run_as_an_error_of_the_program() -> None:
    cluster = hanging(Recovery(), *OUT_OF_STEP)
    cluster.advance(120, until=lambda: bool(cluster.recorded("failure")))
    again = hanging(Recovery(), *OUT_OF_STEP, history=cluster.events)
    again.advance(120, until=lambda: again.end is not None)
    assert (again.over.state, again.over.cause) == (State.FAILED, Cause.USER_ERROR)
    assert "train.py:88" in again.over.message


def test_a_rank_that_only_computes_for_long_is_named_and_left_alone() -> None:
    late = RankLook(1, 0, 1, "R", busy=1.0, answered=True, stack=(Frame("/p/train.py", 88, "validate"),))
    late = replace(late, groups=(GroupLook("0", ranks=(0, 1), entered=9),))
    cluster = hanging(Recovery(), waiting_in("all_reduce", 0, 12), late)
    cluster.advance(600)
    assert not cluster.stops(1)
    assert "rank 1 on node 0 never entered all_reduce #10" in cluster.state().message
    cluster.training = True
    cluster.advance(5)
    assert cluster.state().message == ""


def test_ranks_that_are_stopped_while_others_run_are_replaced_within_three_seconds() -> None:
    cluster = hanging(Recovery(), waiting_in("all_reduce", 0, 12))
    cluster.agents[0].ranks[1].frozen = True
    began = cluster.mono
    cluster.advance(60, until=lambda: bool(cluster.stops(1)))
    assert cluster.mono - began <= 2.5
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank) == (Cause.HANG, 1)
    assert "rank 1 on node 0 is stopped (SIGSTOP, or a debugger)" in failure.text


def test_ranks_that_go_on_within_a_second_or_are_all_stopped_are_left_alone() -> None:
    cluster = hanging(Recovery(), waiting_in("all_reduce", 0, 12))
    ranks = cluster.agents[0].ranks
    for stopped, seconds in (([1], 1.0), ([], 3.0), ([0, 1], 50.0)):
        for number, rank in enumerate(ranks):
            rank.frozen = number in stopped
        cluster.advance(seconds)
    assert not cluster.stops(1)


def test_a_rank_that_goes_on_before_it_is_looked_at_is_left_alone() -> None:
    """Its heartbeats say that it is stopped, and the kernel no more."""
    cluster = hanging(Recovery(), waiting_in("all_reduce", 0, 12), waiting_in("all_reduce", 1, 12))
    for second in range(1, 8):
        cluster.mono += 1
        cluster.feed(
            Heartbeat(0, 90 + second, 1, tuple(RankHeartbeat(rank, second, True, rank == 1) for rank in (0, 1)))
        )
        cluster.settle()
    assert cluster.hangs[1].verdict.kind is not HangKind.FROZEN and not cluster.stops(1)


@pytest.mark.parametrize(("state", "ends"), [("T", True), ("t", False), ("D", False)])
def test_a_stopped_rank_is_given_a_minute_and_one_in_a_debugger_or_the_kernel_all_the_time(
    state: str, ends: bool
) -> None:
    cluster = hanging(Recovery(), waiting_in("all_reduce", 0, 12), RankLook(1, 0, 1, state))
    cluster.advance(50)
    assert cluster.hangs[1].verdict.kind is HangKind.FROZEN
    assert not cluster.stops(1)
    cluster.advance(100)
    assert bool(cluster.stops(1)) is ends


def test_a_time_that_somebody_gave_is_kept_to_though_it_is_certain_that_ranks_hang() -> None:
    cluster = hanging(Recovery(hang_after_s=300.0, hang_auto=False), *OUT_OF_STEP)
    cluster.advance(290)
    assert not cluster.stops(1)
    cluster.advance(20)
    assert "train.py:88" in cluster.recorded("failure")[0].text


def test_a_rank_that_has_nothing_to_report_is_not_looked_at_while_another_one_reports_steps() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2))
    cluster.boot()
    cluster.settle()
    cluster.training = False
    for second in range(1, 400):
        cluster.mono += 1
        quiet = RankHeartbeat(1, float(second), True, False)
        cluster.feed(Heartbeat(0, second, 1, (RankHeartbeat(0, 0.0, True, False, second), quiet)))
        cluster.settle()
    assert not [message for _, _, message in cluster.sent if isinstance(message, Look) and not message.times]


def test_ranks_that_train_are_not_looked_at() -> None:
    cluster = running(2)
    cluster.advance(300)
    assert not [message for _, _, message in cluster.sent if isinstance(message, Look) and not message.times]


def test_where_a_rank_answers_requests_is_shown_as_long_as_it_lives() -> None:
    cluster = running(1)
    cluster.training = False
    rank = RankHeartbeat(0, 0.0, False, False, address="http://10.0.0.1:8000")
    cluster.feed(Heartbeat(0, 1, 1, (rank,)))
    assert cluster.state().message == "serves http://10.0.0.1:8000"
    cluster.feed(Heartbeat(0, 2, 1, (replace(rank, address=""),)))
    assert cluster.state().message == ""


def test_no_hang_is_looked_for_where_the_spec_says_off() -> None:
    cluster = running(1, rules=Recovery(hang_after_s=None))
    cluster.training = False
    cluster.advance(5000)
    assert cluster.state().generation == 1


# -- stopping


def test_cancel_asks_first_and_ends_cancelled() -> None:
    cluster = running(2)
    cluster.ask_stop("cancel")
    cluster.ask_stop("cancel", 1)
    cluster.settle()
    assert {stop.grace_s for _, stop in cluster.stops(1)} == {30.0}
    assert len(cluster.stops(1)) == 2
    assert (cluster.over.state, cluster.over.cause, cluster.over.exit_code) == (State.CANCELLED, Cause.CANCELLED, 20)
    assert not cluster.recorded("failure")


def test_cancel_does_not_wait_for_ever() -> None:
    cluster = running(2, rules=Recovery(grace_s=2.5))
    cluster.agents[1].ignores_stop = True
    cluster.ask_stop("cancel")
    began = cluster.mono
    cluster.advance(60)
    assert cluster.mono - began == pytest.approx(12.5)
    assert cluster.state().state is State.CANCELLED


def test_cancel_while_the_nodes_are_still_coming() -> None:
    cluster = Cluster(plan_of(3))
    cluster.boot(0)
    cluster.ask_stop("cancel")
    cluster.settle()
    assert cluster.over.state is State.CANCELLED


def test_cancel_beats_preempt_and_a_failure_that_is_being_dealt_with() -> None:
    cluster = running(2)
    cluster.end_rank(0, signal=9)
    cluster.deliver(0, up=True)
    cluster.ask_stop("preempt")
    cluster.ask_stop("cancel", 1)
    cluster.ask_stop("preempt", 1)
    cluster.settle()
    assert cluster.over.state is State.CANCELLED
    assert not cluster.starts(2)


def test_preempt_asks_for_a_new_attempt_and_costs_no_budget() -> None:
    cluster = running(2, rules=Recovery(killed=Budget(0), node_lost=Budget(0)))
    cluster.ask_stop("preempt", 1)
    cluster.settle()
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.PREEMPTED)
    assert cluster.state().restarts == {"preempted": 1}


def test_an_attempt_that_is_to_start_again_does_so_without_counting_as_a_restart() -> None:
    waiting = Cluster(plan_of(2))
    waiting.boot(0)
    for cluster in (running(2), waiting):
        cluster.ask_stop("restart")
        cluster.settle()
        assert (cluster.over.state, cluster.over.cause, cluster.over.delay_s) == (State.QUEUED, None, 0.0)
        assert cluster.state().restarts == {}
        assert not cluster.recorded("failure")


def test_a_failure_of_a_role_that_restarts_all_ends_the_attempt_as_its_budget_says() -> None:
    for budget, state in ((Budget(1), State.QUEUED), (Budget(0), State.FAILED)):
        plan = replace(plan_of(2, rules=Recovery(killed=budget)), restarts_all=True)
        cluster = Cluster(plan)
        cluster.boot()
        cluster.advance(3)
        cluster.end_rank(1, signal=9)
        cluster.deliver(0, up=True)
        cluster.settle()
        assert (cluster.over.state, cluster.over.cause) == (state, Cause.KILLED)
        assert not cluster.starts(2)


def test_near_the_limit_of_the_clusters_job_a_new_attempt_follows_as_the_budget_says() -> None:
    for budget, state in ((Budget(None), State.QUEUED), (Budget(0), State.FAILED)):
        cluster = running(2, rules=Recovery(time_limit=budget))
        cluster.ask_stop("limit", 1)
        cluster.ask_stop("preempt", 1)  # the cluster's own hand follows; the reason stays the first one
        cluster.settle()
        assert (cluster.over.state, cluster.over.cause) == (state, Cause.TIME_LIMIT)


def test_on_slurm_the_limit_is_slurms_to_watch() -> None:
    plan = msgspec.structs.replace(plan_of(1, time_s=20), cluster_kind="slurm", limit_per_job=True)
    cluster = Cluster(plan)
    cluster.boot(0)
    cluster.advance(100)
    assert cluster.end is None


def test_a_run_that_had_finished_when_it_was_preempted_has_succeeded() -> None:
    cluster = running(1)
    cluster.ask_stop("preempt")
    cluster.deliver(0, up=True)
    cluster.finish_all()
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED


@pytest.mark.parametrize("number", [10, 12, 15])
def test_the_clusters_signal_that_reaches_a_rank_first_is_a_preemption_all_the_same(number: int) -> None:
    cluster = running(2, rules=Recovery(killed=Budget(0)))
    cluster.end_rank(1, signal=number)
    cluster.deliver(0, up=True)
    cluster.ask_stop("preempt")
    cluster.settle()
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.PREEMPTED)


@pytest.mark.parametrize("number", [10, 12, 15])
@pytest.mark.parametrize(
    ("kind", "state", "restarts"),
    [("cancel", State.CANCELLED, {}), ("restart", State.QUEUED, {}), ("preempt", State.QUEUED, {"preempted": 1})],
)
def test_ranks_that_a_signal_to_the_whole_job_ends_before_their_agent_counts_for_no_restart(
    number: int, kind: str, state: State, restarts: dict[str, int]
) -> None:
    cluster = running(1, rules=Recovery(killed=Budget(0)))
    for rank in (0, 1):
        cluster.end_rank(rank, signal=number)
    cluster.settle()  # its node has nothing left to stop: the generation could be over at once
    cluster.advance(0.5)
    cluster.ask_stop(kind)
    cluster.settle()
    assert (cluster.over.state, cluster.state().restarts) == (state, restarts)
    assert not cluster.starts(2)


def test_a_rank_that_somebody_ends_by_a_signal_of_clusters_starts_again_once_no_stop_has_followed() -> None:
    cluster = running(1)
    cluster.end_rank(0, signal=15)
    cluster.end_rank(1, code=1, error="RuntimeError: Connection closed by peer")
    cluster.advance(0.9)
    assert not cluster.starts(2)
    cluster.advance(0.2)
    assert cluster.starts(2)
    assert cluster.state().restarts == {"killed": 1}


def test_a_rank_that_was_asked_to_stop_and_asks_to_be_resumed_is_preempted() -> None:
    cluster = running(1)
    cluster.end_rank(0, code=75, asked=True)
    cluster.advance(1.1)
    assert cluster.state().restarts == {"preempted": 1}
    assert cluster.state().generation == 2


def test_exit_code_75_of_a_rank_that_nobody_asked_to_stop_is_a_user_error_within_its_budget() -> None:
    cluster = running(1, rules=Recovery(user_error=Budget(0, explicit=True)))
    cluster.end_rank(0, code=75, left=True)
    cluster.advance(1.1)
    assert (cluster.over.state, cluster.over.cause) == (State.FAILED, Cause.USER_ERROR)


def test_exit_code_75_is_preempted_where_the_word_of_it_comes_after_the_rank_has_ended() -> None:
    cluster = running(2)
    cluster.end_rank(0, code=75)
    cluster.deliver(0, up=True)
    cluster.ask_stop("preempt")
    cluster.settle()
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.PREEMPTED)


def test_an_exception_after_a_move_is_not_one_before_the_first_step() -> None:
    cluster = running(2, spares=1)
    cluster.feed(Move(1))
    cluster.settle()
    cluster.end_rank(2, code=1, error="ValueError: no")
    cluster.settle()
    assert cluster.end is None


def test_how_far_the_run_had_come_is_known_whatever_has_ended_the_attempt_before() -> None:
    history = [
        Event(1.0, 1, "ended", "cancelled", step=40, checkpoint=30, cause=Cause.CANCELLED),
        Event(2.0, 2, "resumed", "resumed on local"),
    ]
    state = Cluster(plan_of(1), history=history, attempt=2).state()
    assert (state.step, state.checkpoint) == (40, 30)


# -- fenced: a newer start of the run writes the checkpoints


def assert_fenced(cluster: Cluster, generations: int = 1) -> None:
    """Ended as such, and nothing of it counts as a failure: no budget, no restart, no next attempt."""
    assert (cluster.over.state, cluster.over.cause, cluster.over.exit_code) == (State.FAILED, None, 22)
    assert "newer start" in cluster.over.message
    assert not cluster.recorded("failure")
    assert not cluster.starts(generations + 1)
    assert (cluster.state().restarts, cluster.state().exit_code) == ({}, 22)


def test_a_fenced_rank_ends_the_attempt_and_is_no_failure() -> None:
    cluster = running(2)
    cluster.end_rank(0, code=22, fenced=True)
    cluster.settle()
    assert {stop.grace_s for _, stop in cluster.stops(1)} == {0.0}
    assert_fenced(cluster)


def test_the_exit_code_alone_says_nothing() -> None:
    cluster = running(1)
    cluster.end_rank(0, code=22)
    cluster.settle()
    assert cluster.state().restarts == {"user_error": 1}


def test_a_fenced_rank_that_did_its_work_before_is_no_news() -> None:
    cluster = running(1, ranks_each=1)
    cluster.end_rank(0, code=22, fenced=True, done=True)
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED


@pytest.mark.parametrize("first", [{"signal": 9}, {"code": 1, "error": "RuntimeError: Connection closed by peer"}])
def test_a_fenced_rank_counts_although_another_fell_first(first: dict[str, object]) -> None:
    cluster = running(2)
    cluster.end_rank(3, **first)
    cluster.end_rank(0, code=22, fenced=True)
    cluster.settle()
    cluster.advance(2)
    assert_fenced(cluster)


def test_ranks_that_lose_a_fenced_peer_are_not_asked_again() -> None:
    cluster = running(2)
    cluster.end_rank(0, code=22, fenced=True)
    for rank in (1, 2, 3):
        cluster.end_rank(rank, code=1, error="RuntimeError: Connection closed by peer")
    cluster.settle()
    assert_fenced(cluster)


def test_a_rank_that_is_told_to_stop_and_finds_itself_fenced() -> None:
    """Preempted, it would be put in the queue again; cancelled is cancelled."""
    for kind, state, code in (("preempt", State.FAILED, 22), ("cancel", State.CANCELLED, 20)):
        cluster = running(1)
        cluster.ask_stop(kind)
        cluster.deliver(0, up=True)
        cluster.end_rank(0, code=22, fenced=True, stopping=True)
        cluster.settle()
        cluster.advance(60)
        assert (cluster.over.state, cluster.over.exit_code) == (state, code)
        assert not cluster.recorded("requeue")


def test_late_news_of_a_fenced_rank_opens_no_generation() -> None:
    """The agent did not see the end in time, so its generation is closed and the next about to begin."""
    backoff = Budget(5, 10.0, 10.0)
    cluster = running(1, ranks_each=2, rules=Recovery(killed=backoff, no_progress=None))
    for _ in range(2):
        cluster.end_rank(1, signal=9)
        cluster.settle()
        cluster.advance(1)
    assert not cluster.starts(3)
    late = RankExit(2, 0, 0, 0, 5, code=22, fenced=True)
    for coordinator in (cluster.coordinator, cluster.twin):
        coordinator._attempt.current.ranks[0].exit = None
    cluster.feed(Exited(0, late))
    cluster.advance(60)
    assert cluster.over.exit_code == 22
    assert not cluster.starts(3)


def test_the_time_limit_ends_the_run_with_grace() -> None:
    cluster = running(1, time_s=50)
    cluster.advance(46.9)
    assert not cluster.stops(1)
    cluster.advance(0.2)
    assert dict(cluster.stops(1))[0].grace_s == 30.0
    assert (cluster.over.state, cluster.over.cause, cluster.over.exit_code) == (State.FAILED, Cause.TIME_LIMIT, 17)


def test_the_time_limit_holds_while_waiting_too() -> None:
    cluster = Cluster(plan_of(2, time_s=20))
    cluster.boot(0)
    cluster.advance(30)
    assert cluster.over.cause is Cause.TIME_LIMIT


def test_the_time_of_earlier_attempts_counts() -> None:
    cluster = Cluster(plan_of(1, time_s=50, rules=Recovery(time_limit=Budget(3))), attempt=2, used_s=30)
    cluster.boot()
    cluster.advance(10)
    assert cluster.state().used_s == pytest.approx(40, abs=0.2)
    assert not cluster.stops(1)
    cluster.advance(10)
    assert cluster.stops(1)
    assert (cluster.over.state, cluster.over.cause) == (State.FAILED, Cause.TIME_LIMIT)  # more attempts have no time
    assert "restart" not in cluster.over.message


def test_an_attempt_that_has_no_time_left_opens_nothing() -> None:
    cluster = Cluster(plan_of(1, time_s=50), attempt=2, used_s=50)
    cluster.boot()
    cluster.advance(1)
    assert cluster.over.cause is Cause.TIME_LIMIT
    assert not cluster.starts(1)


def test_an_agent_that_buries_the_one_before_spares_the_wait_for_its_lease() -> None:
    cluster = running(2)
    cluster.kill(1, proof=False)
    cluster.settle()
    cluster.advance(1)
    assert not cluster.stops(1)  # it may be alive, for all that anybody knows
    cluster.boot(1, buries=True)
    cluster.settle()
    assert cluster.starts(2)
    (failure,) = cluster.recorded("failure")
    assert failure.cause is Cause.NODE_LOST and "died" in failure.text


def test_a_burial_of_somebody_else_changes_nothing() -> None:
    cluster = running(2)
    cluster.kill(1, proof=False)
    cluster.settle()
    cluster.boot(1)
    cluster.agents[1].buried = ProcessId("host-1", "boot-1", 999_999, 1)
    cluster.settle()
    cluster.advance(2)
    assert not cluster.starts(2)


# -- faults of nodes


def test_a_setup_that_fails_is_the_users_error() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot(ready=False)
    cluster.fault(1, setup=True, text="run.setup failed on node 1 with exit code 7", log="logs/setup.log")
    cluster.settle()
    assert (cluster.over.state, cluster.over.exit_code) == (State.FAILED, 10)
    failure = cluster.state().failure
    assert failure is not None
    assert (failure.summary, failure.log) == ("run.setup failed on node 1 with exit code 7", "logs/setup.log")


def test_a_port_of_a_rank_that_another_program_has_ends_the_attempt() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot(ready=False)
    cluster.say(1, Fault(1, False, "another program has 10.0.0.2:23456", port=True))
    cluster.settle()
    assert (cluster.over.state, cluster.over.cause) == (State.FAILED, Cause.LAUNCHER_FAULT)
    assert cluster.over.message == "another program has 10.0.0.2:23456"


def test_a_node_with_a_fault_of_ours_is_left_out() -> None:
    cluster = running(2, least=1)
    cluster.fault(1, setup=False, text="no space left on device")
    cluster.settle()
    assert sorted(cluster.starts(2)) == [0]
    assert cluster.recorded("failure")[0].cause is Cause.LAUNCHER_FAULT


def no_space(cluster: Cluster, rank: int) -> None:
    cluster.advance(1)
    next_ = cluster.state().generation + 1
    cluster.end_rank(rank, code=1, error="OSError: [Errno 28] No space left on device: 'x'")
    cluster.advance(100, until=lambda: cluster.state().generation == next_)
    cluster.settle()


def test_a_full_disk_is_a_cause_of_its_own_and_the_spare_steps_in() -> None:
    cluster = running(2, spares=1)
    no_space(cluster, 3)
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.node) == (Cause.DISK, 1)
    assert sorted(cluster.starts(2)) == [0, 2]
    no_space(cluster, 3)  # now node 1's failed longest ago
    assert sorted(cluster.starts(3)) == [0, 1]
    no_space(cluster, 0)  # who coordinates stays in
    assert sorted(cluster.starts(4)) == [0, 1]
    assert cluster.state().restarts == {"disk": 3}


def test_a_full_disk_that_all_ranks_name_is_that_of_the_named_ranks_node_and_the_spare_steps_in() -> None:
    cluster = running(3, spares=1)
    text = "trainer.errors.SaveFailed: /r: 3 saves in a row have failed: rank 4: No space left on device"
    for rank in (0, 4):
        cluster.end_rank(rank, code=1, error=text, failed_rank=4)
    cluster.advance(1, until=lambda: cluster.state().generation == 2)  # at once, without a wait
    cluster.settle()
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.rank, failure.node) == (Cause.DISK, 4, 2)
    assert sorted(cluster.starts(2)) == [0, 1, 3]


@pytest.mark.parametrize(("error", "failed_rank"), [("OSError: [Errno 28] x", 99), ("ValueError: x", 4)])
def test_a_rank_that_is_not_there_or_that_no_disk_failed_is_not_blamed(error: str, failed_rank: int) -> None:
    cluster = running(3, spares=1)
    cluster.end_rank(0, code=1, error=error, failed_rank=failed_rank)
    cluster.advance(100, until=lambda: bool(cluster.recorded("failure")))
    assert (cluster.recorded("failure")[0].rank, cluster.recorded("failure")[0].node) == (0, 0)


def test_without_another_node_the_one_with_the_full_disk_is_tried_again() -> None:
    cluster = running(2)
    no_space(cluster, 3)
    assert sorted(cluster.starts(2)) == [0, 1]


def test_a_node_whose_disk_takes_no_checkpoint_is_only_put_behind_others() -> None:
    cluster = running(2, spares=1)
    cluster.say(1, Fault(1, False, "node 1: its disk: No space left on device", disk=True))
    cluster.advance(10, until=lambda: cluster.state().generation == 2)
    assert sorted(cluster.starts(2)) == [0, 2]
    assert cluster.recorded("failure")[0].cause is Cause.DISK
    assert not cluster.recorded("agent_fault")
    assert [node.state for node in cluster.state().nodes] == ["up", "spare", "up"]


@pytest.mark.parametrize(("spares", "members"), [(1, [0, 2]), (0, [0, 1])])
def test_a_node_that_imports_again_has_ranks_only_where_no_spare_is_ready(spares: int, members: list[int]) -> None:
    cluster = running(2, spares=spares)
    cluster.agents[1].preparing = "importing torch"
    cluster.heartbeat(1)
    cluster.end_rank(2, signal=9)
    cluster.advance(10, until=lambda: cluster.state().generation == 2)
    cluster.settle()
    assert sorted(cluster.starts(2)) == members


def test_a_rank_that_could_not_be_started_is_the_launchers_own_fault_and_its_node_is_put_behind_others() -> None:
    cluster = running(2, spares=1)
    cluster.end_rank(2, code=125, not_started="OSError: [Errno 24] Too many open files")
    cluster.advance(10, until=lambda: cluster.state().generation == 2)
    assert sorted(cluster.starts(2)) == [0, 2]
    failure = cluster.recorded("failure")[0]
    assert (failure.cause, failure.node) == (Cause.LAUNCHER_FAULT, 1)
    assert failure.text == "rank 2 on node 1 could not be started: OSError: [Errno 24] Too many open files"


def test_without_the_faulty_node_there_are_too_few() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot(0)
    cluster.boot(1, ready=False)
    cluster.fault(1, setup=False, text="no zygote")
    cluster.settle()
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.LAUNCHER_FAULT)
    assert "no zygote" in cluster.recorded("failure")[0].text


# -- devices that are not fit

HEALTH = Recovery(health=True)
SICK = "cuda:1 (H100): memory: expected 00ff in word 7, got 00fd; 1 of 9 words are wrong"


def sick_from_the_start(*nodes: int, **how: object) -> Cluster:
    cluster = Cluster(plan_of(rules=HEALTH, **how))  # type: ignore[arg-type]
    cluster.boot(ready=False)
    for index in nodes:
        cluster.agents[index].sick = SICK
    for index in cluster.agents:
        cluster.make_ready(index)
    cluster.settle()
    return cluster


def test_a_spare_has_the_place_of_a_node_that_is_not_fit() -> None:
    cluster = sick_from_the_start(1, nodes=2, spares=1)
    assert sorted(cluster.starts(1)) == [0, 2]
    (told,) = cluster.recorded("node_unfit")
    assert (told.node, told.cause, told.evidence) == (1, Cause.NODE_LOST, SICK)
    assert told.text == f"node 1 is left out: {SICK}"
    nodes = cluster.state().nodes
    assert [(node.state, node.why) for node in nodes] == [("up", ""), ("unfit", SICK), ("up", "")]
    cluster.finish_all()
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED
    assert cluster.state().nodes[1].why == SICK
    assert not cluster.recorded("failure")


def test_a_spare_that_comes_later_is_waited_for() -> None:
    cluster = Cluster(plan_of(2, least=1, spares=1, rules=HEALTH))
    cluster.boot(ready=False)
    cluster.agents[1].sick = SICK
    cluster.make_ready(0)
    cluster.make_ready(1)
    cluster.advance(20)
    assert not cluster.starts(1)
    message = cluster.state().message
    assert message == f"waiting for nodes: 1 of 2 are ready; node 1 is unfit: {SICK}"
    cluster.make_ready(2)
    cluster.settle()
    assert sorted(cluster.starts(1)) == [0, 2]


def test_a_range_goes_on_at_once_without_it() -> None:
    cluster = sick_from_the_start(2, nodes=3, least=2)
    assert cluster.mono == 100 and sorted(cluster.starts(1)) == [0, 1]


def test_without_it_there_are_too_few_and_that_is_what_is_said() -> None:
    cluster = sick_from_the_start(1, nodes=2)
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.NODE_LOST)
    (failure,) = cluster.recorded("failure")
    assert (failure.node, failure.evidence) == (1, SICK)
    assert failure.text == f"1 of at least 2 nodes can be used; node 1 is unfit: {SICK}"


def test_a_device_that_is_not_fit_after_a_failure_costs_one_restart() -> None:
    cluster = Cluster(plan_of(2, spares=1, rules=HEALTH))
    cluster.boot()
    cluster.advance(3)
    cluster.agents[1].sick = SICK
    cluster.end_rank(2, code=1, error="RuntimeError: CUDA error: misaligned address", where="a.py:3")
    cluster.advance(3)
    assert sorted(cluster.starts(2)) == [0, 2]
    assert cluster.state().restarts == {"user_error": 1}
    assert [event.kind for event in cluster.own_events if event.kind in ("node_unfit", "regroup")] == [
        "node_unfit",
        "regroup",
    ]


def test_after_a_hang_all_are_looked_at_that_were_silent() -> None:
    """With one of them nobody makes a step: who is to blame is not known."""
    cluster = Cluster(plan_of(2, spares=1, rules=replace(HEALTH, hang_after_s=20.0, hang_at_start_s=20.0)))
    cluster.boot()
    cluster.advance(3)
    cluster.agents[1].sick = SICK
    cluster.stuck = {0}
    cluster.advance(60, until=lambda: cluster.state().generation == 2)
    assert [event.node for event in cluster.recorded("node_unfit")] == [1]
    assert sorted(cluster.starts(2)) == [0, 2]


def test_it_is_said_once_whatever_the_line_does_and_a_new_agent_looks_again() -> None:
    cluster = sick_from_the_start(1, nodes=2, spares=1)
    cluster.cut(1)
    cluster.advance(1)
    cluster.connect(1)
    cluster.advance(1)
    assert len(cluster.recorded("node_unfit")) == 1 and cluster.state().nodes[1].state == "unfit"
    cluster.kill(1)
    cluster.settle()
    cluster.boot(1)
    cluster.settle()
    assert (cluster.state().nodes[1].state, cluster.state().nodes[1].why) == ("spare", "")


# -- messages that are late, double, or nobody's


def test_messages_of_old_generations_and_strangers_change_nothing() -> None:
    cluster = running(2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    before = cluster.state()
    for message in (
        Exited(1, RankExit(1, 3, 1, 1, 9, signal=11)),
        Exited(0, RankExit(2, 3, 1, 1, 9, signal=11)),
        Exited(0, RankExit(2, 3, 1, 0, 9, signal=11)),
        Stopped(1, 1),
        Started(1, 1, (5, 6), 1),
        Heartbeat(1, 5, 1, (RankHeartbeat(2, 0.0, True, False, step=99),)),
        Heartbeat(7, 5, 2, (RankHeartbeat(2, 0.0, True, False, step=99),)),
        Heartbeat(1, 6, 2, (RankHeartbeat(0, 0.0, True, False, step=99),)),
        Ready(9),
        Disconnected(9),
        ProvenDead(1, "an agent before this one"),
        Tick(),
    ):
        cluster.feed(message)
    after = cluster.state()
    assert (after.generation, after.state, after.step, after.ranks) == (2, State.RUNNING, before.step, before.ranks)


def test_the_newest_sample_of_each_node_is_shown_until_the_run_is_over() -> None:
    cluster = running(2)
    ranks = tuple(RankLoad(rank, cpu=1.0, memory=300_000_000) for rank in range(4))
    for at in (1.0, 2.0):
        cluster.feed(Heartbeat(1, 90, 1, load=NodeLoad(0, at, 8, 2.0, 10, 20, ranks=ranks)))
    (load,) = cluster.state().loads
    assert (load.node, load.at) == (1, 2.0), "a node speaks of itself alone"
    assert [one.rank for one in load.ranks] == [2, 3]
    cluster.cut(1)
    cluster.feed(Disconnected(1))
    assert cluster.state().loads == ()
    cluster.connect(1)
    cluster.settle()
    cluster.finish_all()
    cluster.settle()
    assert cluster.state().loads == ()


def test_every_heartbeat_is_answered_and_every_join_welcomed() -> None:
    cluster = running(2)
    cluster.feed(Heartbeat(1, 41, 0))
    assert cluster.sent[-1][1:] == (1, HeartbeatAck(41))
    assert [node for _, node, message in cluster.sent if message == Welcome(LEASE, brief=True)] == [0, 1]


def test_nothing_comes_after_the_end() -> None:
    cluster = running(1)
    cluster.finish_all()
    cluster.settle()
    assert cluster.coordinator.handle(Tick(), cluster.now) == []
    assert cluster.coordinator.next_deadline() is None


# -- what is shown


def test_pace_metrics_and_checkpoints_are_shown() -> None:
    cluster = running(1)
    cluster.checkpoint = 2
    cluster.heartbeat(0, metrics={"loss": 0.5}, total_steps=100, fingerprint="abc")
    cluster.advance(30)
    state = cluster.state()
    assert (state.checkpoint, state.total_steps, state.metrics, state.fingerprint) == (2, 100, {"loss": 0.5}, "abc")
    assert state.rate == pytest.approx(1.0)
    cluster.training = False
    cluster.advance(30)
    assert (cluster.state().rate or 0) < 0.8


def test_a_loss_that_is_no_number_and_lines_that_are_no_reports_are_shown() -> None:
    cluster = running(1)
    cluster.heartbeat(0, metrics={"loss": 0.5, "lr": 0.1})
    cluster.heartbeat(0, not_finite={"loss": NotFinite("NaN", 3)}, malformed=2)
    cluster.settle()
    state = cluster.state()
    assert (state.metrics, state.not_finite) == ({"lr": 0.1}, {"loss": NotFinite("NaN", 3)})
    assert state.malformed == 2 * len(state.ranks)
    cluster.heartbeat(0, metrics={"loss": 0.25})
    cluster.settle()
    assert (cluster.state().metrics["loss"], cluster.state().not_finite) == (0.25, {})


@pytest.mark.parametrize(("nodes", "before"), [(1, ""), (2, "waiting for nodes: 1 of 2 are ready; node 0: ")])
def test_what_a_node_is_busy_with_is_said_while_it_is_waited_for(nodes: int, before: str) -> None:
    cluster = Cluster(plan_of(nodes))
    cluster.boot(0, ready=False)
    if nodes > 1:
        cluster.boot(1)
    cluster.agents[0].preparing = "importing torch"
    cluster.advance(13.5)
    assert cluster.state().message == f"{before}importing torch, 12 s"


def test_what_follows_a_failure_is_told_in_a_few_words() -> None:
    cluster = running(2, rules=Recovery(user_error=Budget(1)))
    cluster.end_rank(2, code=1, error="torch.cuda.SomeError: x", where="net.py:3 in f")
    cluster.advance(3)
    cluster.end_rank(1, signal=9)
    cluster.advance(3)
    briefs = [event.brief for event in cluster.recorded("regroup")]
    assert briefs == ["restart 1 of 1: SomeError in net.py:3, rank 2", "restart 1 of 20: SIGKILL, rank 1"]


def test_the_step_goes_back_with_a_new_generation_and_the_checkpoint_does_not() -> None:
    cluster = running(1)
    cluster.checkpoint = 2
    cluster.advance(20)
    assert cluster.state().step == 23
    cluster.end_rank(0, signal=9)
    cluster.advance(1.0)
    assert cluster.state().step == 3
    assert cluster.state().checkpoint == 2


def test_the_world_is_told_by_starts_of_one_size() -> None:
    small = running(2).starts(1)[1]
    large = running(40).starts(1)[39]
    assert isinstance(small, Start)
    assert len(repr(large)) - len(repr(small)) < 12
