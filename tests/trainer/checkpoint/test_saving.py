import os
import shutil
import threading

import pytest
import torch
from ranks import spawn_ranks
from small_trainings import heard
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.checkpoint import Checkpointer, saving
from trainer.checkpoint.contents import Contents
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.saving import CheckpointDirectory, Saver
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.fence import take_token
from trainer.checkpoint_files.layout import MANIFEST, folder_name
from trainer.errors import Fenced
from trainer.world import World, join

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def keep_megabytes(folder, strategy):
    world = join(group=True)
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(300, 300) for _ in range(6)])
    model = DistributedDataParallel(model) if strategy == "ddp" else model
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    with Checkpointer(folder, model=model, optimizer=optimizer, world=world) as checkpointer:
        checkpointer.load()
        checkpointer.save(1)
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *states])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_all_ranks_have_is_written_once(tmp_path, size):
    one_copy = spawn_ranks(keep_megabytes, size, tmp_path, "ddp")[0]
    sizes = [path.stat().st_size for path in (tmp_path / folder_name(1)).iterdir()]
    assert one_copy > 6 << 20
    assert sum(sizes) <= 1.05 * one_copy
    shares = sorted(sizes)[1:]
    assert len(shares) == size and max(shares) < 1.2 * one_copy / size


class Slow:
    """A saver whose commits wait until they are let through."""

    def __init__(self, folder, **options):
        folder.mkdir(exist_ok=True)
        self.gate, self.arrived = threading.Semaphore(0), threading.Semaphore(0)
        directory = CheckpointDirectory(folder, take_token(folder), keep=2)
        self.saver = Saver(directory, SaveGroup(None, (0,), 0), ALONE, on_commit=self._wait, **options)

    def _wait(self, _step):
        self.arrived.release()
        assert self.gate.acquire(timeout=150)

    def save(self, step, tensor, **options):
        self.saver.save(step, Contents({"a": tensor}, {"shared": b"{}"}), {}, **options)


def kept(folder, step):
    path = folder / folder_name(step) / "rank-00000.data"
    return torch.frombuffer(bytearray(path.read_bytes()[:16]), dtype=torch.float32).tolist()


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
    slow, tensor = Slow(tmp_path), torch.full((4,), 1.0)
    slow.save(1, tensor)
    tensor.fill_(2.0)
    assert slow.saver.busy
    slow.gate.release()
    outcome = slow.saver.wait()
    assert outcome is not None and outcome.path == tmp_path / folder_name(1)
    assert not slow.saver.busy and kept(tmp_path, 1) == [1.0] * 4


def test_one_save_at_a_time(tmp_path):
    slow, tensor = Slow(tmp_path), torch.full((4,), 1.0)
    slow.save(1, tensor)
    assert slow.arrived.acquire(timeout=150)
    second = threading.Thread(target=slow.save, args=(2, tensor + 1))
    second.start()
    second.join(0.1)
    assert second.is_alive() and catalog.steps(tmp_path) == [1]
    slow.gate.release(2)
    second.join(150)
    slow.saver.wait()
    assert kept(tmp_path, 1) == [1.0] * 4 and kept(tmp_path, 2) == [2.0] * 4


def test_one_that_hangs_is_left_where_nothing_can_come_of_it(tmp_path):
    slow = Slow(tmp_path)
    slow.save(1, torch.ones(4))
    assert slow.arrived.acquire(timeout=150)
    slow.saver.abandon(limit_s=0.05)
    assert not slow.saver.busy
    assert slow.saver.wait() is None
    slow.gate.release()


@pytest.mark.parametrize("pieces", [3, 0], ids=["a slow disk", "a stuck one"])
def test_who_waits_for_a_save_speaks_only_while_it_goes_on(tmp_path, monkeypatch, pieces):
    spoke, stuck, freed = threading.Semaphore(0), threading.Event(), threading.Event()

    def write(path, parts, after_piece):
        for _ in range(pieces):
            after_piece()
            assert spoke.acquire(timeout=150)
        stuck.set()
        assert freed.wait(150)
        return write_new(path, parts, after_piece)

    write_new = saving.write_new
    monkeypatch.setattr(saving, "write_new", write)
    said = []
    slow = open_gates(Slow(tmp_path, while_waiting=lambda: (said.append(1), spoke.release()), poll_s=0.01))
    slow.save(1, torch.ones(4))
    waiting = threading.Thread(target=slow.saver.wait)
    waiting.start()
    assert stuck.wait(150)
    waiting.join(0.1)
    assert waiting.is_alive() and len(said) == pieces
    freed.set()
    waiting.join(150)
    assert catalog.steps(tmp_path) == [1]


def test_without_a_thread_it_is_there_when_save_returns(tmp_path):
    slow = Slow(tmp_path, asynchronous=False)
    slow.gate.release()
    slow.save(1, torch.ones(4))
    assert not slow.saver.busy and catalog.steps(tmp_path) == [1]


def open_gates(slow):
    slow.gate.release(100)
    return slow


def test_those_that_nobody_has_verified_do_not_count_as_kept(tmp_path):
    first = open_gates(Slow(tmp_path))
    for step in (1, 2):
        first.save(step, torch.ones(4))
    first.saver.wait()
    # Another start has loaded step 1 and knows nothing of step 2.
    second = open_gates(Slow(tmp_path))
    second.saver.add_verified(1, finite=True)
    second.save(3, torch.ones(4))
    second.saver.wait()
    assert catalog.steps(tmp_path) == [1, 2, 3]
    second.save(4, torch.ones(4))
    second.saver.wait()
    assert catalog.steps(tmp_path) == [3, 4]


def test_a_step_that_is_there_already_is_not_written_over(tmp_path):
    slow = open_gates(Slow(tmp_path))
    slow.save(1, torch.ones(4))
    slow.save(1, torch.zeros(4))
    outcome = slow.saver.wait()
    assert outcome is not None and outcome.path is None and "exists already" in outcome.problem
    assert slow.saver.failures == 1 and kept(tmp_path, 1) == [1.0] * 4
    slow.save(2, torch.ones(4))
    slow.saver.wait()
    assert slow.saver.failures == 0


def test_the_plan_is_made_anew_when_the_state_grows(tmp_path):
    slow = open_gates(Slow(tmp_path))
    slow.save(1, torch.ones(4))
    plan = slow.saver.plan(Contents({"a": torch.zeros(4)}))
    assert slow.saver.plan(Contents({"a": torch.ones(4)})) is plan
    slow.save(2, torch.ones(400))
    slow.saver.wait()
    assert catalog.read_manifest(catalog.entries(tmp_path)[-1]).tensors["a"].shape == (400,)


def test_a_fenced_start_keeps_nothing_any_more(tmp_path):
    slow = open_gates(Slow(tmp_path))
    slow.save(1, torch.ones(4))
    slow.saver.wait()
    take_token(tmp_path)
    slow.save(2, torch.ones(4), best=True)
    outcome = slow.saver.wait()
    assert outcome is not None and outcome.fenced and outcome.path is None
    with pytest.raises(Fenced):
        slow.saver.keep_best(1, {})
    assert [(entry.kind, entry.step) for entry in catalog.entries(tmp_path)] == [("step", 1)]


def lose_the_folder(folder):
    """Whatever breaks, and wherever, all ranks hear of it and nobody waits for ever."""
    world = join(group=True)
    said = heard()
    model = DistributedDataParallel(nn.Linear(2, 2))
    checkpointer = Checkpointer(folder, model=model, world=world)
    checkpointer.load()
    checkpointer.save(1)
    outcomes = [checkpointer.wait()]
    if world.is_first:
        shutil.rmtree(folder)
    for step in (2, 3):
        checkpointer.save(step)
        outcomes.append(checkpointer.wait())
        if world.is_first and not folder.exists():
            folder.mkdir()
    return [outcome.path is None for outcome in outcomes], [outcome.fenced for outcome in outcomes], len(said)


def test_a_folder_that_goes_away_fails_the_save_on_all_ranks(tmp_path):
    first, second = spawn_ranks(lose_the_folder, 2, tmp_path / "it")
    assert first[0] == second[0] == [False, True, True]
    assert first[1] == second[1]


def test_no_draft_outlives_a_save_that_failed(tmp_path):
    slow = open_gates(Slow(tmp_path))
    slow.saver.save(1, Contents({"a": torch.ones(4)}, {"shared": b"{}"}), {"odd": torch.ones(1)})
    outcome = slow.saver.wait()
    assert outcome is not None and "Tensor" in outcome.problem
    assert [name for name in os.listdir(tmp_path) if not name.startswith((".fence", "FENCE"))] == []


def test_a_rank_that_dies_in_mid_save_leaves_nothing_visible(tmp_path):
    mine = take_token(tmp_path)
    draft = commit.begin(tmp_path, 5, mine)
    (draft / "rank-00000.data").write_bytes(b"half")
    assert catalog.steps(tmp_path) == [] and not (draft / MANIFEST).exists()
    commit.take_over(tmp_path)
    assert not draft.exists()
