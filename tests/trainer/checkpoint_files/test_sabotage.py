"""The checks bite: each of these small breaks of a promise, made in a copy of the trainer, turns its tests red."""

import shutil
from pathlib import Path

import pytest

import trainer
from tests.inner_pytest import run_tests

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SABOTAGES = {
    "the bytes of a file are not flushed": (
        "durable.py", "        os.fsync(fd)\n    except BaseException:", "    except BaseException:",
        "test_power_cuts.py test_commit.py", "acknowledged or power",
    ),
    "the names in a draft are not flushed": (
        "commit.py", "        check_files(draft, manifest, away)\n        sync_folder(draft)\n",
        "        check_files(draft, manifest, away)\n",
        "test_commit.py", "power_cut",
    ),
    "the new name is not flushed": (
        "commit.py", "    try:\n        sync_folder(folder)\n", "    try:\n        folder.stat()\n",
        "test_power_cuts.py", "acknowledged",
    ),
    "a folder's own name is not flushed": (
        "durable.py", "        sync_folder(path.parent)\n\n\ndef read", "        path.parent.stat()\n\n\ndef read",
        "test_durable.py", "new_folder",
    ),
    "the bytes are not hashed": (
        "durable.py", "    if reading.hashed.hexdigest() != digest:", "    if False:",
        "test_damage.py", "mutation",
    ),
    "only the first piece is hashed": (
        "durable.py", "self.hashed.update(piece[:got])", "self.hashed.update(piece[:got]) if self.at == 0 else None",
        "test_durable.py", "pieces or piece",
    ),
    "the manifest's checksum is not looked at": (
        "manifest.py", "    if data != wanted:", "    if False:",
        "test_damage.py test_manifest.py", "mutation or unnoticed",
    ),
    "another step's checkpoint will do": (
        "catalog.py", "if manifest.step != entry.step:", "if False:",
        "test_damage.py", "mutation",
    ),
    "files that do not belong there are passed over": (
        "catalog.py", "if extra := sorted(found - wanted):", "if extra := []:",
        "test_damage.py", "mutation",
    ),
    "the fence is not asked before the rename": (
        "commit.py", "        fence.check(folder, token, run_dir)\n        if os.path.lexists(final)",
        "        if os.path.lexists(final)",
        "test_two_starts.py", "launch",
    ),
    "the fence is not asked for a draft": (
        "commit.py", "        fence.check(draft.parent, token, run_dir)  # after", "        draft.stat()  # after",
        "test_commit.py", "next_start",
    ),
    "drafts of an older start are left": (
        "commit.py", "        if is_draft(name):", "        if False:",
        "test_two_starts.py", "older_one",
    ),
    "anybody may claim": (
        "fence.py", "elif (before.attempt, before.generation) > (attempt, generation):", "elif attempt < 0:",
        "test_fence.py", "older_start",
    ),
    "room is made for the new checkpoint first": (
        "commit.py", "        if os.path.lexists(final) and", "        if shutil.rmtree(final, ignore_errors=True) and",
        "test_commit.py", "saved_over",
    ),
    "the claim is removed, then written": (
        "fence.py", "        os.rename(draft, folder / FENCE)",
        "        (folder / FENCE).unlink(missing_ok=True)\n        os.rename(draft, folder / FENCE)",
        "test_kills.py", "take_over",
    ),
    "what is removed is removed where it is": (
        "commit.py", "        os.rename(path, path.parent / trash_name(path.name))", "        shutil.rmtree(path)",
        "test_kills.py", "prune",
    ),
    "drafts have the names of checkpoints": (
        "layout.py", '    return f"{_DRAFT}{step}-a{attempt}-{nonce}"', '    return f"step-{step:08d}"',
        "test_kills.py", "save",
    ),
    "a failed save holds its space": (
        "commit.py", "            remove([draft])\n", "            draft.stat()\n",
        "test_commit.py", "gives_its_space",
    ),
    "links are followed": (
        "durable.py", "os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW", "os.O_CREAT | os.O_WRONLY",
        "test_strangers.py", "written_through",
    ),
}  # fmt: skip


def run(tests, which, copy):
    files = (str(HERE / name) for name in tests.split())
    return run_tests("-x", "--timeout", "60", *files, "-k", which, path=[copy, HERE])


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(Path(trainer.__file__).parent, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_it_is_noticed(name, copy):
    file, sound, broken, tests, which = SABOTAGES[name]
    path = copy / "trainer" / "checkpoint_files" / file
    text = path.read_text()
    assert text.count(sound) == 1, f"{file} has changed: {sound!r}"
    path.write_text(text.replace(sound, broken))
    done = run(tests, which, copy)
    assert done.returncode == 1 and " failed" in done.stdout, done.stdout + done.stderr


def test_without_sabotage_they_pass(copy):
    """Else the tests above would be red for another reason."""
    done = run("test_durable.py test_commit.py test_fence.py test_damage.py", "", copy)
    assert done.returncode == 0, done.stdout + done.stderr
