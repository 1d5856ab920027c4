"""The nearer tier: what all ranks lose at once is resumed from the node's memory, exactly or not at all."""

import os
import shutil
import threading

import pytest
import torch
from ranks import Ranks
from small_trainings import Recipe, Training, heard, logged, train
from torch import nn

from tests.waits import until
from trainer.checkpoint import Checkpointer, loading, saving
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import data_name, folder_name
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.world import join

pytestmark = pytest.mark.nightly


def on_nodes(work, base, ranks_of_node, every, limit, *args):
    """Do something as a rank of one of several nodes, each with a memory of its own."""
    node = int(os.environ["RANK"]) // ranks_of_node
    os.environ.update(
        {
            "LAUNCH_NODE": str(node),
            "LAUNCH_RUN_DIR": str(base),
            "LAUNCH_ATTEMPT": "1",
            "LAUNCH_CHECKPOINT_MEMORY_DIR": str(base / f"memory-{node}"),
            "LAUNCH_CHECKPOINT_MEMORY_EVERY": every,
            "LAUNCH_CHECKPOINT_MEMORY_LIMIT": str(limit),
        }
    )
    return work(base / "disk", *args)


def start(work, size, base, *args, ranks_of_node=None, every="1 step", limit=1 << 30):
    return Ranks(on_nodes, size, work, base, ranks_of_node or size, every, limit, *args, local_size=ranks_of_node)


def train_and_kill(size, base, recipe, log, steps, **options):
    """Kill all ranks while they save what comes after this step, of which every node has a snapshot; what was to be
    saved to the disk before, which is written meanwhile, is there by then."""
    ranks = start(train, size, base, recipe, log, None, None, steps, **options)
    nodes = size // (options["ranks_of_node"] or size)
    memories = [base / f"memory-{node}" for node in range(nodes)]
    until("all have it", lambda: all(memory.is_dir() and steps in catalog.steps(memory) for memory in memories))
    until("the disk has the one before", lambda: catalog.steps(base / "disk"))
    ranks.kill()
    assert {kind for kind, _ in ranks.outcomes()} == {"killed"}


@pytest.mark.parametrize(
    ("strategy", "size", "ranks_of_node"),
    [("ddp", 2, 2), ("ddp", 2, 1), ("zero1", 3, 1), ("fsdp", 4, 2), ("none", 1, 1)],
)
def test_resumed_from_memory_equals_undisturbed(tmp_path, strategy, size, ranks_of_node):
    recipe = Recipe(strategy, every="5 steps", ema=True)
    undisturbed = Ranks(train, size, tmp_path / "calm", recipe).results()
    train_and_kill(size, tmp_path, recipe, tmp_path, 9, ranks_of_node=ranks_of_node)
    assert catalog.steps(tmp_path / "disk") == [5]
    resumed = start(train, size, tmp_path, recipe, tmp_path, ranks_of_node=ranks_of_node).results()
    assert {ended.start for ended in resumed} == {9}
    for rank, calm in enumerate(undisturbed):
        assert logged(tmp_path, rank) == {step: {loss} for step, loss in calm.losses.items()}
        assert resumed[rank].fingerprint == calm.fingerprint


def remember(folder, strategy, disk, steps):
    """Keep the steps in `disk` on disk, and each of the others in memory."""
    training = Training.begin(Recipe(strategy))
    checkpointer = training.checkpointer(folder, every="")
    said = heard()
    step = checkpointer.load()
    loaded = checkpointer.loaded
    for number in range(step + 1, step + steps + 1):
        training.step(number)
        if number in disk:
            checkpointer.save(number)
            checkpointer.wait()
        else:
            checkpointer.after_step(number)
            if checkpointer._memory is not None:
                checkpointer._memory.saver.wait()
    checkpointer.close()
    return step, loaded is not None and loaded.from_memory, said


def load_after(base, size=2, ranks_of_node=None, strategy="ddp", limit=1 << 30):
    results = start(remember, size, base, strategy, (), 0, ranks_of_node=ranks_of_node, limit=limit).results()
    steps = {(step, from_memory) for step, from_memory, _ in results}
    assert len(steps) == 1
    return (*steps.pop(), results[0][2])


@pytest.fixture
def base(tmp_path):
    """Step 2 on disk, steps 3 and 4 in the memory of two nodes of a rank each."""
    start(remember, 2, tmp_path, "ddp", (2,), 4, ranks_of_node=1).results()
    assert catalog.steps(tmp_path / "disk") == [2]
    assert [catalog.steps(tmp_path / f"memory-{node}") for node in (0, 1)] == [[3, 4]] * 2
    return tmp_path


def remember_beside_the_best(folder):
    """A snapshot is due at each step; the best one, of step 2, is being written until after step 4."""
    checkpointer = Checkpointer(folder, model=nn.Linear(1, 1), every="")
    checkpointer.load()
    write, go_on = saving.write_new, threading.Event()

    def write_late(path, *args):
        assert not path.is_relative_to(folder) or os.environ["RANK"] == "0" or go_on.wait(150)
        return write(path, *args)

    saving.write_new = write_late  # of one rank
    kept = []
    for step in range(1, 7):
        if step == 2:
            checkpointer.save(step, best=True)
        if step == 5:
            go_on.set()
            checkpointer.wait()
        checkpointer.after_step(step)
        checkpointer._memory.saver.wait()
        kept.append(max(catalog.steps(checkpointer._memory.folder)))
    checkpointer.close()
    return kept


@pytest.mark.daily
def test_no_snapshot_knows_of_a_best_model_that_is_not_there_yet(tmp_path):
    assert start(remember_beside_the_best, 2, tmp_path).results() == [[1, 1, 1, 1, 5, 6]] * 2
    assert [entry.step for entry in catalog.entries(tmp_path / "disk") if entry.kind == "best"] == [2]


@pytest.mark.daily
def test_what_all_nodes_have_is_loaded(base):
    assert load_after(base, ranks_of_node=1) == (4, True, [])


def test_nodes_that_are_one_apart_meet_at_the_older(base):
    shutil.rmtree(base / "memory-1" / folder_name(4))
    assert load_after(base, ranks_of_node=1)[:2] == (3, True)
    # What was newer than that is of a past that did not happen.
    assert catalog.steps(base / "memory-0") == [3]


def test_a_node_that_has_lost_its_memory_sends_all_to_the_disk(base):
    shutil.rmtree(base / "memory-1")
    assert load_after(base, ranks_of_node=1)[:2] == (2, False)
    assert catalog.steps(base / "memory-0") == []


@pytest.mark.daily
def test_a_damaged_snapshot_sends_all_to_the_disk(base):
    damage_a_snapshot(base)
    step, from_memory, said = load_after(base, ranks_of_node=1)
    assert (step, from_memory) == (2, False)
    assert "the snapshot of step 4 in memory is not whole" in said[0]


def damage_a_snapshot(base):
    """Damage a snapshot of one of the nodes."""
    path = base / "memory-1" / folder_name(4) / data_name(1)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def begin_anew(folder):
    training = Training.begin(Recipe("ddp"))
    before = [parameter.detach().clone() for parameter in training.module.parameters()]
    said = heard()
    step = training.checkpointer(folder, every="").load()
    return step, all(map(torch.equal, before, training.module.parameters())), said


def test_a_damaged_snapshot_before_there_is_anything_on_disk_changes_nothing_and_training_begins_anew(base):
    shutil.rmtree(base / "disk")
    damage_a_snapshot(base)
    for rank, (step, same, said) in enumerate(start(begin_anew, 2, base, ranks_of_node=1).results()):
        assert (step, same) == (0, True)
        assert [line.endswith("; the training begins at step 0") for line in said] == [True] * (rank == 0), said
    assert catalog.steps(base / "memory-0") == [], "what is damaged is not tried again"


def spoil_while_reading(folder):
    """A snapshot that was sound a moment ago: its first words are in the objects already."""

    def read(_):
        raise CheckpointDamaged("it has changed")

    loading.Reader.read = read
    said = heard()
    with pytest.raises(TrainerError, match="no checkpoint is sound"):
        Training.begin(Recipe("ddp")).checkpointer(folder, every="").load()
    return said


def test_of_a_snapshot_that_is_damaged_while_it_is_read_nothing_is_told_that_is_not_so(base):
    shutil.rmtree(base / "disk")
    said, _ = start(spoil_while_reading, 2, base, ranks_of_node=1).results()
    assert said == ["the snapshot of step 4 in memory is not whole: it has changed; the disk has none"]


def test_another_world_goes_to_the_disk(base):
    assert load_after(base, size=3, ranks_of_node=1)[:2] == (2, False)


def test_other_ranks_on_a_node_go_to_the_disk(base):
    (base / "memory-0").rename(base / "memory-2")
    (base / "memory-1").rename(base / "memory-0")
    (base / "memory-2").rename(base / "memory-1")
    assert load_after(base, ranks_of_node=1)[:2] == (2, False)


def test_one_node_where_there_were_two_goes_to_the_disk(base):
    assert load_after(base)[:2] == (2, False)


def test_snapshots_of_different_starts_are_never_mixed(base):
    """A node comes back with what it had of the same step: it is not of the same past."""
    stale = base / "stale"
    shutil.copytree(base / "memory-1", stale)
    for node in (0, 1):
        shutil.rmtree(base / f"memory-{node}")
    start(remember, 2, base, "ddp", (), 2, ranks_of_node=1).results()
    assert catalog.steps(base / "memory-0") == [3, 4]
    shutil.rmtree(base / "memory-1")
    stale.rename(base / "memory-1")
    assert load_after(base, ranks_of_node=1)[:2] == (2, False)


def test_the_disk_wins_where_it_is_newer(base):
    start(remember, 2, base, "ddp", (5, 6), 2, ranks_of_node=1).results()
    assert catalog.steps(base / "disk") == [2, 5, 6]
    assert load_after(base, ranks_of_node=1)[:2] == (6, False)


def test_only_the_newest_is_kept_where_one_node_has_it_all(tmp_path):
    start(remember, 2, tmp_path, "ddp", (), 4).results()
    assert catalog.steps(tmp_path / "memory-0") == [4]
    assert load_after(tmp_path)[:2] == (4, True)


def test_over_the_limit_there_are_none_and_a_word_says_so_once(tmp_path):
    results = start(remember, 2, tmp_path, "ddp", (2,), 4, ranks_of_node=1, limit=20_000).results()
    for _, _, said in results:
        assert len(said) == 1 and "no snapshots in memory" in said[0] and "checkpoint.memory_limit" in said[0]
    assert catalog.steps(tmp_path / "memory-0") == []
    assert load_after(tmp_path, ranks_of_node=1, limit=20_000)[:2] == (2, False)


def test_what_is_kept_stays_within_the_limit(tmp_path):
    limit = 200_000
    start(remember, 2, tmp_path, "ddp", (), 5, ranks_of_node=1, limit=limit).results()
    used = sum(path.stat().st_size for path in (tmp_path / "memory-0").rglob("*") if path.is_file())
    assert catalog.steps(tmp_path / "memory-0") == [4, 5] and 3 / 2 * used <= limit


def test_a_memory_that_cannot_be_had_costs_nothing_but_the_tier(tmp_path):
    (tmp_path / "memory-1").write_text("a file in its place")
    results = start(remember, 2, tmp_path, "ddp", (2,), 3, ranks_of_node=1).results()
    assert "no snapshots in memory" in results[0][2][0] and results[1][2] == []
    assert catalog.steps(tmp_path / "disk") == [2]


class Word:
    """State that only the first rank has, large enough to lie beside the document."""

    def __init__(self, rank):
        self.value = torch.full((20_000,), float(rank))

    def state_dict(self):
        return {"value": self.value, "small": self.value[0].item()}

    def load_state_dict(self, state):
        self.value = state["value"]
        assert state["small"] == self.value[0].item()


def keep_a_word(folder):
    training = Training.begin(Recipe())
    word = Word(training.world.rank + 5)
    checkpointer = training.checkpointer(folder, every="")
    checkpointer._subjects.shared["word"] = word
    step = checkpointer.load()
    if step == 0:
        training.step(1)
        checkpointer.after_step(1)
    checkpointer.close()
    return step, word.value.unique().tolist()


def test_the_first_rank_s_word_counts_on_every_node(tmp_path):
    assert start(keep_a_word, 3, tmp_path, ranks_of_node=1).results() == [(0, [5]), (0, [6]), (0, [7])]
    assert start(keep_a_word, 3, tmp_path, ranks_of_node=1).results() == [(1, [5])] * 3


def remember_while_the_disk_is_busy(folder):
    world = join()
    model = nn.Linear(20, 25)
    checkpointer = Checkpointer(folder, model=model, world=world)
    checkpointer.load()
    write, go_on = saving.write_new, threading.Event()

    def write_late(path, *args):
        assert not path.is_relative_to(folder) or go_on.wait(150)
        return write(path, *args)

    saving.write_new = write_late
    checkpointer.save(1)
    checkpointer.after_step(2)
    checkpointer._memory.saver.wait()
    busy = checkpointer._saver.busy
    go_on.set()
    checkpointer.close()
    return busy, [outcome.problem for outcome in (checkpointer.wait(), checkpointer._memory.saver.wait())]


def test_the_first_snapshot_may_be_made_while_the_disk_is_written_to(tmp_path):
    results = start(remember_while_the_disk_is_busy, 2, tmp_path, ranks_of_node=1).results()
    assert results == [(True, ["", ""])] * 2
    assert catalog.steps(tmp_path / "disk") == [1] and catalog.steps(tmp_path / "memory-1") == [2]
