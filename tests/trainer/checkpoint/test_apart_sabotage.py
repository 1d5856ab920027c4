"""The checks of disks apart bite: each of these breaks, made in a copy of the trainer, turns one of them red."""

import shutil
from pathlib import Path

import pytest

import trainer
from tests.inner_pytest import run_tests

HERE = Path(__file__).parent
SABOTAGES = {
    "acknowledged before it has its final name": (
        "checkpoint/saving.py", "        outcome = self._agree(self._prepare(draft, manifest, files))\n",
        "        outcome = self._agree(self._prepare(draft, manifest, files))\n        self._on_commit(order.step)\n",
        "killed_in_mid_commit and before-None-place",
    ),
    "no disk waits for the others to be ready": (
        "checkpoint/saving.py", "        outcome = self._agree(self._prepare(draft, manifest, files))\n",
        "        outcome = self._prepare(draft, manifest, files)\n",
        "one_node_cannot_write and prepare",
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
    words = ("-x", "--timeout", "100", str(HERE / "test_apart.py"), "-k", which)
    done = run_tests(*words, path=[tmp_path, HERE, HERE.parent])
    assert done.returncode == 1 and " failed" in done.stdout, done.stdout + done.stderr
