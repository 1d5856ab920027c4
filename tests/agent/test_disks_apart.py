"""The coordinator where each node has a disk of its own."""

import msgspec
import pytest
from simulated_cluster import Cluster, plan_of

from launcher.agent.coordination.opening import START_S
from launcher.agent.messages import Copied, Noted, NotFetched, ReplicaAddress, Settled
from launcher.words import Cause, State


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
    """All ranks have finished; of these nodes the last checkpoint still gets its second copy."""
    cluster = running(nodes, **how)
    for node in behind:
        cluster.agents[node].copies = True
    cluster.finish_all()
    cluster.advance(START_S)
    assert ended(cluster) is None
    state = cluster.state()
    assert (state.state, "second copies" in state.message) == (State.RUNNING, True)
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
    assert cluster.end is not None
    assert cluster.end.state is State.SUCCEEDED
    assert "the files of node 1 have no second copy" in cluster.end.message


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
