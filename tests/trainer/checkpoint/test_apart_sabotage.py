"""The checks of disks apart bite: each of these breaks, made in a copy of the trainer, turns one of them red."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainer

HERE = Path(__file__).parent
PYTEST = [
    sys.executable,
    "-P",
    "-m",
    "pytest",
    "-q",
    "-n0",
    "-x",
    "-p",
    "no:cacheprovider",
    "--timeout",
    "100",
    "--nightly",
    "--scale",
    "1",
]
SABOTAGES = {
    "acknowledged before it has its final name": (
        "checkpoint/saving.py", "        outcome = self._agree(self._prepare(draft, manifest, files))\n",
        "        outcome = self._agree(self._prepare(draft, manifest, files))\n        self._on_commit(order.step)\n",
        "killed_in_mid_commit and before-None-place",
    ),
    "no disk waits for the others to be ready": (
        "checkpoint/saving.py", "        outcome = self._agree(self._prepare(draft, manifest, files))\n",
        "        outcome = self._prepare(draft, manifest, files)\n",
        "killed_in_mid_commit and before-1-prepare",
    ),
    "no disk waits for the others to have done it": (
        "checkpoint/saving.py", "            outcome = self._agree(self._place(draft, manifest))\n",
        "            outcome = self._place(draft, manifest)\n",
        "one_node_cannot_write and place",
    ),
    "what one disk could not do stays on the others": (
        "checkpoint/saving.py", "            self._undo(draft, manifest)\n", "            pass\n",
        "one_node_cannot_write and place",
    ),
    "what not all disks have stays in the way": (
        "checkpoint/saving.py", "if save_group.separate_disks and manifest.step not in self._finite:", "if False:",
        "not_all_disks_have",
    ),
    "the best one before goes at once": (
        "checkpoint/saving.py", "older = commit.place_best(", "older = commit.publish_best(",
        "best_one_before",
    ),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_it_is_noticed(name, tmp_path):
    file, sound, broken, which = SABOTAGES[name]
    shutil.copytree(Path(trainer.__file__).parent, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "trainer" / file
    text = path.read_text()
    assert text.count(sound) == 1, f"{file} has changed: {sound!r}"
    path.write_text(text.replace(sound, broken))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*PYTEST, str(HERE / "test_apart.py"), "-k", which],
        cwd=HERE.parents[2],
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, HERE, HERE.parent)))},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1 and " failed" in done.stdout, done.stdout + done.stderr
