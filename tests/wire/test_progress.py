"""The rank → agent wire."""

import asyncio
import json
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.records import NotFinite
from launcher.wire.messages import SlowRank, WentBack
from launcher.wire.progress import Progress, ProgressPipe


def test_words_with_a_meaning_and_metrics_are_kept_apart():
    progress = Progress()
    assert progress.take(b'{"step": 3, "total_steps": 9, "loss": 0.5, "checkpoint": 2, "note": "x"}')
    assert progress.take(b'{"step": 4}')
    assert (progress.step, progress.total_steps, progress.checkpoint) == (4, 9, 2)
    assert progress.metrics == {"loss": 0.5}
    assert progress.reported


def test_a_rank_that_takes_back_that_it_stays_takes_back_that_ranks_may_be_fewer():
    progress = Progress()
    progress.take(b'{"can_continue": 2, "resizes": true}')
    assert (progress.can_continue, progress.resizes, progress.goes_back) == (2, True, False)
    progress.take(b'{"can_continue": 2, "goes_back": true}')
    assert (progress.can_continue, progress.resizes, progress.goes_back) == (2, False, True)
    progress.take(b'{"can_continue": 2, "resizes": true}')
    progress.take(b'{"step": 7}')
    assert (progress.can_continue, progress.resizes, progress.waits) == (2, True, False)
    progress.take(b'{"can_continue": 0}')
    assert (progress.can_continue, progress.resizes) == (0, False)
    progress.take(b'{"waits": true}')
    assert progress.waits
    assert not progress.metrics


def test_the_rank_that_all_others_wait_for_is_told_of_until_a_new_generation():
    progress = Progress()
    assert progress.take(b'{"slow_rank": 3, "slow_s": 1.9, "usual_s": 1.0}')
    assert progress.slow == SlowRank(3, 1.9, 1.0) and not progress.metrics
    assert not progress.take(b'{"slow_rank": -1}')
    progress.take(b'{"step": 7}')
    assert progress.slow is not None
    progress.go_on()
    assert progress.slow is None


def test_where_it_went_back_to_is_told_of_until_a_new_generation():
    progress = Progress()
    assert progress.take(b'{"went_back_to": 8, "lost_steps": 2, "why": "no rank has shard 1 any more"}')
    assert progress.went_back == WentBack(8, 2, "no rank has shard 1 any more") and not progress.metrics
    assert not progress.take(b'{"went_back_to": 8, "lost_steps": -1}')
    progress.go_on()
    assert progress.went_back is None


def test_an_exception_alone_is_no_sign_of_life():
    progress = Progress()
    assert progress.take(b'{"exception": {"type": "ValueError", "line": "ValueError: x", "where": "a.py:1 in f"}}')
    assert not progress.reported
    assert progress.exception is not None and progress.exception.where == "a.py:1 in f"


@pytest.mark.parametrize(("names", "taken"), [(2, 2), (-1, None), (1 << 70, None)])
def test_the_rank_that_an_exception_names_is_taken_if_it_can_be_one(names, taken):
    progress = Progress()
    progress.take(json.dumps({"exception": {"line": "E", "failed_rank": names}}).encode())
    assert (progress.exception and progress.exception.failed_rank) == taken


def test_an_address_alone_is_no_sign_of_progress():
    progress = Progress()
    assert progress.take(b'{"address": "http://10.0.0.1:8000"}')
    assert (progress.reported, progress.address) == (False, "http://10.0.0.1:8000")
    assert progress.take(b'{"address": "' + b"x" * 3000 + b'"}') and len(progress.address) == 500
    assert progress.take(b'{"address": ""}') and progress.address == ""


def test_what_is_not_a_report_is_dropped_and_counted():
    progress = Progress()
    bad = [b"", b"[]", b"3", b'{"step": "three"}', b'{"step": -1}', b'{"step": 1e999}', b"\xff", b'{"step": 1', b"null"]
    for line in bad:
        assert not progress.take(line)
    assert progress.dropped_lines == len(bad)
    assert progress.step is None


@pytest.mark.parametrize("line", [b'{"fingerprint":"\\ud800","y":NaN}', b'{"exception":{"line":"\\udfff"},"y":NaN}'])
def test_half_a_character_goes_no_further(line):
    progress = Progress()
    assert not progress.take(line)
    msgspec.json.encode([progress.fingerprint, progress.exception])


def test_an_integer_beyond_all_floats_hides_nothing_beside_it():
    progress = Progress()
    assert progress.take(b'{"step":3,"x":1' + b"0" * 400 + b',"loss":0.5}')
    assert (progress.step, progress.metrics) == (3, {"loss": 0.5})


def test_numbers_that_are_none_are_no_metrics():
    progress = Progress()
    progress.take(b'{"step": 4, "loss": NaN, "norm": Infinity, "flag": true, "text": "1", "lr": 0.1}')
    assert progress.metrics == {"lr": 0.1}
    assert progress.not_finite == {"loss": NotFinite("NaN", 4), "norm": NotFinite("Infinity", 4)}
    assert progress.step == 4


def test_a_number_that_is_none_any_more_is_told_with_the_step_where_it_began():
    progress = Progress()
    for line in (b'{"step": 1, "loss": 0.5}', b'{"step": 2, "loss": NaN}', b'{"step": 3, "loss": -Infinity}'):
        assert progress.take(line)
    assert (progress.metrics, progress.not_finite) == ({}, {"loss": NotFinite("-Infinity", 2)})
    progress.take(b'{"step": 4, "loss": 0.4}')
    assert (progress.metrics, progress.not_finite) == ({"loss": 0.4}, {})


@given(st.binary(max_size=200))
def test_any_bytes_leave_it_standing(data):
    progress = Progress()
    for line in data.split(b"\n"):
        progress.take(line)
    assert progress.step is None or progress.step >= 0


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 7)), max_size=20))
def test_lines_arrive_whole_however_they_are_cut(tmp_path_factory, writes):
    path = tmp_path_factory.mktemp("wire") / "fifo"

    async def scene():
        progress = Progress()
        pipe = ProgressPipe(path, progress, lambda: None)
        fd = os.open(path, os.O_WRONLY)
        for step, cut in writes:
            line = json.dumps({"step": step}).encode() + b"\n"
            os.write(fd, line[:cut])
            pipe.drain()
            os.write(fd, line[cut:])
            pipe.drain()
        os.close(fd)
        pipe.close()
        return progress

    progress = asyncio.run(scene())
    assert progress.step == (writes[-1][0] if writes else None)
    assert progress.dropped_lines == 0
    assert not path.exists()


def test_an_endless_line_is_cut_off_and_the_next_one_counts(tmp_path):
    async def scene():
        progress = Progress()
        pipe = ProgressPipe(tmp_path / "fifo", progress, lambda: None)
        fd = os.open(tmp_path / "fifo", os.O_WRONLY)
        for _ in range(8):
            os.write(fd, b"x" * 4000)
            pipe.drain()
        os.write(fd, b'\n{"step": 7}\n')
        pipe.close()
        os.close(fd)
        return progress

    progress = asyncio.run(scene())
    assert progress.step == 7
    assert progress.dropped_lines >= 1


def test_a_rank_may_have_more_to_do_than_what_it_was_done_with():
    progress = Progress()
    for line, done in ((b'{"done": true}', True), (b'{"step": 1}', True), (b'{"done": false}', False)):
        assert progress.take(line)
        assert progress.done is done
