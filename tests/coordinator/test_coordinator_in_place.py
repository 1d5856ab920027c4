"""recovery.mode hot: when a rank was killed those that live keep their processes, and where they cannot, why not."""

import pytest
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.clock import ENDING_S
from launcher.coordinator.effects import Drain, Move
from launcher.spec.model import Budget, Recovery
from launcher.states import Cause, State
from launcher.wire.messages import (
    ContinueInPlace,
    DeviceFails,
    Fault,
    Heartbeat,
    HostLeaves,
    RankHeartbeat,
    SlowRank,
    Start,
    Started,
    Stop,
    WentBack,
)

HOT, AUTO, WARM = Recovery(mode="hot"), Recovery(), Recovery(mode="warm")


def running(
    nodes: int = 2, *, rules: Recovery = HOT, can_continue: bool = True, least: int | None = None, spares: int = 0
) -> Cluster:
    cluster = Cluster(plan_of(nodes, least=least, rules=rules, spares=spares))
    cluster.boot()
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING
    if can_continue:
        all_stay(cluster)
    return cluster


def all_stay(cluster: Cluster, *, resizes: bool = False) -> None:
    for agent in cluster.agents.values():
        for rank in agent.live:
            rank.can_continue, rank.resizes = True, resizes
    cluster.advance(2)


def all_shrink(cluster: Cluster) -> None:
    for agent in cluster.agents.values():
        for rank in agent.live:
            rank.can_continue = rank.goes_back = True
    cluster.advance(2)


def words(cluster: Cluster, kind: type) -> list[tuple[int, object]]:
    return [(node, message) for _, node, message in cluster.sent if isinstance(message, kind)]


def pids(cluster: Cluster) -> dict[int, int | None]:
    return {rank.rank: rank.pid for rank in cluster.state().ranks}


@pytest.mark.parametrize("rules", [HOT, AUTO], ids=["hot", "auto"])
def test_ranks_that_live_keep_their_processes_and_the_dead_one_is_replaced(rules: Recovery) -> None:
    cluster = running(rules=rules)
    before = pids(cluster)
    cluster.end_rank(2, signal=9)
    cluster.settle()
    assert [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)] == [(0, (0, 1)), (1, (3,))]  # type: ignore[attr-defined]
    assert not words(cluster, Stop)
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation, state.restarts) == (State.RUNNING, 2, {"killed": 1})
    assert {rank for rank in after if after[rank] != before[rank]} == {2}
    assert cluster.recorded("generation_opened")[-1].text == "generation 2: rank 2 is restarted, the other 3 stay"
    assert "hot: rank 2 is restarted, the other 3 stay" in cluster.recorded("regroup")[0].text
    assert cluster.recorded("failure")[0].in_place


def test_the_new_generation_has_a_port_that_node_0_holds_for_it() -> None:
    cluster = running()
    ports = [message.port for message in cluster.agents[0].told if isinstance(message, Started)]
    cluster.end_rank(3, signal=9)
    cluster.settle()
    starts = [word.start for _, word in words(cluster, ContinueInPlace)]  # type: ignore[attr-defined]
    assert {start.master_port for start in starts} == set(ports)
    assert [(start.first_rank, start.world_size, start.restarts) for start in starts] == [(0, 4, 1), (2, 4, 1)]


def test_a_rank_is_replaced_again_once_all_have_said_again_that_they_stay() -> None:
    cluster = running()
    for generation, rank in ((2, 0), (3, 0), (4, 3)):
        cluster.end_rank(rank, signal=9)
        cluster.settle()
        assert cluster.state().generation == generation
        all_stay(cluster)
    assert len(words(cluster, ContinueInPlace)) == 6
    assert not words(cluster, Stop)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"code": 1, "error": "ValueError: no"}, "rank 2 was not killed"),
        ({"signal": 9, "oom": True}, "rank 2 was not killed"),
    ],
)
def test_only_a_rank_that_was_killed_is_replaced_alone(how: dict[str, object], why: str) -> None:
    cluster = running()
    cluster.end_rank(2, **how)
    cluster.advance(2)
    assert not words(cluster, ContinueInPlace)
    assert f"warm because {why}" in cluster.recorded("regroup")[0].text
    assert cluster.state().generation == 2


def test_why_all_are_replaced_is_told_to_who_has_asked() -> None:
    cluster = running(rules=AUTO)
    cluster.end_rank(2, code=1, error="ValueError: no")
    cluster.advance(2)
    assert not words(cluster, ContinueInPlace)
    assert "warm" not in cluster.recorded("regroup")[0].text


def test_one_rank_that_has_not_said_that_it_stays_has_all_replaced() -> None:
    cluster = running(can_continue=False)
    for rank in cluster.agents[0].live:
        rank.can_continue = True
    cluster.advance(2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, ContinueInPlace)
    assert [node for node, _ in words(cluster, Stop)] == [0, 1]
    assert "warm because rank 2 has not reported" in cluster.recorded("regroup")[0].text


@pytest.mark.parametrize(("rules", "stays"), [(WARM, True), (WARM, False), (AUTO, False)])
def test_warm_is_as_ever_and_so_is_auto_where_no_rank_says_that_it_stays(rules: Recovery, stays: bool) -> None:
    cluster = running(rules=rules, can_continue=stays)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, ContinueInPlace)
    assert cluster.recorded("regroup")[0].text == "a new generation follows: restart 1 of 20 for killed"


def test_a_kill_while_ranks_meet_replaces_who_was_yet_to_meet_too() -> None:
    """Rank 2 has its place anew and no state yet: it is started once more, with rank 0; 1 and 3 stay."""
    cluster = running()
    cluster.end_rank(2, signal=9)
    cluster.settle()
    cluster.end_rank(0, signal=9)
    cluster.settle()
    told = [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)]  # type: ignore[attr-defined]
    assert told[:2] == [(0, (0, 1)), (1, (3,))]
    assert told[2:] == [(0, (1,)), (1, (3,))]
    assert not words(cluster, Stop)
    assert (cluster.state().state, cluster.state().generation) == (State.RUNNING, 3)
    assert "hot: ranks 0, 2 are restarted, the other 2 stay" in cluster.recorded("regroup")[1].text


def test_who_could_not_meet_a_rank_that_was_killed_is_not_to_blame() -> None:
    cluster = running()
    cluster.end_rank(2, signal=9)
    cluster.settle()
    cluster.end_rank(2, code=1, error="torch.distributed.DistNetworkError: peer closed")
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, Stop)
    assert cluster.recorded("failure")[1].rank == 0


def test_kills_again_and_again_without_a_step_have_all_replaced() -> None:
    cluster = running()
    for rank in (2, 0, 2, 0, 1):
        assert not words(cluster, Stop)
        cluster.end_rank(rank, signal=9)
        cluster.settle()
    assert len(words(cluster, ContinueInPlace)) == 8
    assert [node for node, _ in words(cluster, Stop)] == [0, 1]
    assert "warm because there were several kills without a step" in cluster.recorded("regroup")[4].text


def kill_in_turn(cluster: Cluster, times: int) -> None:
    for rank in (2, 0, 2, 0, 1, 3)[:times]:
        cluster.end_rank(rank, signal=9)
        cluster.settle()


def test_steps_made_since_all_were_replaced_allow_going_on_in_place_again() -> None:
    cluster = running()
    cluster.checkpoint = 2
    cluster.advance(40)
    kill_in_turn(cluster, 5)
    cluster.advance(30)
    assert len(words(cluster, Stop)) == 2, "the fifth kill has all replaced"
    all_stay(cluster)
    step, before = cluster.state().step, len(words(cluster, ContinueInPlace))
    assert step is not None and step < 40, "it has not come as far as it was"
    cluster.end_rank(2, signal=9)
    cluster.settle()
    assert len(words(cluster, ContinueInPlace)) == before + 2
    assert len(words(cluster, Stop)) == 2
    assert cluster.state().state is State.RUNNING


def test_a_wait_that_is_not_waited_for_does_not_forbid_going_on_in_place() -> None:
    """Failures before after which all were replaced make the policy's wait long; the ranks that live need none."""
    cluster = running(rules=Recovery(mode="hot", no_progress=None))
    cluster.training = False
    for _ in range(6):
        cluster.end_rank(2, code=1, error="torch.distributed.DistNetworkError: peer closed")
        cluster.advance(70)
        all_stay(cluster)
    assert not words(cluster, ContinueInPlace)
    cluster.end_rank(2, signal=9)
    cluster.settle()
    assert len(words(cluster, ContinueInPlace)) == 2


def test_who_has_its_state_and_takes_back_that_it_stays_has_all_replaced() -> None:
    cluster = running()
    cluster.end_rank(2, signal=9)
    cluster.settle()
    all_stay(cluster)
    for rank in cluster.agents[1].live:
        rank.can_continue = rank.number != 2
    cluster.advance(2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert len(words(cluster, ContinueInPlace)) == 2


def test_where_only_ranks_are_left_that_were_yet_to_meet_all_are_replaced() -> None:
    cluster = running(1)
    cluster.end_rank(1, signal=9)
    cluster.settle()
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert "warm because no rank is left that has the state" in cluster.recorded("regroup")[1].text


def test_two_ranks_that_are_killed_at_once_are_both_replaced() -> None:
    """The second death is told of the generation before; the agent tells it again."""
    cluster = running()
    for rank in (1, 2):
        cluster.end_rank(rank, signal=9)
    cluster.settle()
    cluster.advance(2)
    state = cluster.state()
    assert (state.state, state.generation) == (State.RUNNING, 3)
    assert all(rank.pid for rank in state.ranks)
    assert not words(cluster, Stop)


def test_a_node_that_was_cut_off_has_all_replaced() -> None:
    cluster = running()
    cluster.cut(1)
    cluster.settle()
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, ContinueInPlace)


def test_a_node_that_is_lost_right_after_the_word_has_all_replaced() -> None:
    cluster = running(3, least=2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert cluster.state().generation == 2
    cluster.kill(2)
    cluster.advance(60)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size) == (State.RUNNING, 3, 4)


def test_where_the_budget_is_used_up_it_ends() -> None:
    cluster = running(rules=replace(HOT, killed=Budget(1)))
    cluster.end_rank(2, signal=9)
    cluster.settle()
    all_stay(cluster)
    cluster.end_rank(2, signal=9)
    cluster.advance(2)
    assert cluster.over.state is State.FAILED
    assert len(words(cluster, ContinueInPlace)) == 2


def test_steps_that_nothing_was_lost_of_are_progress() -> None:
    """No checkpoint between the kills, and no wait before the next generation, nor an end for want of progress."""
    cluster = running(rules=replace(HOT, no_progress=2))
    for _ in range(6):
        cluster.end_rank(1, signal=9)
        cluster.settle()
        all_stay(cluster)
        cluster.advance(3)
    assert cluster.end is None
    assert len(words(cluster, ContinueInPlace)) == 12


def test_what_a_rank_had_said_counts_for_nothing_once_it_takes_it_back() -> None:
    cluster = running()
    cluster.feed(Heartbeat(1, 999, 1, (RankHeartbeat(3, 0.0, True, False, can_continue=False),)))
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, ContinueInPlace)


# -- a lost node, and a spare


def was_planned(cluster: Cluster) -> str:
    """Why a new generation followed that is no restart, as nothing had failed."""
    state, [event] = cluster.state(), cluster.recorded("regroup")
    assert (state.restarts, state.failure, cluster.recorded("failure")) == ({}, None, [])
    assert (event.cause, event.text.partition("; ")[0]) == (None, event.brief)
    return event.brief


def joined(cluster: Cluster) -> list[tuple[int, int, int]]:
    """Return the ranks that were started to join survivors: node, place, first rank."""
    starts = [(node, word) for node, word in words(cluster, Start) if isinstance(word, Start) and word.joins]
    return [(node, start.group_rank, start.first_rank) for node, start in starts]


@pytest.mark.parametrize("proof", [True, False])
def test_a_spare_takes_the_place_of_a_lost_node_and_the_others_stay(proof: bool) -> None:
    """Its end is seen in the process table, or its lease runs out."""
    cluster = running(3, spares=1)
    before = pids(cluster)
    cluster.kill(1, proof=proof)
    cluster.advance(0.1 if proof else HOT.lease_s + 3)
    assert joined(cluster) == [(3, 1, 2)]
    assert [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)] == [(0, (0, 1)), (2, (4, 5))]  # type: ignore[attr-defined]
    assert not words(cluster, Stop)
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation, state.restarts) == (State.RUNNING, 2, {"node_lost": 1})
    assert {rank for rank in after if after[rank] != before[rank]} == {2, 3}
    assert [node.state for node in state.nodes] == ["up", "lost", "up", "up"]
    [regroup] = cluster.recorded("regroup")
    assert "hot: ranks 2, 3 are restarted, the other 4 stay; node 3 takes the place of node 1" in regroup.text
    assert cluster.recorded("failure")[0].in_place


@pytest.mark.parametrize("lease_s", [HOT.lease_s, 2.0])
def test_nobody_takes_the_place_of_a_node_before_its_lease_has_run_out(lease_s: float) -> None:
    """And somebody right then, where the node has had the time to end its ranks; a short lease is waited for longer."""
    cluster = running(2, spares=1, rules=replace(HOT, lease_s=lease_s))
    cut_at = cluster.mono
    cluster.cut(1)
    cluster.advance(60, until=lambda: not cluster.agents[1].live)
    ended_at = cluster.mono  # by itself
    cluster.advance(60, until=lambda: bool(joined(cluster)))
    assert cluster.mono - ended_at >= ENDING_S - 1e-6
    assert lease_s <= cluster.mono - cut_at <= max(lease_s, ENDING_S + lease_s * 0.8) + 1e-6


def test_a_node_that_was_only_frozen_and_wakes_ends_its_ranks() -> None:
    """They are in no generation any more; what it says of them is not heard."""
    cluster = running(2, spares=1)
    cluster.freeze(1)
    cluster.advance(HOT.lease_s + 3)
    assert joined(cluster) == [(2, 1, 2)]
    cluster.agents[1].leased_at = cluster.mono  # its guard holds the ranks still until a heartbeat is answered
    cluster.thaw(1)
    cluster.advance(3)
    stops = words(cluster, Stop)
    assert stops
    assert {(node, word.generation) for node, word in stops} == {(1, 1)}  # type: ignore[attr-defined]
    assert not cluster.agents[1].live
    state = cluster.state()
    assert (state.state, state.generation, state.nodes[1].state) == (State.RUNNING, 2, "spare")


def test_who_was_lost_and_is_back_is_a_spare_for_the_next() -> None:
    cluster = running(2, spares=1)
    cluster.kill(1)
    cluster.advance(0.1)
    all_stay(cluster)
    cluster.boot(1)
    cluster.advance(2)
    cluster.kill(2)
    cluster.advance(0.1)
    assert joined(cluster) == [(2, 1, 2), (1, 1, 2)]
    assert cluster.state().generation == 3
    assert not words(cluster, Stop)


def test_an_agent_that_comes_back_at_once_has_its_own_place_again() -> None:
    """A new one, ready, while the lease of the one before still ran."""
    cluster = running(2)
    cluster.kill(1, proof=False)
    cluster.boot(1)
    cluster.advance(HOT.lease_s + 3)
    assert joined(cluster) == [(1, 1, 2)]
    assert [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)] == [(0, (0, 1))]  # type: ignore[attr-defined]
    assert cluster.state().state is State.RUNNING


def test_two_nodes_that_are_lost_at_once_have_both_spares() -> None:
    cluster = running(3, spares=2)
    for node in (1, 2):
        cluster.kill(node, proof=False)
    cluster.advance(HOT.lease_s + 3)
    assert joined(cluster) == [(3, 1, 2), (4, 2, 4)]
    assert (cluster.state().generation, cluster.state().restarts) == (2, {"node_lost": 1})


def test_where_the_spares_are_too_few_all_are_started_anew() -> None:
    cluster = running(3, spares=1, least=2)
    for node in (1, 2):
        cluster.kill(node, proof=False)
    cluster.advance(HOT.lease_s + 3)
    assert not joined(cluster)
    assert "warm because no spare is ready to take the place of node 1, node 2" in cluster.recorded("regroup")[0].text
    assert cluster.state().state is State.RUNNING


def test_nobody_takes_the_place_of_the_first_node_which_coordinates() -> None:
    cluster = running(2, spares=1)
    cluster.kill(0)
    cluster.advance(0.1)
    assert not joined(cluster)


def test_a_spare_that_is_not_ready_is_not_waited_for_in_place() -> None:
    cluster = Cluster(plan_of(2, least=1, spares=1, rules=HOT))
    cluster.boot(0, 1)
    cluster.boot(2, ready=False)
    cluster.advance(30)
    all_stay(cluster)
    cluster.kill(1)
    cluster.advance(2)
    assert "warm because no spare is ready" in cluster.recorded("regroup")[0].text


def test_a_rank_that_cannot_stay_has_all_started_anew_on_the_spare_too() -> None:
    cluster = running(2, spares=1, can_continue=False)
    cluster.kill(1)
    cluster.advance(2)
    assert not joined(cluster)
    assert "warm because rank 0 has not reported" in cluster.recorded("regroup")[0].text
    assert cluster.starts(2).keys() == {0, 2}


def test_a_rank_is_killed_and_its_node_is_lost_before_it_has_started_another() -> None:
    """As of a power cut of which the agent could still tell a part."""
    cluster = running(2, spares=1)
    cluster.end_rank(2, signal=9)
    cluster.deliver(1, up=True)
    assert words(cluster, ContinueInPlace)
    cluster.kill(1)
    cluster.advance(2)
    assert joined(cluster) == [(2, 1, 2)]
    state = cluster.state()
    assert (state.state, state.generation, state.restarts) == (State.RUNNING, 3, {"killed": 1, "node_lost": 1})
    assert not words(cluster, Stop)


def test_a_spare_that_is_lost_while_ranks_meet_gives_way_to_the_next() -> None:
    cluster = running(2, spares=2)
    cluster.agents[2].mute_start = True
    cluster.kill(1)
    cluster.advance(0.1)
    assert joined(cluster) == [(2, 1, 2)]
    cluster.kill(2)
    cluster.advance(2)
    assert joined(cluster) == [(2, 1, 2), (3, 1, 2)]
    assert (cluster.state().state, cluster.state().generation) == (State.RUNNING, 3)


# -- a lost node, and nobody to take its place


def elastic(nodes: int = 2, least: int = 1, **how: object) -> Cluster:
    cluster = running(nodes, least=least, **how)  # type: ignore[arg-type]
    all_stay(cluster, resizes=True)
    return cluster


def stayed(cluster: Cluster) -> list[tuple[int, int, tuple[int, ...], int]]:
    """Return what survivors were ordered to do: node, first rank, ranks that stay, ranks in all."""
    found = [(node, word) for node, word in words(cluster, ContinueInPlace) if isinstance(word, ContinueInPlace)]
    return [(node, word.start.first_rank, word.survivors, word.start.world_size) for node, word in found]


@pytest.mark.parametrize("proof", [True, False])
def test_ranks_that_are_left_go_on_as_fewer(proof: bool) -> None:
    cluster = elastic()
    before = pids(cluster)
    cluster.kill(1, proof=proof)
    cluster.advance(0.1 if proof else HOT.lease_s + 3)
    assert stayed(cluster) == [(0, 0, (0, 1), 2)]
    assert not words(cluster, Stop)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size) == (State.RUNNING, 2, 2)
    assert pids(cluster) == {rank: before[rank] for rank in (0, 1)}
    assert state.restarts == {"node_lost": 1}
    [regroup] = cluster.recorded("regroup")
    assert "hot: the 2 surviving ranks stay and continue without node 1" in regroup.text
    assert cluster.recorded("failure")[0].in_place


def test_ranks_behind_the_lost_node_have_other_numbers() -> None:
    cluster = elastic(3)
    before = pids(cluster)
    cluster.kill(1)
    cluster.advance(0.1)
    assert stayed(cluster) == [(0, 0, (0, 1), 4), (2, 2, (2, 3), 4)]
    after = pids(cluster)
    assert after == {0: before[0], 1: before[1], 2: before[4], 3: before[5]}
    cluster.end_rank(3, signal=9)  # the one that was 5
    cluster.settle()
    assert stayed(cluster)[2:] == [(0, 0, (0, 1), 4), (2, 2, (2,), 4)]
    assert {rank for rank, pid in pids(cluster).items() if pid != after[rank]} == {3}
    assert not words(cluster, Stop)


def test_a_rank_that_ended_as_the_word_came_is_told_of_by_its_number_now() -> None:
    cluster = elastic(3)
    cluster.kill(1)
    cluster.deliver(1, up=True)
    cluster.end_rank(5, signal=9)
    cluster.settle()
    cluster.advance(1)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size) == (State.RUNNING, 3, 4)
    assert [exit_.rank for exit_ in cluster.exits] == [3]
    assert not words(cluster, Stop)


def test_one_node_after_the_other_is_lost() -> None:
    cluster = elastic(3)
    cluster.kill(2)
    cluster.advance(0.1)
    cluster.kill(1)  # before the others have met
    cluster.advance(0.1)
    assert stayed(cluster) == [(0, 0, (0, 1), 4), (1, 2, (2, 3), 4), (0, 0, (0, 1), 2)]
    assert (cluster.state().state, cluster.state().world_size) == (State.RUNNING, 2)


def test_two_nodes_at_once() -> None:
    cluster = elastic(3)
    for node in (1, 2):
        cluster.kill(node, proof=False)
    cluster.advance(HOT.lease_s + 3)
    assert stayed(cluster) == [(0, 0, (0, 1), 2)]
    assert "without node 1, 2" in cluster.recorded("regroup")[0].text


@pytest.mark.parametrize(
    ("nodes", "least", "spares", "lost", "why"),
    [
        (3, 2, 0, (1, 2), ""),
        (3, 1, 1, (1, 2), ", only of some of them"),
        (2, 1, 0, (0,), ""),
    ],
)
def test_where_fewer_ranks_cannot_be_in_place(
    nodes: int, least: int, spares: int, lost: tuple[int, ...], why: str
) -> None:
    cluster = elastic(nodes, least, spares=spares)
    for node in lost:
        cluster.kill(node, proof=False)
    cluster.advance(HOT.lease_s + 3)
    assert not stayed(cluster)
    if why:
        assert why in cluster.recorded("regroup")[0].text


def test_all_ranks_that_are_left_have_to_say_that_they_can() -> None:
    cluster = elastic(3)
    cluster.agents[2].live[0].resizes = False
    cluster.advance(2)
    cluster.kill(1)
    cluster.advance(0.1)
    assert not stayed(cluster)
    text = cluster.recorded("regroup")[0].text
    assert "warm because no spare is ready to take the place of node 1, and rank 4 cannot continue with fewer" in text


def test_ranks_that_load_what_was_saved_go_on_as_fewer_and_are_more_again_at_the_next_failure() -> None:
    """They could not take others in without losing steps."""
    cluster = running(2, least=1)
    all_shrink(cluster)
    cluster.kill(1)
    cluster.advance(0.1)
    assert stayed(cluster) == [(0, 0, (0, 1), 2)]
    all_shrink(cluster)
    cluster.boot(1)
    cluster.advance(HOT.wait_s + 5)
    assert (cluster.state().world_size, cluster.state().generation) == (2, 2)
    cluster.end_rank(1, signal=9)
    cluster.advance(5)
    assert len(stayed(cluster)) == 1
    text = cluster.recorded("regroup")[-1].text
    assert "warm because node 1 is ready, and not all ranks can continue with more" in text
    assert (cluster.state().state, cluster.state().world_size) == (State.RUNNING, 4)


def test_a_rank_that_is_killed_along_with_a_node_has_all_replaced() -> None:
    cluster = elastic(3)
    cluster.cut(1)
    cluster.advance(HOT.lease_s - 0.5)
    cluster.end_rank(0, signal=9)
    cluster.advance(3)
    assert not any(size == 4 for *_, size in stayed(cluster))
    assert (cluster.state().state, cluster.state().world_size) == (State.RUNNING, 4)


# -- a node that comes while the others train


def with_one_that_comes(nodes: int = 2, *, present: tuple[int, ...] = (0,)) -> Cluster:
    """The others train, and it has been told to start its ranks."""
    cluster = Cluster(plan_of(nodes, least=1, rules=HOT))
    cluster.boot(*present)
    cluster.advance(HOT.wait_s + 5)
    all_stay(cluster, resizes=True)
    cluster.boot(nodes - 1)
    cluster.advance(1)
    return cluster


def wait_at_the_door(cluster: Cluster, node: int) -> None:
    for rank in cluster.agents[node].live:
        rank.waits = True
    cluster.advance(1)


def test_a_node_that_comes_has_its_ranks_started_while_the_others_train() -> None:
    cluster = with_one_that_comes()
    before = pids(cluster)
    assert joined(cluster) == [(1, 1, 2)]
    assert not words(cluster, ContinueInPlace)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size) == (State.RUNNING, 1, 2)
    assert cluster.recorded("joining")[0].text == "node 1: ranks 2, 3 start, to join the others"
    step = state.step
    cluster.advance(3)
    assert cluster.state().step == (step or 0) + 3
    wait_at_the_door(cluster, 1)
    assert stayed(cluster) == [(0, 0, (0, 1), 4)]
    assert not words(cluster, Stop)
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation, state.world_size, state.restarts) == (State.RUNNING, 2, 4, {})
    assert {rank: after[rank] for rank in before} == before
    assert [node.ranks for node in state.nodes] == [(0, 1), (2, 3)]
    assert cluster.recorded("generation_opened")[-1].text == "generation 2: ranks 2, 3 join, the other 2 stay"
    assert not cluster.recorded("failure")


def test_one_that_was_lost_joins_again_once_it_is_back() -> None:
    cluster = elastic()
    cluster.kill(1)
    cluster.advance(0.1)
    all_stay(cluster, resizes=True)
    cluster.boot(1)
    cluster.advance(2)
    wait_at_the_door(cluster, 1)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size) == (State.RUNNING, 3, 4)
    assert stayed(cluster) == [(0, 0, (0, 1), 2), (0, 0, (0, 1), 4)]


@pytest.mark.parametrize("how", ["a kill", "an error", "a lost node"])
def test_what_befalls_the_others_meanwhile_comes_first(how: str) -> None:
    cluster = with_one_that_comes(3, present=(0, 1))
    if how == "a lost node":
        cluster.kill(1)
    else:
        cluster.end_rank(2, **({"signal": 9} if how == "a kill" else {"code": 1, "error": "ValueError: no"}))
    cluster.advance(1)
    assert (2, 2) in [(node, word.generation) for node, word in words(cluster, Stop)]  # type: ignore[attr-defined]
    assert len(cluster.recorded("joining_failed")) == 1
    state = cluster.state()
    assert (state.state, state.generation) == (State.RUNNING, 3)
    assert state.world_size == {"a kill": 4, "an error": 6, "a lost node": 2}[how]
    if how == "an error":
        return  # all have been started anew, with the node that was to join
    all_stay(cluster, resizes=True)
    cluster.advance(2)
    wait_at_the_door(cluster, 2)
    assert cluster.state().generation == 4
    assert cluster.state().nodes[2].ranks


@pytest.mark.parametrize("how", ["its rank", "its agent", "its connection", "a fault", "its disk", "a drain"])
def test_what_befalls_the_one_that_comes_is_nothing_to_the_others(how: str) -> None:
    cluster = with_one_that_comes()
    match how:
        case "its rank":
            cluster.end_rank(3, code=1, error="ValueError: no")
        case "its agent":
            cluster.kill(1)
        case "its connection":
            cluster.cut(1)
        case "a fault" | "its disk":
            cluster.say(1, Fault(1, False, "no", disk=how == "its disk"))
        case "a drain":
            cluster.feed(Drain(1))
    cluster.advance(2)
    state = cluster.state()
    assert (state.state, state.generation, state.world_size, state.restarts) == (State.RUNNING, 1, 2, {})
    assert not words(cluster, ContinueInPlace)
    assert len(cluster.recorded("joining_failed")) == 1
    assert not cluster.agents[1].live or how in ("its agent", "its connection")
    if how in ("its rank", "its disk"):
        cluster.advance(60)
        assert len(joined(cluster)) == 1  # not again and again


def test_one_that_does_not_come_to_meet_the_others_is_given_up() -> None:
    cluster = with_one_that_comes()
    cluster.advance(HOT.hang_at_start_s + 130)
    assert "did not come to meet the others in time" in cluster.recorded("joining_failed")[0].text
    assert cluster.state().state is State.RUNNING
    assert len(joined(cluster)) == 1


def test_nobody_joins_ranks_that_cannot_be_more() -> None:
    cluster = with_one_that_comes()
    for rank in cluster.agents[0].live:
        rank.resizes = False
    cluster.advance(2)
    assert "not all other ranks can continue" in cluster.recorded("joining_failed")[0].text
    assert cluster.state().generation == 1


def test_one_of_those_that_join_is_killed_as_they_meet() -> None:
    cluster = with_one_that_comes()
    wait_at_the_door(cluster, 1)
    cluster.end_rank(3, signal=9)
    cluster.settle()
    assert stayed(cluster)[1:] == [(0, 0, (0, 1), 4), (1, 2, (), 4)]
    assert cluster.state().generation == 3
    assert not words(cluster, Stop)


def test_the_node_that_joins_is_lost_as_they_meet() -> None:
    cluster = with_one_that_comes()
    wait_at_the_door(cluster, 1)
    cluster.kill(1)
    cluster.advance(0.1)
    assert stayed(cluster) == [(0, 0, (0, 1), 4), (0, 0, (0, 1), 2)]
    assert (cluster.state().state, cluster.state().world_size) == (State.RUNNING, 2)


def test_a_run_that_ends_takes_those_that_wait_along() -> None:
    cluster = with_one_that_comes()
    for rank in [*cluster.agents[0].live]:
        cluster.end_rank(rank.number, code=0, done=True)
    cluster.settle()
    assert cluster.over.state is State.SUCCEEDED
    assert not cluster.agents[1].live


def test_a_drained_node_is_left_without_a_restart() -> None:
    cluster = elastic()
    cluster.feed(Drain(1))
    cluster.settle()
    assert [(node, word.grace_s) for node, word in words(cluster, Stop)] == [(1, 0.0)]  # type: ignore[attr-defined]
    assert stayed(cluster) == [(0, 0, (0, 1), 2)]
    state = cluster.state()
    assert (state.state, state.world_size) == (State.RUNNING, 2)
    assert was_planned(cluster) == "node 1 is drained"


# -- a node that is drained


LEFT = pytest.mark.parametrize(
    ("word", "brief", "becomes"),
    [(Drain(1), "node 1 is drained", "drained"), (Move(1), "the ranks of node 1 move to a spare", "spare")],
    ids=["drained", "moved"],
)


@LEFT
def test_ranks_of_a_node_move_to_the_spare_and_the_others_stay(word: Drain | Move, brief: str, becomes: str) -> None:
    cluster = running(3, spares=1)
    before = pids(cluster)
    cluster.feed(word)
    cluster.settle()
    assert [(node, word.generation, word.grace_s) for node, word in words(cluster, Stop)] == [(1, 1, 0.0)]  # type: ignore[attr-defined]
    assert joined(cluster) == [(3, 1, 2)]
    assert [node for node, _ in words(cluster, ContinueInPlace)] == [0, 2]
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation) == (State.RUNNING, 2)
    assert was_planned(cluster) == brief
    assert {rank for rank in after if after[rank] != before[rank]} == {2, 3}
    assert [node.state for node in state.nodes] == ["up", becomes, "up", "up"]
    moved = [(event.node, event.text) for event in cluster.recorded("moved")]
    assert moved == [(1, "the ranks of node 1 have moved; ranks run on node 0, 3, 2")] * (becomes == "spare")


def test_nobody_is_started_in_a_drained_nodes_place_before_its_ranks_have_ended() -> None:
    cluster = running(2, spares=1)
    cluster.agents[1].ignores_stop = True
    cluster.feed(Drain(1))
    cluster.advance(3)
    assert words(cluster, Stop)
    assert not joined(cluster)
    assert cluster.state().generation == 1


def test_a_drained_node_goes_on_until_another_can_have_its_place() -> None:
    cluster = running(2)
    cluster.feed(Drain(1, "Slurm says so"))
    cluster.feed(Drain(0, "Slurm says so"))
    cluster.advance(60)
    state = cluster.state()
    assert (state.state, state.generation, state.nodes[1].ranks) == (State.RUNNING, 1, (2, 3))
    assert [event.text for event in cluster.recorded("drain_asked")] == [
        "node 1 is to be drained (Slurm says so); its ranks stay until others can have their places",
        "node 0 is to be drained (Slurm says so), but coordinates the others: it stays",
    ]


def test_ranks_leave_a_node_whose_kernel_tells_of_a_device_that_fails() -> None:
    cluster = running(2, spares=1)
    for _ in range(2):  # it is said again with each new connection
        cluster.say(1, DeviceFails(1, "an uncorrected memory error: EDAC MC0: 1 UE"))
        cluster.advance(3)
    assert joined(cluster) == [(2, 1, 2)]
    state = cluster.state()
    assert (state.state, state.generation, state.nodes[1].state) == (State.RUNNING, 2, "drained")
    [asked] = cluster.recorded("drain_asked")
    assert asked.text == ("node 1 is to be drained (its kernel tells of an uncorrected memory error: EDAC MC0: 1 UE)")


def test_a_spare_that_comes_later_has_the_place() -> None:
    cluster = Cluster(plan_of(2, spares=1, rules=HOT))
    cluster.boot(0, 1)
    cluster.advance(30)
    all_stay(cluster)
    cluster.feed(Drain(1))
    cluster.advance(5)
    assert not joined(cluster)
    cluster.boot(2)
    cluster.advance(2)
    assert joined(cluster) == [(2, 1, 2)]
    assert cluster.state().nodes[1].state == "drained"


def test_without_a_spare_the_world_shrinks_where_it_may_and_ranks_save_before() -> None:
    cluster = running(2, least=1)
    cluster.feed(Drain(1))
    cluster.advance(1)
    assert {(node, word.grace_s) for node, word in words(cluster, Stop)} == {(0, HOT.grace_s), (1, HOT.grace_s)}  # type: ignore[attr-defined]
    state = cluster.state()
    assert (state.state, state.world_size) == (State.RUNNING, 2)
    assert was_planned(cluster) == "node 1 is drained"
    assert "warm because no spare is ready" in cluster.recorded("regroup")[0].text


@pytest.mark.parametrize("spares", [0, 1])
def test_ranks_that_would_go_back_to_what_was_saved_save_before_their_node_is_drained(spares: int) -> None:
    """As with fsdp, among fewer too, and with zero1: a planned move loses nothing."""
    cluster = running(2, least=1, spares=spares)
    all_shrink(cluster)
    cluster.feed(Drain(1))
    cluster.advance(1)
    assert {(node, word.grace_s) for node, word in words(cluster, Stop)} == {(0, HOT.grace_s), (1, HOT.grace_s)}  # type: ignore[attr-defined]
    assert not stayed(cluster)
    assert was_planned(cluster) == "node 1 is drained"
    assert "warm because ranks would go back to what was saved before" in cluster.recorded("regroup")[0].text


def test_a_node_whose_device_fails_is_used_as_long_as_no_other_can_have_its_ranks() -> None:
    cluster = running(2)
    cluster.say(1, DeviceFails(1, "an uncorrected memory error: EDAC"))
    cluster.advance(60)
    [asked] = cluster.recorded("drain_asked")
    assert asked.text.endswith("; its ranks stay until others can have their places")
    assert cluster.state().generation == 1
    cluster.end_rank(1, code=1)
    cluster.advance(10)
    state = cluster.state()
    assert (state.state, state.world_size, state.nodes[1].state) == (State.RUNNING, 4, "up"), "a failure as any"


def test_the_first_node_and_its_machine_are_not_left_for_a_device_that_fails() -> None:
    cluster = Cluster(plan_of(2, spares=1, rules=HOT))
    cluster.boot(0)
    cluster.boot(1, host="host-0")
    cluster.boot(2)
    cluster.advance(3)
    for node in (0, 1):
        cluster.say(node, DeviceFails(node, "an uncorrected memory error: EDAC"))
    cluster.advance(5)
    assert [event.text.rpartition(", but ")[2] for event in cluster.recorded("drain_asked")] == [
        "coordinates the others: it stays",
        "is on the machine of the node that coordinates the others: it stays",
    ]
    assert cluster.state().generation == 1


def test_a_new_rank_that_has_met_nobody_yet_does_not_keep_the_others_from_going_on_in_place() -> None:
    """Though a node is ready that they have yet to take in."""
    cluster = Cluster(plan_of(3, least=1, rules=HOT))
    cluster.boot(0, 1)
    cluster.advance(HOT.wait_s + 5)
    all_stay(cluster, resizes=True)
    cluster.boot(2)
    cluster.end_rank(0, signal=9)
    cluster.advance(0.1)
    for agent in cluster.agents.values():
        for rank in agent.live:
            rank.can_continue, rank.resizes = True if rank.number else None, rank.number > 0
    cluster.advance(2)
    assert cluster.state().generation == 2
    cluster.end_rank(1, signal=9)
    cluster.advance(1)
    assert [("a new generation follows, hot" in event.text) for event in cluster.recorded("regroup")] == [True, True]


@LEFT
def test_warm_all_may_save_and_the_spare_is_in_the_next_generation(
    word: Drain | Move, brief: str, becomes: str
) -> None:
    cluster = running(2, spares=1, rules=WARM)
    cluster.feed(word)
    cluster.advance(1)
    assert {node for node, word in words(cluster, Stop) if word.grace_s} == {0, 1}  # type: ignore[attr-defined]
    assert cluster.starts(2).keys() == {0, 2}
    assert was_planned(cluster) == brief
    assert cluster.state().nodes[1].state == becomes


def test_the_first_node_and_unknown_ones_cannot_be_drained() -> None:
    cluster = running(2, spares=1)
    for node in (0, 7, -1):
        cluster.feed(Drain(node))
    cluster.advance(2)
    assert cluster.state().generation == 1


def test_a_drained_node_that_is_lost_while_it_ends_its_ranks_is_as_good_as_stopped() -> None:
    cluster = running(2, spares=1)
    cluster.agents[1].ignores_stop = True
    cluster.feed(Drain(1))
    cluster.settle()
    cluster.kill(1)
    cluster.advance(1)
    assert joined(cluster) == [(2, 1, 2)]
    assert cluster.state().state is State.RUNNING


@LEFT
def test_a_rank_that_is_killed_meanwhile_is_replaced_with_those_that_move(
    word: Drain | Move, brief: str, becomes: str
) -> None:
    cluster = running(2, spares=1)
    cluster.feed(word)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    cluster.advance(1)
    assert [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)] == [(0, (1,))]  # type: ignore[attr-defined]
    assert joined(cluster) == [(2, 1, 2)]
    state = cluster.state()
    assert (state.state, state.nodes[1].state, state.restarts) == (State.RUNNING, becomes, {"killed": 1})


def test_no_budget_is_used_for_what_was_wanted() -> None:
    for rules in (HOT, WARM):
        cluster = running(2, spares=1, rules=replace(rules, preempted=Budget(0)))
        cluster.feed(Drain(1))
        cluster.advance(2)
        assert places(cluster) == {0: (0, 1), 2: (2, 3)}
        assert was_planned(cluster) == "node 1 is drained"


def test_who_cancels_while_ranks_save_to_move_leaves_no_failure() -> None:
    cluster = running(2, spares=1, rules=WARM)
    cluster.agents[1].ignores_stop = True
    cluster.feed(Drain(1))
    cluster.settle()
    cluster.ask_stop("cancel")
    cluster.agents[1].ignores_stop = False
    cluster.advance(60)
    assert cluster.over.state is State.CANCELLED
    assert not cluster.recorded("failure")


def test_a_spare_that_is_drained_is_no_spare() -> None:
    cluster = running(2, spares=1)
    cluster.feed(Drain(2))
    cluster.kill(1)
    cluster.advance(2)
    assert not joined(cluster)
    assert cluster.state().nodes[2].state == "drained"


# -- ranks that move to a spare


def places(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    return {node.node: node.ranks for node in cluster.state().nodes if node.ranks}


def refusals(cluster: Cluster) -> list[str]:
    return [event.text.partition(": ")[2] for event in cluster.recorded("not_moved")]


def test_they_move_back_and_forth() -> None:
    cluster = running(2, spares=1)
    for node, there in ((1, {0: (0, 1), 2: (2, 3)}), (2, {0: (0, 1), 1: (2, 3)}), (1, {0: (0, 1), 2: (2, 3)})):
        cluster.feed(Move(node))
        cluster.settle()
        assert places(cluster) == there
        all_stay(cluster)
    assert [event.node for event in cluster.recorded("moved")] == [1, 2, 1]


def test_after_they_have_moved_a_failure_leaves_them_where_they_are() -> None:
    cluster = running(2, spares=1)
    cluster.feed(Move(1))
    cluster.settle()
    cluster.end_rank(2, code=1, error="ValueError: no")
    cluster.advance(5)
    assert places(cluster) == {0: (0, 1), 2: (2, 3)}
    cluster.kill(2)
    cluster.advance(5)
    assert places(cluster) == {0: (0, 1), 1: (2, 3)}


@pytest.mark.parametrize("rules", [HOT, WARM], ids=["hot", "warm"])
def test_one_of_several_spares_can_be_named(rules: Recovery) -> None:
    cluster = running(3, spares=2, rules=rules)
    cluster.feed(Move(1, 4))
    cluster.feed(Move(2, 3))
    cluster.advance(1)
    if rules is HOT:
        all_stay(cluster)
    cluster.advance(1)
    assert places(cluster) == {0: (0, 1), 4: (2, 3), 3: (4, 5)}


@pytest.mark.parametrize(
    ("node", "to", "why"),
    [
        (0, None, "it coordinates the others"),
        (2, None, "it has no ranks"),
        (1, 0, "node 0 is no spare that is ready"),
        (1, 1, "node 1 is no spare that is ready"),
        (1, 9, "node 9 is no spare that is ready"),
    ],
)
def test_what_cannot_move_goes_on_and_why_is_told(node: int, to: int | None, why: str) -> None:
    cluster = running(2, spares=1)
    cluster.feed(Move(node, to))
    cluster.advance(2)
    assert refusals(cluster) == [why]
    assert (cluster.state().generation, places(cluster)) == (1, {0: (0, 1), 1: (2, 3)})


def test_without_a_spare_nothing_moves_then_or_later() -> None:
    cluster = Cluster(plan_of(2, least=1, spares=1, rules=HOT))
    cluster.boot(0, 1)
    cluster.advance(30)
    all_stay(cluster, resizes=True)
    cluster.feed(Move(1))
    cluster.advance(2)
    assert refusals(cluster) == ["no spare is ready"]
    cluster.boot(2)
    cluster.advance(5)
    assert (cluster.state().generation, places(cluster)) == (1, {0: (0, 1), 1: (2, 3)})


def test_unknown_nodes_are_passed_over() -> None:
    cluster = running(2, spares=1)
    cluster.feed(Move(7))
    cluster.advance(2)
    assert not cluster.recorded("move_asked")
    assert cluster.state().generation == 1


def test_the_spare_is_lost_while_the_ranks_end_and_they_are_started_where_they_were() -> None:
    cluster = running(2, spares=1)
    cluster.agents[1].ignores_stop = True
    cluster.feed(Move(1))
    cluster.settle()
    cluster.kill(2)
    cluster.advance(1)
    cluster.agents[1].ignores_stop = False
    cluster.down[1].append(Stop(1, 0.0))  # only now do they end
    cluster.advance(2)
    assert (cluster.state().state, places(cluster)) == (State.RUNNING, {0: (0, 1), 1: (2, 3)})
    assert joined(cluster) == [(1, 1, 2)]
    assert refusals(cluster) == ["no spare was ready any more"]


def test_a_node_whose_ranks_were_to_move_when_the_spare_took_that_of_another_keeps_them() -> None:
    cluster = running(3, spares=1)
    cluster.kill(2)
    cluster.feed(Move(1))
    cluster.advance(2)
    assert places(cluster) == {0: (0, 1), 1: (2, 3), 3: (4, 5)}
    assert refusals(cluster) == ["no spare was ready any more"]


SICK = "cpu: memory: expected 1, got 2"


def falls_sick(cluster: Cluster, rank: int, node: int) -> None:
    """Report that a node is unhealthy while one of its ranks is killed."""
    cluster.agents[node].sick = SICK
    cluster.end_rank(rank, signal=9)


def test_a_device_that_falls_sick_after_a_kill_takes_its_node_and_the_others_stay() -> None:
    """A spare has its place, once its other ranks have ended."""
    cluster = running(3, spares=1, rules=replace(HOT, health=True))
    before = pids(cluster)
    falls_sick(cluster, 2, 1)
    cluster.settle()
    assert [(node, word.generation) for node, word in words(cluster, Stop)] == [(1, 2)]  # type: ignore[attr-defined]
    assert joined(cluster) == [(3, 1, 2)]
    assert [(node, word.survivors) for node, word in words(cluster, ContinueInPlace)][-2:] == [(0, (0, 1)), (2, (4, 5))]  # type: ignore[attr-defined]
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation, state.restarts) == (State.RUNNING, 3, {"killed": 1, "node_lost": 1})
    assert {rank for rank in after if after[rank] != before[rank]} == {2, 3}
    assert [node.state for node in state.nodes] == ["up", "unfit", "up", "up"]
    assert [(event.in_place, event.text) for event in cluster.recorded("failure")][1:] == [
        (True, f"node 1 is unfit: {SICK}")
    ]


def test_without_a_spare_the_others_go_on_as_fewer_where_they_may() -> None:
    cluster = elastic(3, least=2, rules=replace(HOT, health=True))
    before = pids(cluster)
    falls_sick(cluster, 3, 1)
    cluster.settle()
    assert [(node, word.generation) for node, word in words(cluster, Stop)] == [(1, 2)]  # type: ignore[attr-defined]
    assert places(cluster) == {0: (0, 1), 2: (2, 3)}
    assert pids(cluster) == {0: before[0], 1: before[1], 2: before[4], 3: before[5]}


@pytest.mark.parametrize(
    ("rank", "how", "why"),
    [
        (2, {"nodes": 3, "least": 2}, "no spare is ready to take the place of node 1"),
        (0, {"nodes": 2, "least": 1, "spares": 1}, ""),  # it coordinates the others
    ],
)
def test_where_they_may_not_all_are_started_anew(rank: int, how: dict[str, int], why: str) -> None:
    cluster = running(rules=replace(HOT, health=True), **how)  # type: ignore[arg-type]
    falls_sick(cluster, rank, rank // 2)
    cluster.advance(3)
    if why:
        assert why in cluster.recorded("regroup")[-1].text
        assert sorted(cluster.starts(3)) == [0, 2] and cluster.state().state is State.RUNNING
    else:
        assert cluster.over.state is State.QUEUED


def test_the_sick_node_is_lost_while_it_ends_its_ranks() -> None:
    cluster = running(3, spares=1, rules=replace(HOT, health=True))
    cluster.agents[1].ignores_stop = True
    falls_sick(cluster, 2, 1)
    cluster.settle()
    assert not joined(cluster)
    cluster.kill(1)
    cluster.settle()
    assert joined(cluster) == [(3, 1, 2)] and cluster.state().state is State.RUNNING


def test_it_does_not_end_its_ranks_and_all_are_started_anew() -> None:
    cluster = running(3, spares=1, rules=replace(HOT, health=True))
    cluster.agents[1].ignores_stop = True
    falls_sick(cluster, 2, 1)
    cluster.advance(90)
    assert sorted(cluster.starts(3)) == [0, 2, 3] and not joined(cluster)
    assert cluster.state().state is State.RUNNING


def test_one_more_is_killed_while_the_sick_node_ends_its_ranks() -> None:
    cluster = running(3, spares=1, rules=replace(HOT, health=True))
    cluster.agents[1].ignores_stop = True
    falls_sick(cluster, 2, 1)
    cluster.settle()
    cluster.end_rank(5, signal=9)
    cluster.settle()
    cluster.agents[1].ignores_stop = False
    cluster.down[1].append(Stop(2, 0.0))
    cluster.advance(2)
    assert joined(cluster) == [(3, 1, 2)] and cluster.state().state is State.RUNNING
    assert places(cluster) == {0: (0, 1), 3: (2, 3), 2: (4, 5)}


def test_a_healthy_node_goes_on_in_place_as_without_checks() -> None:
    cluster = running(rules=replace(HOT, health=True))
    cluster.end_rank(2, signal=9)
    cluster.advance(3)
    assert not words(cluster, Stop) and cluster.state().generation == 2


# -- no rank has the state any more


def test_a_training_that_went_back_in_place_says_so_once_and_in_its_status_until_the_lost_steps_are_done() -> None:
    cluster = running(1)
    back = WentBack(8, 2, "no rank has shard 1 any more")
    text = "no rank has shard 1 any more; back to step 8 in place, 2 steps are done again"
    for seq, step, message in ((1000, 8, text), (1001, 9, text), (1002, 10, "")):
        cluster.feed(Heartbeat(0, seq, 1, (RankHeartbeat(0, 0.0, True, False, step=step, went_back=back),)))
        assert cluster.state().message == message
    assert [event.text for event in cluster.recorded("went_back")] == [text]


# -- a rank that all others wait for

REPLACE = replace(HOT, replace_stragglers=True)


def waits_for(cluster: Cluster, rank: int, generation: int = 1) -> None:
    """Rank 0 says so, and goes on saying so in each heartbeat."""
    for seq in (1000, 1001):
        found = RankHeartbeat(0, 0.0, True, False, slow=SlowRank(rank, 1.9, 1.0))
        cluster.feed(Heartbeat(0, seq, generation, (found,)))
        cluster.settle()


@pytest.mark.parametrize("rules", [REPLACE, replace(REPLACE, mode="warm")], ids=["hot", "warm"])
def test_the_ranks_of_a_slow_node_move_to_a_spare_once(rules: Recovery) -> None:
    cluster = running(3, rules=rules, spares=1)
    waits_for(cluster, 3)
    cluster.advance(5)
    slow = "rank 3 on node 1 is slow: its own work takes 1.9 s of each step, the usual rank's 1 s, and all others wait"
    slow += " for it"
    assert [(event.node, event.rank, event.text) for event in cluster.recorded("straggler")] == [(1, 3, slow)]
    follows = f"the ranks of node 1 move to node 3: {slow}; a new generation follows"
    assert cluster.recorded("regroup")[0].text.startswith(follows)
    assert not cluster.recorded("failure") and cluster.state().restarts == {}
    assert [event.node for event in cluster.recorded("moved")] == [1]
    assert places(cluster) == {0: (0, 1), 3: (2, 3), 2: (4, 5)}
    assert [node.state for node in cluster.state().nodes] == ["up", "spare", "up", "up"]
    waits_for(cluster, 3, cluster.state().generation)  # the spare is no quicker
    cluster.advance(5)
    assert [event.node for event in cluster.recorded("straggler")] == [1, 3]
    assert [event.node for event in cluster.recorded("moved")] == [1]
    assert refusals(cluster) == ["each spare that is ready was slow itself; they do once another one is"]


def test_where_it_is_not_asked_for_it_is_only_told() -> None:
    cluster = running(3, spares=1)
    waits_for(cluster, 3)
    cluster.advance(5)
    assert [event.node for event in cluster.recorded("straggler")] == [1]
    assert cluster.state().generation == 1


NO_SPARE = "no spare is ready; they do once another one is"


@pytest.mark.parametrize("rules", [REPLACE, replace(REPLACE, mode="warm")], ids=["hot", "warm"])
def test_where_no_spare_was_ready_the_ranks_of_a_slow_node_move_once_one_is(rules: Recovery) -> None:
    cluster = Cluster(plan_of(3, spares=2, rules=rules))
    cluster.boot(0, 1, 2)
    cluster.advance(30)
    all_stay(cluster)
    waits_for(cluster, 3)
    waits_for(cluster, 5)
    cluster.advance(3)
    assert refusals(cluster) == [NO_SPARE, NO_SPARE] and cluster.state().generation == 1
    cluster.boot(3)
    cluster.advance(5)
    assert places(cluster) == {0: (0, 1), 3: (2, 3), 2: (4, 5)}
    all_stay(cluster)
    cluster.boot(4)
    cluster.advance(5)
    assert places(cluster) == {0: (0, 1), 3: (2, 3), 4: (4, 5)}
    assert [event.node for event in cluster.recorded("moved")] == [1, 2]
    assert len(refusals(cluster)) == 2 and cluster.state().restarts == {}


def test_it_is_tried_once_more_and_only_of_a_node_that_is_still_slow() -> None:
    cluster = Cluster(plan_of(3, spares=2, rules=REPLACE))
    cluster.boot(0, 1, 2)
    cluster.advance(30)
    all_stay(cluster)
    waits_for(cluster, 3)
    waits_for(cluster, 5)
    cluster.kill(1, proof=False)
    cluster.boot(1, buries=True)  # another agent, of which nobody has said so
    cluster.advance(5)
    all_stay(cluster)
    cluster.agents[2].ignores_stop = True
    cluster.boot(3)
    cluster.settle()
    cluster.kill(3)
    cluster.advance(1)
    cluster.agents[2].ignores_stop = False
    cluster.down[2].append(Stop(cluster.state().generation, 0.0))
    cluster.advance(3)
    assert refusals(cluster) == [NO_SPARE, NO_SPARE, "no spare was ready any more"]
    all_stay(cluster)
    cluster.boot(4)
    cluster.advance(5)
    assert places(cluster) == {0: (0, 1), 1: (2, 3), 2: (4, 5)} and not cluster.recorded("moved")


@pytest.mark.parametrize(("rank", "spares", "why"), [(0, 1, "it coordinates the others"), (3, 0, NO_SPARE)])
def test_a_slow_one_that_cannot_move_goes_on_and_why_is_told(rank: int, spares: int, why: str) -> None:
    cluster = running(2, rules=REPLACE, spares=spares)
    waits_for(cluster, rank)
    cluster.advance(5)
    assert refusals(cluster) == [why]
    assert (cluster.state().generation, len(cluster.recorded("straggler"))) == (1, 1)


def test_a_rank_that_there_is_not_or_of_another_generation_is_nobody() -> None:
    cluster = running(2, rules=REPLACE, spares=1)
    waits_for(cluster, 99)
    waits_for(cluster, 3, generation=9)
    assert not cluster.recorded("straggler")


def test_a_node_that_was_slow_has_ranks_again_only_where_others_are_too_few() -> None:
    cluster = running(2, rules=REPLACE, spares=2)
    waits_for(cluster, 3)
    cluster.advance(3)
    all_stay(cluster)
    assert places(cluster) == {0: (0, 1), 2: (2, 3)}
    cluster.kill(2)
    cluster.advance(3)
    all_stay(cluster)
    assert places(cluster) == {0: (0, 1), 3: (2, 3)}
    cluster.kill(3)
    cluster.advance(3)
    assert places(cluster) == {0: (0, 1), 1: (2, 3)}


# A host that is about to go, by `notice` of the spec

GOES = "/run/host-goes is there"


def test_ranks_leave_a_host_that_goes_for_a_spare_and_nothing_is_saved_for_it() -> None:
    cluster = running(2, spares=1)
    for _ in range(2):  # it is said again with each new connection
        cluster.say(1, HostLeaves(1, GOES))
        cluster.advance(3)
    assert joined(cluster) == [(2, 1, 2)]
    assert stayed(cluster)
    state = cluster.state()
    assert (state.state, state.generation, state.nodes[1].state) == (State.RUNNING, 2, "drained")
    [asked] = cluster.recorded("drain_asked")
    assert asked.text == f"node 1 is about to go, within 120 s: {GOES}"
    assert (cluster.recorded("failure"), state.restarts) == ([], {})


def test_without_a_spare_all_save_while_the_host_is_there_and_the_run_waits_for_another() -> None:
    cluster = running(2)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.advance(2)
    assert {(node, word.grace_s) for node, word in words(cluster, Stop)} == {(0, HOT.grace_s), (1, HOT.grace_s)}  # type: ignore[attr-defined]
    cluster.advance(300)
    state = cluster.state()
    assert (state.state, state.generation, state.restarts) == (State.REGROUPING, 1, {})
    assert state.message == "node 1 is about to go; a new generation follows"
    assert state.nodes[1].state == "drained"


def test_a_host_that_stays_after_all_has_ranks_again() -> None:
    cluster = running(2)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.advance(60)
    cluster.say(1, HostLeaves(1, ""))
    cluster.advance(5)
    assert (cluster.state().state, cluster.state().generation) == (State.RUNNING, 2)
    assert cluster.recorded("drain_asked")[-1].text == "node 1 stays after all"


def test_a_run_that_may_have_fewer_nodes_goes_on_without_a_host_that_goes() -> None:
    cluster = running(2, least=1)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.advance(1)
    assert {node for node, _ in words(cluster, Stop)} == {0, 1}
    assert (cluster.state().state, cluster.state().world_size) == (State.RUNNING, 2)


def test_no_ranks_begin_on_a_host_that_goes() -> None:
    cluster = Cluster(plan_of(2, rules=HOT))
    cluster.boot(0)
    cluster.boot(1, ready=False)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.make_ready(1)
    cluster.advance(30)
    assert (cluster.state().generation, cluster.end) == (0, None)
    assert cluster.state().message == f"waiting for nodes: 1 of 2 are ready; node 1 is about to go: {GOES}"
    cluster.say(1, HostLeaves(1, ""))
    cluster.advance(5)
    assert cluster.state().state is State.RUNNING


def test_a_spare_that_is_on_its_way_is_waited_for_as_long_as_there_is_time_to_save() -> None:
    """The host goes 120 s after it is said; ranks have 30 s to save, and the coordinator 10 s to see that."""
    cluster = Cluster(plan_of(2, spares=1, rules=HOT))
    cluster.boot(0, 1)
    cluster.boot(2, ready=False)
    cluster.advance(30)
    all_stay(cluster)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.advance(78)
    assert not words(cluster, Stop)
    cluster.advance(5)
    assert {node for node, _ in words(cluster, Stop)} == {0, 1}


def test_the_attempt_ends_with_a_save_when_the_first_host_goes() -> None:
    cluster = running(2, spares=1)
    cluster.say(0, HostLeaves(0, GOES))
    cluster.advance(5)
    assert {(node, word.grace_s) for node, word in words(cluster, Stop)} == {(0, HOT.grace_s), (1, HOT.grace_s)}  # type: ignore[attr-defined]
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.PREEMPTED)
    assert "the host that coordinates the others is about to go" in cluster.recorded("stop_asked")[0].text


def test_the_coordinators_next_attempt_does_not_begin_on_a_host_that_goes() -> None:
    cluster = Cluster(plan_of(2, rules=HOT))
    cluster.boot(0, ready=False)
    cluster.boot(1)
    cluster.say(0, HostLeaves(0, GOES))
    cluster.make_ready(0)
    cluster.advance(60)
    assert (cluster.state().generation, cluster.end) == (0, None), "else one attempt would follow the other"


def test_a_host_that_is_started_anew_is_one_that_stays() -> None:
    cluster = running(2)
    cluster.say(1, HostLeaves(1, GOES))
    cluster.advance(10)
    cluster.kill(1)
    cluster.boot(1, machine="boot-2")
    cluster.advance(30)
    assert cluster.state().nodes[1].state != "drained"
