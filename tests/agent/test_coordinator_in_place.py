"""recovery.mode hot: when a rank was killed those that live keep their processes, and where they cannot, why not."""

import pytest
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.agent.messages import GoOn, Pulse, RankPulse, Started, Stop
from launcher.spec.model import Budget, Recovery
from launcher.words import State

HOT = Recovery(mode="hot")


def running(nodes: int = 2, *, rules: Recovery = HOT, stays: bool = True, least: int | None = None) -> Cluster:
    cluster = Cluster(plan_of(nodes, least=least, rules=rules))
    cluster.boot()
    cluster.advance(3)
    assert cluster.state().state is State.RUNNING
    if stays:
        all_stay(cluster)
    return cluster


def all_stay(cluster: Cluster) -> None:
    for agent in cluster.agents.values():
        for rank in agent.live:
            rank.stays = True
    cluster.advance(2)


def words(cluster: Cluster, kind: type) -> list[tuple[int, object]]:
    return [(node, message) for _, node, message in cluster.sent if isinstance(message, kind)]


def pids(cluster: Cluster) -> dict[int, int | None]:
    return {rank.rank: rank.pid for rank in cluster.state().ranks}


def test_ranks_that_live_keep_their_processes_and_the_dead_one_is_replaced() -> None:
    cluster = running()
    before = pids(cluster)
    cluster.end_rank(2, signal=9)
    cluster.settle()
    assert [(node, word.stay) for node, word in words(cluster, GoOn)] == [(0, (0, 1)), (1, (3,))]  # type: ignore[attr-defined]
    assert not words(cluster, Stop)
    state, after = cluster.state(), pids(cluster)
    assert (state.state, state.generation, state.restarts) == (State.RUNNING, 2, {"killed": 1})
    assert {rank for rank in after if after[rank] != before[rank]} == {2}
    assert cluster.recorded("generation_opened")[-1].text == "generation 2: rank 2 is started anew, the other 3 stay"
    assert "hot: rank 2 is started anew, the other 3 stay" in cluster.recorded("regroup")[0].text
    assert cluster.recorded("failure")[0].in_place


def test_the_new_generation_has_a_port_that_node_0_holds_for_it() -> None:
    cluster = running()
    ports = [message.port for message in cluster.agents[0].told if isinstance(message, Started)]
    cluster.end_rank(3, signal=9)
    cluster.settle()
    starts = [word.start for _, word in words(cluster, GoOn)]  # type: ignore[attr-defined]
    assert {start.master_port for start in starts} == set(ports)
    assert [(start.first_rank, start.world_size, start.restarts) for start in starts] == [(0, 4, 1), (2, 4, 1)]


def test_a_rank_is_replaced_again_once_all_have_said_again_that_they_stay() -> None:
    cluster = running()
    for generation, rank in ((2, 0), (3, 0), (4, 3)):
        cluster.end_rank(rank, signal=9)
        cluster.settle()
        assert cluster.state().generation == generation
        all_stay(cluster)
    assert len(words(cluster, GoOn)) == 6
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
    assert not words(cluster, GoOn)
    assert f"warm because {why}" in cluster.recorded("regroup")[0].text
    assert cluster.state().generation == 2


def test_one_rank_that_has_not_said_that_it_stays_has_all_replaced() -> None:
    cluster = running(stays=False)
    for rank in cluster.agents[0].live:
        rank.stays = True
    cluster.advance(2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, GoOn)
    assert [node for node, _ in words(cluster, Stop)] == [0, 1]
    assert "warm because rank 2 has not said" in cluster.recorded("regroup")[0].text


def test_warm_is_as_ever() -> None:
    cluster = running(rules=Recovery())
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, GoOn)
    assert cluster.recorded("regroup")[0].text == "a new generation follows: restart 1 of 20 for killed"


def test_a_kill_while_ranks_meet_replaces_who_was_yet_to_meet_too() -> None:
    """Rank 2 has its place anew and no state yet: it is started once more, with rank 0; 1 and 3 stay."""
    cluster = running()
    cluster.end_rank(2, signal=9)
    cluster.settle()
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert [(node, word.stay) for node, word in words(cluster, GoOn)[2:]] == [(0, (1,)), (1, (3,))]  # type: ignore[attr-defined]
    assert not words(cluster, Stop)
    assert (cluster.state().state, cluster.state().generation) == (State.RUNNING, 3)
    assert "hot: ranks 0, 2 are started anew, the other 2 stay" in cluster.recorded("regroup")[1].text


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
    for rank in (2, 0, 1):
        cluster.end_rank(rank, signal=9)
        cluster.settle()
    assert len(words(cluster, GoOn)) == 4
    assert [node for node, _ in words(cluster, Stop)] == [0, 1]
    assert "warm because there were several kills without a step" in cluster.recorded("regroup")[2].text


def test_who_has_its_state_and_takes_back_that_it_stays_has_all_replaced() -> None:
    cluster = running()
    cluster.end_rank(2, signal=9)
    cluster.settle()
    all_stay(cluster)
    for rank in cluster.agents[1].live:
        rank.stays = rank.number != 2
    cluster.advance(2)
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert len(words(cluster, GoOn)) == 2


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
    assert not words(cluster, GoOn)


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
    assert cluster.end is not None
    assert cluster.end.state is State.FAILED
    assert len(words(cluster, GoOn)) == 2


def test_steps_that_nothing_was_lost_of_are_progress() -> None:
    """No checkpoint between the kills, and no wait before the next generation, nor an end for want of progress."""
    cluster = running(rules=replace(HOT, no_progress=2))
    for _ in range(6):
        cluster.end_rank(1, signal=9)
        cluster.settle()
        all_stay(cluster)
        cluster.advance(3)
    assert cluster.end is None
    assert len(words(cluster, GoOn)) == 12


def test_what_a_rank_had_said_counts_for_nothing_once_it_takes_it_back() -> None:
    cluster = running()
    cluster.feed(Pulse(1, 999, 1, (RankPulse(3, 0.0, True, False, stays=False),)))
    cluster.end_rank(0, signal=9)
    cluster.settle()
    assert not words(cluster, GoOn)
