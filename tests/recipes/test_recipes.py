"""Every recipe of the pages is run from its page: on two ranks, one of which is killed on the way, to its end."""

import csv
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from lab import kill

from tests.docs.blocks import DOCS

PAGES = [DOCS / f"{name}.md" for name in ("recipes", "recipes-frameworks", "recipes-plain")]
SCRIPTS = Path(__file__).parent / "scripts"
STRIKE = (SCRIPTS / "strike.py").read_text()
SECTIONS = dict(
    section
    for page in PAGES
    for section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
)
STEPS = 20
LOGGED = "The Trainer, with loggers and a loader"
TRAINED = ("A loop of your own", LOGGED, "Lightning", "Accelerate", "Hugging Face Trainer", "As nanoGPT does it")
SHARED_WORK = ("Any program", "A pool of processes")


def block(recipe, kind):
    [text] = re.findall(rf"^```{kind}\n(.*?)^```$", SECTIONS[recipe], re.MULTILINE | re.DOTALL)
    return text


def script_of(recipe):
    return re.search(r"script: ([\w.]+)", block(recipe, "yaml"))[1]


def test_every_recipe_is_run():
    assert list(SECTIONS) == [*TRAINED, *SHARED_WORK]


def goes_on_after_a_kill(lab, recipe, *more):
    """The status of a training that has, and the folder of its run."""
    spec = block(recipe, "yaml")
    [count] = re.findall(r"args: {(\w+): 1000}", spec)
    lab.script(script_of(recipe), f"import strike\n{block(recipe, 'python')}")
    lab.script("strike.py", STRIKE)
    words = ("--set", f"run.args.{count}={STEPS}", "--set", f"env.STRUCK={lab.project.parent / 'struck'}", *more)
    status = lab.wait(lab.submit(lab.spec(spec), *words), timeout=280)
    assert status["restarts"] == status["restarts"] | {"total": 1, "by_cause": {"killed": 1}}
    assert (status["step"], status["total_steps"], status["checkpoint"]) == (STEPS, STEPS, STEPS)
    began = re.findall(r"from step (\d+), (\d+) ranks", lab.rank_logs(status["run"]))
    assert {world for _, world in began} == {"2"}
    assert sorted(int(step) for step, _ in began) in ([0, 0, 5, 5], [0, 0, 10, 10])
    return status


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", [one for one in TRAINED if one != LOGGED])
def test_a_training_goes_on_after_a_kill(lab, recipe):
    goes_on_after_a_kill(lab, recipe)


@pytest.mark.nightly
def test_loggers_have_each_step_once_after_a_kill(lab):
    """W&B offline. MLflow, whose files may be cut short by a kill: tests/trainer/loggers/test_services/py"""
    words = ("--set", "env.WANDB_PROJECT=recipes", "--set", "env.WANDB_MODE=offline")
    status = goes_on_after_a_kill(lab, LOGGED, *words)
    folder = lab.run_dir(status["run"])
    [table] = folder.rglob("metrics.csv")
    assert [int(row["step"]) for row in csv.DictReader(table.read_text().splitlines())] == [*range(1, STEPS + 1)]
    assert {file.name for file in folder.rglob("*.wandb")} == {f"run-{status['run']}.wandb"}


@pytest.mark.nightly
def test_lightning_over_nodes_that_it_does_not_know_of(lab):
    """All devices as if on one node, which runs under torchrun too; and who is first, though it was imported before."""
    lab.script("devices.py", (SCRIPTS / "devices.py").read_text())
    run = "run: {script: devices.py, preload: [lightning]}\n"
    spec = f"name: devices\n{run}resources: {{nodes: 2, ranks_per_node: 2}}\n"
    status = lab.wait(lab.submit(lab.spec(spec)), timeout=280)
    assert status["restarts"]["total"] == 0
    told = [line for line in lab.rank_logs(status["run"]).splitlines() if line.startswith("rank")]
    assert told == [
        f"rank {rank} of 4, {local} here: TorchElasticEnvironment, noted {rank} and {local}"
        for rank, local in enumerate((0, 1, 0, 1))
    ]


def files_for(lab):
    """Create the files that recipes read: ten files, and a FIFO at which rank 1 has to wait."""
    given, made = lab.project.parent / "in", lab.project.parent / "out"
    given.mkdir()
    made.mkdir()
    for number in range(12):
        (given / f"{number:02d}.txt").write_text(f"{number}\n" * 50)
    waiting = given / "09.txt"
    waiting.unlink()
    os.mkfifo(waiting)
    return given, made, waiting


def opened_by_a_reader(fifo):
    """A descriptor that lets the reader wait on; None while nobody has come to read."""
    with suppress(OSError):
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    return None


def pid_of_second(status):
    """Return the process id of rank 1, or None while it is unknown."""
    return next((rank["pid"] for rank in status["ranks"] if rank["rank"] == 1), None)


def killed_while_it_waits(lab, run, made, waiting, names):
    """Once all but the file at which rank 1 waits, and those behind it, are done."""
    lab.until("the other files", lambda: names <= {path.name for path in made.iterdir()})
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir() if path.name in names}
    writer = lab.until("rank 1 at the file", lambda: opened_by_a_reader(waiting))
    waiting.unlink()
    waiting.write_text("9\n" * 50)
    pid = lab.until("rank 1's process in the status", lambda: pid_of_second(lab.status(run)))
    assert kill(pid, signal.SIGKILL)
    os.close(writer)
    status = lab.wait(run)
    assert status["restarts"]["by_cause"] == {"killed": 1}
    after = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert len(after) == 12
    assert {name: after[name] for name in before} == before, "what was done is left alone"


def test_any_program(lab):
    given, made, waiting = files_for(lab)
    spec = block("Any program", "yaml").replace("/data/in", str(given)).replace("/data/out", str(made))
    run = lab.submit(lab.spec(spec))
    killed_while_it_waits(lab, run, made, waiting, {f"{number:02d}.txt.gz" for number in (*range(9), 10)})


@pytest.mark.parametrize("way", ["spawn", "fork", "forkserver"])
def test_a_pool_of_processes(lab, way):
    given, made, waiting = files_for(lab)
    recipe = "A pool of processes"
    lab.script(script_of(recipe), block(recipe, "python"))
    spec = block(recipe, "yaml").replace("/data/in", str(given)).replace("/data/out", str(made))
    run = lab.submit(lab.spec(spec), "--set", f"run.args.start={way}")
    names = {f"{number:02d}.txt" for number in (*range(9), 10, 11)}
    killed_while_it_waits(lab, run, made, waiting, names)
