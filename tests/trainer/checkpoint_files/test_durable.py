import errno
import os
import resource
import stat
from pathlib import Path

import pytest
import xxhash
from checkpoint_lab import calls_of, unsynced

from tests.lab.requirements import need
from trainer.checkpoint_files.durable import (
    PIECE_BYTES,
    Written,
    hash_file,
    make_folder,
    read_into,
    read_small,
    sync_folder,
    write_new,
)
from trainer.errors import CheckpointDamaged


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def links(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"0123456789")
    path.symlink_to(path.parent / "elsewhere")


def dangles(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


OTHERS = {"link": links, "dangling link": dangles, "fifo": os.mkfifo, "folder": os.mkdir}


@pytest.fixture(params=[0o000, 0o077, 0o777], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"abc", memoryview(b"defg"), bytearray(b"")],
        [memoryview(bytearray(16)).cast("i", (2, 2))],
        [memoryview(b"").cast("B"), b"x"],
        [bytes(PIECE_BYTES + 1), b"y"],
    ],
)
def test_parts_become_one_file(memory, parts):
    data = b"".join(bytes(part) for part in parts)
    assert write_new(memory / "file", parts) == Written(len(data), digest(data))
    assert (memory / "file").read_bytes() == data
    hash_file(memory / "file", len(data), digest(data))
    buffer = memoryview(bytearray(len(data) + 3))
    read_into(memory / "file", len(data), digest(data), [(0, buffer[:-3])])
    assert bytes(buffer) == data + b"\0\0\0"


def test_a_part_with_a_zero_in_its_shape_is_nothing(memory):
    numpy = pytest.importorskip("numpy")
    parts = [memoryview(numpy.empty((0, 4))), memoryview(numpy.ones(2)), memoryview(numpy.float64(1.0))]
    assert write_new(memory / "file", parts).size == 24


def test_a_file_is_never_written_twice(memory):
    write_new(memory / "file", [b"first"])
    with pytest.raises(FileExistsError):
        write_new(memory / "file", [b"second"])
    assert (memory / "file").read_bytes() == b"first"


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_in_the_place_of_a_new_file_is_left_alone(memory, kind):
    OTHERS[kind](memory / "file")
    with pytest.raises(FileExistsError):
        write_new(memory / "file", [b"data"])
    assert not (memory / "nowhere").exists()
    if kind == "link":
        assert (memory / "elsewhere").read_bytes() == b"0123456789"


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_in_the_place_of_a_file_is_damage_and_holds_nobody(memory, kind):
    OTHERS[kind](memory / "file")
    for read in (
        lambda: read_small(memory / "file"),
        lambda: hash_file(memory / "file", 10, digest(b"0123456789")),
        lambda: read_into(memory / "file", 10, digest(b"0123456789"), [(0, memoryview(bytearray(10)))]),
    ):
        with pytest.raises(CheckpointDamaged, match="expected a file"):
            read()


def test_modes_do_not_depend_on_the_umask(memory, umask):
    make_folder(memory / "a" / "b")
    write_new(memory / "a" / "b" / "file", [b"x"])
    assert [mode(memory / "a"), mode(memory / "a" / "b"), mode(memory / "a" / "b" / "file")] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("data", [b"0123456788", b"012345678", b"01234567890", b"", bytes(10)])
def test_other_bytes_than_were_written_are_damage(memory, data):
    (memory / "file").write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=r"file: (its checksum|expected 10 bytes, got \d+)"):
        hash_file(memory / "file", 10, digest(b"0123456789"))
    with pytest.raises(CheckpointDamaged, match=r"file: (its checksum|expected 10 bytes, got \d+)"):
        read_into(memory / "file", 10, digest(b"0123456789"), [(0, memoryview(bytearray(10)))])


def test_every_piece_of_a_large_file_is_looked_at(memory):
    data = os.urandom(2 * PIECE_BYTES + 10)
    write_new(memory / "file", [data])
    hash_file(memory / "file", len(data), digest(data))
    for at in (0, PIECE_BYTES - 1, PIECE_BYTES, len(data) - 1):
        with open(memory / "file", "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 4]))
        with pytest.raises(CheckpointDamaged, match="checksum"):
            hash_file(memory / "file", len(data), digest(data))
        with open(memory / "file", "r+b") as file:
            file.seek(at)
            file.write(data[at : at + 1])


def test_places_are_filled_in_one_pass_over_the_file(memory):
    """Each one is full before the next is asked for, whatever lies between them; and all of the file was compared."""
    data = os.urandom((2 << 20) + 100)
    write_new(memory / "file", [data])
    first, second, empty = bytearray(1 << 20), bytearray(7), bytearray(0)

    def places():
        yield 64, memoryview(first)
        assert first == data[64 : 64 + len(first)] and not any(second)
        yield 64 + len(first), memoryview(empty)
        yield len(data) - 9, memoryview(second)
        assert second == data[-9:-2]

    read_into(memory / "file", len(data), digest(data), places())
    for at in (0, 70, len(data) - 1):  # before, in and after what is wanted
        other = bytearray(data)
        other[at] ^= 1
        (memory / "file").write_bytes(other)
        with pytest.raises(CheckpointDamaged, match="checksum"):
            read_into(memory / "file", len(data), digest(data), [(64, memoryview(first)), (len(data) - 9, second)])


@pytest.mark.parametrize("ats", [(4, 0), (0, 3), (0, 7)], ids=["the wrong way round", "overlapping", "beyond"])
def test_places_that_cannot_be_are_damage(memory, ats):
    write_new(memory / "file", [b"0123456789"])
    with pytest.raises(CheckpointDamaged, match="overlap, or lie beyond"):
        read_into(memory / "file", 10, digest(b"0123456789"), [(at, memoryview(bytearray(4))) for at in ats])


def test_what_was_compared_is_what_is_in_the_places(memory):
    """A file that is changed, exchanged or cut short while it is read: the old bytes, or damage."""
    old, new = os.urandom(3 << 20), os.urandom(3 << 20)

    def over(path):
        path.write_bytes(new)

    def exchanged(path):
        (path.parent / "other").write_bytes(new)
        os.rename(path.parent / "other", path)

    for number, change in enumerate((over, exchanged, lambda path: os.truncate(path, 1 << 20))):
        path = memory / str(number)
        write_new(path, [old])
        place, called = bytearray(len(old) - 10), []

        def places(path=path, change=change, place=place, called=called):
            yield 0, memoryview(place)[: 1 << 20]
            change(path)
            called.append(1)
            yield 1 << 20, memoryview(place)[1 << 20 :]

        sound = True
        try:
            read_into(path, len(old), digest(old), places())
        except CheckpointDamaged:
            sound = False
        assert called and sound == (change is exchanged)
        assert not sound or place == old[:-10]


def test_a_file_that_is_not_there_is_said_to_be_that(memory):
    for read in (lambda: read_small(memory / "file"), lambda: hash_file(memory / "file", 0, digest(b""))):
        with pytest.raises(FileNotFoundError):
            read()


def test_a_file_as_large_as_memory_is_not_read_as_a_small_one(memory):
    with open(memory / "file", "wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(CheckpointDamaged, match="expected at most"):
        read_small(memory / "file")


def test_a_folder_that_is_there_is_taken_and_no_file_for_one(memory):
    make_folder(memory)
    (memory / "file").touch()
    for path in (memory / "file", memory / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            make_folder(path)
    (memory / "dangling").symlink_to(memory / "nowhere")
    with pytest.raises(FileExistsError):
        make_folder(memory / "dangling")
    assert not (memory / "nowhere").exists()
    make_folder(memory / "real")
    (memory / "link").symlink_to(memory / "real")
    make_folder(memory / "link")  # another disk's folder


def test_a_relative_folder_can_be_made(memory, monkeypatch):
    monkeypatch.chdir(memory)
    make_folder(Path("checkpoints"))
    assert (memory / "checkpoints").is_dir()


def test_a_file_that_cannot_grow_is_an_error(memory):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_new(memory / "file", [bytes(5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG


def test_descriptors_are_given_back_whatever_happens(memory):
    (memory / "file").write_bytes(b"x")
    os.mkfifo(memory / "fifo")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        for attempt in (
            lambda: write_new(memory / "file", [b"y"]),
            lambda: write_new(memory / os.urandom(4).hex(), [b"y", "no bytes"]),
            lambda: hash_file(memory / "file", 1, "wrong"),
            lambda: hash_file(memory / "fifo", 1, "wrong"),
            lambda: read_small(memory / "fifo"),
            lambda: sync_folder(memory / "file"),
        ):
            with pytest.raises((OSError, TypeError, CheckpointDamaged)):
                attempt()
    assert os.listdir("/proc/self/fd") == before


def test_a_new_file_is_on_disk_when_the_call_returns(memory):
    need("strace")
    calls = calls_of(lambda: (write_new(memory / "file", [b"x"]), sync_folder(memory)), "-y")
    assert unsynced(calls) == []
    assert [call for call in calls if call.startswith("fsync") and "/file>" in call]


def test_a_new_folder_is_on_disk_when_the_call_returns(memory):
    need("strace")
    for path in (memory / "a" / "b", memory / "a" / "b"):  # the second time somebody else may have made it
        calls = calls_of(lambda path=path: make_folder(path), "-y")
        assert [call for call in calls if call.startswith("fsync") and call.split("<")[1].startswith(f"{path.parent}>")]
