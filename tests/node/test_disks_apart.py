"""The coordinator where each node has a disk of its own."""

import msgspec
import pytest
from simulated_cluster import Cluster, plan_of

from launcher.coordinator.coordinator import Coordinator
from launcher.coordinator.effects import Now, Out, Send
from launcher.coordinator.nodes import NodeTable, Presence
from launcher.coordinator.opening import START_S
from launcher.run.identity import this_process
from launcher.run.records import ANEW, KEPT, Event
from launcher.spec.model import CheckpointOptions, JobSpec, Recovery, RunOptions
from launcher.states import Cause, State
from launcher.wire.messages import (
    Copied,
    Heartbeat,
    Join,
    Noted,
    NotFetched,
    NothingWhole,
    Ready,
    ReplicaAddress,
    Settled,
    Start,
)

LEASE = Recovery().lease_s


def apart(nodes: int = 2, **how: object) -> Cluster:
    return Cluster(msgspec.structs.replace(plan_of(nodes, **how), disks_apart=True))  # type: ignore[arg-type]


def running(nodes: int = 2, **how: object) -> Cluster:
    cluster = apart(nodes, **how)
    cluster.boot()
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING
    return cluster


def starting(nodes: int = 2, *mute: int, **how: object) -> Cluster:
    """Some members have not started their ranks, since they bring a checkpoint to their disks."""
    cluster = apart(nodes, **how)
    cluster.boot()
    for index in mute:
        cluster.agents[index].mute_start = True
    cluster.advance(1)
    assert cluster.state().state is State.STARTING
    return cluster


def replica_of(cluster: Cluster, node: int) -> ReplicaAddress:
    return ReplicaAddress(node, f"127.0.0.{node + 1}", 40_000 + cluster.agents[node].process.pid)


def test_a_start_names_the_members_replicas_by_group_rank_and_then_all_others() -> None:
    cluster = apart(2, spares=2)
    cluster.boot(2, 3, 0, 1)
    cluster.advance(3)
    for start in cluster.starts(1).values():
        assert start.replicas == tuple(replica_of(cluster, node) for node in (0, 1, 2, 3))
    cluster.kill(1)
    cluster.advance(3)
    assert cluster.starts(2)[2].group_rank == 1
    for start in cluster.starts(2).values():
        assert start.replicas == tuple(replica_of(cluster, node) for node in (0, 2, 3)), (
            "the lost one has nothing to give"
        )


def test_a_node_that_is_cut_off_is_asked_too() -> None:
    cluster = apart(2, spares=1)
    cluster.boot(2, 0, 1)
    cluster.advance(3)
    cluster.cut(2)
    cluster.end_rank(0, signal=9)
    cluster.advance(2)
    for start in cluster.starts(2).values():
        assert start.replicas[2:] == (replica_of(cluster, 2),), "what it has may be all that is missing"


def test_with_a_shared_disk_nobody_hears_of_replicas() -> None:
    cluster = Cluster(plan_of(2, spares=1))
    cluster.boot()
    cluster.advance(3)
    assert [start.replicas for start in cluster.starts(1).values()] == [(), ()]


def test_a_fetch_that_gets_on_may_take_as_long_as_it_takes() -> None:
    cluster = starting(2, 1)
    for second in range(int(START_S) * 4):
        cluster.agents[1].fetched = second // 100  # a byte now and then
        cluster.advance(1)
    assert cluster.state().state is State.STARTING
    assert "fetches its checkpoint" in cluster.state().message
    cluster.agents[1].fetched = None
    cluster.fork(1)
    cluster.advance(1)
    assert cluster.state().state is State.RUNNING
    assert cluster.state().message == ""


def test_a_fetch_that_stands_still_is_a_start_that_does() -> None:
    cluster = starting(2, 1, spares=1)
    cluster.agents[1].fetched = 500
    cluster.advance(START_S + 3)
    assert "started no rank" in cluster.recorded("failure")[0].text
    assert sorted(cluster.starts(2)) == [0, 2]


def test_the_patience_is_for_who_has_not_started() -> None:
    cluster = starting(3, 1)
    for second in range(int(START_S) + 2):
        cluster.agents[2].fetched = second  # it has started long since
        cluster.advance(1)
    assert "node 1 started no rank" in cluster.recorded("failure")[0].text


def test_a_fetch_that_failed_is_followed_by_a_new_look() -> None:
    cluster = starting(2, 1)
    cluster.say(1, NotFetched(1, 1, "rank-00000.data of step 20: node 0: the peer left"))
    cluster.agents[1].mute_start = False
    cluster.advance(3)
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.node) == (Cause.COMMUNICATION, 1)
    assert "node 1 could not fetch its checkpoint: rank-00000.data of step 20" in failure.text
    assert sorted(cluster.starts(2)) == [0, 1]
    assert cluster.state().state is State.RUNNING


@pytest.mark.parametrize("generation", [1, 7])
def test_what_is_said_of_another_time_ends_nothing(generation: int) -> None:
    cluster = running(2)
    cluster.say(1, NotFetched(1, generation, "too late"))
    cluster.advance(3)
    assert not cluster.recorded("failure")
    assert cluster.state().generation == 1


def test_a_cut_while_it_fetches_costs_nothing() -> None:
    cluster = starting(2, 1)
    cluster.agents[1].fetched = 1
    cluster.advance(2)
    cluster.cut(1)
    cluster.advance(2)
    cluster.agents[1].fetched = 2
    cluster.connect(1)
    cluster.advance(2)
    assert not cluster.recorded("failure")
    cluster.agents[1].fetched = None
    cluster.fork(1)
    cluster.advance(1)
    assert cluster.state().state is State.RUNNING


def test_a_checkpoint_is_safe_once_every_member_has_its_second_copy() -> None:
    cluster = running(3)
    for node in (0, 1):
        cluster.say(node, Copied(node, 1, 20))
    cluster.settle()
    assert cluster.state().safe_checkpoint is None
    cluster.say(2, Copied(2, 1, 20))
    cluster.settle()
    assert cluster.state().safe_checkpoint == 20
    for node in (0, 1, 2, 0):
        cluster.say(node, Copied(node, 1, 10))
    cluster.say(0, Copied(0, 1, 30))
    cluster.say(0, Copied(0, 1, 30))
    cluster.settle()
    assert cluster.state().safe_checkpoint == 20


def test_a_step_in_memory_survives_a_node_once_each_has_its_copy() -> None:
    spec = JobSpec("job", RunOptions(script="train.py"), checkpoint=CheckpointOptions(memory_every_steps=5, buddy=True))
    cluster = Cluster(msgspec.structs.replace(plan_of(2), spec=spec))
    cluster.boot()
    cluster.advance(3)
    cluster.say(0, Copied(0, 1, 20))
    cluster.settle()
    assert cluster.state().memory_copy is None
    cluster.say(1, Copied(1, 1, 20))
    cluster.settle()
    assert (cluster.state().memory_copy, cluster.state().safe_checkpoint) == (20, None)


def test_what_was_safe_with_a_node_that_is_lost_is_not_safe_any_more() -> None:
    cluster = running(2, spares=1)
    for node in (0, 1):
        cluster.say(node, Copied(node, 1, 20))
    cluster.settle()
    assert cluster.state().safe_checkpoint == 20
    cluster.kill(1)
    cluster.advance(3)
    assert cluster.state().generation == 2
    assert cluster.state().safe_checkpoint is None
    cluster.say(0, Copied(0, 1, 20))  # from the time before
    for node in (0, 2):
        cluster.say(node, Copied(node, 2, 20))
    cluster.settle()
    assert cluster.state().safe_checkpoint == 20


def ended(cluster: Cluster) -> State | None:
    return cluster.end.state if cluster.end is not None else None


def copying(*behind: int, nodes: int = 2, **how: object) -> Cluster:
    """Return a cluster whose ranks have finished, while these nodes still await a copy of the last checkpoint."""
    cluster = running(nodes, **how)
    for node in behind:
        cluster.agents[node].copies = True
    cluster.finish_all()
    cluster.advance(START_S)
    assert ended(cluster) is None
    state = cluster.state()
    assert (state.state, "gets its copies" in state.message) == (State.RUNNING, True)
    return cluster


def test_it_ends_once_nothing_waits_for_its_second_copy() -> None:
    cluster = copying(0, 1)
    cluster.settle_copies(1)
    cluster.advance(3)
    assert ended(cluster) is None
    cluster.settle_copies(0)
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_the_word_that_nothing_waits_is_not_lost_in_a_cut() -> None:
    cluster = copying(1)
    cluster.cut(1)
    cluster.settle_copies(1)
    cluster.advance(1)
    cluster.connect(1)
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_a_disk_lost_before_its_last_files_were_copied_is_a_node_lost() -> None:
    cluster = copying(1, spares=1)
    cluster.kill(1)
    cluster.advance(3)
    (failure,) = cluster.recorded("failure")
    assert (failure.cause, failure.node) == (Cause.NODE_LOST, 1)
    assert sorted(cluster.starts(2)) == [0, 2]
    cluster.finish_all()
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_a_disk_lost_after_its_last_files_were_copied_costs_nothing() -> None:
    cluster = copying(0, nodes=3)
    cluster.kill(1)
    cluster.advance(3)
    assert not cluster.recorded("failure")
    cluster.settle_copies(0)
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_a_lost_disk_whose_files_were_copied_may_come_back() -> None:
    cluster = copying(0, nodes=3)
    cluster.cut(1)
    cluster.advance(cluster.plan.spec.recovery.lease_s + 2)
    cluster.boot(1)
    cluster.advance(2)
    assert not cluster.recorded("failure")
    cluster.settle_copies(0)
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_what_has_no_copy_after_all_is_said_at_the_end() -> None:
    cluster = copying(1)
    cluster.say(1, Settled(1, 1, "step 20: the files of node 1 have no second copy on node 0: no space"))
    cluster.advance(1)
    assert cluster.over.state is State.SUCCEEDED
    assert "the files of node 1 have no second copy" in cluster.over.message


@pytest.mark.parametrize(("kind", "state"), [("cancel", State.CANCELLED), ("limit", State.SUCCEEDED)])
def test_asked_to_stop_it_waits_for_no_copy(kind: str, state: State) -> None:
    cluster = copying(1)
    cluster.ask_stop(kind)
    cluster.advance(3)
    assert ended(cluster) is state


def test_with_a_shared_disk_there_is_nothing_to_wait_for() -> None:
    cluster = Cluster(plan_of(2))
    cluster.boot()
    cluster.advance(3)
    cluster.finish_all()
    cluster.advance(1)
    assert ended(cluster) is State.SUCCEEDED


def test_what_agents_note_is_an_event() -> None:
    cluster = running(2)
    cluster.say(1, Noted(1, "copy_failed", "step 20 of node 1 has no second copy on node 0: no space"))
    cluster.settle()
    (event,) = cluster.recorded("copy_failed")
    assert (event.node, event.text[:7]) == (1, "step 20")


def without_checkpoint(*away: int, nodes: int = 2, spares: int = 1, **how: object) -> Cluster:
    """Ranks have saved, these nodes are lost, and the others find nothing that is whole."""
    cluster = running(nodes, spares=spares, **how)
    cluster.say(0, keeping(cluster))
    cluster.settle()
    if not away:
        cluster.end_rank(0, signal=9)
    for index in away:
        cluster.kill(index)
    for agent in cluster.agents.values():
        agent.mute_start = True
    cluster.advance(1)
    assert cluster.state().generation == 2
    cluster.say(0, NothingWhole(0, 2, LACKS))
    cluster.advance(1)
    return cluster


LACKS = "no checkpoint is whole: rank-00001.data of step 208 is on no node that is here"


def keeping(cluster: Cluster) -> Heartbeat:
    return Heartbeat(0, 10_000, cluster.state().generation, keeps=True)


def test_a_run_that_has_had_a_checkpoint_says_so_to_who_looks_for_one() -> None:
    cluster = running(2, spares=1)
    assert [start.kept for start in cluster.starts(1).values()] == [False, False]
    cluster.say(0, keeping(cluster))
    cluster.settle()
    cluster.say(0, keeping(cluster))
    cluster.end_rank(0, signal=9)
    cluster.advance(3)
    assert [(start.kept, start.anew) for start in cluster.starts(2).values()] == [(True, False)] * 2
    assert len(cluster.recorded(KEPT)) == 1


@pytest.mark.parametrize(
    ("kinds", "kept", "anew"), [([], False, False), ([KEPT], True, False), ([KEPT, ANEW], False, True)]
)
def test_the_next_attempt_knows_it_too(kinds: list[str], kept: bool, anew: bool) -> None:
    history = [Event(1.0, 1, kind, "") for kind in kinds]
    cluster = Cluster(msgspec.structs.replace(plan_of(1), disks_apart=True), history, attempt=2)
    cluster.boot()
    cluster.advance(3)
    (start,) = cluster.starts(1).values()
    assert (start.kept, start.anew) == (kept, anew)
    cluster.say(0, keeping(cluster))
    cluster.end_rank(0, signal=9)
    cluster.advance(3)
    (start,) = cluster.starts(2).values()
    assert (start.kept, start.anew) == (True, False)


def test_who_is_lost_has_not_answered_until_a_stated_time_is_over() -> None:
    cluster = running(2, spares=1, rules=Recovery(gone_after_s=100.0))
    assert all(start.all_here for start in cluster.starts(1).values())
    cluster.kill(1)
    cluster.advance(3)
    assert not any(start.all_here for start in cluster.starts(2).values())
    cluster.advance(100)
    cluster.end_rank(0, signal=9)
    cluster.advance(3)
    assert all(start.all_here for start in cluster.starts(3).values())


@pytest.mark.parametrize(("resumed", "all_here"), [(2, False), (3, True)])
def test_in_an_attempt_that_no_person_opened_others_may_have_files(resumed: int, all_here: bool) -> None:
    history = [Event(1.0, resumed, "resumed", "")]
    cluster = Cluster(msgspec.structs.replace(plan_of(1), disks_apart=True), history, attempt=3)
    cluster.boot()
    cluster.advance(3)
    assert [start.all_here for start in cluster.starts(1).values()] == [all_here]


def test_where_nothing_is_whole_it_waits_for_who_is_away_and_looks_again_when_one_comes() -> None:
    cluster = without_checkpoint(1)
    assert cluster.state().state is State.REGROUPING
    assert cluster.state().message == f"{LACKS}; the run waits for node 1, for 900 s at most (recovery.gone_after)"
    assert len(cluster.recorded("checkpoint_awaited")) == 1
    cluster.advance(600)
    assert cluster.state().generation == 2
    for agent in cluster.agents.values():
        agent.mute_start = False
    cluster.boot(1)
    cluster.advance(3)
    assert len(cluster.recorded("failure")) == 1, "the lost node alone"
    for start in cluster.starts(3).values():
        assert replica_of(cluster, 1) in start.replicas
    assert cluster.state().state is State.RUNNING


def test_a_host_that_was_lost_before_the_attempt_is_waited_for_like_any_other() -> None:
    """The first host, when another leads by now: what only its disk has was given up at once."""
    plan = msgspec.structs.replace(plan_of(2, spares=1, least=1), disks_apart=True, away=(2,))
    cluster = Cluster(plan, attempt=2)
    cluster.boot(0, 1)
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING, "nobody waits for it as long as nothing is missing"
    assert [node.state for node in cluster.state().nodes] == ["up", "up", "lost"]
    cluster.say(0, keeping(cluster))
    for agent in cluster.agents.values():
        agent.mute_start = True
    cluster.end_rank(0, signal=9)
    cluster.advance(2)
    cluster.say(0, NothingWhole(0, 2, LACKS))
    cluster.advance(2)
    assert "the run waits for node 2, for 900 s at most" in cluster.state().message
    for agent in cluster.agents.values():
        agent.mute_start = False
    cluster.boot(2)
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING
    assert replica_of(cluster, 2) in cluster.starts(3)[0].replicas


def test_one_that_comes_and_does_not_help_gives_no_more_time() -> None:
    cluster = without_checkpoint(1, 2, nodes=3, spares=1, least=2)
    cluster.advance(600)
    cluster.boot(1)
    cluster.agents[1].mute_start = True
    cluster.advance(2)
    assert cluster.state().generation == 3
    cluster.say(0, NothingWhole(0, 3, LACKS))
    cluster.advance(200)
    assert "the run waits for node 2" in cluster.state().message
    assert cluster.end is None
    cluster.advance(200)
    assert ended(cluster) is State.FAILED


def test_who_does_not_come_ends_the_run_which_never_begins_anew() -> None:
    cluster = without_checkpoint(1)
    cluster.advance(1000)
    assert (cluster.over.state, cluster.over.cause, cluster.over.exit_code) == (State.FAILED, Cause.NO_CHECKPOINT, 24)
    assert "bring back node 1, then `launch resume job-0001`" in cluster.over.message
    assert "--gone HOST" in cluster.over.message
    assert "--anew" in cluster.over.message
    assert cluster.state().failure is not None
    assert cluster.state().failure.summary == LACKS
    assert cluster.starts(3) == {}


def test_where_nobody_is_away_it_ends_at_once() -> None:
    cluster = without_checkpoint(nodes=2, spares=0)
    assert cluster.over.cause is Cause.NO_CHECKPOINT


def test_cancelled_while_it_waits_it_is_cancelled() -> None:
    cluster = without_checkpoint(1)
    cluster.ask_stop("cancel")
    cluster.advance(3)
    assert ended(cluster) is State.CANCELLED


# -- too few hosts to go on: the others may have taken the run over


def elected(nodes: int, *, spares: int, away: tuple[int, ...] = ()) -> Cluster:
    plan = plan_of(nodes, spares=spares, least=1)
    plan = msgspec.structs.replace(plan, disks_apart=True, elects=True, away=away)
    cluster = Cluster(plan, attempt=2)
    cluster.boot()
    cluster.advance(10)
    assert cluster.state().state is State.RUNNING
    return cluster


def test_ranks_that_need_nobody_else_are_ended_where_the_others_are_more_than_half() -> None:
    """Two spares that are cut off are two of three hosts, and elect a leader of their own."""
    cluster = elected(1, spares=2)
    cluster.cut(1)
    cluster.advance(LEASE + 3)
    assert cluster.state().state is State.RUNNING
    cluster.cut(2)
    cluster.advance(LEASE + 3)
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.NODE_LOST)
    assert "1 of the 3 voters are reachable" in cluster.recorded("failure")[0].text
    assert not cluster.agents[0].live


def test_spares_whose_agents_are_back_within_their_lease_end_nothing() -> None:
    cluster = elected(1, spares=2)
    cluster.kill(1)
    cluster.kill(2)
    cluster.advance(LEASE / 2)
    cluster.boot(1, 2)
    cluster.advance(2 * LEASE)
    assert (cluster.state().state, cluster.state().generation) == (State.RUNNING, 1)


def test_with_guests_alone_nobody_goes_on() -> None:
    """They have no vote: the three that are cut off are more than half of those that have."""
    cluster = elected(5, spares=0, away=(4,))
    for number in (1, 2, 3):
        cluster.cut(number)
    opened = len(cluster.recorded("generation_opened"))
    cluster.advance(LEASE + 3)
    assert cluster.over.state is State.QUEUED
    assert len(cluster.recorded("generation_opened")) == opened
    assert not cluster.agents[0].live


def test_a_heartbeat_that_was_long_on_its_way_makes_nobody_heard_for_longer() -> None:
    """Its host counts its lease from when it was sent, and votes for another leader afterwards."""
    nodes = NodeTable(plan_of(3).nodes, LEASE, voters=frozenset(range(3)))
    for node in nodes:
        node.link, node.follows_from = Presence.UP, 100.0
    nodes.answer(nodes[1], 1, 0, 0.0, 108.0)  # sent before 108, nobody knows when
    assert nodes.followers(99.0 + LEASE - 0.5) == {0, 1, 2}
    nodes.answer(nodes[1], 2, 1, 3.0, 109.0)  # the answer of 108 came 3 s after its heartbeat was sent
    assert nodes.followers(104.0 + LEASE - 1.5) == {1} and nodes.followers(104.0 + LEASE) == set()


@pytest.mark.parametrize(("connected_at", "opens"), [(99.0, True), (100.0 - LEASE, False)])
def test_hosts_that_may_have_elected_another_get_no_ranks(connected_at: float, opens: bool) -> None:
    """What they had said long before came late, and the coordinator started ranks beside those of the new leader."""
    plan = msgspec.structs.replace(plan_of(3), disks_apart=True, elects=True)
    now = Now(100.0, 100.0)
    coordinator, out = Coordinator(plan, 1, [], now), list[Out]()
    for node in range(3):
        coordinator.connect(node, connected_at if node else 100.0)
        out += coordinator.handle(Join(node, "127.0.0.1", this_process(), 20_000), now)
    for node in range(3):
        out += coordinator.handle(Ready(node), now)
    assert any(isinstance(one, Send) and isinstance(one.message, Start) for one in out) == opens
    for answered in (0, 1):
        out += coordinator.handle(Heartbeat(1, 1 + answered, 0, (), answered=answered), now)
    assert any(isinstance(one, Send) and isinstance(one.message, Start) for one in out), "1 of 2 others follows now"


def test_who_joins_again_is_counted_by_the_answers_that_it_had() -> None:
    """It may not get the Welcome: then it votes for another leader a lease after the last answer that it had."""
    plan, joins = msgspec.structs.replace(plan_of(3), disks_apart=True, elects=True), this_process()
    coordinator = Coordinator(plan, 1, [], Now(100.0, 100.0))
    for mono in (100.0, 99.0 + LEASE):
        coordinator.connect(1, mono)
        coordinator.handle(Join(1, "127.0.0.1", joins, 20_000), Now(mono, mono))
    assert coordinator._nodes.followers(98.5 + LEASE) == {1}
    assert coordinator._nodes.followers(100.0 + LEASE) == set()
