"""Nodes with a disk each: a checkpoint is committed on all of them or on none, and any of them may be lost."""

import os
import random
import shutil
import time

import pytest
from holding import wait_until
from nodes_apart import bring_together, copy_missing, disk, disks, find, run_apart, start_apart
from ranks import Ranks
from small_trainings import Recipe, Training, await_steps, heard, logged, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.sizes import SEED
from tests.waits import until
from trainer.checkpoint import Checkpointer, load_model
from trainer.checkpoint_files import catalog, commit, fence, partial
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name, is_draft
from trainer.errors import EXIT_FENCED
from trainer.world import join

pytestmark = pytest.mark.nightly


def names(folder, step, kind="step"):
    return sorted(os.listdir(folder / folder_name(step, kind)))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def steps(base):
    return [catalog.steps(folder) for folder in disks(base)]


@pytest.mark.daily
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_each_node_has_the_files_of_its_ranks_and_the_same_manifest(tmp_path, strategy):
    recipe = Recipe(strategy, every="4 steps", ema=True)
    shared = Ranks(train, 4, tmp_path / "shared", recipe).results()
    apart = run_apart(train, tmp_path / "apart", recipe)
    assert [ended.losses for ended in apart] == [ended.losses for ended in shared]
    assert {ended.fingerprint for ended in apart} == {ended.fingerprint for ended in shared} != {None}
    first, second = disks(tmp_path / "apart")
    assert catalog.steps(tmp_path / "shared") == [16, 20, 24]
    assert steps(tmp_path / "apart") == [[4, 16, 20, 24]] * 2, "nobody copies, so the first one waits for it"
    for step in (16, 20, 24):
        assert names(first, step) == [MANIFEST, data_name(0), data_name(1)]
        assert names(second, step) == [MANIFEST, data_name(2), data_name(3)]
        assert partial.read_manifest(first, step) == partial.read_manifest(second, step)


def test_nodes_may_have_different_numbers_of_ranks(tmp_path):
    recipe = Recipe("fsdp", every="8 steps")
    shared = Ranks(train, 3, tmp_path / "shared", recipe).results()
    ranks = start_apart(train, tmp_path / "apart", recipe, nodes=(1, 2))
    assert {ended.fingerprint for ended in ranks.results()} == {shared[0].fingerprint}
    first, second = disks(tmp_path / "apart")
    assert names(first, 24) == [MANIFEST, data_name(0)] and names(second, 24) == [MANIFEST, data_name(1), data_name(2)]


# -- killed


def train_acknowledging(folder, recipe, log, progress_fd=None, fault=None, saves=None):
    """Train, and record every commit that a rank reports where a kill cannot remove it."""
    acknowledge = Checkpointer._report_saved

    def write_down(self, step, kind):
        if kind == "checkpoint":
            fd = os.open(log / "acknowledged", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(fd, f"{step}\n".encode())
            os.close(fd)
        acknowledge(self, step, kind)

    Checkpointer._report_saved = write_down
    if fault is not None:
        fault()
    return train(folder, recipe, log, progress_fd, None, saves)


def acknowledged(log):
    path = log / "acknowledged"
    return max(map(int, path.read_text().split()), default=0) if path.exists() else 0


def newest_of_all(base, log):
    """Check that no acknowledged save is lost and that each committed one can be completed on all disks.

    Return the newest.
    """
    named = max(max(found, default=0) for found in steps(base))
    newest = bring_together(disks(base))
    assert newest is not None and acknowledged(log) <= newest.step == named
    return newest


def assert_resumes(base, log, recipe, calm):
    """Check that a resumed training starts from the newest complete save and ends as an undisturbed one."""
    newest = newest_of_all(base, log)
    ended = run_apart(train, base, recipe, log)
    assert {one.start for one in ended} == {newest.step}
    assert {one.fingerprint for one in ended} == {calm[0].fingerprint}
    for rank, one in enumerate(calm):
        assert logged(log, rank) == {step: {loss} for step, loss in one.losses.items()}
    return newest


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_killed_at_random_and_resumed_equals_undisturbed(tmp_path, strategy):
    recipe = Recipe(strategy, every="1 step", steps=60)
    calm = Ranks(train, 4, tmp_path / "calm", recipe).results()
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    base, caught = tmp_path / "apart", 0
    for _ in range(4):
        progress, theirs = os.pipe()
        steps = 4 + draw.randint(0, 2)
        ranks = start_apart(train_acknowledging, base, recipe, tmp_path, theirs, None, steps)
        os.close(theirs)
        await_steps(progress, steps)
        time.sleep(draw.uniform(0, 0.01))  # no condition: the instant is what is drawn
        for rank in draw.sample(range(4), 4):
            ranks.kill(rank)
        kinds = {kind for kind, _ in ranks.outcomes()}
        assert "killed" in kinds and "returned" not in kinds
        os.close(progress)
        caught += any(is_draft(name) for folder in disks(base) for name in os.listdir(folder))
        assert newest_of_all(base, tmp_path).step >= acknowledged(tmp_path) > 0
    assert caught > 0
    assert_resumes(base, tmp_path, recipe, calm)


def die(where, node, call):
    """The ranks that act for a disk are killed at this call of the save of step 6, on these nodes."""

    def wrapped(draft, manifest, *args, **options):
        mine = node in (None, int(os.environ["GROUP_RANK"]))
        if manifest.step == 6 and mine and where == "before":
            if call == "place" and node is not None:  # who hears of a death first does not come to it any more
                others = set(disks(draft.parents[1])) - {draft.parent}
                wait_until(lambda: all((other / folder_name(6)).exists() for other in others))
            os.kill(os.getpid(), 9)
        done = original(draft, manifest, *args, **options)
        if manifest.step == 6 and mine:
            os.kill(os.getpid(), 9)
        return done

    original = getattr(commit, call)
    setattr(commit, call, wrapped)


@pytest.mark.parametrize(
    ("where", "node", "call", "after"),
    [
        ("before", 1, "prepare", {3}),
        ("after", 1, "prepare", {3}),
        ("before", None, "place", {3}),
        ("before", 1, "place", {6}),
        ("before", 0, "place", {6}),
        ("after", 1, "place", {6}),
        ("after", None, "place", {6}),
    ],
)
def test_killed_in_mid_commit(tmp_path, where, node, call, after):
    """Where one disk has it by its final name, the other one's draft becomes it; else it has not happened."""
    recipe = Recipe("fsdp", every="3 steps", steps=12)
    calm = Ranks(train, 4, tmp_path / "calm", recipe).results()
    base = tmp_path / "apart"
    ranks = start_apart(train_acknowledging, base, recipe, tmp_path, None, lambda: die(where, node, call))
    kinds = {kind for kind, _ in ranks.outcomes()}
    assert "killed" in kinds and "returned" not in kinds
    newest = assert_resumes(base, tmp_path, recipe, calm)
    assert {newest.step} == after and newest.kind == "step"


# -- what goes wrong on one node


def save_with_faults(folder, call, node):
    """Save three times, the second time with a failing call on one node; return the results of each rank."""
    world = join(group=True)
    model = DistributedDataParallel(nn.Linear(2, 2))
    checkpointer = Checkpointer(folder, model=model, world=world)
    checkpointer.load()
    original = getattr(commit, call)

    def failing(draft, manifest, *args, **options):
        if manifest.step == 2 and world.node == node:
            raise OSError(28, "No space left on device")
        return original(draft, manifest, *args, **options)

    setattr(commit, call, failing)
    found = []
    for step in (1, 2, 3):
        checkpointer.save(step)
        outcome = checkpointer.wait()
        # A rank is told before who acts for its disk has taken all back.
        checkpointer._save_group.all_gather(None)
        found.append((outcome.path is not None, "No space" in outcome.problem, catalog.steps(folder), drafts(folder)))
    return found


def drafts(folder):
    return [name for name in os.listdir(folder) if is_draft(name)]


@pytest.mark.parametrize("call", ["prepare", "place"])
@pytest.mark.parametrize("node", [0, 1])
def test_what_one_node_cannot_write_no_node_has(tmp_path, call, node):
    found = run_apart(save_with_faults, tmp_path / "apart", call, node)
    wanted = [(True, False, [1], []), (False, True, [1], []), (True, False, [1, 3], [])]
    assert found == [wanted] * 4


def load_and_say(folder, recipe):
    said = heard()
    training = Training.begin(recipe)
    checkpointer = training.checkpointer(folder)
    return checkpointer.load(), said


@pytest.mark.daily
def test_all_fall_back_past_a_file_that_is_damaged_on_one_node(tmp_path):
    recipe, base = Recipe("ddp", every="8 steps"), tmp_path / "apart"
    run_apart(train, base, recipe)
    first, second = disks(base)
    for step in (16, 24):
        (held,) = (one for one in partial.inventory(first) if one.step == step)
        copy_missing(first, second, held)
        copy_missing(second, first, held)
    flip(second / folder_name(24) / data_name(2))
    told = run_apart(load_and_say, base, recipe)
    assert {step for step, _ in told} == {16}
    assert any("step 24" in line and data_name(2) in line for line in told[0][1])
    # What is sound stays: it mends the other.
    assert steps(base) == [[8, 16, 24], [8, 16]]
    assert [len(catalog.set_aside(folder)) for folder in (first, second)] == [0, 1]
    newest = bring_together([first, second])
    assert newest is not None and newest.step == 24
    assert {step for step, _ in run_apart(load_and_say, base, recipe)} == {24}


def test_where_all_that_one_disk_has_is_damaged_nothing_begins_anew(tmp_path):
    """It began at step 0 without a word, although the other disk had copies of all."""
    recipe, base = Recipe("ddp", every="8 steps"), tmp_path / "apart"
    run_apart(train, base, recipe)
    first, second = disks(base)
    for step in (8, 16, 24):
        (held,) = (one for one in partial.inventory(first) if one.step == step)
        copy_missing(first, second, held)
        copy_missing(second, first, held)
        flip(second / folder_name(step) / data_name(2))
    with pytest.raises(AssertionError, match="no checkpoint is sound on all disks; the next start looks for copies"):
        run_apart(load_and_say, base, recipe)
    assert steps(base) == [[8, 16, 24], []]
    newest = bring_together([first, second])
    assert newest is not None and newest.step == 24
    assert {step for step, _ in run_apart(load_and_say, base, recipe)} == {24}


def test_what_not_all_disks_have_is_passed_over_and_gives_way(tmp_path):
    recipe, base = Recipe("ddp", every="8 steps"), tmp_path / "apart"
    calm = run_apart(train, base, recipe)
    first, second = disks(base)
    shutil.rmtree(second)
    told = run_apart(load_and_say, base, recipe)
    assert [(step, len(said)) for step, said in told] == [(0, 3), (0, 0), (0, 0), (0, 0)]
    resumed = run_apart(train, base, recipe)
    assert {one.start for one in resumed} == {0} and resumed[0].fingerprint == calm[0].fingerprint
    assert steps(base) == [[8, 16, 24]] * 2
    assert len(catalog.set_aside(first)) == 3 and catalog.set_aside(second) == []
    for step in (8, 16, 24):
        assert partial.read_manifest(first, step) == partial.read_manifest(second, step)


def test_a_newer_start_on_any_of_the_disks_ends_all_ranks(tmp_path):
    base = tmp_path / "apart"
    run_apart(train, base, Recipe("ddp", every="8 steps", steps=8))
    fence.take_token(disk(base, 1), 7)
    ranks = start_apart(fenced_by_attempt, base, Recipe("ddp"))
    assert ranks.outcomes() == [("exited", EXIT_FENCED)] * 4


def fenced_by_attempt(folder, recipe):
    os.environ.update({"LAUNCH_RUN_DIR": str(folder), "LAUNCH_ATTEMPT": "2"})
    return train(folder, recipe)


def overtaken_on_one_disk(folder, recipe):
    training = Training.begin(recipe)
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    if training.world.rank == 2:
        fence.take_token(folder)
    checkpointer.save(1, wait=True)
    return checkpointer.wait().fenced, catalog.steps(folder)


def test_overtaken_on_one_disk_a_save_is_nowhere(tmp_path):
    assert run_apart(overtaken_on_one_disk, tmp_path / "apart", Recipe("ddp")) == [(True, [])] * 4


# -- how many are kept


def keep_bests(folder, fail):
    world = join(group=True)
    model = DistributedDataParallel(nn.Linear(2, 2))
    checkpointer = Checkpointer(folder, model=model, world=world, keep=2)
    checkpointer.load()
    for step in (1, 2, 3, 4):
        if step == 4 and fail:
            checkpointer.wait()
            commit.place_best = refuse if world.rank == 2 else commit.place_best
        checkpointer.save(step, {"accuracy": world.rank + step / 10}, best=step in (1, 3, 4))
    checkpointer.wait()
    checkpointer._save_group.all_gather(None)
    if not fail:
        checkpointer.save(4, {"late": 1.0 + world.rank}, best=True)  # found to be the best after it was saved
        checkpointer._save_group.all_gather(None)
    return catalog.steps(folder)


def refuse(*_args):
    raise OSError(5, "Input/output error")


def test_the_best_one_is_kept_on_all_disks(tmp_path):
    base = tmp_path / "apart"
    assert run_apart(keep_bests, base, False) == [[1, 3, 4]] * 4
    first, second = disks(base)
    assert [(one.kind, one.step) for one in catalog.entries(first)][-1] == ("best", 4)
    assert names(first, 4, "best") == [MANIFEST, data_name(0), data_name(1)]
    assert names(second, 4, "best") == [MANIFEST, data_name(2), data_name(3)]
    assert partial.read_manifest(first, 4, "best") == partial.read_manifest(second, 4, "best")
    (best,) = partial.whole_over([partial.inventory(first), partial.inventory(second)], "best")
    copy_missing(second, first, best)
    assert find(first, best).missing == ()
    assert load_model(nn.Linear(2, 2), first / folder_name(4, "best")) == 4


def test_the_best_one_before_goes_when_all_disks_have_the_new_one(tmp_path):
    base = tmp_path / "apart"
    run_apart(keep_bests, base, True)
    inventories = [partial.inventory(folder) for folder in disks(base)]
    assert [held.step for held in partial.whole_over(inventories, "best")] == [3]


def test_what_only_one_disk_has_goes_with_those_of_its_age(tmp_path):
    recipe, base = Recipe("ddp", scheduler="lambda", every="4 steps", steps=12), tmp_path / "apart"
    run_apart(train, base, recipe)
    first, second = disks(base)
    shutil.rmtree(first / folder_name(8))
    assert bring_together([first, second]).step == 12 and steps(base) == [[4, 12], [4, 8, 12]]
    run_apart(train, base, Recipe("ddp", scheduler="lambda", every="4 steps", steps=24))
    assert steps(base) == [[12, 16, 20, 24]] * 2, "the newest that survives the loss of a disk stays"
    assert all(len(catalog.set_aside(folder)) == 0 for folder in (first, second))


# -- other worlds


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_resumed_on_one_node_that_has_all_files(tmp_path, strategy):
    base, recipe = tmp_path / "apart", Recipe(strategy, scheduler="lambda", every="4 steps", steps=12)
    run_apart(train, base, recipe)
    assert bring_together(disks(base)).step == 12
    shutil.rmtree(disk(base, 1))
    longer = Recipe(strategy, scheduler="lambda", every="4 steps")
    (first, _) = run_apart(train, base, longer, nodes=1)
    assert first.start == 12 and first.fingerprint is not None
    # And on two again, of which one is new.
    assert bring_together([disk(base, 0), disk(base, 1)]).step == 24
    again = run_apart(train, base, longer)
    assert {one.start for one in again} == {24} and {one.fingerprint for one in again} == {first.fingerprint}


def test_a_node_is_lost_for_good_and_its_files_come_from_the_copies(tmp_path):
    recipe, base = Recipe("fsdp", every="4 steps"), tmp_path / "apart"
    calm = Ranks(train, 4, tmp_path / "calm", recipe).results()
    stopped = start_apart(train, base, recipe, tmp_path, None, 14).results()
    assert {one.step for one in stopped} == {stopped[0].step} and stopped[0].fingerprint is None
    (newest,) = (one for one in partial.inventory(disk(base, 1)) if one.step == stopped[0].step)
    copy_missing(disk(base, 1), disk(base, 0), newest)
    shutil.rmtree(disk(base, 1))
    assert_resumes_on(base, [disk(base, 0), disk(base, 1)], stopped[0].step, recipe, calm)


def assert_resumes_on(base, folders, step, recipe, calm):
    assert bring_together(folders).step == step
    ended = run_apart(train, base, recipe)
    assert {(one.start, one.fingerprint) for one in ended} == {(step, calm[0].fingerprint)}


def train_with_memory(folder, recipe, log, saves=None):
    os.environ.update(
        {
            "LAUNCH_RUN_DIR": str(folder),
            "LAUNCH_ATTEMPT": "1",
            "LAUNCH_CHECKPOINT_MEMORY_DIR": str(folder.parent / f"memory-{os.environ['GROUP_RANK']}"),
            "LAUNCH_CHECKPOINT_MEMORY_EVERY": "1 step",
            "LAUNCH_CHECKPOINT_MEMORY_LIMIT": str(1 << 30),
        }
    )
    return train(folder, recipe, log, None, None, saves)


def test_the_nearer_tier_works_beside_disks_apart(tmp_path):
    recipe, base = Recipe("fsdp", every="8 steps"), tmp_path / "apart"
    calm = Ranks(train, 4, tmp_path / "calm", recipe).results()
    ranks = start_apart(train_with_memory, base, recipe, tmp_path, 14)
    memories = [base / f"memory-{node}" for node in (0, 1)]
    until("both have it", lambda: all(memory.is_dir() and 14 in catalog.steps(memory) for memory in memories))
    ranks.kill()
    assert {kind for kind, _ in ranks.outcomes()} == {"killed"}
    bring_together(disks(base))
    ended = run_apart(train_with_memory, base, recipe, tmp_path)
    assert {one.start for one in ended} == {14} and ended[0].fingerprint == calm[0].fingerprint
