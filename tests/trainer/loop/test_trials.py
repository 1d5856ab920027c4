"""Trainings that only try: a few batches by heart, and everything once."""

import dataclasses
import gc
import random
from pathlib import Path

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import InShards, Noisy, Steps, Stream, history, hits, loss_of, make_model, run_tiny, settings_for

from trainer.errors import BadSettings
from trainer.loop import Settings, Trainer
from trainer.loop.trials import first_batches


def learn_by_heart(folder, stream):
    """The samples of each batch that this rank has trained on, and of those that it has validated."""
    seen = {True: [], False: []}

    def loss(model, batch):
        seen[model.training].append(sorted(batch[1].tolist() if stream else batch[0][:, 0].tolist()))
        return loss_of(model, batch)

    data = Stream() if stream else Noisy(noise=0.0)
    parts = {"data": data, "loss": loss, "metrics": None, "schedule": None}
    return run_tiny(folder, {"overfit_batches": 2, "max_epochs": 3}, **parts)["steps"], seen[True], seen[False]


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_batches_are_trained_on_again_and_again_and_validated(tmp_path, stream):
    results = spawn_ranks(learn_by_heart, 2, tmp_path, stream)
    assert [steps for steps, _, _ in results] == [6, 6]
    for _, trained, _ in results:
        assert len(trained) == 12, "two steps of two micro-batches, three times"
        assert trained[:4] == trained[4:8] == trained[8:]
    of_all = [sorted(value for rank in results for batch in rank[kind][:4] for value in batch) for kind in (1, 2)]
    assert len(of_all[0]) == 32
    assert of_all[0] == of_all[1]
    if not stream:
        assert of_all[0] == sorted(Noisy().x[:32, 0].tolist())
    assert [line["step"] for line in history(tmp_path) if "val_loss" in line] == [2, 4, 6]


@pytest.mark.parametrize("data", [Stream(shards_itself=True), InShards()])
def test_a_stream_in_shards_has_no_batches_that_all_know(tmp_path, data):
    with pytest.raises(BadSettings, match="overfit_batches: expected data of which all ranks see the same"):
        Trainer(settings_for(tmp_path, overfit_batches=2), model=make_model, data=data, optimizer=torch.optim.AdamW)


class GeneratorStates(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield random.random(), torch.rand(1).item()


def test_what_a_stream_draws_is_alike_on_all_ranks_and_at_each_start(tmp_path):
    settings = settings_for(tmp_path, overfit_batches=1)
    before = random.getstate()
    first = list(first_batches(settings, GeneratorStates()))
    assert random.getstate() == before
    torch.rand(3)
    assert list(first_batches(settings, GeneratorStates())) == first
    assert list(first_batches(dataclasses.replace(settings, seed=99), GeneratorStates())) != first


def everything_in(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def try_everything(folder, strategy):
    """Return what was used of each kind on this rank, and the state of the checkpoints."""
    batches, totals, steps = {True: 0, False: 0}, [], Steps()

    def loss(model, batch):
        batches[model.training] += 1
        return loss_of(model, batch)

    def schedule(optimizer, total_steps):
        totals.append(total_steps)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=total_steps)

    trainer = Trainer(
        settings_for(
            folder, fast_dev_run=2, strategy=strategy, tensorboard=True, keep_best=True, lr_find=True, log_every=50
        ),
        model=make_model,
        loss=loss,
        data=Noisy(),
        validation=Noisy(700),
        metrics=hits,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
        schedule=schedule,
        callbacks=[steps],
    )
    code, trained = trainer.fit(), batches[True]
    validated = batches[False]
    values = trainer.test(Noisy(500), best=True)
    tested = batches[False] - validated
    written = trainer.export(folder / f"left-{strategy}").step
    del trainer  # and its folder with it
    gc.collect()
    return code, steps.steps, trained, validated, tested, set(totals), sorted(values), written


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_everything_is_tried_once_and_nothing_is_kept(tmp_path, strategy):
    spawn_ranks(run_tiny, 2, tmp_path, {"max_epochs": 1})
    before = everything_in(tmp_path)
    assert any("step-" in path.parent.name for path in before)
    results = spawn_ranks(try_everything, 2, tmp_path, strategy)
    expected = (0, 2, 4, 2, 2, {54}, ["test_accuracy", "test_loss"], 2)
    assert results == [expected, expected]
    exported = tmp_path / f"left-{strategy}"
    assert exported.is_dir()
    assert {path: data for path, data in everything_in(tmp_path).items() if exported not in path.parents} == before
    assert [path.name for path in tmp_path.iterdir() if "dev-run" in path.name] == []


@pytest.mark.parametrize("where", ["checkpoints", "."])
def test_it_is_an_end_of_its_own_and_the_folder_goes_with_the_trainer(tmp_path, monkeypatch, where):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = torch.nn.Linear(4, 2)
    parts = {"model": model, "loss": loss_of, "data": Noisy(), "optimizer": torch.optim.AdamW}
    monkeypatch.setenv("LAUNCH_CHECKPOINT_MEMORY_DIR", str(tmp_path / "memory"))
    monkeypatch.setenv("LAUNCH_CHECKPOINT_MEMORY_EVERY", "1 steps")
    trainer = Trainer(Settings(fast_dev_run=1, checkpoint_dir=Path(where), device="cpu"), **parts)
    assert trainer.fit() == 0
    folder = Path(where).absolute()
    assert folder.with_name(f"{folder.name}.fast-dev-run").is_dir()
    first = model.weight.clone()
    assert trainer.fit() == 0, "it goes on from nothing, and so is not over yet"
    assert not torch.equal(model.weight, first)
    del trainer
    gc.collect()
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"], "nor snapshots in memory"
