"""The verdict on a hang: from recorded looks at real ranks, and from looks that no test can bring about."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from launcher.coordinator.hang import judge
from launcher.run.hangs import Collective, Frame, GroupLook, HangKind, RankLook

RECORDED = Path(__file__).parents[1] / "recorded/hangs"  # two ranks of scripts/hangs.py on gloo, torch 2.15
NEVER = "rank 1 on node 1 never entered all_reduce #21 (2.05 kB); it has been in"


def recorded(name: str) -> list[RankLook]:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=list[RankLook])


def waiting(
    rank: int, seq: int = 7, op: str = "all_reduce", size: int = 1 << 20, line: int = 12, **more: object
) -> RankLook:
    """Return a rank that waits in this collective of the group of all four."""
    frames = (Frame("/job/train.py", line, "step"),)
    call = Collective(seq, op, sizes=((size,),), dtypes=("Float",), frames=frames, age_s=41.0)
    stack = (Frame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1, op), *frames)
    group = GroupLook("0/gloo", ranks=(0, 1, 2, 3), entered=seq, last=(call,))
    return RankLook(rank, rank // 2, 100, "S", answered=True, groups=(group,), stack=stack, **more)  # type: ignore[arg-type]


def elsewhere(rank: int, entered: int = 6, state: str = "S", *frames: Frame) -> RankLook:
    """Return a rank that has left all collectives that it entered."""
    done = Collective(entered, "all_reduce", done=True, sizes=((1 << 20,),), dtypes=("Float",))
    group = GroupLook("0/gloo", ranks=(0, 1, 2, 3), entered=entered, last=(done,))
    stack = frames or (Frame("/job/data.py", 88, "load"),)
    return RankLook(rank, rank // 2, 100, state, answered=True, groups=(group,), stack=stack)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("data", HangKind.NEVER_ENTERED, f"{NEVER} hangs.py:26 in __getitem__ (data loading) for 4 s; 1 rank waits"),
        ("sleep", HangKind.NEVER_ENTERED, f"{NEVER} hangs.py:66 in hang for 4 s; 1 rank waits in it at hangs.py:47"),
        ("lock", HangKind.NEVER_ENTERED, f"{NEVER} hangs.py:70 in hang (a lock)"),
        ("save", HangKind.NEVER_ENTERED, f"{NEVER} hangs.py:90 in write (a checkpoint)"),
        ("busy", HangKind.NEVER_ENTERED, f"{NEVER} hangs.py:78 in hang"),
        (
            "order",
            HangKind.DIFFERENT_COLLECTIVES,
            "rank 1 on node 1 in broadcast at hangs.py:57, rank 0 on node 0 in all",
        ),
        ("receive", HangKind.DIFFERENT_COLLECTIVES, "rank 1 on node 1 in recv at hangs.py:59"),
        ("groups", HangKind.DIFFERENT_COLLECTIVES, "ranks wait for each other in different groups"),
        ("shapes", HangKind.DIFFERENT_SHAPES, "rank 1 on node 1 in all_reduce of [1048576] Float at hangs.py:61"),
        ("frozen", HangKind.FROZEN, "rank 1 on node 1 is stopped (SIGSTOP, or a debugger); 1 rank waits in all_reduce"),
        ("python_lock", HangKind.FROZEN, "rank 1 on node 1 does not answer: native code holds Python's lock there"),
        ("nobody", HangKind.NOBODY_IN_A_COLLECTIVE, "all ranks are at hangs.py:83 in hang (a lock)"),
    ],
)
def test_what_was_recorded_of_a_hang_names_its_culprit(name: str, kind: HangKind, text: str) -> None:
    found = judge(recorded(name))
    assert found.kind is kind
    assert text in found.text
    assert found.hint
    assert len(found.evidence) == 2
    assert 1 in found.ranks


def test_the_one_of_many_that_has_not_come_is_named_with_how_many_wait() -> None:
    found = judge([waiting(0), waiting(1), elsewhere(2), waiting(3)])
    assert (found.kind, found.ranks, found.where) == (HangKind.NEVER_ENTERED, (2,), "data.py:88 in load")
    assert found.text == (
        "rank 2 on node 1 never entered all_reduce #7 (4.19 MB); it has been in data.py:88 in load for 41 s; "
        "3 ranks wait in it at train.py:12"
    )
    assert not found.same, "another start may mend it"


def test_of_several_that_have_not_come_those_that_wait_elsewhere_are_not_at_fault() -> None:
    pair = GroupLook("1/gloo", ranks=(1, 2), entered=3, last=(Collective(3, "broadcast", age_s=41.0),))
    held = elsewhere(1)
    held = replace(held, groups=(*held.groups, pair))
    found = judge([waiting(0), held, elsewhere(2), waiting(3)])
    assert (found.kind, found.ranks) == (HangKind.NEVER_ENTERED, (2,))


def test_a_rank_that_has_ended_with_0_left_the_others_waiting() -> None:
    gone = RankLook(1, 0, ended=True, exit_code=0)
    found = judge([waiting(0), gone, waiting(2), waiting(3)])
    assert (found.kind, found.ranks) == (HangKind.LEFT_EARLY, (1,))
    assert found.text == "rank 1 on node 0 has ended; 3 ranks wait in all_reduce #7 at train.py:12"
    assert found.same == judge([waiting(0), gone, waiting(2), waiting(3)]).same != ""


def test_a_rank_that_leaves_its_program_left_too() -> None:
    leaves = elsewhere(1, 6, "S", Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"))
    assert judge([waiting(0), leaves, waiting(2), waiting(3)]).kind is HangKind.LEFT_EARLY


@pytest.mark.parametrize("dead", [RankLook(1, 0, ended=True, exit_signal=9), RankLook(1, 0, 5, "Z")])
def test_a_dead_rank_that_others_still_wait_for(dead: RankLook) -> None:
    found = judge([waiting(0), dead, waiting(2), waiting(3)])
    assert (found.kind, found.ranks) == (HangKind.DEAD_PEER, (1,))


def test_a_rank_in_the_kernel_that_answers_nothing_is_frozen_and_its_node_suspected() -> None:
    found = judge([waiting(0), RankLook(1, 0, 5, "D", problem="did not answer"), waiting(2), waiting(3)])
    assert (found.kind, found.ranks, found.distrusts_node) == (HangKind.FROZEN, (1,), True)


def test_ranks_that_all_wait_for_a_disk() -> None:
    found = judge([elsewhere(rank, 6, "D") for rank in range(4)])
    assert found.kind is HangKind.STORAGE
    assert "at data.py:88 in load" in found.text


def test_all_are_in_the_collective_and_bytes_move_over_a_slow_link() -> None:
    found = judge([waiting(rank, moved_bytes=1e6) for rank in range(4)])
    assert found.kind is HangKind.SLOW_LINK
    assert not found.ranks


def test_all_are_in_the_collective_and_nothing_moves_is_said_to_be_unknown() -> None:
    found = judge([waiting(rank) for rank in range(4)])
    assert (found.kind, found.ranks) == (HangKind.UNKNOWN, ())


def test_a_rank_that_runs_and_has_not_answered_yet_is_not_called_frozen() -> None:
    found = judge([waiting(0), RankLook(1, 0, 5, "R", problem="did not answer"), waiting(2), waiting(3)])
    assert found.kind is HangKind.UNKNOWN


def test_operations_whose_inputs_may_differ_are_no_mismatch() -> None:
    found = judge([waiting(rank, op="all_to_all", size=rank + 1) for rank in range(4)])
    assert found.kind is HangKind.UNKNOWN


def test_the_fewer_are_named_first_where_ranks_are_out_of_step() -> None:
    found = judge([waiting(0, line=12), waiting(1), waiting(2, op="barrier", line=40), waiting(3)])
    assert (found.kind, found.ranks, found.where) == (HangKind.DIFFERENT_COLLECTIVES, (2,), "train.py:40")
    assert "rank 2 on node 1 in barrier at train.py:40, ranks 0, 1 and 3 in all_reduce at train.py:12" in found.text


def test_the_first_collective_in_which_ranks_differ_is_named_though_one_went_on() -> None:
    def call(seq: int, op: str, done: bool, line: int) -> Collective:
        return Collective(seq, op, done=done, sizes=((4,),), dtypes=("Float",), frames=(Frame("/job/a.py", line, "f"),))

    def look(rank: int, *calls: Collective) -> RankLook:
        group = GroupLook("0/gloo", ranks=(0, 1), entered=calls[-1].seq, last=calls)
        return RankLook(rank, 0, 5, "S", answered=True, groups=(group,))

    found = judge(
        [
            look(0, call(5, "broadcast", True, 10), call(6, "all_reduce", False, 11)),
            look(1, call(5, "all_reduce", False, 11)),
        ]
    )
    assert found.kind is HangKind.DIFFERENT_COLLECTIVES
    assert "as #5" in found.text


def test_without_a_recorder_the_stacks_alone_tell_who_is_in_no_collective() -> None:
    inside = [replace(waiting(rank), groups=(), answered=False) for rank in (0, 2, 3)]
    found = judge([*inside, replace(elsewhere(1), groups=(), answered=False)])
    assert (found.kind, found.ranks) == (HangKind.NEVER_ENTERED, (1,))


def receiving(rank: int, partners: tuple[int, ...]) -> RankLook:
    """Return a rank that waits to receive from another stage, which gloo does not record."""
    stack = Frame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1, "recv")
    group = GroupLook(f"{partners[0]}/gloo", ranks=partners, entered=6)
    step = Frame("/job/train.py", 30, "forward")
    return RankLook(rank, 0, 100, "S", answered=True, groups=(group,), stack=(stack, step))


def in_pair(look: RankLook, partners: tuple[int, ...]) -> RankLook:
    return replace(look, groups=(replace(look.groups[0], name=f"{partners[0]}/gloo", ranks=partners),))


def test_a_stage_that_waits_for_one_that_loads_data_is_not_out_of_step() -> None:
    """Two stages, each of two ranks that average their gradients: rank 0 loads, rank 1 waits for what it sends."""
    first, second = (0, 2), (1, 3)
    loads = in_pair(elsewhere(0), first)
    averages = in_pair(waiting(2), first), in_pair(waiting(3), second)
    found = judge([loads, receiving(1, second), *averages])
    assert (found.kind, found.ranks) == (HangKind.NEVER_ENTERED, (0,))
    assert "data.py:88 in load" in found.text
    alone = judge([replace(loads, groups=()), receiving(1, second), averages[1]])
    assert (alone.kind, alone.ranks) == (HangKind.NEVER_ENTERED, (0,))
    assert "data.py:88 in load" in alone.text


def test_groups_that_wait_for_each_other_do_so_whatever_a_rank_outside_does() -> None:
    def look(rank: int, waits_in: str, not_in: str) -> RankLook:
        group = replace(waiting(rank).groups[0], name=waits_in, ranks=(0, 1))
        return replace(waiting(rank), groups=(group, GroupLook(not_in, ranks=(0, 1), entered=6)))

    found = judge([look(0, "a", "b"), look(1, "b", "a"), replace(elsewhere(2), groups=())])
    assert found.kind is HangKind.DIFFERENT_COLLECTIVES


def test_stages_that_wait_in_no_collective_tell_by_their_stacks_who_does_something_else() -> None:
    found = judge([elsewhere(0), receiving(1, (1, 3)), receiving(3, (1, 3))])
    assert (found.kind, found.ranks) == (HangKind.NEVER_ENTERED, (0,))


def test_nothing_to_go_by_is_unknown() -> None:
    assert judge([RankLook(rank, 0, problem="its node did not answer") for rank in range(4)]).kind is HangKind.UNKNOWN
    assert judge([]).kind is HangKind.UNKNOWN


def test_a_rank_that_saves_by_torchs_own_checkpoints_is_in_no_collective() -> None:
    saves = Frame("/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", 9, "write_data")
    found = judge([waiting(0), elsewhere(1, 6, "S", saves, Frame("/job/train.py", 3, "save")), waiting(2), waiting(3)])
    assert found.kind is HangKind.NEVER_ENTERED
    assert "train.py:3 in save (a checkpoint)" in found.text


def test_shapes_that_differed_in_a_collective_that_all_have_left_are_not_why() -> None:
    def look(rank: int) -> RankLook:
        one = waiting(rank)
        before = Collective(6, "all_reduce", done=True, sizes=((rank,),), dtypes=("Float",))
        return replace(one, groups=(replace(one.groups[0], last=(before, *one.groups[0].last)),))

    assert judge([look(rank) for rank in range(3)] + [elsewhere(3)]).kind is HangKind.NEVER_ENTERED


def test_a_rank_that_ended_is_not_why_others_of_another_group_wait() -> None:
    pair = GroupLook("1/gloo", ranks=(0, 1), entered=3, last=(Collective(3, "broadcast", age_s=41.0),))
    inside = replace(waiting(0), groups=(pair,))
    outside = replace(elsewhere(1), groups=())
    assert judge([inside, outside, RankLook(2, 1, ended=True, exit_code=0)]).ranks == (1,)
