"""Other worlds, other strategies, other models, and checkpoints that are no longer what was written."""

import hashlib
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import spawn_ranks
from small_trainings import Recipe, Training, heard
from torch import nn

from trainer.checkpoint import Checkpointer
from trainer.checkpoint.fingerprint import fingerprint
from trainer.checkpoint.generators import seed_all
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import MANIFEST, data_name, folder_name
from trainer.errors import TrainerError
from trainer.world import World

pytestmark = pytest.mark.nightly

# -- another world, another strategy


def begin_or_go_on(folder, recipe, steps):
    """Load, train so many steps, save: (step loaded, fingerprint before and after, digest of the averaged weights)."""
    training = Training.begin(recipe)
    torch.manual_seed(training.world.rank)
    checkpointer = training.checkpointer(folder, keep=100)
    step = checkpointer.load()
    checkpointer.save(step + 1, wait=True)  # as it is after loading
    for number in range(steps):
        training.step(step + 2 + number)
    averaged = digest_of(training.ema.shadow.values()) if training.ema else ""
    checkpointer.save(step + 2, wait=True)
    checkpointer.close()
    if not training.world.is_first:
        return step, None, None, averaged
    loaded, trained = (fingerprint(Entry("step", one, folder / folder_name(one))) for one in (step + 1, step + 2))
    return step, loaded, trained, averaged


def digest_of(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    "chain",
    [
        [("ddp", 2), ("ddp", 3), ("ddp", 1), ("none", 1)],
        [("fsdp", 2), ("fsdp", 4), ("fsdp", 1), ("fsdp", 3)],
        [("zero1", 2), ("ddp", 2), ("fsdp", 3), ("zero1", 3), ("hsdp", 4), ("ddp", 2)],
    ],
    ids=lambda chain: "-".join(f"{strategy}{size}" for strategy, size in chain),
)
def test_parameters_and_optimizer_are_equal_at_the_moment_of_resume(tmp_path, chain):
    step, trained = 0, None
    for strategy, size in chain:
        results = spawn_ranks(begin_or_go_on, size, tmp_path, Recipe(strategy), 2)
        assert [result[0] for result in results] == [step] * size
        if trained is not None:
            assert results[0][1] == trained
        assert results[0][2] != results[0][1]  # and it trains on
        step, trained = step + 2, results[0][2]


def test_sharded_tensors_that_somebody_keeps_are_sharded_anew(tmp_path):
    averaged = None
    for size in (2, 3):
        results = spawn_ranks(begin_or_go_on, size, tmp_path, Recipe("fsdp", ema=True), 0 if averaged else 2)
        assert len({result[3] for result in results}) == 1
        assert averaged in (None, results[0][3])
        averaged = results[0][3]


def test_in_another_world_random_numbers_are_those_of_seed_rank_and_step(tmp_path):
    spawn_ranks(begin_or_go_on, 2, tmp_path, Recipe(), 1)
    first = spawn_ranks(draw_round_a_load, 3, tmp_path)
    assert spawn_ranks(draw_round_a_load, 3, tmp_path) == first
    [begun] = {before for before, _ in first}
    drawn = [number for numbers in (begun, *(after for _, after in first)) for number in numbers]
    assert len(set(drawn)) == len(drawn), "no rank draws again what it drew at first, or what another one draws"


def draw_round_a_load(folder):
    training = Training.begin(Recipe())
    checkpointer = training.checkpointer(folder)
    seed_all(5)
    before = draw()
    seed_all(5)
    assert checkpointer.load() == 2
    return before, draw()


def draw():
    return torch.rand(1).item(), random.random(), np.random.random_sample()  # noqa: NPY002 - the global one


# -- all kinds of tensors


class Odd(nn.Module):
    """Every type, and shapes and strides that are easily got wrong."""

    def __init__(self, seed):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.scalar = nn.Parameter(torch.randn((), generator=draw))
        self.none = nn.Parameter(torch.randn(0, 3, generator=draw))
        self.image = nn.Parameter(torch.randn(2, 3, 4, 5, generator=draw).to(memory_format=torch.channels_last))
        self.turned = nn.Parameter(torch.randn(3, 5, generator=draw).t())
        self.brain = nn.Parameter(torch.randn(7, generator=draw).bfloat16())
        self.wave = nn.Parameter(torch.view_as_complex(torch.randn(3, 2, generator=draw)))
        numbers = torch.randint(0, 100, (5,), generator=draw)
        for dtype in (
            torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
            torch.uint64, torch.float16, torch.float64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
        ):  # fmt: skip
            self.register_buffer(str(dtype).replace("torch.", "of_"), numbers.float().to(dtype))
        self.register_buffer("nan", torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]))


def bytes_of(model):
    return {
        name: value.contiguous().reshape(-1).view(torch.uint8).tolist() for name, value in model.state_dict().items()
    }


def test_every_kind_of_tensor_comes_back_in_its_place(tmp_path):
    world = World(0, 1, 0, 1, torch.device("cpu"))
    saved, loaded = Odd(1), Odd(2)
    first = Checkpointer(tmp_path, model=saved, world=world)
    first.load()
    first.save(1, wait=True)
    first.close()
    places = {name: (value.data_ptr(), value.stride()) for name, value in loaded.state_dict().items()}
    second = Checkpointer(tmp_path, model=loaded, world=world)
    assert second.load() == 1
    second.close()
    assert bytes_of(loaded) == bytes_of(saved) != bytes_of(Odd(2))
    assert {name: (value.data_ptr(), value.stride()) for name, value in loaded.state_dict().items()} == places


# -- damage


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def swap(one, other):
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def a_link_instead(path, target):
    path.unlink()
    path.symlink_to(target)


def a_pipe_instead(path):
    path.unlink()
    os.mkfifo(path)


def a_folder_instead(path):
    path.unlink()
    path.mkdir()


def older_instead(new, old):
    shutil.rmtree(new)
    shutil.copytree(old, new)


def an_empty_folder_instead(new):
    shutil.rmtree(new)
    new.mkdir()


def a_file_instead(new):
    shutil.rmtree(new)
    new.write_bytes(b"")


class Payload:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


DAMAGE: dict[str, Callable[[Path, Path], Any]] = {
    "a bit of the first file": lambda new, old: flip(new / data_name(0), 17),
    "a bit of rank 1's file": lambda new, old: flip(new / data_name(1), 100),
    "a bit of rank 2's documents": lambda new, old: flip(new / data_name(2), -3),
    "a file cut short": lambda new, old: os.truncate(new / data_name(1), 1000),
    "an empty file": lambda new, old: os.truncate(new / data_name(2), 0),
    "a file grown": lambda new, old: os.truncate(new / data_name(0), 10**6),
    "a zeroed block": lambda new, old: (new / data_name(0)).write_bytes(
        bytes(512) + (new / data_name(0)).read_bytes()[512:]
    ),
    "a missing file": lambda new, old: (new / data_name(1)).unlink(),
    "an extra file": lambda new, old: (new / data_name(3)).write_bytes(b"?"),
    "two files swapped": lambda new, old: swap(new / data_name(1), new / data_name(2)),
    "an older file": lambda new, old: shutil.copy(old / data_name(1), new / data_name(1)),
    "a link": lambda new, old: a_link_instead(new / data_name(1), old / data_name(1)),
    "a pipe": lambda new, old: a_pipe_instead(new / data_name(1)),
    "a folder": lambda new, old: a_folder_instead(new / data_name(1)),
    "no manifest": lambda new, old: (new / MANIFEST).unlink(),
    "an empty manifest": lambda new, old: os.truncate(new / MANIFEST, 0),
    "half a manifest": lambda new, old: os.truncate(new / MANIFEST, 700),
    "a bit of the manifest": lambda new, old: flip(new / MANIFEST, 300),
    "an older manifest": lambda new, old: shutil.copy(old / MANIFEST, new / MANIFEST),
    "all of an older one": older_instead,
    "a payload for a file": lambda new, old: (new / data_name(0)).write_bytes(
        pickle.dumps(Payload(new.parent / "canary"))
    ),
    "a payload for the manifest": lambda new, old: (new / MANIFEST).write_bytes(
        pickle.dumps(Payload(new.parent / "canary"))
    ),
    "an empty folder": lambda new, old: an_empty_folder_instead(new),
    "a file for a folder": lambda new, old: a_file_instead(new),
}


def load_each(template, folder):
    """Damage the newest of two in every way: what each rank then does."""
    training = Training.begin(Recipe("ddp", unused=False))
    control, world = training.world.control, training.world
    checkpointer = training.checkpointer(template, every="1 step")
    checkpointer.load()
    digests = {}
    for step in (1, 2):
        training.step(step)
        checkpointer.after_step(step)
        checkpointer.wait()
        digests[step] = digest_of(training.module.parameters())
    found = {}
    for name, damage in DAMAGE.items():
        mine = folder / name.replace(" ", "-")
        if world.is_first:
            shutil.copytree(template, mine)
            damage(mine / folder_name(2), mine / folder_name(1))
        dist.barrier(control)
        said = heard()
        checkpointer = training.checkpointer(mine)
        step = checkpointer.load()
        exact = digest_of(training.module.parameters()) == digests.get(step)
        found[name] = (step, exact, any("falling back" in text for text in said))
        dist.barrier(control)
    return found


@pytest.mark.daily
def test_all_ranks_fall_back_to_the_same_step_whatever_the_damage(tmp_path):
    results = spawn_ranks(load_each, 3, tmp_path / "template", tmp_path)
    for rank, found in enumerate(results):
        assert found == dict.fromkeys(DAMAGE, (1, True, rank == 0))
    for name in DAMAGE:
        folder = tmp_path / name.replace(" ", "-")
        assert len(catalog.set_aside(folder)) == 1 and catalog.steps(folder) == [1]
        assert not (folder / "canary").exists()


def begin_anew(folder):
    training = Training.begin(Recipe())
    before = digest_of(training.module.parameters())
    try:
        step = training.checkpointer(folder).load()
    except TrainerError as error:
        return str(error)
    return step, digest_of(training.module.parameters()) == before


def test_where_all_are_damaged_the_next_start_begins_anew(tmp_path):
    """Parts of them are in the objects of this one."""
    spawn_ranks(begin_or_go_on, 2, tmp_path, Recipe(), 1)
    for step in (1, 2):
        flip(tmp_path / folder_name(step) / data_name(step - 1), 40)
    for said in spawn_ranks(begin_anew, 2, tmp_path):
        assert "no checkpoint is sound any more" in said and "the next start begins at step 0" in said
    assert len(catalog.set_aside(tmp_path)) == 2 and catalog.steps(tmp_path) == []
    assert spawn_ranks(begin_anew, 2, tmp_path) == [(0, True)] * 2


def test_what_is_loaded_is_what_was_compared(tmp_path, monkeypatch):
    """It used to be read once more: what had changed since then was loaded without a word."""
    world = World(0, 1, 0, 1, torch.device("cpu"))
    saved, loaded = Odd(1), Odd(2)
    with Checkpointer(tmp_path, model=saved, world=world) as first:
        first.load()
        first.save(1)
    path = tmp_path / folder_name(1) / data_name(0)
    size, ended, read = path.stat().st_size, [], os.preadv

    def read_and_change(fd, buffers, at):
        got = read(fd, buffers, at)
        if at + got == size and not ended:
            ended.append(at)
            flip(path, 0)
        return got

    monkeypatch.setattr(os, "preadv", read_and_change)
    with Checkpointer(tmp_path, model=loaded, world=world) as second:
        assert second.load() == 1
    assert ended and bytes_of(loaded) == bytes_of(saved)


# -- what is not for this training


@pytest.fixture
def kept(tmp_path):
    world = World(0, 1, 0, 1, torch.device("cpu"))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, world=world) as checkpointer:
        checkpointer.load()
        checkpointer.save(1)
    return tmp_path, world, model


OTHERS = {
    "a shape": ([(3, 4), (4, 5)], "model/1.weight has shape (5, 4), saved was (2, 4)"),
    "a layer more": ([(3, 4), (4, 2), (2, 2)], "model/2.weight is not in it"),
    "a layer less": ([(3, 4)], "model/1.bias is not in the model"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_another_model_is_told_apart_and_nothing_is_changed(kept, which):
    folder, world, _ = kept
    shapes, difference = OTHERS[which]
    model = nn.Sequential(*[nn.Linear(*shape) for shape in shapes])
    before, listed = bytes_of(model), sorted(os.listdir(folder))
    checkpointer = Checkpointer(folder, model=model, world=world)
    with pytest.raises(TrainerError) as raised:
        checkpointer.load()
    checkpointer.close()
    assert difference in str(raised.value) and "hint: give this model a checkpoint folder of its own" in str(
        raised.value
    )
    assert bytes_of(model) == before and sorted(os.listdir(folder)) == listed


@pytest.mark.daily
def test_another_optimizer_is_told_apart(kept):
    folder, world, _ = kept
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=0.1)
    checkpointer = Checkpointer(folder, model=model, optimizer=optimizer, world=world)
    with pytest.raises(TrainerError, match="hold other parameters than when it was saved: 2, 2 now, 4 then"):
        checkpointer.load()
    checkpointer.close()
    assert optimizer.state_dict()["state"] == {}


def test_what_was_not_kept_begins_anew_with_a_word(kept, caplog):
    folder, world, model = kept
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
    with Checkpointer(folder, model=model, state={"late": scheduler}, world=world) as checkpointer:
        assert checkpointer.load() == 1
    assert "nothing was saved for 'late'" in caplog.text


def test_more_than_a_few_differences_are_counted(kept):
    folder, world, _ = kept
    checkpointer = Checkpointer(folder, model=nn.Sequential(*[nn.Linear(1, 1) for _ in range(9)]), world=world)
    with pytest.raises(TrainerError, match=r"\.\.\. and 13 more"):
        checkpointer.load()
    checkpointer.close()
