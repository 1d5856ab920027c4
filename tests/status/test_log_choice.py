"""Some lines of a log, and that nobody reads the rest for them."""

import os
import re
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folder import RunFolder

from launcher.run.records import RankState
from launcher.status import log_choice
from launcher.status.log_choice import LogChoice, begin_at
from launcher.status.logs import LogReader, merged_logs

PIECES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\n\n", b"x" * 30, b"loss nan\n"]), max_size=12)


def shown(folder, **choice):
    return [line.text for line in merged_logs(folder.run, choice=LogChoice(**choice))]


@given(
    st.lists(PIECES, min_size=1, max_size=3),
    st.integers(0, 8),
    st.sampled_from([None, "a", "loss", "^$"]),
    st.integers(1, 50),
)
def test_the_last_lines_are_those_that_all_end_with(logs, last, pattern, block):
    with mock.patch.object(log_choice, "_BLOCK_BYTES", block), tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch, "job-abcd"))
        for number, pieces in enumerate(logs):
            sizes = [len(b"".join(pieces[:end])) for end in range(1, len(pieces) + 1)]
            times = [(float(at), size) for at, size in enumerate(sizes)]
            folder.log(number % 2, b"".join(pieces), times=times, generation=1 + number // 2)
        chosen = re.compile(pattern) if pattern is not None else None
        every = [line for line in merged_logs(folder.run) if chosen is None or chosen.search(line.text)]
        assert list(merged_logs(folder.run, choice=LogChoice(pattern=chosen, last=last))) == (
            every[-last:] if last else []
        )


def test_lines_since_a_moment_begin_with_a_whole_one(folder):
    folder.log(0, "old\nbegun before, ended after\nnew\n", times=[(1.0, 4), (5.0, 10), (9.0, 35)])
    folder.log(0, "nobody noted this yet", generation=1)
    folder.log(1, "older\n", times=[(2.0, 6)]).log(2, "unknown\n", attempt=0)
    assert shown(folder, since=6.0) == ["begun before, ended after", "new", "nobody noted this yet"]
    assert shown(folder, since=6.0, last=2) == ["new", "nobody noted this yet"]
    assert shown(folder, since=0.5)[:2] == ["old", "older"]


def test_the_lines_of_a_node(folder):
    folder.plan(nodes=2).attempt().log(0, "a\n").log(1, "b\n").log(2, "c\n")
    folder.state(ranks=tuple(RankState(rank, rank // 2, None, "running") for rank in range(3)))
    assert shown(folder, nodes=frozenset({0})) == ["a", "b"]
    assert shown(folder, nodes=frozenset({1}), last=5) == ["c"]
    assert shown(folder, nodes=frozenset({0}), ranks=frozenset({1, 2})) == ["b"]


def test_a_pattern_is_sought_in_what_is_shown(folder):
    folder.log(0, "\x1b[31mlo\x1b[0mss 3\n 10%|loss\rdone\nLoss\n")
    assert shown(folder, pattern=re.compile("loss")) == ["\x1b[31mlo\x1b[0mss 3"]


def test_who_begins_near_the_end_goes_on_from_there(folder):
    folder.plan().log(0, "a\nb\nc\n")
    reader = LogReader(folder.run, choice=LogChoice(last=1))
    assert [line.text for line in reader.read(final=False)] == ["c"]
    folder.log(0, "d\ne\n").log(0, "f\n", generation=2)
    assert [line.text for line in reader.read(final=True)] == ["d", "e", "f"]


def test_generations_that_are_not_needed_are_not_looked_at(folder, monkeypatch):
    folder.log(0, "old\n").log(0, "a\nb\n", generation=2)
    folder.run.rank_log(1, 1, 0).chmod(0)
    opened = []
    monkeypatch.setattr(
        os, "open", lambda path, *more, really=os.open: (opened.append(str(path)), really(path, *more))[1]
    )
    assert shown(folder, last=2) == ["a", "b"]
    assert not [path for path in opened if "g0001" in path]


@pytest.mark.parametrize("newline", [b"\n", b"\r"])
def test_the_last_lines_of_two_gigabytes_cost_as_little_as_those_of_two_lines(folder, newline):
    path = folder.run.rank_log(1, 1, 0)
    folder.log(0, newline)
    with path.open("r+b") as file:
        file.truncate(2 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"".join(b"step %d%s" % (step, newline) for step in range(200_000)) + b"last\n")
    with path.with_suffix(".times").open("w") as times:
        times.writelines(f"{at} {at * 4000}\n" for at in range(540_000))
    began = time.process_time()
    lines = list(merged_logs(folder.run, choice=LogChoice(last=50)))
    assert time.process_time() - began < 0.2
    assert lines[-1].text == "last"
    assert lines[-1].at == pytest.approx(path.stat().st_size / 4_000_000, rel=0.01)


def test_what_is_no_file_has_no_lines(folder, tmp_path):
    assert begin_at(tmp_path / "missing", LogChoice(last=3)) == (0, 0)
    assert begin_at(tmp_path, LogChoice(last=3, since=1.0)) == (0, 0)
