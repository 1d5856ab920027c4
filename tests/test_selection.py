"""Which files a shard has, and the table of times it goes by."""

from argparse import ArgumentTypeError
from types import SimpleNamespace

import pytest

from tests.selection import Shard, longest_first, read_times, write_times

TIMES = {"slow.py": (0, 90), "medium.py": (30, 40), "quick.py": (3, 3)}
FILES = [*TIMES, *(f"new_{number}.py" for number in range(20))]


def test_the_slowest_file_comes_first_by_the_times_of_that_kind_of_run():
    assert longest_first(FILES, TIMES, nightly=True)[:3] == ["slow.py", "medium.py", "quick.py"]
    assert longest_first(FILES, TIMES, nightly=False)[:2] == ["medium.py", "quick.py"]


@pytest.mark.parametrize("of", [1, 2, 3, 8, 40])
def test_each_file_is_in_one_shard_and_shards_take_about_as_long(of):
    order = longest_first(FILES, TIMES, nightly=True)
    shards = [Shard(number, of).files(order, TIMES, nightly=True) for number in range(1, of + 1)]
    assert sorted(file for shard in shards for file in shard) == sorted(FILES)
    sums = [sum(max(1, TIMES.get(file, (0, 0))[1]) for file in shard) for shard in shards]
    assert max(sums) <= max(90, sum(sums) / of + 40)


def test_what_a_shard_is_called():
    assert Shard.parse("3/8") == Shard(3, 8)
    for text in ("", "3", "0/8", "9/8", "a/b", "1/0"):
        with pytest.raises(ArgumentTypeError, match="expected K/N"):
            Shard.parse(text)


def test_times_of_a_run_replace_those_of_the_same_kind_and_fast_files_have_no_line(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("# Seconds\n    9      50  tests/a.py\n    4      40  tests/b.py\n")
    took = [("tests/a.py::test_1", 5.0), ("tests/a.py::test_2", 6.4), ("tests/b.py::test_1", 0.2), ("tests/c.py::x", 0)]
    write_times([SimpleNamespace(nodeid=test, duration=seconds) for test, seconds in took], nightly=False, path=path)
    assert read_times(path) == {"tests/a.py": (11, 50), "tests/b.py": (0, 40)}
