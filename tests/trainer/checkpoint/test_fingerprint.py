import json
import os

import pytest
import torch
from nodes_apart import run_apart
from ranks import spawn_ranks
from small_trainings import Recipe, Training
from torch import nn

from trainer.checkpoint import Checkpointer
from trainer.checkpoint.fingerprint import blocks, fingerprint, fingerprint_together
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import data_name, folder_name
from trainer.errors import CheckpointDamaged
from trainer.world import World

pytestmark = pytest.mark.nightly

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


def end_with_equal_values(folder, recipe):
    """Train two steps whose gradients are all ones, so that every way of sharding gives the same bits."""
    training = Training.begin(recipe)
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    for _ in range(2):
        for parameter in training.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        training.optimizer.step()
    return checkpointer.finish(1)


@pytest.mark.daily
def test_equal_values_have_one_fingerprint_in_every_layout(tmp_path):
    marks = {}
    for strategy, size in (("none", 1), ("ddp", 2), ("ddp", 3), ("zero1", 3), ("fsdp", 1), ("fsdp", 3), ("hsdp", 4)):
        recipe = Recipe(strategy, scheduler="lambda")
        marks[strategy, size] = set(spawn_ranks(end_with_equal_values, size, tmp_path / f"{strategy}{size}", recipe))
    assert set(map(len, marks.values())) == {1} and len(set.union(*marks.values())) == 1, marks


class Remembering(torch.optim.Optimizer):
    """State of every kind: tensors, numbers, text, and tensors in a list."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1.0})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "mean": torch.zeros_like(parameter), "count": 3, "rate": 0.1, "kind": "old",
                "small": [torch.zeros(3), torch.zeros(2)], "large": (torch.zeros(20_000),),
            }  # fmt: skip


def mark_of(folder, change=lambda model, state: None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = Remembering(model.parameters())
    change(model, optimizer.state[model[0].bias])
    with Checkpointer(folder, model=model, optimizer=optimizer, world=ALONE) as checkpointer:
        checkpointer.load()
        return checkpointer.finish(1)


def flip(tensor):
    tensor.detach().view(-1).view(torch.uint8)[-1] ^= 1


CHANGES = {
    "weight": lambda model, state: flip(model[0].weight),
    "buffer": lambda model, state: flip(model[1].running_var),
    "count of batches": lambda model, state: flip(model[1].num_batches_tracked.view(1)),
    "mean": lambda model, state: flip(state["mean"]),
    "count": lambda model, state: state.update(count=4),
    "rate": lambda model, state: state.update(rate=0.1 + 2**-56),
    "kind": lambda model, state: state.update(kind="new"),
    "a number's type": lambda model, state: state.update(count=3.0),
    "in a list": lambda model, state: flip(state["small"][1]),
    "beside": lambda model, state: flip(state["large"][0]),
    "one less": lambda model, state: state.pop("rate"),
    "a tensor's type": lambda model, state: state.update(mean=state["mean"].double()),
    "a tensor's shape": lambda model, state: state.update(mean=state["mean"].view(3, 1)),
}


def test_any_change_shows(tmp_path):
    marks = {name: mark_of(tmp_path / name, change) for name, change in CHANGES.items()}
    marks["none"] = mark_of(tmp_path / "none")
    assert mark_of(tmp_path / "again") == marks["none"]
    assert len(set(marks.values())) == len(marks)
    assert all(len(mark) == 64 for mark in marks.values())


def test_neither_the_step_nor_random_generators_nor_other_objects_count(tmp_path):
    mark_of(tmp_path / "one")
    entries = [Entry("step", 1, tmp_path / "one" / folder_name(1))]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = Remembering(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with Checkpointer(
        tmp_path / "two", model=model, optimizer=optimizer, state={"s": scheduler}, world=ALONE
    ) as checkpointer:
        checkpointer.load()
        torch.rand(100)
        checkpointer.save(7, {"info": 1})
    entries.append(Entry("step", 7, tmp_path / "two" / folder_name(7)))
    assert len({fingerprint(entry) for entry in entries}) == 1


@pytest.mark.daily
def test_a_damaged_one_has_none(tmp_path):
    mark_of(tmp_path)
    path = tmp_path / folder_name(1) / data_name(0)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match="checksum"):
        fingerprint(Entry("step", 1, tmp_path / folder_name(1)))


def words_of_each(folder):
    """Return the fingerprint, and how often a rank reported that it is alive meanwhile."""
    checkpointer = Training.begin(Recipe("ddp")).checkpointer(folder)
    checkpointer.load()
    checkpointer.save(1, wait=True)
    words = []
    every_part_s = 0.0  # as if each took a second
    mark = fingerprint_together(checkpointer._entry(1), checkpointer._save_group, lambda: words.append(1), every_part_s)
    checkpointer.close()
    return mark, len(words)


def test_ranks_that_wait_for_the_first_can_say_that_they_are_here(tmp_path):
    found = spawn_ranks(words_of_each, 2, tmp_path / "shared") + run_apart(
        words_of_each, tmp_path / "apart", nodes=(1, 1)
    )
    assert len({mark for mark, _ in found}) == 1
    manifest = catalog.read_manifest(Entry("step", 1, tmp_path / "shared" / folder_name(1)))
    tensors = sum(name.startswith(("model/", "optimizer/")) for name in manifest.tensors)
    assert min(words for _, words in found) >= tensors // 2 > 3  # on a shared disk two take turns


def digests_of_blocks(entry, block_bytes):
    manifest = catalog.read_manifest(entry)
    files = [(entry.path / file.name).read_bytes() for file in manifest.files]

    def read(number, view, at):
        view[:] = files[number][at : at + len(view)]

    return [(block.name, block.offsets, block.digest(read)) for block in blocks(manifest, block_bytes)]


def test_rows_of_blocks_make_no_difference_of_layout(tmp_path):
    """Blocks that lie across the parts of several ranks, and parts that lie across several blocks."""
    found = []
    for strategy, size in (("none", 1), ("fsdp", 2), ("zero1", 2)):
        spawn_ranks(end_with_equal_values, size, tmp_path / strategy, Recipe(strategy, scheduler="lambda"))
        entry = Entry("step", 1, tmp_path / strategy / folder_name(1))
        found.append(digests_of_blocks(entry, block_bytes=32))
        assert len(found[-1]) > 2 * len(digests_of_blocks(entry, block_bytes=1 << 30))
    assert found[0] == found[1] == found[2]


def end_beside_damage(folder):
    checkpointer = Training.begin(Recipe("ddp")).checkpointer(folder)
    checkpointer.load()
    checkpointer.save(1, wait=True)
    if checkpointer._save_group.me == 1:
        path = folder / folder_name(1) / data_name(1)
        path.write_bytes(bytes(path.stat().st_size))
    checkpointer._save_group.all_gather("damaged")  # who reads while it is written finds it too short
    with pytest.raises(CheckpointDamaged, match="checksum"):
        fingerprint_together(checkpointer._entry(1), checkpointer._save_group, lambda: None)
    checkpointer.close()
    return True


def test_where_one_file_is_damaged_all_hear_of_it(tmp_path):
    assert spawn_ranks(end_beside_damage, 2, tmp_path) == [True, True]


def test_who_wants_none_gets_none(tmp_path):
    with Checkpointer(tmp_path, model=nn.Linear(1, 1), world=ALONE) as checkpointer:
        checkpointer.load()
        assert checkpointer.finish(1, fingerprint=False) == ""
    assert [entry.step for entry in catalog.entries(tmp_path)] == [1]


def report_the_end(folder, progress):
    os.environ["LAUNCH_PROGRESS"] = str(progress)
    return end_with_equal_values(folder, Recipe("ddp"))


def test_the_first_rank_tells_it_at_the_end(tmp_path):
    path = tmp_path / "progress"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    marks = spawn_ranks(report_the_end, 2, tmp_path / "it", path)
    lines = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    assert [line["fingerprint"] for line in lines if "fingerprint" in line] == [marks[0]]
    assert [line for line in lines if line.get("done")] == [{"done": True}] * 2
    assert {line["checkpoint"] for line in lines if "checkpoint" in line} == {1}
