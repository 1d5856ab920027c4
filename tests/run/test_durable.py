import errno
import os
import resource
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from launcher.errors import LaunchError
from launcher.run.durable import (
    Damaged,
    append_line,
    create_record,
    make_dir,
    read_lines,
    read_record,
    scan_lines,
    write_bytes,
    write_record,
)


class Note(msgspec.Struct, frozen=True):
    text: str
    number: int = 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o077, 0o777], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def limited(size: int, operation) -> str:
    """The name of the OSError that the operation meets where no file may grow beyond this size."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            operation()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    return errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "no error")


def test_a_record_comes_back_as_it_was_written(tmp_path):
    note = Note('newline \n quote " \N{SNOWMAN}', 7)
    write_record(tmp_path / "note.json", note)
    assert read_record(tmp_path / "note.json", Note) == note
    assert os.listdir(tmp_path) == ["note.json"]


def test_a_record_that_is_not_there_is_none(tmp_path):
    assert read_record(tmp_path / "note.json", Note) is None
    (tmp_path / "file").touch()
    assert read_record(tmp_path / "file" / "note.json", Note) is None


@pytest.mark.parametrize("data", [b"", b"{", b'{"text": 3}', b"\xff\xfe", b"[" * 100_000, b'{"number": 3}', b"\0" * 50])
def test_a_damaged_record_says_which_file_it_is(tmp_path, data):
    path = tmp_path / "note.json"
    path.write_bytes(data)
    with pytest.raises(Damaged, match=r"note\.json") as caught:
        read_record(path, Note)
    assert isinstance(caught.value, LaunchError)


def test_modes_do_not_depend_on_the_umask(tmp_path, umask):
    folder = tmp_path / "a" / "b"
    make_dir(folder)
    write_record(folder / "written", Note("x"))
    create_record(folder / "created", Note("x"))
    append_line(folder / "lines", Note("x"))
    assert [mode(path) for path in (tmp_path / "a", folder)] == [0o700, 0o700]
    assert [mode(folder / name) for name in ("written", "created", "lines")] == [0o600] * 3


def test_make_dir_takes_a_folder_that_is_there_and_no_file_for_one(tmp_path):
    make_dir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_dir(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        make_dir(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_create_record_never_replaces(tmp_path):
    create_record(tmp_path / "started", Note("first"))
    with pytest.raises(FileExistsError):
        create_record(tmp_path / "started", Note("second"))
    assert read_record(tmp_path / "started", Note) == Note("first")
    assert os.listdir(tmp_path) == ["started"]


def test_of_all_that_create_a_record_one_wins(tmp_path, race):
    def create(number):
        create_record(tmp_path / f"started-{number}", Note(str(os.getpid())))
        return os.getpid()

    for number, results in enumerate(race(create)):
        winners = [result for result in results if result != "FileExistsError"]
        assert len(winners) == 1
        assert read_record(tmp_path / f"started-{number}", Note) == Note(str(winners[0]))


def test_who_reads_while_others_write_sees_whole_records(tmp_path, race):
    path = tmp_path / "state.json"
    write_record(path, Note("", 0))

    def write_and_read(number):
        write_record(path, Note("x" * 5000 * (os.getpid() % 4), number))
        return type(read_record(path, Note)).__name__

    assert {result for results in race(write_and_read) for result in results} == {"Note"}


def test_lines_of_many_writers_do_not_mix(tmp_path, race):
    def append(number):
        append_line(tmp_path / "lines", Note("x" * 3000, number), fsync=False)

    race(append, rounds=50)
    lines = scan_lines(tmp_path / "lines", Note)
    assert (len(lines.records), lines.damaged) == (200, 0)


def test_a_torn_last_line_is_passed_over_and_mended(tmp_path):
    path = tmp_path / "lines"
    append_line(path, Note("one"))
    with path.open("ab") as file:
        file.write(b'{"text": "tw')
    assert read_lines(path, Note) == [Note("one")]
    assert scan_lines(path, Note).damaged == 0
    append_line(path, Note("three"))
    assert read_lines(path, Note) == [Note("one"), Note("three")]


def test_foreign_lines_are_counted(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"text": "one"}\n\xff\xff\n\n[1]\n{"text": "two"}\n')
    lines = scan_lines(path, Note)
    assert (lines.records, lines.damaged) == ([Note("one"), Note("two")], 2)


def test_no_file_of_lines_is_no_lines(tmp_path):
    assert read_lines(tmp_path / "lines", Note) == []


@pytest.mark.parametrize("write", [write_record, create_record, append_line])
def test_a_link_in_the_place_of_a_file_is_never_followed(tmp_path, write):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "target"
    target.symlink_to(victim)
    if write is write_record:
        write(target, Note("x"))
        assert not target.is_symlink()
    else:
        with pytest.raises(FileExistsError if write is create_record else Damaged, match="target"):
            write(target, Note("x"))
    assert victim.read_text() == "precious"


def test_a_link_or_a_fifo_in_the_place_of_a_record_is_not_read(tmp_path):
    write_record(tmp_path / "note", Note("x"))
    (tmp_path / "link").symlink_to(tmp_path / "note")
    with pytest.raises(Damaged, match="link: expected a file, got a link"):
        read_record(tmp_path / "link", Note)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Damaged):
        read_record(tmp_path / "fifo", Note)


def test_a_file_that_cannot_grow_leaves_the_old_record(tmp_path):
    path = tmp_path / "note"
    write_record(path, Note("old"))
    assert limited(50, lambda: write_record(path, Note("x" * 500))) == "EFBIG"
    assert limited(50, lambda: create_record(tmp_path / "new", Note("x" * 500))) == "EFBIG"
    assert read_record(path, Note) == Note("old")
    assert os.listdir(tmp_path) == ["note"]


def test_a_line_that_does_not_fit_is_an_error_and_harms_no_other(tmp_path):
    path = tmp_path / "lines"
    append_line(path, Note("one"))
    assert limited(60, lambda: append_line(path, Note("x" * 500))) == "EFBIG"
    assert read_lines(path, Note) == [Note("one")]
    append_line(path, Note("two"))
    assert read_lines(path, Note) == [Note("one"), Note("two")]


@pytest.fixture
def full_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a file system of its own cannot be mounted here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_leaves_the_old_record_and_says_which_file(full_disk):
    path = full_disk / "note"
    write_record(path, Note("old"))
    (full_disk / "filler").write_bytes(b"x" * 50_000)
    with pytest.raises(OSError, match="note") as caught:
        write_record(path, Note("x" * 30_000))
    assert caught.value.errno == errno.ENOSPC
    assert read_record(path, Note) == Note("old")
    assert sorted(os.listdir(full_disk)) == ["filler", "note"]


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_bytes(tmp_path / "no" / "file", b"x")
