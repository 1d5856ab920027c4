"""Killed and resumed equals undisturbed; who may write; how ranks stop together."""

import contextlib
import enum
import errno
import io
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from holding import hold_saves
from ranks import Ranks, spawn_ranks
from small_trainings import (
    Recipe,
    Training,
    assert_undisturbed,
    await_steps,
    heard,
    logged,
    start_watched,
    train,
    train_killed,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.sizes import SEED, one_in
from trainer.checkpoint import Checkpointer
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.fence import read_token
from trainer.checkpoint_files.layout import folder_name
from trainer.errors import EXIT_FENCED, EXIT_RESUME_ME, BadSettings, Fenced, SaveFailed, TrainerError
from trainer.world import World, join

pytestmark = pytest.mark.nightly

SCRIPT = Path(__file__).parent / "scripts" / "own_loop.py"

WORLDS = [
    (Recipe("none"), 1),
    (Recipe("ddp"), 2),
    (Recipe("ddp"), 3),
    (Recipe("zero1"), 2),
    (Recipe("zero1"), 3),
    (Recipe("fsdp"), 2),
    (Recipe("fsdp"), 3),
    (Recipe("zero2"), 2),
    (Recipe("hsdp"), 4),
]
FEATURES = [
    (Recipe("none", optimizer="plain-sgd", scheduler="lambda", scaler=True, ema=True), 1),
    (Recipe("none", optimizer="rows", scheduler="multistep", asynchronous=False), 1),
    (Recipe("ddp", optimizer="sgd", scheduler="lambda", scaler=True, ema=True), 2),
    (Recipe("ddp", optimizer="adafactor", scheduler="multistep", broadcast_buffers=False), 2),
    (Recipe("ddp", unused=False, asynchronous=False), 3),  # DDP lays out its buckets anew
    (Recipe("zero1", optimizer="rows", scheduler="lambda", scaler=True), 2),
    (Recipe("fsdp", optimizer="sgd", scheduler="multistep", ema=True), 2),
]


def name_of(case):
    """Return a test id from the fields of a recipe that are not the default."""
    if not isinstance(case, Recipe):
        return str(case)
    unusual = [f"{name}={value}" for name, value in vars(case).items() if value != getattr(Recipe, name)]
    return "-".join([case.strategy, *[word for word in unusual if not word.startswith("strategy")]])


@pytest.mark.daily
@pytest.mark.parametrize(("recipe", "size"), one_in(8, WORLDS + FEATURES, nightly=2), ids=name_of)
def test_killed_and_resumed_equals_undisturbed(tmp_path, recipe, size):
    undisturbed = Ranks(train, size, tmp_path / "calm", recipe).results()
    print(f"seed {SEED}")
    disturbed = train_killed(tmp_path / "killed", recipe, size, tmp_path, SEED, kills=2)
    assert_undisturbed(disturbed, undisturbed, tmp_path)


@pytest.mark.parametrize(("recipe", "size", "kills"), [(Recipe("none"), 1, 12), (Recipe("ddp"), 2, 6)], ids=name_of)
def test_killed_in_mid_save_equals_undisturbed(tmp_path, recipe, size, kills):
    recipe = Recipe(recipe.strategy, every="1 step", steps=60)
    undisturbed = Ranks(train, size, tmp_path / "calm", recipe).results()
    print(f"seed {SEED}")
    disturbed = train_killed(tmp_path / "killed", recipe, size, tmp_path, SEED, kills=kills)
    assert_undisturbed(disturbed, undisturbed, tmp_path)
    assert disturbed.in_mid_save > 0


def train_rivals(folder, steps, progress_fd=None):
    """Train two models with their own optimizers and schedulers by turns."""
    world = join()
    torch.manual_seed(3)
    artist, critic = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5)), nn.Linear(5, 1)
    models = {"artist": DistributedDataParallel(artist), "critic": DistributedDataParallel(critic)}
    optimizers = {
        "artist": torch.optim.Adam(artist.parameters(), lr=0.02),
        "critic": torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.5),
    }
    schedulers = {key: torch.optim.lr_scheduler.StepLR(value, 4) for key, value in optimizers.items()}
    torch.manual_seed(world.rank)
    checkpointer = Checkpointer(
        folder, model=models, optimizer=optimizers, state=schedulers, world=world, every="2 steps", keep=1
    )
    step, losses = checkpointer.load(), []
    if progress_fd is not None:
        hold_saves(8)  # it is to be killed before the end
    while step < steps:
        real, noise = torch.randn(4, 5), torch.randn(4, 3)
        against = models["critic"](models["artist"](noise).detach()).mean() - models["critic"](real).mean()
        against.backward()
        optimizers["critic"].step()
        optimizers["critic"].zero_grad()
        loss = -critic(models["artist"](noise)).mean()
        loss.backward()
        optimizers["artist"].step()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        for scheduler in schedulers.values():
            scheduler.step()
        step += 1
        losses.append(loss.item())
        checkpointer.after_step(step)
        if progress_fd is not None and world.is_first:
            os.write(progress_fd, b".")
    return losses, checkpointer.finish(step)


def test_several_models_and_optimizers(tmp_path):
    undisturbed = spawn_ranks(train_rivals, 2, tmp_path / "calm", 12)
    progress, theirs = os.pipe()
    ranks = Ranks(train_rivals, 2, tmp_path / "killed", 12, theirs)
    os.close(theirs)
    await_steps(progress, 7)
    ranks.kill()
    ranks.outcomes()
    os.close(progress)
    resumed = spawn_ranks(train_rivals, 2, tmp_path / "killed", 12)
    for calm, killed in zip(undisturbed, resumed, strict=True):
        assert 0 < len(killed[0]) < 12 and calm[0][-len(killed[0]) :] == killed[0]
        assert calm[1] == killed[1]
    assert len(catalog.steps(tmp_path / "killed")) == 1


# -- stopping


@pytest.mark.daily
@pytest.mark.parametrize(
    ("rank", "sig"), [(0, signal.SIGTERM), (1, signal.SIGUSR1), (2, signal.SIGTERM)], ids=["first", "usr1", "last"]
)
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path, rank, sig):
    recipe = Recipe(steps=20_000, every="")
    ranks, progress = start_watched(tmp_path / "it", recipe, 3, tmp_path)
    await_steps(progress, 5)
    ranks.kill(rank, sig)
    ended = ranks.results()
    os.close(progress)
    assert len({one.step for one in ended}) == 1 and ended[0].fingerprint is None
    assert catalog.steps(tmp_path / "it") == [ended[0].step]


@pytest.mark.daily
def test_stopped_and_resumed_equals_undisturbed(tmp_path):
    recipe = Recipe("ddp", every="")
    undisturbed = Ranks(train, 2, tmp_path / "calm", recipe).results()
    stopped = Ranks(train, 2, tmp_path / "it", recipe, tmp_path, None, 7).results()
    resumed = Ranks(train, 2, tmp_path / "it", recipe, tmp_path).results()
    assert stopped[0].fingerprint is None and resumed[0].start == stopped[0].step < recipe.steps
    for rank, calm in enumerate(undisturbed):
        assert calm.losses == stopped[rank].losses | resumed[rank].losses
        assert calm.losses == {step: loss for step, (loss,) in logged(tmp_path, rank).items()}
        assert calm.fingerprint == resumed[rank].fingerprint


# -- who may write


def train_with_a_pause(folder, recipe, progress_fd, go_fd, environ=None):
    """Says when the first checkpoint is there, and goes on when it is told to."""
    os.environ.update(environ or {})
    training = Training.begin(recipe)
    checkpointer = training.checkpointer(folder)
    first = checkpointer.load() + 1
    for step in range(first, recipe.steps + 1):
        training.step(step)
        checkpointer.after_step(step)
        if step == 3:
            checkpointer.wait()
            os.write(progress_fd, b".")
            os.read(go_fd, 1)
    return checkpointer.finish(recipe.steps)


def overtaken(folder, size, overtake, environ=None):
    """Return the results of ranks to which something happens while they train."""
    progress, said = os.pipe()
    waiting, go = os.pipe()
    ranks = Ranks(train_with_a_pause, size, folder, Recipe(every="1 step"), said, waiting, environ)
    await_steps(progress, size)
    kept = catalog.steps(folder)
    overtake()
    os.write(go, b"." * size)
    outcomes = ranks.outcomes()
    for fd in (progress, said, waiting, go):
        os.close(fd)
    return outcomes, kept


@pytest.mark.daily
def test_the_older_of_two_starts_is_refused(tmp_path):
    outcomes, kept = overtaken(tmp_path, 2, lambda: spawn_ranks(begin_only, 1, tmp_path))
    assert outcomes == [("exited", EXIT_FENCED)] * 2
    assert catalog.steps(tmp_path) == kept


def begin_only(folder, environ=None):
    os.environ.update(environ or {})
    training = Training.begin(Recipe("none" if int(os.environ["WORLD_SIZE"]) == 1 else "ddp"))
    return training.checkpointer(folder).load()


@pytest.mark.daily
def test_an_older_attempt_is_refused(tmp_path):
    run = {"LAUNCH_RUN_DIR": str(tmp_path)}
    older, newer = run | {"LAUNCH_ATTEMPT": "1"}, run | {"LAUNCH_ATTEMPT": "2"}
    folder = tmp_path / "checkpoints"
    outcomes, kept = overtaken(folder, 2, lambda: spawn_ranks(begin_only, 1, folder, newer), older)
    assert outcomes == [("exited", EXIT_FENCED)] * 2
    assert catalog.steps(folder) == kept
    # And one that starts too late does not even begin.
    assert Ranks(begin_only, 2, folder, older).outcomes() == [("exited", EXIT_FENCED)] * 2
    claim = read_token(folder)
    assert claim is not None and claim.attempt == 2


def test_an_older_generation_is_refused(tmp_path):
    run = {"LAUNCH_RUN_DIR": str(tmp_path), "LAUNCH_ATTEMPT": "1"}
    folder = tmp_path / "checkpoints"
    spawn_ranks(begin_only, 1, folder, run | {"LAUNCH_GENERATION": "4"})
    assert Ranks(begin_only, 1, folder, run | {"LAUNCH_GENERATION": "3"}).outcomes() == [("exited", EXIT_FENCED)]


def test_the_fence_of_the_run_is_obeyed(tmp_path):
    run = {"LAUNCH_RUN_DIR": str(tmp_path), "LAUNCH_ATTEMPT": "1"}
    outcomes, kept = overtaken(tmp_path / "checkpoints", 2, lambda: (tmp_path / "FENCE").write_text("2\n"), run)
    assert outcomes == [("exited", EXIT_FENCED)] * 2
    assert catalog.steps(tmp_path / "checkpoints") == kept


def stop_when_fenced(folder):
    training = Training.begin(Recipe(every=""))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    training.step(1)
    if training.world.is_first:
        newer = Checkpointer(folder, model=nn.Linear(1, 1), world=World(0, 1, 0, 1, torch.device("cpu")))
        newer.load()
        newer.close()
    checkpointer.ask_to_stop()
    checkpointer.after_step(1)
    return "went on"


def test_one_that_is_asked_to_stop_and_fenced_says_fenced(tmp_path):
    assert Ranks(stop_when_fenced, 2, tmp_path).outcomes() == [("exited", EXIT_FENCED)] * 2


# -- saves that fail


def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def train_on_a_bad_disk(folder, bad_rank, bad, steps):
    """Train while no file on `bad_rank` (None: on all) can get larger than a page after each step in `bad`."""
    said = heard()
    training = Training.begin(Recipe(every="1 step", steps=100))
    checkpointer = training.checkpointer(folder, keep=2)
    checkpointer.load()
    failures = []
    for step in range(1, steps + 1):
        training.step(step)
        on = step in bad and bad_rank in (None, training.world.rank)
        limit_files(4096 if on else resource.RLIM_INFINITY)
        try:
            checkpointer.after_step(step)
        except SaveFailed as error:
            return failures, said, step, str(error)
        outcome = checkpointer.wait()
        failures.append((outcome.step, outcome.path is None))
    return failures, said, checkpointer.finish(steps), ""


@pytest.mark.daily
@pytest.mark.parametrize("bad_rank", [None, 0, 1])
def test_training_goes_on_when_a_save_fails(tmp_path, bad_rank):
    results = spawn_ranks(train_on_a_bad_disk, 2, tmp_path, bad_rank, (3, 4, 6, 7), 9)
    for failures, _, mark, _ in results:
        assert failures == [(step, step in (3, 4, 6, 7)) for step in range(1, 10)]
        assert mark == results[0][2] and len(mark) == 64
    warned = [text for text in results[0][1] if "was not written" in text]
    assert len(warned) == 4 and f"rank {bad_rank or 0}" in warned[0] and "File too large" in warned[0]
    assert catalog.steps(tmp_path) == [8, 9]
    assert not [name for name in os.listdir(tmp_path) if name.startswith((".tmp", ".trash"))]


@pytest.mark.daily
def test_three_failures_in_a_row_end_the_run_on_all_ranks(tmp_path):
    results = spawn_ranks(train_on_a_bad_disk, 3, tmp_path, 2, range(3, 100), 90)
    assert len({step for _, _, step, _ in results}) == 1
    for failures, _, _, message in results:
        assert [step for step, failed in failures if failed][:3] == [3, 4, 5]
        assert "3 saves in a row have failed" in message and "File too large" in message
    assert catalog.steps(tmp_path) == [1, 2]


def finish_on_a_bad_disk(folder):
    training = Training.begin(Recipe(every=""))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    training.step(1)
    if training.world.rank == 1:
        limit_files(4096)
    try:
        checkpointer.finish(1)
    except SaveFailed as error:
        return error.failed_rank
    return "finished"


def test_an_end_that_cannot_be_saved_is_no_success_and_all_ranks_name_the_one_that_failed(tmp_path):
    assert spawn_ranks(finish_on_a_bad_disk, 2, tmp_path) == [1] * 2


def stop_on_a_bad_disk(folder):
    said = heard()
    training = Training.begin(Recipe(every=""))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    limit_files(4096)
    checkpointer.ask_to_stop()
    training.step(1)
    return checkpointer.after_step(1), said


def test_a_stop_that_cannot_be_saved_says_so(tmp_path):
    for leave, said in spawn_ranks(stop_on_a_bad_disk, 2, tmp_path):
        assert leave and "could not be saved" in said[-1]
    assert catalog.steps(tmp_path) == []


def train_with_odd_words(folder):
    """Train while one rank has a value that a manifest cannot hold."""
    training = Training.begin(Recipe(every=""))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    training.step(1)
    checkpointer.save(1, {"loss": torch.ones(1)} if training.world.is_first else None)
    return checkpointer.wait()


def test_words_that_cannot_be_kept_fail_the_save_on_all_ranks(tmp_path):
    for outcome in spawn_ranks(train_with_odd_words, 2, tmp_path):
        assert outcome.path is None and "Tensor" in outcome.problem


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of its own, with no room for two checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def train_on_a_full_disk(folder):
    training = Training.begin(Recipe(every="1 step", steps=100))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    for step in range(1, 100):
        training.step(step)
        try:
            checkpointer.after_step(step)
        except SaveFailed as error:
            return step, str(error)
        checkpointer.wait()
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_a_full_disk(tiny_disk):
    results = spawn_ranks(train_on_a_full_disk, 2, tiny_disk / "checkpoints")
    assert results[0] is not None and results[0] == results[1]
    assert "No space left on device" in results[0][1]
    entries = catalog.entries(tiny_disk / "checkpoints")
    assert entries
    for entry in entries:
        catalog.verify(entry)


# -- alone, and in somebody else's hands


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A training in this process."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("LAUNCH_") or name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name)
    made = []

    def make(folder="checkpoints", **options):
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        made.append(Checkpointer(folder, model=model, optimizer=optimizer, **options))
        return made[-1], model, optimizer

    yield make
    for checkpointer in reversed(made):
        checkpointer.close()


def one_step(model, optimizer):
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_load_comes_first(alone):
    checkpointer, *_ = alone()
    with pytest.raises(RuntimeError, match=r"load\(\) comes first"):
        checkpointer.save(1)


class KillPoints:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"phase": [self.value]}

    def load_state_dict(self, state):
        [self.value] = state["phase"]


class Phase(enum.Enum):
    WARM = 1


@pytest.mark.parametrize("every", ["", "1000 steps"])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_cannot_be_kept_is_told_at_the_first_step_with_its_place(alone, every, asynchronous):
    checkpointer, model, optimizer = alone(
        state={"mine": KillPoints(Phase.WARM)}, every=every, asynchronous=asynchronous
    )
    checkpointer.load()
    one_step(model, optimizer)
    with pytest.raises(TrainerError, match=r"mine/phase/0: .*Phase cannot be saved\nhint: .*of an Enum keep its name"):
        checkpointer.after_step(1)


@pytest.mark.daily
def test_keeps_the_newest_and_the_best(alone, tmp_path):
    checkpointer, model, optimizer = alone(keep=2)
    assert checkpointer.load() == 0
    for step in range(1, 7):
        one_step(model, optimizer)
        checkpointer.save(step, {"accuracy": step / 10}, best=step in (2, 4))
    checkpointer.save(6, best=False)
    outcome = checkpointer.wait()
    assert outcome is not None and outcome.step == 6
    entries = catalog.entries(tmp_path / "checkpoints")
    assert [(entry.kind, entry.step) for entry in entries] == [("step", 5), ("step", 6), ("best", 4)]
    assert catalog.verify(entries[-1]).info == {"accuracy": 0.4}


def spoil(model, value=float("nan")):
    with torch.no_grad():
        model.weight[0, 1] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_push_no_good_checkpoint_out(alone, tmp_path, caplog, value):
    checkpointer, model, optimizer = alone(keep=2)
    checkpointer.load()
    for step in range(1, 8):
        one_step(model, optimizer)
        if step == 4:
            spoil(model, value)
        checkpointer.save(step, wait=True)
    assert catalog.steps(tmp_path / "checkpoints") == [2, 3, 6, 7]
    assert [catalog.read_manifest(one).finite for one in catalog.entries(tmp_path / "checkpoints")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert "the weights of step 4 are not finite" in caplog.text
    checkpointer.close()

    again, model, optimizer = alone(keep=2)
    assert again.load() == 3
    assert model.weight.isfinite().all()
    assert len(catalog.set_aside(tmp_path / "checkpoints")) == 2
    for step in (4, 5, 6):
        one_step(model, optimizer)
        again.save(step, wait=True)
    assert catalog.steps(tmp_path / "checkpoints") == [5, 6]


def test_where_no_weights_are_finite_the_newest_ones_are_all_there_is(alone, tmp_path):
    checkpointer, model, _ = alone(keep=2)
    checkpointer.load()
    spoil(model)
    for step in (1, 2, 3):
        checkpointer.save(step, wait=True)
    checkpointer.close()
    again, model, _ = alone(keep=2)
    assert again.load() == 3
    assert catalog.steps(tmp_path / "checkpoints") == [2, 3]


def test_what_is_not_trained_may_be_anything(alone, tmp_path):
    checkpointer, model, _ = alone()
    model.bias.requires_grad_(False).fill_(float("-inf"))  # a mask
    checkpointer.load()
    checkpointer.save(1, wait=True)
    [entry] = catalog.entries(tmp_path / "checkpoints")
    assert catalog.read_manifest(entry).finite


def test_the_best_one_may_be_one_that_is_saved_already(alone, tmp_path):
    checkpointer, model, optimizer = alone()
    checkpointer.load()
    one_step(model, optimizer)
    checkpointer.save(1)
    checkpointer.save(1, best=True, wait=True)
    assert [entry.kind for entry in catalog.entries(tmp_path / "checkpoints")] == ["step", "best"]


def test_the_clock_decides_where_it_is_asked_to(alone, tmp_path):
    clock = [0.0]
    checkpointer, model, optimizer = alone(every="10 s", now=lambda: clock[0])
    checkpointer.load()
    for step in range(1, 31):
        clock[0] += 1
        one_step(model, optimizer)
        checkpointer.after_step(step)
    checkpointer.wait()
    assert catalog.steps(tmp_path / "checkpoints") == [10, 20, 30]


def test_what_load_says(alone):
    checkpointer, model, optimizer = alone()
    checkpointer.load()
    one_step(model, optimizer)
    checkpointer.save(1, {"epoch": 3}, wait=True)
    again, other, _ = alone()
    nn.init.zeros_(other.weight)
    assert again.load() == 1
    assert again.loaded is not None and dict(again.loaded.info) == {"epoch": 3}
    assert again.loaded.world_size == 1 and not again.loaded.from_memory
    assert torch.equal(other.weight, model.weight)


def test_as_a_context_it_waits_for_the_last_save(alone, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    checkpointer, model, optimizer = alone()
    assert signal.getsignal(signal.SIGTERM) != before
    with checkpointer:
        checkpointer.load()
        one_step(model, optimizer)
        checkpointer.save(1)
    assert catalog.steps(tmp_path / "checkpoints") == [1]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_folder_that_cannot_be_one(alone, tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    checkpointer, *_ = alone()
    with pytest.raises(TrainerError, match="expected a folder for checkpoints"):
        checkpointer.load()


def test_settings_that_cannot_work(alone):
    with pytest.raises(BadSettings, match="keep: expected at least 1"):
        alone(keep=0)
    with pytest.raises(BadSettings, match="expected something like '500 steps'"):
        alone(every="often")


def test_an_optimizer_with_a_state_of_its_own_is_told_of(alone, caplog):
    class Own(torch.optim.SGD):
        def state_dict(self):
            return super().state_dict() | {"more": 1}

    model = nn.Linear(1, 1)
    Checkpointer("x", model=model, optimizer=Own(model.parameters(), lr=1.0)).close()
    assert "Own has a state_dict() of its own" in caplog.text


def own_loop(*arguments):
    """The script in this process, which has imported torch already."""
    sys.argv[1:] = map(str, arguments)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return said.getvalue()


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_in_a_loop_of_somebody_elses_style(tmp_path):
    undisturbed = spawn_ranks(own_loop, 2, tmp_path / "calm")
    stopped = Ranks(own_loop, 2, tmp_path / "it", 7).outcomes()
    assert stopped == [("exited", EXIT_RESUME_ME)] * 2
    root = Path(__file__).parents[3]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    resumed = subprocess.run(
        [*TORCHRUN, SCRIPT, tmp_path / "it"], capture_output=True, text=True, timeout=250, env=environ
    )
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(resumed.stdout.splitlines(keepends=True)) == sorted(undisturbed)


def follow_the_readme(folder):
    text = (Path(__file__).parents[3] / "trainer" / "checkpoint" / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return said.getvalue()


def test_what_the_readme_says_works(tmp_path):
    first, again = (spawn_ranks(follow_the_readme, 1, tmp_path)[0] for _ in range(2))
    assert first == again and len(first.strip()) == 64
    assert catalog.steps(tmp_path / "checkpoints") == [60, 80, 100]


@pytest.mark.parametrize("kept", [True, False])
def test_who_goes_on_takes_the_folder_over_after_the_next_step_or_to_save(tmp_path, kept):
    """All ranks wait for that step: what the next save needs is made after it."""
    model = nn.Linear(2, 1)
    before = Checkpointer(tmp_path, model=model, every="10 steps")
    before.load()
    if kept:
        before.save(4, wait=True)
    claimed = read_token(tmp_path)
    there = [4] if kept else []
    with Checkpointer(tmp_path, model=model, every="2 steps") as calm:
        calm.continue_from(5)
        assert calm.wait() is None
        assert not calm.after_step(5)
        assert read_token(tmp_path) == claimed
        assert not calm.after_step(6)
        assert read_token(tmp_path) != claimed
        calm.wait()
        assert catalog.steps(tmp_path) == [*there, 6]
    claimed = read_token(tmp_path)
    with Checkpointer(tmp_path, model=model, every="2 steps") as due:
        due.continue_from(8)
        assert not due.after_step(8)
        assert read_token(tmp_path) != claimed
        due.wait()
        assert catalog.steps(tmp_path) == [*there, 6, 8]
    written = (tmp_path / folder_name(8)).stat().st_ctime_ns
    with Checkpointer(tmp_path, model=model, every="2 steps") as saved:
        saved.continue_from(8)
        assert not saved.after_step(8)
        assert saved.wait() is None, "it is there already"
    assert (tmp_path / folder_name(8)).stat().st_ctime_ns == written


@pytest.mark.parametrize("knows", [True, False])
def test_what_was_verified_before_ranks_met_again_counts_among_those_that_are_kept(tmp_path, knows):
    model = nn.Linear(2, 1)
    before = Checkpointer(tmp_path, model=model, every="10 steps", keep=3)
    before.load()
    for step in (1, 2, 3):
        before.save(step, wait=True)
    assert before.verified == {1: True, 2: True, 3: True}
    with Checkpointer(tmp_path, model=model, every="10 steps", keep=3) as after:
        after.continue_from(4)
        if knows:
            after.add_verified(before.verified)
        after.save(5, wait=True)
        assert after.verified.keys() == ({1, 2, 3, 5} if knows else {5})
        assert catalog.steps(tmp_path) == ([2, 3, 5] if knows else [1, 2, 3, 5])


def test_a_folder_that_cannot_be_taken_over_any_more_is_no_error_of_the_users(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path, model=nn.Linear(2, 1), every="10 steps")
    checkpointer.continue_from(5)
    checkpointer.after_step(5)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(commit, "take_over", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(SaveFailed, match="No space left on device"):
        checkpointer.after_step(6)


def test_who_trains_once_more_takes_back_that_it_is_done(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "wire")
    reader = os.open(tmp_path / "wire", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("LAUNCH_PROGRESS", str(tmp_path / "wire"))
    for part in ("first", "second"):
        checkpointer = Checkpointer(tmp_path / part, model=nn.Linear(2, 1), every="10 steps")
        checkpointer.load()
        checkpointer.finish(1)
    said = [word["done"] for word in map(json.loads, os.read(reader, 1 << 16).splitlines()) if "done" in word]
    os.close(reader)
    assert said == [True, False, True]


def test_a_signal_is_told_so_that_exit_code_75_is_no_error_of_the_script(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "wire")
    reader = os.open(tmp_path / "wire", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("LAUNCH_PROGRESS", str(tmp_path / "wire"))
    with Checkpointer(tmp_path / "it", model=nn.Linear(2, 1), every="10 steps") as checkpointer:
        checkpointer.load()
        signal.raise_signal(signal.SIGTERM)
        assert checkpointer.after_step(1)
    said = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    assert {"asked_to_stop": True} in said


def test_nobody_goes_on_in_a_folder_of_somebody_newer(tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCH_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCH_ATTEMPT", "2")
    newer = Checkpointer(tmp_path / "checkpoints", model=nn.Linear(2, 1), every="10 steps")
    newer.load()
    monkeypatch.setenv("LAUNCH_ATTEMPT", "1")
    older = Checkpointer(tmp_path / "checkpoints", model=nn.Linear(2, 1), every="10 steps")
    older.continue_from(5)
    assert not older.after_step(5)
    with pytest.raises(Fenced):
        older.after_step(6)
