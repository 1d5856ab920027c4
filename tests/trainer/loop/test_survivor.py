"""A rank is killed and replaced while the others survive: the numbers and the weights are those of a run left alone."""

import re
import shutil

import pytest
from replaced_ranks import Launched

from tests.sizes import one_in
from trainer.checkpoint_files import catalog
from trainer.loop import rejoining
from trainer.loop.can_continue import Pace
from trainer.recovery.shard_states import CannotHandOver, Source

STEPS = 24
LEASE_S = 40  # on a busy machine a word may come late


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Fingerprint and numbers by number of ranks and strategy, of a training that nothing happened to."""
    known = {}

    def of(size, strategy="ddp", *words):
        if (size, strategy, words) not in known:
            folder = tmp_path_factory.mktemp("alone") / "run"
            run = Launched(folder, size, "--steps", str(STEPS), "--strategy", strategy, *words)
            assert run.run() == [0] * size, run.said()
            known[size, strategy, words] = run.fingerprint(), run.numbers()
        return known[size, strategy, words]

    return of


def killed(folder, size, *deaths, words=(), **how):
    """Train on `size` ranks, of which some kill themselves; each death is (rank, step, place)."""
    for number, death in enumerate(deaths):
        (folder / f"die-{number}").write_text(death)
    run = Launched(folder / "run", size, "--steps", str(STEPS), "--die", str(folder / "die"), *words, **how)
    codes = run.run()
    assert not list(folder.glob("die-*")), f"not all faults fired: {run.said()}"
    return run, codes


@pytest.mark.parametrize(
    ("victim", "size", "step", "place"),
    one_in(3, [
        (0, 2, 8, "backward"), (1, 2, 10, "on_step"), (1, 3, 0, "forward"), (0, 2, 15, "on_validation"),
        (1, 2, 9, "optimizer"), (0, 3, 23, "backward"),
    ], nightly=2),
)  # fmt: skip
def test_whatever_a_rank_was_at(tmp_path, alone, victim, size, step, place):
    fingerprint, wanted = alone(size)
    run, codes = killed(tmp_path, size, f"{victim} {step} {place}")
    assert codes == [0] * size, run.said()
    assert run.replaced == [[victim]]
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    for entry in catalog.entries(run.folder / "checkpoints"):
        catalog.verify(entry)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_old_checkpoints_go_however_often_a_rank_is_killed(tmp_path, alone, strategy):
    """The first rank has written and hashed the newest, if in groups that are no more. Of one that was being written as
    a rank was killed it does not know, and keeps one more; it would keep five, were it to begin anew each time.
    """
    deaths = [f"1 {step} backward" for step in range(7, 24, 4)]
    words = ("--strategy", strategy, "--pause", "0.02")
    run, codes = killed(tmp_path, 2, *deaths, words=words, every="4 steps")
    assert codes == [0, 0], run.said()
    assert len(catalog.steps(run.folder / "checkpoints")) in (3, 4)
    assert run.fingerprint() == alone(2, strategy)[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("deaths", "replaced"),
    [
        pytest.param(("1 8 backward", "1 0 connect"), [[1], [1]], id="the new one as they connect"),
        pytest.param(("1 8 backward", "1 0 load"), [[1], [1]], id="the new one that has half of it"),
        pytest.param(("1 8 backward", "0 8 load"), [[1], [0, 1]], id="who gives it"),
        pytest.param(("0 8 on_step", "2 8 load"), [[0], [0, 2]], id="who stays, after the first rank"),
    ],
)
def test_one_more_while_they_meet(tmp_path, alone, deaths, replaced):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, *deaths)
    assert codes == [0] * 3, run.said()
    assert run.replaced == replaced
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


LAYERS = ("--layers", "10")
AFTER_THE_WORD = "a layer was run after the word"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "place", "more"),
    [("ddp", "layer", ("--wraps",)), ("ddp", "gradient", ())],
)
def test_a_rank_leaves_its_pass_at_launchs_word(tmp_path, alone, strategy, place, more):
    """And not at the end of it, even where the user's function makes an error of its own of that."""
    fingerprint, wanted = alone(2, strategy, *LAYERS)
    words = ("--strategy", strategy, *LAYERS, *more)
    run, codes = killed(tmp_path, 2, "1 8 forward", f"0 8 {place} word", words=words)
    assert codes == [0, 0], run.said()
    assert run.said().count(AFTER_THE_WORD) < 5  # of ten, and in a backward pass of another ten for the next samples
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


@pytest.mark.nightly
def test_a_rank_leaves_where_the_users_function_makes_an_error_of_its_own_before_launchs_word(tmp_path, alone):
    """The shards of the killed rank are asked for in the forward pass, and that fails at once."""
    fingerprint, wanted = alone(4, "hsdp", *OF_TWO)
    run, codes = killed(tmp_path, 4, "1 8 forward", words=(*HSDP, "--wraps"))
    assert codes == [0] * 4, run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_a_rank_ends_an_update_that_runs_modules_after_launchs_word(tmp_path, alone):
    fingerprint, wanted = alone(2, "ddp", *LAYERS)
    run, codes = killed(tmp_path, 2, "1 8 optimizer", "0 8 optimizer word", words=LAYERS)
    assert codes == [0, 0], run.said()
    assert AFTER_THE_WORD in run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


@pytest.mark.parametrize("counts", [True, False])
def test_a_model_that_counts_in_python_has_all_started_anew(tmp_path, counts):
    run = Launched(tmp_path / "run", 2, "--steps", "4", *(["--counts"] if counts else []))
    assert run.run() == [0, 0], run.said()
    told = "all ranks will be restarted: model.2.calls changes from step to step, and a new rank would lack its value"
    assert (told in run.said()) == counts


@pytest.mark.parametrize(
    ("unasked", "felt", "ended"), [(True, True, {0, 1}), (True, False, set()), (False, True, set())]
)
def test_unasked_no_rank_stays_where_that_would_be_felt(tmp_path, monkeypatch, unasked, felt, ended):
    if unasked:
        monkeypatch.setenv("LAUNCH_STAYS", "auto")
    monkeypatch.setattr(Pace, "count_step", lambda *_: felt)
    run = Launched(tmp_path / "run", 2, "--steps", "40", "--pause", "0.01")
    assert run.run() == [0, 0], run.said()
    assert {*run.stayed_at} == {0, 1}
    assert {rank for rank, step in run.stayed_until.items() if step < 40} == ended
    assert "will be restarted" not in run.said()


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_a_node_that_falls_silent_in_the_first_start_of_all_is_heard_of(tmp_path, alone, strategy):
    """No operation fails by itself there, and nothing was loaded before."""
    words = ("--strategy", strategy)
    run, codes = killed(tmp_path, 2, "1 8 backward stop", words=words, nodes=2, memory_every="2 steps")
    assert codes == [0, 0], run.said()
    assert (run.fingerprint(), run.numbers()) == alone(2, strategy)


@pytest.mark.parametrize("unasked", [True, False])
def test_a_callback_whose_state_cannot_be_had_yet_is_no_reason_to_fail(tmp_path, monkeypatch, unasked):
    """A checkpoint would ask for it later, or never."""
    if unasked:
        monkeypatch.setenv("LAUNCH_STAYS", "auto")
    run = Launched(tmp_path / "run", 2, "--steps", "6", "--late", every="6 steps")
    assert run.run() == [0, 0], run.said()
    told = "the state of a step cannot be copied: AttributeError: 'Late' object has no attribute 'seen'"
    assert (told in run.said()) == (not unasked)


def test_a_rank_without_memory_has_nobody_wait_for_it(tmp_path):
    """On its node there is none to note anything in, and no word of launch's."""
    run = Launched(tmp_path / "run", 4, "--steps", "6", nodes=2, without=1)
    assert run.run() == [0] * 4, run.said()
    assert not run.stayed_at


def gone_back_to(run):
    """The steps after which ranks went on, and how many were to be done again, as the first rank says."""
    return [
        (int(step), int(steps)) for step, steps in re.findall(r"after step (\d+), .*; done again: (\d+)", run.said())
    ]


@pytest.mark.parametrize(
    ("strategy", "size", "victim", "step", "place"),
    one_in(4, [
        ("fsdp", 2, 1, 9, "optimizer"), ("zero1", 2, 0, 9, "spread"), ("zero1", 3, 1, 10, "on_step"),
        ("zero2", 2, 1, 8, "backward"), ("hsdp", 2, 0, 8, "forward"), ("fsdp", 3, 0, 15, "on_validation"),
        ("zero1", 2, 1, 23, "backward"), ("zero1", 2, 0, 8, "optimizer"),
    ], nightly=2),
)  # fmt: skip
def test_parts_of_the_state_go_back_to_the_newest_snapshot_in_memory(
    tmp_path, alone, strategy, size, victim, step, place
):
    fingerprint, wanted = alone(size, strategy)
    words = ("--strategy", strategy)
    run, codes = killed(tmp_path, size, f"{victim} {step} {place}", words=words, memory_every="2 steps")
    assert codes == [0] * size, run.said()
    assert run.replaced == [[victim]]
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    [(begun, again)] = gone_back_to(run)
    assert step - 4 <= begun <= step  # the one that was being written does not count
    assert again <= 4
    assert "if a rank is killed, all ranks will reload the newest snapshot in memory" in run.said()


@pytest.mark.nightly
def test_shards_without_snapshots_in_memory_go_back_to_the_newest_checkpoint(tmp_path, alone):
    fingerprint, wanted = alone(2, "fsdp")
    run, codes = killed(tmp_path, 2, "1 17 backward", words=["--strategy", "fsdp"])
    assert codes == [0, 0], run.said()
    assert gone_back_to(run) == [(10, 7)]
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_shards_of_which_nothing_was_saved_are_started_anew(tmp_path):
    run, codes = killed(tmp_path, 2, "1 3 forward", words=["--strategy", "fsdp"])
    assert codes == [1, 1]
    assert "the training cannot continue in place: nothing was saved so far" in run.said()


@pytest.mark.nightly
@pytest.mark.parametrize(("strategy", "memory_every", "first"), [("fsdp", "2 steps", 2), ("zero1", "", 10)])
def test_shards_say_that_they_can_stay_once_something_is_saved(tmp_path, strategy, memory_every, first):
    """Before that launch need not have them meet in vain."""
    words = ("--strategy", strategy, "--pause", "0.06")
    run = Launched(tmp_path / "run", 2, "--steps", "12", *words, memory_every=memory_every)
    assert run.run() == [0, 0], run.said()
    assert min(run.stayed_at.get(rank, 0) for rank in (0, 1)) >= first


@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_shards_of_a_model_that_was_given_are_started_anew(tmp_path, strategy):
    run = Launched(tmp_path / "run", 2, "--steps", "2", "--strategy", strategy, "--given")
    assert run.run() == [0, 0], run.said()
    assert "all ranks will be restarted: the model was given, and cannot be made again" in run.said()


OF_TWO = ("--shard-size", "2")
HSDP = ("--strategy", "hsdp", *OF_TWO)


def no_update_was_made_twice(run, ranks):
    """Check that no update was made twice, neither by the survivors nor by a rank that was new from the first one."""
    made = dict(re.findall(rf"rank (\d) made updates \[1\] to \[{STEPS}\]: (\d+)\n", run.said()))
    assert {int(rank) for rank in made} >= ranks
    assert {*made.values()} == {str(STEPS)}


@pytest.mark.parametrize(
    ("victim", "step", "place"),
    one_in(4, [(0, 8, "backward"), (3, 0, "forward"), (3, 9, "optimizer"), (0, 15, "on_validation")], nightly=2),
)
def test_hsdp_takes_the_shards_of_a_killed_rank_from_their_copy(tmp_path, alone, victim, step, place):
    fingerprint, wanted = alone(4, "hsdp", *OF_TWO)
    run, codes = killed(tmp_path, 4, f"{victim} {step} {place}", words=HSDP)
    assert codes == [0] * 4, run.said()
    assert run.replaced == [[victim]]
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    no_update_was_made_twice(run, {*range(4)} - {victim})
    for entry in catalog.entries(run.folder / "checkpoints"):
        catalog.verify(entry)


@pytest.mark.nightly
@pytest.mark.parametrize("death", ["9 optimizer", "8 backward stop"])
def test_hsdp_a_node_with_all_shards_of_a_copy_is_lost(tmp_path, alone, death):
    fingerprint, wanted = alone(4, "hsdp", *OF_TWO)
    run, codes = killed(tmp_path, 4, f"3 {death}", words=("--strategy", "hsdp"), nodes=2, lease_s=LEASE_S)
    assert codes == [0] * 4, run.said()
    assert run.replaced == [[2, 3]]
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)
    assert "done again" not in run.said()


@pytest.mark.nightly
def test_hsdp_goes_back_where_a_shard_is_lost_with_all_its_copies(tmp_path, alone):
    fingerprint, wanted = alone(4, "hsdp", *OF_TWO)
    run, codes = killed(tmp_path, 4, "1 8 backward", "3 8 backward", words=HSDP, memory_every="2 steps")
    assert codes == [0] * 4, run.said()
    assert {rank for dead in run.replaced for rank in dead} == {1, 3}
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)
    assert "done again" in run.said()
    assert "(no rank has shard 1 any more)" in run.said()


@pytest.mark.nightly
@pytest.mark.parametrize(("size", "death"), [(4, "8 backward"), (2, "15 on_validation"), (2, "8 backward stop")])
def test_a_node_is_lost_with_what_its_ranks_had_noted(tmp_path, alone, size, death):
    """Of two; a spare has its place. Or it is only silent, and does not come into the group again when it is awake."""
    fingerprint, wanted = alone(size)
    run, codes = killed(tmp_path, size, f"{size - 1} {death}", nodes=2, lease_s=LEASE_S)
    assert codes == [0] * size, run.said()
    assert run.replaced == [[*range(size // 2, size)]]
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    assert f"rank 0 made updates [1] to [{STEPS}]: {STEPS}\n" in run.said()
    assert all(ghost.exitcode for ghost in run.ghosts)
    assert len(run.ghosts) == ("stop" in death)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(("1 8 backward", "1 0 load"), id="the spare too, with half of the state"),
        pytest.param(("2 8 backward", "1 9 forward"), id="who has just given its copy"),
    ],
)
def test_several_nodes_are_lost(tmp_path, alone, deaths):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, *deaths, nodes=3)
    assert codes == [0] * 3, run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


WIDE = ("--width", "50000")  # so that all of it is several stripes


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "nodes", "deaths"),
    [
        pytest.param(3, 0, ("1 4 on_step", "2 8 backward", "0 12 on_step"), id="who took it gives it"),
        pytest.param(4, 2, ("2 8 backward",), id="both ranks of one node to both of another"),
    ],
)
def test_each_rank_that_has_it_gives_a_stripe(tmp_path, alone, size, nodes, deaths):
    fingerprint, wanted = alone(size, "ddp", *WIDE)
    run, codes = killed(tmp_path, size, *deaths, words=WIDE, nodes=nodes)
    assert codes == [0] * size, run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_neighbours_that_are_lost_at_once_leave_no_copy_and_all_say_so(tmp_path):
    run, codes = killed(tmp_path, 3, "2 8 backward", nodes=3, along={1})
    assert (codes, run.replaced) == ([1] * 3, [[1, 2]])
    why = "the state of rank 2 after step 8 is lost, and no rank has a copy"
    assert f"cannot continue in place: {why}; nothing was saved so far" in run.said()


@pytest.fixture(scope="module")
def started_anew(tmp_path_factory):
    """Fingerprint and numbers of a training on so many ranks that fewer go on with from the checkpoint of a step."""
    known = {}

    def of(size, nodes, step, fewer, *more):
        if (size, nodes, step, fewer, more) in known:
            return known[size, nodes, step, fewer, more]
        folder, words, before = tmp_path_factory.mktemp("anew"), ["--steps", str(STEPS), *more], {}
        rest = folder / "rest"
        if step:
            (folder / "hold").write_text(str(step))
            begun = Launched(
                folder / "begun", size, *words, "--hold", str(folder / "hold"), nodes=nodes, every=f"{step} steps"
            )
            begun.run(until=lambda: step in catalog.steps(begun.folder / "checkpoints"))
            shutil.copytree(begun.folder / "checkpoints", rest / "checkpoints")
            before = begun.numbers()
        run = Launched(rest, fewer, *words, nodes=max(1, fewer * nodes // size))
        assert run.run() == [0] * fewer, run.said()
        assert not step or f"resumes from {rest}" in run.said()
        known[size, nodes, step, fewer, more] = run.fingerprint(), before | run.numbers()
        return known[size, nodes, step, fewer, more]

    return of


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "nodes", "death"),
    [(2, 2, "8 on_step"), (3, 3, "0 backward"), (4, 2, "15 on_validation"), (2, 2, "8 backward stop")],
)
def test_a_node_is_lost_and_the_others_go_on_as_a_start_on_so_many_ranks_would(
    tmp_path, started_anew, size, nodes, death
):
    each, step = size // nodes, int(death.split()[0])
    fingerprint, wanted = started_anew(size, nodes, step, size - each)
    run, codes = killed(tmp_path, size, f"{each} {death}", nodes=nodes, shrinks=1, lease_s=LEASE_S)
    assert codes == [0] * (size - each), run.said()
    assert run.replaced == [[*range(each, 2 * each)]]
    assert f"continues in place after step {step} on {size - each} rank" in run.said()
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    assert f"rank 0 made updates [1] to [{STEPS}]: {STEPS}\n" in run.said()
    assert all(ghost.exitcode for ghost in run.ghosts)
    for entry in catalog.entries(run.folder / "checkpoints"):
        catalog.verify(entry)


@pytest.mark.nightly
@pytest.mark.parametrize("second", ["1 8 load", "1 12 on_step"])
def test_a_spare_stands_in_for_one_of_the_ranks_that_are_left(tmp_path, started_anew, second):
    """Before they have ended the step in which they became fewer, and later."""
    fingerprint, wanted = started_anew(3, 3, 8, 2)
    run, codes = killed(tmp_path, 3, "1 8 forward", second, nodes=3, shrinks=1)
    assert codes == [0] * 2, run.said()
    assert run.replaced == [[1], [1]]
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


@pytest.mark.nightly
def test_fewer_and_fewer(tmp_path, started_anew):
    run, codes = killed(tmp_path, 3, "2 8 forward", "1 8 load", nodes=3, shrinks=2)
    assert codes == [0], run.said()
    assert run.replaced == [[2], [1]]
    assert (run.fingerprint(), run.numbers()) == started_anew(3, 3, 8, 1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "size", "nodes", "death"), [("ddp", 1, 1, None), ("ddp", 2, 2, "load"), ("hsdp", 2, 1, None)]
)
def test_one_more_node_joins_and_all_go_on_as_a_start_on_so_many_ranks_would(
    tmp_path, started_anew, strategy, size, nodes, death
):
    """Also where one of those that join is killed as it takes the state, and is replaced."""
    slow, grown = tmp_path / "run" / "slow", size + size // nodes
    words = ["--strategy", strategy, "--pause", "0.25", "--slow", str(slow), "--die", str(tmp_path / "die")]
    run = Launched(tmp_path / "run", size, "--steps", str(STEPS), *words, nodes=nodes, grows_at=2)
    slow.touch()
    if death:
        (tmp_path / "die-0").write_text(f"{size} 0 {death}")
    assert run.run() == [0] * grown, run.said()
    assert not list(tmp_path.glob("die-*"))
    step = int(re.findall(r"continues in place after step (\d+)", run.said())[-1])
    fingerprint, wanted = started_anew(size, nodes, step, grown, *words[:2])
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    assert f"rank 0 made updates [1] to [{STEPS}]: {STEPS}\n" in run.said()


OF_NODES = ("--strategy", "hsdp")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "nodes", "words", "death"), [(4, 2, (), "8 on_step"), (6, 3, ("--no-buffers",), "8 backward stop")]
)
def test_hsdp_loses_no_step_with_a_node_where_the_others_have_all_shards(
    tmp_path, started_anew, size, nodes, words, death
):
    """And go on as a start on so many ranks would."""
    each, step, words = size // nodes, int(death.split()[0]), (*OF_NODES, *words)
    fingerprint, wanted = started_anew(size, nodes, step, size - each, *words)
    run, codes = killed(tmp_path, size, f"{each} {death}", words=words, nodes=nodes, shrinks=1, lease_s=LEASE_S)
    assert codes == [0] * (size - each), run.said()
    assert f"continues in place after step {step} on {size - each} rank" in run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)
    assert f"rank 0 made updates [1] to [{STEPS}]: {STEPS}\n" in run.said()


def test_hsdp_goes_back_as_fewer_where_not_all_shards_are_left(tmp_path, started_anew, monkeypatch):
    def cannot(*_):
        raise CannotHandOver("one of them is gone")

    monkeypatch.setattr(Source, "part", cannot)
    fingerprint, wanted = started_anew(4, 2, 10, 2, *OF_NODES)
    run, codes = killed(tmp_path, 4, "2 14 backward", words=OF_NODES, nodes=2, shrinks=1, hold=13)
    assert codes == [0] * 2, run.said()
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)
    assert "after step 10, from a checkpoint; done again: 4 steps (no rank has shard 0 any more)" in run.said()


def test_hsdp_whose_shards_are_on_several_nodes_says_that_its_ranks_cannot_be_fewer(tmp_path):
    run = Launched(tmp_path / "run", 4, "--steps", "3", *HSDP, nodes=4)
    assert run.run() == [0] * 4, run.said()
    assert run.stayed_at.keys() == {*range(4)}
    assert not run.resizes
    assert not run.goes_back_at


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "nodes", "deaths"),
    [
        (4, 2, ("2 14 spread",)),
        (3, 3, ("2 14 on_step", "1 17 backward")),  # a spare takes the place of another node later
    ],
)
def test_zero1_goes_back_to_the_newest_checkpoint_as_a_start_on_fewer_ranks_would(
    tmp_path, started_anew, size, nodes, deaths
):
    each = size // nodes
    fingerprint, wanted = started_anew(size, nodes, 10, size - each, "--strategy", "zero1")
    run, codes = killed(tmp_path, size, *deaths, words=("--strategy", "zero1"), nodes=nodes, shrinks=1, hold=13)
    assert codes == [0] * (size - each), run.said()
    assert len(run.replaced) == len(deaths)
    assert gone_back_to(run)[0][0] == 10
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


@pytest.mark.nightly
def test_two_at_once(tmp_path, alone):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, "0 8 backward", "2 8 backward")
    assert codes == [0] * 3, run.said()
    assert {rank for dead in run.replaced for rank in dead} == {0, 2}
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_without_launchs_word_a_rank_fails_as_ever(tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCH_STAYS", "auto")  # else it would wait longer
    run, codes = killed(tmp_path, 2, "1 5 backward", replaces=False)
    assert codes == [1, -9]
    assert {*run.stayed_at} == {0, 1}
    assert "gloo" in run.said()


@pytest.mark.nightly
@pytest.mark.parametrize("sabotage", ["restore_generator_states", "put_bytes"])
def test_what_is_not_put_back_shows(tmp_path, alone, monkeypatch, sabotage):
    """Generators, buffers, what was logged of a step: without any of them the numbers differ."""
    monkeypatch.setattr(rejoining, sabotage, lambda *_: None)
    fingerprint, wanted = alone(2)
    run, codes = killed(tmp_path, 2, "0 8 on_step")
    assert codes != [0, 0] or (run.fingerprint(), run.numbers()) != (fingerprint, wanted)
