"""The disk says no, at each operation, once or from then on: an error, nothing lost, and the next save works."""

import errno
import os
import resource

import pytest
from checkpoint_lab import (
    DAMAGED,
    OS_ERROR,
    calls_of,
    check_sound,
    invalid,
    left_over,
    manifest_of,
    mounted,
    points,
    save,
    set_stage,
    strike,
    write_rank,
)

from tests.lab.requirements import need
from tests.sizes import SCALE
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import FENCE_LOCK, folder_name

pytestmark = pytest.mark.nightly

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EFBIG")
VARIETY = 1 if SCALE == 1 else len(ERRORS)
# What asks the disk for something; the other calls meet one error.
CHANGING = ("mkdir", "openat", "write", "fsync", "close", "rename", "link")


def fail_everywhere(memory, stage, operation, check, *, allowed=(), variety=VARIETY):
    """Have `operation(folder)` meet errors at each of its calls, once and from there on; how many were met.

    Of the errors as many as `variety` at each call that changes something, by turns.
    """
    counted = stage.fresh(memory / "counted")
    made = points(calls_of(lambda: operation(counted)))
    planned = met = 0
    for number, (call, when) in enumerate(made):
        for turn in range(variety if call in CHANGING else 1):
            error = ERRORS[(number + turn) % len(ERRORS)]
            for times in (f"{when}", f"{when}+"):
                planned += 1
                folder = stage.fresh(memory / "struck")
                end = strike(
                    lambda folder=folder: operation(folder),
                    "-e",
                    f"trace={call}",
                    "-e",
                    f"inject={call}:error={error}:when={times}",
                )
                met += any("(INJECTED)" in line for line in end.log)
                try:
                    assert end.code in (0, OS_ERROR + getattr(errno, error), *allowed), f"exit {end.code}"
                    check(folder, end.code == 0)
                except Exception as problem:
                    raise AssertionError(f"{error} at {call} {times}: {type(problem).__name__}: {problem}") from problem
    assert met == planned, f"only {met} of {planned} errors were met"
    return met


@pytest.fixture
def strace():
    need("strace")


def test_save(memory, strace):
    stage = set_stage(memory / "template", 1, 2)

    def check(folder, acknowledged):
        assert catalog.steps(folder) == ([1, 2, 3] if acknowledged else [1, 2])
        assert invalid(folder) == []
        if not acknowledged:
            save(folder, 3, stage.mine)  # the same start tries again, also the same step
        check_sound(folder, {1, 2, 3}, {1, 2, 3})

    assert fail_everywhere(memory, stage, lambda folder: save(folder, 3, stage.mine), check, variety=4) > 200


def test_publish_best(memory, strace):
    stage = set_stage(memory / "template", 1, 2, best=1)

    def keep(folder):
        commit.publish_best(Entry("step", 2, folder / folder_name(2)), stage.mine)

    def check(folder, acknowledged):
        found = {entry.step for entry in catalog.entries(folder) if entry.kind == "best"}
        assert found & {1, 2} and invalid(folder) == []
        keep(folder)
        assert [entry.step for entry in catalog.entries(folder) if entry.kind == "best"] == [2]
        check_sound(folder, {1, 2}, {1, 2})

    fail_everywhere(memory, stage, keep, check, allowed=(DAMAGED,))  # a checkpoint that cannot be read is damaged


def test_prune(memory, strace):
    stage = set_stage(memory / "template", 1, 2)

    def check(folder, acknowledged):
        save(folder, 3, stage.mine)
        check_sound(folder, {2, 3}, {1, 2, 3})

    fail_everywhere(memory, stage, lambda folder: commit.remove([folder / folder_name(1)]), check)


def test_take_over(memory, strace):
    stage = set_stage(memory / "template", 1)
    commit.begin(stage.template, 2, stage.mine)

    def check(folder, acknowledged):
        assert fence.read_token(folder) is not None
        check_sound(folder, {1}, {1})

    fail_everywhere(memory, stage, commit.take_over, check)


def test_a_file_system_without_locks_can_be_claimed(folder, strace):
    for error in ("ENOLCK", "EOPNOTSUPP", "ENOSYS"):
        assert strike(lambda: commit.take_over(folder), "-e", f"inject=flock:error={error}").code == 0
    assert strike(lambda: commit.take_over(folder), "-e", "inject=flock:error=EIO").code == OS_ERROR + errno.EIO
    assert fence.read_token(folder).count == 3
    assert FENCE_LOCK in os.listdir(folder)


@pytest.mark.daily
def test_a_rename_that_worked_in_spite_of_its_error_counts(folder, mine):
    """As over NFS, where the answer was lost: what has the name is what was to get it."""
    draft = commit.begin(folder, 1, mine)
    manifest = manifest_of(1, [write_rank(draft, 1, rank) for rank in range(2)])
    commit.prepare(draft, manifest, mine)
    draft.rename(folder / folder_name(1))
    commit._rename(draft, folder / folder_name(1), "step", manifest)
    other = manifest_of(1, list(manifest.files))
    with pytest.raises(FileNotFoundError):
        commit._rename(draft, folder / folder_name(1), "step", other)


@pytest.mark.daily
def test_a_full_disk(memory, tmp_path):
    with mounted("tmpfs", tmp_path / "small", "-t", "tmpfs", "-o", "size=256k") as folder:
        mine = commit.take_over(folder)
        save(folder, 1, mine)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left") as caught:
                save(folder, 2, mine, size=400_000)
            assert caught.value.errno == errno.ENOSPC
            assert catalog.steps(folder) == [1] and invalid(folder) == []
            assert left_over(folder) == [], "what failed must not hold the space"
        save(folder, 2, mine)
        check_sound(folder, {1, 2}, {1, 2})


def test_a_disk_without_room_for_another_file(memory, tmp_path):
    for inodes in range(6, 16):
        folder = tmp_path / f"few-{inodes}"
        with mounted("tmpfs", folder, "-t", "tmpfs", "-o", f"nr_inodes={inodes}"):
            try:
                mine = commit.take_over(folder)
                save(folder, 1, mine)
                save(folder, 2, mine)
            except OSError as error:
                assert error.errno == errno.ENOSPC
            else:
                break
            assert invalid(folder) == []
            if catalog.steps(folder):
                commit.remove([folder / folder_name(1)])
                save(folder, 3, mine)
                assert catalog.steps(folder) == [3] and invalid(folder) == []
    else:
        pytest.fail("15 inodes were never enough")
    assert inodes > 8, "none of them was too few"


@pytest.mark.daily
def test_files_that_cannot_grow(folder, mine):
    save(folder, 1, mine)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 2999, 3005):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                save(folder, 2, mine)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG
        assert catalog.steps(folder) == [1] and left_over(folder) == []
    save(folder, 2, mine)
    check_sound(folder, {1, 2}, {1, 2})
