"""Large parts go past the page cache where they can, and are the same bytes in any case."""

import errno
import fcntl
import mmap
import os
import resource
import subprocess
from pathlib import Path

import pytest
import xxhash

from trainer.checkpoint_files.direct import DIRECT_BYTES, PAGE_BYTES
from trainer.checkpoint_files.durable import hash_file, write_new


def pages(size):
    """Memory that begins on a whole page, with something in it."""
    memory = mmap.mmap(-1, size)
    block = os.urandom(1 << 20)
    for begin in range(0, size, len(block)):
        memory[begin : begin + len(block)] = block[: size - begin]
    return memory


def cached_bytes(path):
    """Return how many bytes of a file are in the page cache."""
    said = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return int(said.stdout)


def check(path, parts):
    written = write_new(path, parts)
    whole = b"".join(bytes(part) for part in parts)
    assert (written.size, written.digest) == (len(whole), xxhash.xxh3_128_hexdigest(whole))
    hash_file(path, written.size, written.digest)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("more", [0, 1, PAGE_BYTES, PAGE_BYTES + 17])
def test_a_large_part_with_whatever_follows_it(tmp_path, more):
    memory = pages(DIRECT_BYTES + more)
    check(tmp_path / "file", [memoryview(memory), b"documents", b"more of them"])


def test_a_large_part_is_not_in_the_cache_and_a_small_one_is(tmp_path):
    memory = pages(DIRECT_BYTES)
    write_new(tmp_path / "large", [memoryview(memory), b"documents"])
    assert cached_bytes(tmp_path / "large") < DIRECT_BYTES // 100
    write_new(tmp_path / "small", [memoryview(memory)[: DIRECT_BYTES // 2]])
    assert cached_bytes(tmp_path / "small") == DIRECT_BYTES // 2


@pytest.mark.parametrize("begin", [1, 8, 4095])
def test_memory_that_is_not_on_whole_pages(tmp_path, begin):
    memory = pages(DIRECT_BYTES + PAGE_BYTES)
    check(tmp_path / "file", [memoryview(memory)[begin : begin + DIRECT_BYTES]])


def test_a_place_in_the_file_that_is_not(tmp_path):
    check(tmp_path / "file", [b"x", memoryview(pages(DIRECT_BYTES))])


def test_bytes_that_cannot_be_written_to(tmp_path):
    check(tmp_path / "file", [bytes(pages(DIRECT_BYTES))])


def test_a_file_system_in_memory():
    path = Path(f"/dev/shm/launch-test-{os.getpid()}")
    try:
        check(path, [memoryview(pages(DIRECT_BYTES))])
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("refused_at", [0, 32 << 20], ids=["at once", "after the first piece"])
def test_a_disk_that_stops_taking_whole_pages(tmp_path, monkeypatch, refused_at):
    """What is left goes the usual way; nothing is hashed or written twice."""
    write, refused = os.write, []

    def refuse(fd, piece):
        direct = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        if direct and not refused and os.lseek(fd, 0, os.SEEK_CUR) == refused_at:
            refused.append(fd)
            raise OSError(errno.EINVAL, "unaligned")
        return write(fd, piece)

    monkeypatch.setattr(os, "write", refuse)
    check(tmp_path / "file", [memoryview(pages(DIRECT_BYTES + 17)), b"documents"])
    assert refused


def test_an_error_of_the_disk_is_still_an_error(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    memory = memoryview(pages(DIRECT_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DIRECT_BYTES // 2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_new(tmp_path / "file", [memory])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
