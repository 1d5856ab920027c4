"""Whatever has become of a file of a run, every command answers with a sentence, and cancel ends the processes."""

import os
import random
import shutil
import time
from contextlib import suppress

import pytest

from launcher.cli.main import main
from launcher.errors import Exit
from tests.sizes import SEED, one_in

# One of each kind of file that a run has; `attempts`, `logs` and such are folders.
RECORDS = (
    "spec.yaml",
    "plan.json",
    "state.json",
    "events.jsonl",
    "FENCE",
    "code",
    "logs",
    "logs/a0001.g0001",
    "logs/a0001.g0001/rank-00000.log",
    "logs/a0001.g0001/rank-00000.times",
    "attempts",
    "attempts/0001",
    "attempts/0001/token.json",
    "attempts/0001/handle.json",
    "attempts/0001/started",
    "attempts/0001/coordinator.json",
    "attempts/0001/keeper.log",
    "attempts/0001/node-00",
    "attempts/0001/node-00/agent.json",
    "attempts/0001/node-00/agent.log",
)
OF_ONE_THAT_ENDED = ("attempts/0001/exit.json", "attempts/0001/exits.jsonl")
STOP = "attempts/0001/stop.json"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def flipped(path):
    data = bytearray(path.read_bytes())
    for at in random.Random(SEED).sample(range(len(data)), min(3, len(data))):
        data[at] ^= 1 << 7
    path.write_bytes(bytes(data))


def of_a_wrong_type(path):
    path.write_bytes(b'[{"attempt": "7", "state": 3}, null]\n')


def gone(path):
    if not path.is_dir():
        path.unlink()
    while path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # a run that lives may put something into it meanwhile


def instead(path, make):
    """Something else in its place, however often a run that lives writes it meanwhile."""
    while True:
        with suppress(FileNotFoundError):
            gone(path)
        with suppress(FileExistsError, IsADirectoryError):
            return make()


def a_link(path):
    """Move the file away, and put a link to it in its place."""
    away = path.parent / "moved-away"
    path.rename(away)
    instead(path, lambda: path.symlink_to(away))


def a_link_to_itself(path):
    instead(path, lambda: path.symlink_to(path))


def a_folder(path):
    instead(path, path.mkdir)
    (path / "something").touch()


def a_file(path):
    instead(path, lambda: path.write_bytes(b"x"))


def a_fifo(path):
    instead(path, lambda: os.mkfifo(path))


OF_ANY = (gone, a_link, a_link_to_itself, a_fifo)
OF_FILES = (cut, emptied, flipped, of_a_wrong_type, a_folder)
FOLDERS = ("code", "logs", "logs/a0001.g0001", "attempts", "attempts/0001", "attempts/0001/node-00")

STAY = """
import json, os, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
for step in range(1, STEPS):
    wire.write(json.dumps({"step": step}) + "\\n")
    print("step", step, flush=True)
    time.sleep(0.02)
"""


def cells(records):
    return [
        pytest.param(record, damage, id=f"{damage.__name__} {record}")
        for record in records
        for damage in (*OF_ANY, *([a_file] if record in FOLDERS else OF_FILES))
    ]


class Shell:
    """The commands, in this process: what they print, and that it is no traceback."""

    def __init__(self, capsys):
        self._capsys = capsys

    def launch(self, *words):
        self._capsys.readouterr()
        began = time.monotonic()
        code = main(words)
        said = self._capsys.readouterr()
        assert "internal error" not in said.err and "Traceback" not in said.err, f"launch {words}: {said.err}"
        assert code == Exit.OK or said.err or said.out, f"launch {words}: {code} and no word"
        assert time.monotonic() - began < 120
        return code, said.out + said.err


@pytest.fixture
def shell(lab, capsys, monkeypatch):
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, lab.env[name])
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    monkeypatch.chdir(lab.project)
    return Shell(capsys)


def submitted(lab, shell, steps):
    lab.script("stay.py", STAY.replace("STEPS", str(steps)))
    more = "resources:\n  ranks_per_node: 2\nrecovery:\n  grace: 1s\n"
    code, said = shell.launch("submit", lab.spec(f"name: stay\nrun:\n  script: stay.py\n{more}"))
    assert code == Exit.OK, said
    return said.split()[0]


def ask_all(shell, run):
    for words in (
        ("status", run),
        ("status",),
        ("status", run, "--json"),
        ("logs", run),
        ("wait", run, "--timeout", "0.1"),
        ("checkpoints", run),
        ("fetch", run),
        ("resume", run),
    ):
        shell.launch(*words)


def end(lab, shell, run):
    """Cancel, which says what it did or what is wrong; in any case no process is left."""
    _, said = shell.launch("cancel", run)
    left = lab.processes()
    assert left == [], said
    for words in (("cancel", run), ("status", run), ("logs", run), ("checkpoints", run)):
        shell.launch(*words)
    return said


@pytest.mark.parametrize(("record", "damage"), one_in(39, cells(RECORDS), nightly=4))
def test_a_live_run(lab, shell, record, damage):
    run = submitted(lab, shell, 100_000)
    lab.until_step(run, 2)
    lab.until("the record", (lab.run_dir(run) / record).exists)  # times of a log are noted after what was said
    damage(lab.run_dir(run) / record)
    ask_all(shell, run)
    said = end(lab, shell, run)
    assert "nothing was left" not in said


@pytest.mark.parametrize(
    "damage", one_in(8, [cut, emptied, flipped, of_a_wrong_type, a_link, a_link_to_itself, a_fifo, a_folder])
)
def test_a_live_run_that_somebody_wanted_to_end(lab, shell, damage):
    run = submitted(lab, shell, 100_000)
    lab.until_step(run, 2)
    stop = lab.run_dir(run) / "attempts/0001/stop.json"
    stop.write_text('{"kind":"preempt","at":1.0,"by":{"host":"x","boot_id":"y","pid":1,"start_ticks":1}}')
    damage(stop)
    ask_all(shell, run)
    end(lab, shell, run)


@pytest.mark.parametrize(("record", "damage"), one_in(28, cells((*RECORDS, *OF_ONE_THAT_ENDED)), nightly=4))
def test_a_run_that_has_ended(lab, shell, record, damage):
    run = submitted(lab, shell, 3)
    lab.wait(run)
    damage(lab.run_dir(run) / record)
    ask_all(shell, run)
    end(lab, shell, run)
