"""Test the list of a run's checkpoints, read from its folder alone."""

import dataclasses
import os
import shutil
import subprocess
import sys

import msgspec
import pytest
from run_folder import RunFolder, plan_of
from saved_checkpoints import flip, keep_best, save, save_part

from launcher.errors import LaunchError
from launcher.run.durable import Damaged
from launcher.status.checkpoints import Condition, checkpoint_folder, checkpoints, kept

STEP = "step-00000001"


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "job-abcd").plan().run


@pytest.fixture
def folder(run):
    return run.path / "checkpoints"


def rows(run, **how):
    return [(row.step, row.kind, str(row.state)) for row in checkpoints(run, **how)]


def test_the_newest_comes_first_then_the_best_then_what_was_set_aside(run, folder):
    for step in (9, 10, 100):
        save(folder, step)
    keep_best(folder, 10)
    save(folder, 50).rename(folder / ".bad-step-00000050-0123456789ab")
    wanted = [(100, "step"), (10, "step"), (9, "step"), (10, "best"), (50, "step")]
    assert [row[:2] for row in rows(run)] == wanted
    assert [row[2] for row in rows(run)] == ["ok", "ok", "ok", "ok", "set_aside"]
    assert [row[2] for row in rows(run, verify=True)] == ["verified"] * 4 + ["set_aside"]
    assert kept(run).steps == (9, 10, 100)
    assert (kept(run).best, kept(run).set_aside) == (1, 1)


def test_those_that_a_script_keeps_beside_itself_are_found(run, folder):
    """As `Checkpointer("checkpoints")` does, in the folder that ranks run in."""
    save(run.path / "code" / "checkpoints", 9)
    assert (rows(run), kept(run).steps) == ([(9, "step", "ok")], (9,))
    save(folder, 100)
    save(run.path / "code" / "checkpoints", 50).rename(
        run.path / "code" / "checkpoints" / ".bad-step-00000050-0123456789ab"
    )
    assert rows(run) == [(100, "step", "ok"), (9, "step", "ok"), (50, "step", "set_aside")]
    assert (kept(run).steps, kept(run).set_aside) == ((9, 100), 1)


def test_no_plan_leads_out_of_the_run(tmp_path):
    folder = RunFolder(tmp_path / "job-abcd")
    save(tmp_path / "elsewhere" / "checkpoints", 9)
    folder.write(folder.run.plan, msgspec.structs.replace(plan_of(folder.path), workdir="../elsewhere"))
    assert rows(folder.run) == []


def test_what_is_told_of_each(run, folder):
    path = save(folder, 40, world_size=3, size=2000, attempt=2, epoch=1, accuracy=0.5)
    (row,) = checkpoints(run)
    assert (row.step, row.world_size, row.attempt, row.size_bytes) == (40, 3, 2, 6000)
    assert row.info == {"epoch": 1, "accuracy": 0.5}
    assert (row.path, row.reason) == (str(path), "")
    assert abs(row.saved_at - path.stat().st_mtime) < 60


def test_a_changed_byte_shows_only_where_every_byte_is_read(run, folder):
    flip(save(folder, 2) / "rank-00001.data", at=500)
    save(folder, 1)
    assert [row.state for row in checkpoints(run)] == [Condition.OK, Condition.OK]
    newest, older = checkpoints(run, verify=True)
    assert (newest.state, newest.size_bytes) == (Condition.DAMAGED, 2000)
    assert newest.reason.startswith("rank-00001.data")
    assert older.state is Condition.VERIFIED


def shorter(path):
    with (path / "rank-00000.data").open("rb+") as file:
        file.truncate(10)


def gone(path):
    (path / "rank-00000.data").unlink()


def swapped_for_a_fifo(path):
    (path / "rank-00000.data").unlink()
    os.mkfifo(path / "rank-00000.data")


def with_a_stranger(path):
    (path / "rank-00009.data").write_bytes(b"x")


def of_another_step(path):
    shutil.copy(path.parent / "step-00000001" / "MANIFEST.json", path)


def without_manifest(path):
    (path / "MANIFEST.json").unlink()


def manifest_of_a_payload(path):
    (path / "MANIFEST.json").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")


def manifest_a_folder(path):
    (path / "MANIFEST.json").unlink()
    (path / "MANIFEST.json").mkdir()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (shorter, "rank-00000.data"),
        (gone, "rank-00000.data"),
        (swapped_for_a_fifo, "rank-00000.data"),
        (with_a_stranger, "rank-00009.data"),
        (of_another_step, "step 1"),
        (without_manifest, "MANIFEST.json"),
        (manifest_of_a_payload, "manifest"),
        (manifest_a_folder, "MANIFEST.json"),
    ],
)
@pytest.mark.parametrize("verify", [False, True])
def test_every_damage_is_named_and_the_others_are_shown(run, folder, harm, told, verify):
    save(folder, 1)
    harm(save(folder, 2))
    damaged, whole = checkpoints(run, verify=verify)
    assert (damaged.step, damaged.state) == (2, Condition.DAMAGED)
    assert told in damaged.reason
    assert str(folder) not in damaged.reason
    assert whole.state in (Condition.OK, Condition.VERIFIED)


def test_of_one_on_disks_apart_files_may_be_missing_but_not_changed(run, folder):
    path = save_part(folder, 2, here=[1])
    (row,) = checkpoints(run)
    assert (row.state, row.reason, row.size_bytes) == (Condition.PARTIAL, "rank-00000.data not on this disk", 2000)
    assert [row.state for row in checkpoints(run, verify=True)] == [Condition.PARTIAL]
    flip(path / "rank-00001.data", at=500)
    (row,) = checkpoints(run, verify=True)
    assert row.state is Condition.DAMAGED and row.reason.startswith("rank-00001.data")


def test_what_is_no_checkpoint_is_not_listed(run, folder):
    save(folder, 3)
    for name in (".tmp-4-a1-00", ".trash-step-00000002-00", "step-5", "epoch=1", ".bad-FENCE-0123456789ab"):
        (folder / name).mkdir()
    (folder / "step-00000007").write_text("of a script that saves in its own way")
    (folder / ".bad-notes.txt").write_text("x")
    assert rows(run) == [(3, "step", "ok")]
    assert kept(run) == dataclasses.replace(kept(run), steps=(3,), best=0, set_aside=0)


def test_one_that_is_pruned_while_we_look_is_left_out(run, folder):
    for step in (1, 2, 3):
        save(folder, step)
    looking = checkpoints(run, verify=True)
    assert next(looking).step == 3
    (folder / "step-00000002").rename(folder / ".trash-step-00000002-00")
    assert [row.step for row in looking] == [1]


def test_no_folder_no_checkpoints(run):
    assert rows(run, verify=True) == []
    assert kept(run).steps == ()


def test_the_newest_attempts_plan_says_where_they_are(run):
    def plan(folder):
        plan = plan_of(run.path)
        checkpoint = msgspec.structs.replace(plan.spec.checkpoint, dir=folder)
        return msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, checkpoint=checkpoint))

    whole = RunFolder.__new__(RunFolder)
    whole.run = run
    whole.write(run.plan, plan("first")).intent(1)
    assert checkpoint_folder(run) == run.path / "first"
    whole.intent(2).write(run.attempt(2).plan, plan("out/second")).intent(3)
    assert checkpoint_folder(run) == run.path / "out/second"


@pytest.mark.parametrize("field", ["dir", "workdir"])
def test_a_plan_that_names_no_folder_that_could_be(run, field):
    plan = msgspec.json.decode(run.plan.read_bytes())
    (plan["spec"]["checkpoint"] if field == "dir" else plan)[field] = "a\0b"
    run.plan.write_bytes(msgspec.json.encode(plan))
    with pytest.raises(Damaged, match=r"plan\.json"):
        kept(run)


def test_a_run_without_a_plan(run):
    run.plan.unlink()
    with pytest.raises(LaunchError, match=r"plan\.json: is missing"):
        kept(run)


def test_torch_is_not_needed(run, folder):
    save(folder, 1)
    code = (
        "import sys; from pathlib import Path; from launcher.run.layout import RunDir\n"
        "from launcher.status.checkpoints import checkpoints\n"
        "assert [row.state for row in checkpoints(RunDir(Path(sys.argv[1])), verify=True)] == ['verified']\n"
        "assert not {'torch', 'numpy', 'torchvision', 'pickle'} & set(sys.modules), 'heavy or unsafe'\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["", STEP, f".bad-{STEP}-0123456789ab", f"{STEP}/MANIFEST.json"])
def test_a_link_to_itself_is_no_internal_error(run, folder, name):
    (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)
    assert len(rows(run)) == kept(run).set_aside + len(kept(run).steps)
