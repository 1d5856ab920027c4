"""The trainer on real ranks. Killed and resumed equals undisturbed: every loss, every validation, the last byte."""

import json
import math
import os
import random
import time
from contextlib import suppress

import pytest
import torch
from holding import hold_saves
from ranks import Ranks, spawn_ranks
from tiny_training import (
    KILL,
    TERM,
    InShards,
    Noisy,
    Slow,
    Stream,
    Torn,
    history,
    hits,
    loss_of,
    make_model,
    run_tiny,
    settings_for,
)
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from tests.sizes import SEED
from trainer import wire
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import draft_name
from trainer.errors import BadSettings, NotFinite
from trainer.loop import Settings, Trainer, read_metrics
from trainer.loop.progress import Progress
from trainer.world import World

pytestmark = pytest.mark.nightly

STEPS = 54  # 9 epochs of 88 samples, 16 a step: 5 whole steps and a smaller one


def train(folder, size, settings=None, work=run_tiny):
    """Train once on `size` ranks, check that all return the same, and return it."""
    folder.mkdir(exist_ok=True)
    results = spawn_ranks(work, size, folder, settings)
    assert results == [results[0]] * size
    return results[0]


def train_on(folder, size, settings=None, disturb=(), work=run_tiny):
    """Start as often as it takes; return the last start's result and how the others ended."""
    folder.mkdir(exist_ok=True)
    ends = []
    for _ in range(8):
        outcomes = Ranks(work, size, folder, settings, disturb).outcomes()
        if all(kind == "returned" and what["code"] == 0 for kind, what in outcomes):
            return outcomes[0][1], ends
        ends.append([what["code"] if kind == "returned" else kind for kind, what in outcomes])
    pytest.fail(f"not done after {len(ends)} starts: {ends}")


def best(folder):
    """Steps of checkpoints that are kept as the best, verified, and what is noted with them."""
    found = [entry for entry in catalog.entries(folder / "checkpoints") if entry.kind == "best"]
    return [(entry.step, catalog.verify(entry).info["val_loss"]) for entry in found]


def assert_same(folder, done, other_folder, other):
    assert history(folder) == history(other_folder)
    assert best(folder) == best(other_folder)
    assert {**done, "code": 0} == {**other, "code": 0}
    assert len(done["fingerprint"]) == 64


@pytest.mark.daily
@pytest.mark.parametrize("size", [1, 2])
def test_it_learns(tmp_path, size):
    done = train(tmp_path, size)
    assert done["code"] == 0
    assert done["steps"] == STEPS
    assert done["epochs"] == 9
    lines = history(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in lines] == [step // 6 for step in range(STEPS)]
    validated = [line for line in lines if "val_accuracy" in line]
    assert [line["step"] for line in validated] == list(range(6, STEPS + 1, 6))
    assert validated[-1]["val_accuracy"] > 0.85
    assert validated[-1]["val_loss"] < 0.7 * validated[0]["val_loss"]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (1, {}),
        (2, {"validate_every": 5, "keep_best": True}),
        (2, {"strategy": "fsdp", "keep_best": True}),
        (2, {"strategy": "zero2", "accumulate": 1}),
        (2, {"strategy": "zero1", "workers": 1}),
        (
            3,
            {
                "validate_every": 7,
                "checkpoint_every": "7 steps",
                "keep_best": True,
                "monitor": "val_accuracy",
                "mode": "max",
            },
        ),
    ],
)
def test_stopped_and_killed_and_resumed_equals_undisturbed(tmp_path, size, settings):
    undisturbed = train(tmp_path / "undisturbed", size, settings)
    last = size - 1
    disturb = [
        {"number": TERM, "rank": last, "step": 8},
        {"number": KILL, "rank": 0, "step": 33},
        {"number": KILL, "rank": last, "step": 42},  # an epoch's edge
        {"number": KILL, "rank": 0, "micro": 7},  # of the start after that: in the middle of a step
        {"number": KILL, "rank": 0, "validation": 4},
    ]
    folder = tmp_path / "disturbed"
    done, ends = train_on(folder, size, settings, disturb)
    assert [75] * size in ends
    assert len(list(folder.glob("disturbed-*"))) == len(disturb)
    assert_same(tmp_path / "undisturbed", undisturbed, folder, done)
    lines = [line for line in history(folder) if "val_loss" in line]
    monitor, pick = settings.get("monitor", "val_loss"), max if settings.get("mode") == "max" else min
    first_best = pick(lines, key=lambda line: line[monitor])
    assert [step for step, _ in best(folder)] == ([first_best["step"]] if settings.get("keep_best") else [])


@pytest.mark.parametrize("size", [1, 2])
def test_killed_at_random_instants_equals_undisturbed(tmp_path, size):
    settings = {"checkpoint_every": "3 steps", "keep_best": True, "validate_every": 4}
    undisturbed = train(tmp_path / "undisturbed", size, settings)
    seed = SEED
    print(f"seed {seed}")
    dice = random.Random(seed)
    folder = tmp_path / "disturbed"
    folder.mkdir()
    kills = 0
    while True:
        ranks = Ranks(run_slowly, size, folder, settings)
        try:
            wait_for_lines(folder, dice.randint(4, 20), ranks.processes)
            time.sleep(dice.uniform(0, 0.03))  # anywhere in a step, a validation or a save
            with suppress(ProcessLookupError):  # it may just have ended
                ranks.kill(dice.randrange(size))
            (folder / "struck").touch()
            outcomes = ranks.outcomes()
        finally:
            ranks.end()
        if all(kind == "returned" and what["code"] == 0 for kind, what in outcomes):
            break
        kills += any(kind == "killed" for kind, _ in outcomes)
    assert kills
    assert_same(tmp_path / "undisturbed", undisturbed, folder, outcomes[0][1])


def wait_for_lines(folder, more, processes):
    """Wait until this many more lines of metrics are written, or a rank has ended."""
    path = folder / "metrics" / "metrics.jsonl"
    size = path.stat().st_size if path.exists() else 0
    until = time.monotonic() + 150
    while all(process.is_alive() for process in processes):
        assert time.monotonic() < until, "ranks that write nothing"
        if path.exists():
            with path.open("rb") as file:
                file.seek(size)
                if file.read().count(b"\n") >= more:
                    return
        time.sleep(0.005)


def run_slowly(folder, settings):
    hold_saves(40, (folder / "struck").exists)  # not to its end before a rank was killed
    return run_tiny(folder, settings, callbacks=[Slow()])


def train_on_stream(folder, settings, disturb=()):
    settings = dict(settings)
    data = Stream(settings.pop("shards_itself"))
    return run_tiny(folder, settings, disturb, data=data, validation=Stream(), schedule=falling)


@pytest.mark.parametrize("shards_itself", [False, True])
def test_a_stream_of_unknown_length_goes_on_where_it_was(tmp_path, shards_itself):
    settings = {
        "shards_itself": shards_itself,
        "max_epochs": 4,
        "accumulate": 1,  # a filler is a single sample, of which BatchNorm knows no variance
        "checkpoint_every": "3 steps",
        "keep_best": True,
    }
    undisturbed = train(tmp_path / "undisturbed", 2, settings, train_on_stream)
    assert (undisturbed["steps"], undisturbed["epochs"]) == (24, 4)
    disturb = [
        {"number": KILL, "rank": 0, "step": 8},
        {"number": KILL, "rank": 1, "validation": 1},  # the end of an epoch that was saved before it was known as such
        {"number": KILL, "rank": 1, "step": 23},
    ]
    done, ends = train_on(tmp_path / "disturbed", 2, settings, disturb, train_on_stream)
    assert len(ends) == 3
    assert_same(tmp_path / "undisturbed", undisturbed, tmp_path / "disturbed", done)
    lines = history(tmp_path / "disturbed")
    assert [line["step"] for line in lines if "val_loss" in line] == [6, 12, 18, 24]


def test_a_stream_that_shards_itself_begins_the_next_epoch_on_another_number_of_ranks(tmp_path):
    settings = {"shards_itself": True, "accumulate": 1, "checkpoint_every": "5 steps"}
    train(tmp_path, 2, settings | {"max_epochs": 2}, train_on_stream)
    done = train(tmp_path, 1, settings | {"max_epochs": 3}, train_on_stream)
    assert (done["steps"], done["epochs"]) == (18, 3)
    assert [line["epoch"] for line in history(tmp_path)] == [step // 6 for step in range(18)]


def train_on_shards(folder, settings, disturb=()):
    return run_tiny(folder, settings, disturb, data=InShards(), validation=InShards(), schedule=falling)


def test_a_stream_in_shards_goes_on_in_the_middle_of_an_epoch_on_another_number_of_ranks(tmp_path):
    train(tmp_path, 2, {"max_steps": 4, "accumulate": 1}, train_on_shards)
    done = train(tmp_path, 1, {"max_epochs": 2, "accumulate": 1}, train_on_shards)
    assert (done["steps"], done["epochs"]) == (12, 2)
    assert [line["epoch"] for line in history(tmp_path)] == [step // 6 for step in range(12)]


@pytest.mark.daily
def test_early_stopping_comes_at_the_same_step(tmp_path):
    settings = {"max_epochs": 60, "patience": 2, "min_delta": 0.02, "validate_every": 5, "checkpoint_every": "5 steps"}
    undisturbed = train(tmp_path / "undisturbed", 2, settings)
    assert undisturbed["steps"] < 300
    bad = undisturbed["steps"] - 3  # between the first bad validation and the second
    disturb = [{"number": KILL, "rank": 0, "step": bad}, {"number": KILL, "rank": 1, "step": undisturbed["steps"]}]
    done, _ = train_on(tmp_path / "disturbed", 2, settings, disturb)
    assert_same(tmp_path / "undisturbed", undisturbed, tmp_path / "disturbed", done)
    again = train(tmp_path / "disturbed", 2, settings)
    assert again == done, "it was over, and stays so"


def falling(optimizer, _total_steps):
    return torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.5)


def train_without_schedule(folder, settings, disturb=()):
    return run_tiny(folder, settings, disturb, schedule=None)


def train_a_second_a_step(folder, settings, disturb=()):
    """Train with the step number as the clock, so that each step takes exactly a second."""
    begin = Progress.__init__
    Progress.__init__ = lambda progress: begin(progress, clock=lambda: float(progress.step))
    return train_without_schedule(folder, settings, disturb)


def test_the_time_limit_counts_all_starts(tmp_path):
    settings = {"max_epochs": None, "max_time_s": 200.0, "checkpoint_every": "50 steps"}
    disturb = [{"number": TERM, "rank": 1, "step": 100}]
    done, ends = train_on(tmp_path, 2, settings, disturb, train_a_second_a_step)
    assert ends == [[75, 75]]
    assert 200 <= done["steps"] <= 232, "ranks vote at least every 32 steps"
    elapsed = [line["elapsed_s"] for line in read_metrics(tmp_path / "metrics")]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == done["steps"]
    assert "val_loss" in history(tmp_path)[-1], "the last step is validated"


def validation_of(folder, settings):
    trainer = Trainer(
        settings_for(folder, **settings),
        model=make_model,
        loss=loss_of,
        data=Noisy(),
        validation=Noisy(33, noise=0.0),
        metrics=hits,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    return trainer.validate()


@pytest.mark.parametrize("samples", [4, 33])
def test_validation_gives_the_same_numbers_on_any_number_of_ranks(tmp_path, samples):
    train(tmp_path, 2, {"max_epochs": 2})
    found = [
        train(tmp_path, size, {"validation_batch_size": samples, "strategy": strategy}, validation_of)
        for size, strategy in ((1, "ddp"), (2, "ddp"), (3, "ddp"), (3, "fsdp"), (2, "zero2"))
    ]
    assert found == [found[0]] * 5
    assert list(found[0]) == ["val_loss", "val_accuracy"]
    assert found[0]["val_accuracy"] * 33 == pytest.approx(round(found[0]["val_accuracy"] * 33))


def largest_batches(folder, settings):
    """Return the largest batch of this rank: {True: in training, False: in validation}."""
    seen = {True: 0, False: 0}

    def loss(model, batch):
        seen[model.training] = max(seen[model.training], len(batch[0]))
        return loss_of(model, batch)

    run_tiny(folder, settings, loss=loss)
    return seen


def test_no_rank_validates_more_at_once_than_it_trains_on(tmp_path):
    assert train(tmp_path, 2, {"max_epochs": 1}, largest_batches) == {True: 4, False: 4}


def test_validation_leaves_a_training_that_goes_on_alone(tmp_path):
    train(tmp_path, 2, {"max_epochs": 2})
    (tmp_path / "checkpoints" / draft_name(13, 0, "12ab")).mkdir()

    def there():
        return {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}

    before = there()
    values = train(tmp_path, 2, {"strategy": "fsdp"}, validation_of)
    assert there() == before, "a new claim would have ended it"
    assert values["val_loss"] == history(tmp_path)[-1]["val_loss"]


def test_validation_without_a_checkpoint_judges_the_model_as_it_is(tmp_path):
    assert train(tmp_path, 1, {}, validation_of)["val_loss"] > 0.5


def fit_and_validate(folder, strategy, model):
    """Train and validate as a script does; the model is made by the trainer, or given to it."""
    given = {"model": make_model() if model == "given" else make_model, "loss": loss_of, "data": Noisy()}
    trainer = Trainer(
        settings_for(folder, strategy=strategy, max_epochs=2),
        validation=Noisy(33, noise=0.0),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
        **given,
    )
    codes = [trainer.fit()]
    first = trainer.validate()
    codes.append(
        Trainer(settings_for(folder, max_epochs=3), optimizer=torch.optim.AdamW, **{**given, "model": make_model}).fit()
    )
    return codes, first, trainer.validate()


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("fsdp", 2), ("ddp", 1)])
@pytest.mark.parametrize("model", ["given", "made"])
def test_one_script_fits_and_validates_and_fits_again(tmp_path, strategy, size, model):
    results = spawn_ranks(fit_and_validate, size, tmp_path, strategy, model)
    assert results == [results[0]] * size
    codes, first, second = results[0]
    assert codes == [0, 0]
    told = {line["step"]: line["val_loss"] for line in history(tmp_path) if "val_loss" in line}
    assert first["val_loss"] == told[12]
    assert second["val_loss"] != first["val_loss"], "of the newest checkpoint, which another trainer has made since"


def train_one_after_another(folder, settings):
    """Train several times, as a script does whose Trainers replace each other under one name."""
    codes = []
    for seed in (1, 2, 3):
        trainer = Trainer(
            settings_for(folder / str(seed), seed=seed, **settings),
            model=make_model,
            loss=loss_of,
            data=Noisy(),
            optimizer=torch.optim.AdamW,
        )
        codes.append(trainer.fit())
    return codes


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_script_trains_one_after_another_under_the_same_name(tmp_path, strategy):
    assert train(tmp_path, 2, {"strategy": strategy, "max_steps": 1}, train_one_after_another) == [0, 0, 0]


def run_torn(folder, settings, torn):
    return run_tiny(folder, settings, data=Torn(torn), model=lambda: nn.Linear(4, 2), schedule=None)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_steps_that_are_not_finite_are_left_out_and_counted(tmp_path, strategy):
    settings = {"strategy": strategy, "shuffle": False, "max_epochs": 2, "keep_best": True}
    results = spawn_ranks(run_torn, 2, tmp_path, settings, {17, 50})  # in the second and in the fourth step of an epoch
    assert [done["code"] for done in results] == [0, 0]
    lines = {line["step"]: line for line in history(tmp_path)}
    assert [step for step, line in lines.items() if math.isnan(line["loss"])] == [2, 4, 8, 10]
    assert {step: line.get("skipped", 0) for step, line in lines.items()} == {
        step: sum(other <= step for other in (2, 4, 8, 10)) for step in range(1, 13)
    }
    assert all(catalog.read_manifest(entry).finite for entry in catalog.entries(tmp_path / "checkpoints"))
    assert lines[12]["val_loss"] < lines[6]["val_loss"], "and it learns"


def test_a_count_of_skipped_steps_outlives_a_restart(tmp_path):
    settings = {"shuffle": False, "max_epochs": 2}
    spawn_ranks(run_torn, 1, tmp_path, {**settings, "max_epochs": 1}, {17})
    spawn_ranks(run_torn, 1, tmp_path, settings, {17})
    assert history(tmp_path)[-1]["skipped"] == 2


def end_torn(folder, settings):
    try:
        run_torn(folder, settings, set(range(32, 88)))
    except NotFinite as error:
        return str(error)
    return None


@pytest.mark.parametrize("log_every", [1, 100])
def test_too_many_of_them_in_a_row_end_it_with_their_steps(tmp_path, log_every):
    settings = {
        "shuffle": False,
        "max_epochs": 1,
        "skip_limit": 3,
        "checkpoint_every": "1 steps",
        "log_every": log_every,
    }
    told = spawn_ranks(end_torn, 2, tmp_path, settings)
    assert told[0] == told[1]
    assert told[0].startswith(f"steps 3 to {5 if log_every == 1 else 6}: the loss or a gradient was NaN or infinite")
    assert "look at the data of step 3" in told[0]
    assert all(catalog.read_manifest(entry).finite for entry in catalog.entries(tmp_path / "checkpoints"))


def train_heard(folder, settings):
    """Every word of progress gets through, however soon it comes after the last one."""
    os.environ["LAUNCH_PROGRESS"], wire._REPORT_EVERY_S = str(folder / "progress"), 0.0
    return run_tiny(folder, settings, schedule=None, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_launch_hears_of_each_part_of_what_is_no_step(tmp_path):
    os.mkfifo(tmp_path / "progress")
    reader = os.open(tmp_path / "progress", os.O_RDWR | os.O_NONBLOCK)
    train(tmp_path, 1, {"max_steps": 1, "validation_batch_size": 4, "lr_find": True}, train_heard)
    said = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    until = next(place for place, words in enumerate(said) if "val_loss" in words)
    validation = [words for words in said[:until] if words == {"step": 1, "total_steps": 1}]
    assert len(validation) == 9, "33 samples, 4 a batch"
    assert said[:5] == [{"step": 0, "total_steps": 1}] * 5, "the finder of the learning rate"
    last = max(said.index({"checkpoint": 1}), until)
    assert {"step": 1, "total_steps": 1} in said[last + 1 :], "the fingerprint"


def train_sgd(folder, settings):
    lr = settings.pop("lr")
    schedule = settings.pop("schedule", None)
    return run_tiny(
        folder, settings, schedule=schedule, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr)
    )


def test_the_learning_rate_finder_leaves_nothing_but_the_rate(tmp_path):
    found = train(tmp_path / "found", 2, {"lr": 0.5, "lr_find": True, "workers": 1}, train_sgd)
    rate = read_metrics(tmp_path / "found" / "metrics")[0]["lr"]
    assert rate != 0.5
    given = train(tmp_path / "given", 2, {"lr": rate}, train_sgd)
    assert_same(tmp_path / "found", found, tmp_path / "given", given)


def test_a_rate_that_was_found_outlives_a_restart(tmp_path):
    settings = {"lr": 0.5, "lr_find": True, "schedule": falling}
    undisturbed = train(tmp_path / "undisturbed", 1, dict(settings), train_sgd)
    folder = tmp_path / "disturbed"
    assert train(folder, 1, settings | {"max_epochs": 3}, train_sgd)["steps"] == 18
    done = train(folder, 1, dict(settings), train_sgd)
    assert_same(tmp_path / "undisturbed", undisturbed, folder, done)


def test_traces_and_tensorboard_are_there_when_they_are_asked_for(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, 2, {"profile": "3..4", "tensorboard": True, "max_epochs": 1})
    for rank in range(2):
        trace = json.loads((tmp_path / "metrics" / "profile" / f"trace-3-4-rank-{rank:05d}.json").read_text())
        steps = [event for event in trace["traceEvents"] if event.get("name", "").startswith("Optimizer.step#")]
        assert len(steps) >= 2
    events = EventAccumulator(str(tmp_path / "metrics" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert len(events.Scalars("val_accuracy")) == 1


def test_of_traced_steps_the_metrics_say_where_their_time_went(tmp_path, capfd):
    train(tmp_path, 2, {"profile": "3..5", "max_steps": 6, "validate_every": "never"})
    lines = {line["step"]: line for line in read_metrics(tmp_path / "metrics")}
    assert [step for step, line in lines.items() if "traced" in line] == [5]
    found = lines[5]["traced"]
    kinds = ("data", "compute", "optimizer", "communication", "straggler", "other")
    assert sum(found[name] for name in kinds) == pytest.approx(found["step"])
    assert all(found[name] > 0 for name in ("data", "compute", "optimizer", "communication")), found
    assert found["messages"] >= 1 and found["bytes"] >= 146 * 4, "gradients of each parameter"
    assert " forward and backward, " in capfd.readouterr().out
    assert not any("val_loss" in line for line in lines.values()), "never"


def test_the_log_tells_what_runs_and_how_it_goes(tmp_path, capfd):
    done = train(tmp_path, 2, {"max_steps": 20, "log_every": 10})
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "ddp, 2 x cpu, fp32, 146 parameters, clipped at 1, step 0 of 20"
    logged = [line for line in said if "samples/s" in line]
    assert [line.split("  ")[0] for line in logged] == ["step 10/20", "step 20/20"]
    assert said[-1] == f"fingerprint sha256={done['fingerprint']}"


def loss_with_more(model, batch):
    x, y = batch
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), {"certainty": scores.softmax(1).amax(1).mean()}


def train_with_more(folder, settings):
    return run_tiny(folder, settings, loss=loss_with_more)


def test_a_line_has_the_mean_of_all_that_the_loss_function_says(tmp_path):
    train(tmp_path, 3, {"max_epochs": 1}, train_with_more)
    lines = read_metrics(tmp_path / "metrics")
    for line in lines:
        assert 0.5 <= line["certainty"] <= 1
        assert list(line["seconds"])[:5] == ["data", "copy", "forward", "backward", "optimizer"]
        assert line["norm"] > 0
        assert line["samples_per_s"] > 0
    assert 0.5 <= lines[-1]["val_certainty"] <= 1


def train_alone(folder, settings):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    return run_tiny(folder, settings)


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_it_runs_under_plain_python(tmp_path, strategy):
    assert train(tmp_path, 1, {"strategy": strategy, "max_steps": 3}, train_alone)["steps"] == 3


@pytest.mark.daily
@pytest.mark.parametrize("name", ["data", "validation"])
def test_a_loader_is_no_data_set(name):
    given = {"data": Noisy(), "validation": Noisy()} | {name: DataLoader(Noisy(), batch_size=4)}
    with pytest.raises(
        BadSettings, match=f"{name}: expected a data set, got a DataLoader(.*\\n)+hint: {name}=loader.dataset"
    ):
        Trainer(Settings(max_steps=1), model=make_model, loss=loss_of, optimizer=torch.optim.AdamW, **given)


def test_a_schedule_by_plateaus_needs_something_to_go_by(tmp_path):
    trainer = Trainer(
        settings_for(tmp_path), model=make_model, loss=loss_of, data=Noisy(), optimizer=torch.optim.AdamW,
        schedule=lambda optimizer, _: ReduceLROnPlateau(optimizer),
    )  # fmt: skip
    with pytest.raises(BadSettings, match="schedule: ReduceLROnPlateau expected validation data, got none"):
        trainer.fit(World(0, 1, 0, 1, torch.device("cpu")))


@pytest.mark.daily
def test_early_stopping_needs_something_to_go_by():
    parts = {"model": nn.Linear(1, 1), "loss": loss_of, "data": Noisy(), "optimizer": torch.optim.SGD}
    for setting in ({"patience": 1}, {"keep_best": True}):
        with pytest.raises(BadSettings, match="expected validation data, got none"):
            Trainer(Settings(max_steps=1, **setting), **parts)
