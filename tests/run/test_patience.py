"""Test that the processes of a run wait for a disk that is full or fails for a while."""

import errno
import os
import subprocess
import threading
import time

import msgspec
import pytest

from launcher.run.durable import append_line, create_record, make_dir, read_lines, read_record, write_record
from launcher.run.patience import DISK_ERRORS, patiently, waiting_for_disks


class Note(msgspec.Struct, frozen=True):
    text: str


@pytest.fixture
def full(tmp_path):
    """A disk on which nothing more goes, until its file `filler` is taken away."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    append_line(folder / "lines", Note("first"))
    with (folder / "filler").open("wb", buffering=0) as file:
        while os.statvfs(folder).f_bavail:
            file.write(bytes(4096))
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


class Failing:
    """An act that fails so many times."""

    def __init__(self, times, number):
        self.left, self.number = times, number

    def __call__(self):
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number), "/r/state.json")
        return "done"


@pytest.mark.parametrize("number", sorted(DISK_ERRORS), ids=errno.errorcode.get)
def test_who_waits_tries_again_and_says_why_it_had_to(number, capfd):
    notes = []
    with waiting_for_disks(notes.append):
        assert patiently(Failing(2, number)) == "done"
        assert patiently(Failing(0, number)) == "done"
    (note,) = notes
    why = os.strerror(number)
    assert note.startswith("records had to wait for ")
    assert note.endswith(f"/r/state.json: {why[0].lower()}{why[1:]}")
    assert capfd.readouterr().err.count("records wait for a disk: ") == 1


def test_other_errors_are_no_matter_of_patience():
    with waiting_for_disks(), pytest.raises(PermissionError):
        patiently(Failing(1, errno.EACCES))


def test_who_does_not_wait_hears_of_it_at_once():
    with waiting_for_disks():
        found = []

        def elsewhere():
            with pytest.raises(OSError, match="No space left") as raised:
                patiently(Failing(1, errno.ENOSPC))
            found.append(raised.value)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert found
    with pytest.raises(OSError, match="No space left"):
        patiently(Failing(1, errno.ENOSPC))


def test_all_that_is_written_comes_through_whole_once_there_is_room(full, capfd):
    text = "x" * 5000

    def write():
        with waiting_for_disks():
            append_line(full / "lines", Note(text))
            write_record(full / "record", Note(text))
            create_record(full / "made", Note(text))
            make_dir(full / "folder" / "inside")

    thread = threading.Thread(target=write)
    thread.start()
    said, bound = "", time.monotonic() + 60
    while "records wait for a disk: " not in said:
        assert time.monotonic() < bound
        time.sleep(0.01)
        said += capfd.readouterr().err
    assert thread.is_alive()
    assert read_lines(full / "lines", Note) == [Note("first")]  # what of the second is there counts for nothing
    assert read_record(full / "record", Note) is None
    (full / "filler").unlink()
    thread.join(150)
    assert not thread.is_alive()
    assert read_lines(full / "lines", Note) == [Note("first"), Note(text)]
    assert read_record(full / "record", Note) == read_record(full / "made", Note) == Note(text)
    assert sorted(path.name for path in full.iterdir()) == ["folder", "lines", "made", "record"]


def test_a_line_whose_fsync_failed_is_there_once(tmp_path, monkeypatch):
    path, really, left = tmp_path / "lines", os.fsync, [2]

    def fsync(fd):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        really(fd)

    append_line(path, Note("first"))
    monkeypatch.setattr(os, "fsync", fsync)
    with waiting_for_disks():
        append_line(path, Note("second"))
    assert path.read_text() == '{"text":"first"}\n{"text":"second"}\n'
    assert left == [0]
