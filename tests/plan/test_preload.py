"""Test that preloaded modules exist, leave the zygote able to fork, and leave ranks almost nothing to import."""

import json
import os
import subprocess
import sys

import pytest

from launcher.plan.preload import NAMED, TASKS, TORCH, TRAINER

pytest.importorskip("torch")
# As the zygote does it, and then as a rank does.
LOOK = """
import importlib, json, os, sys
preload, entries = json.loads(sys.argv[1])
for name in preload:
    importlib.import_module(name)
before = set(sys.modules)
threads = len(os.listdir("/proc/self/task"))
for name in entries:
    importlib.import_module(name)
import torch
print(json.dumps({
    "threads": threads, "cuda": torch.cuda.is_initialized(), "left": sorted(set(sys.modules) - before),
}))
"""


def look(preload, entries):
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps([preload, entries])],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_with_the_trainer_installed_ranks_import_their_own_task_alone():
    for task, more in TASKS.items():
        found = look([*TORCH, *TRAINER, *more], ["trainer.checkpoint.checkpointer", task])
        assert (found["threads"], found["cuda"]) == (1, False)
        assert [name for name in found["left"] if not name.startswith("trainer.tasks.")] == [], task


def test_with_the_trainer_in_the_code_ranks_import_nothing_but_it():
    """What the reader of imports finds in the trainer's sources is what it needs beside the torch of every script."""
    found = look([*TORCH, *NAMED], ["trainer.checkpoint.checkpointer", "trainer.data.train", *TASKS])
    assert (found["threads"], found["cuda"]) == (1, False)
    assert [name for name in found["left"] if name.partition(".")[0] != "trainer"] == []
