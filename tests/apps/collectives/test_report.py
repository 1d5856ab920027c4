"""From what ranks say to what is told: formulas of bandwidth, slow pairs, wrong results. Pure."""

import json

import pytest

from launcher.apps.collectives.findings import NodePair
from launcher.apps.collectives.measuring import MARK, algorithm_bandwidth, bus_factor, report_of, with_slow
from launcher.apps.collectives.tables import notes, problems, rows_of, size
from launcher.errors import LaunchError


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all-reduce", 4, 1.5), ("all-reduce", 2, 1.0), ("all-gather", 4, 0.75), ("reduce-scatter", 8, 0.875),
        ("all-to-all", 2, 0.5), ("gather", 4, 0.75), ("scatter", 4, 0.75), ("broadcast", 8, 1.0), ("reduce", 8, 1.0),
        ("send/recv", 8, 1.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_is_that_of_nccl_tests(operation, ranks, factor):
    assert bus_factor(operation, ranks) == factor
    assert algorithm_bandwidth(1000, 0.5) == 2000


def pair(one, other, rate=1e9, trip=1e-4, plain=2e9):
    return NodePair(one, other, 2**22, rate, trip, plain)


def test_a_slow_pair_is_named_by_its_ratio_to_the_median():
    pairs = [pair(0, 1), pair(0, 2), pair(1, 2, rate=2e8, trip=5e-4, plain=0.9e9)]
    fast, also, slow = with_slow(pairs)
    assert (fast.slow, also.slow) == ("", "")
    assert slow.slow == (
        "5.0 times as slow by send and recv, 2.2 times as slow by a plain connection, 5.0 times the round trip"
    )


@pytest.mark.parametrize("pairs", [[], [pair(0, 1)], [pair(0, 1), pair(0, 2), pair(1, 2, rate=0.6e9, plain=0.0)]])
def test_no_pair_is_slow_that_is_not_twice_as_slow_as_the_others(pairs):
    assert not any(one.slow for one in with_slow(pairs))


def marked_line(**words):
    """Return a rank's output line that carries these values after the mark."""
    return MARK + json.dumps(words)


PLACE = marked_line(what="place", backend="gloo", device="cpu", ranks=4, nodes=3)
END = marked_line(what="end")


def timed(**more):
    known = {"operation": "all-reduce", "ranks": 4, "size_bytes": 4096, "times_s": [0.002, 0.001, 0.004], "wrong": 0}
    return marked_line(what="timed", **{**known, "lacking": "", **more})


def test_what_ranks_say_becomes_a_table():
    copy = marked_line(what="copy", size_bytes=4096, bytes_per_s=8e9)
    report = report_of("x-1", "pool", ["noise", PLACE, copy, timed(), END])
    [row] = rows_of(report)
    assert row == (
        "all-reduce", "4", "4 KB", "2 ms", "1 ms .. 4 ms", "2.05 MB/s", "3.07 MB/s", "8 GB/s", "0"
    )  # fmt: skip
    assert not [*problems(report)]


def test_a_wrong_result_is_a_problem_though_all_was_said():
    report = report_of("x-1", "pool", [PLACE, timed(wrong=3), END], "x-1 failed: exit code 1")
    assert [*problems(report)] == ["all-reduce of 4 KB on 4 ranks: 3 numbers are not what they must be"]


def test_what_a_backend_lacks_is_said_and_no_problem():
    report = report_of("x-1", "pool", [PLACE, timed(operation="scatter", times_s=[], lacking="not supported"), END])
    assert [*notes(report)] == ["gloo has no scatter on 4 ranks: not supported"]
    assert not [*problems(report)]


@pytest.mark.parametrize(
    ("why", "told"), [("x-1 failed: killed", "x-1 failed: killed"), ("", "it did not say all of it")]
)
def test_a_run_that_did_not_say_all_is_a_problem(why, told):
    assert [*problems(report_of("x-1", "pool", [PLACE, timed()], why))] == [told]


def test_what_is_no_word_of_a_rank_is_refused():
    with pytest.raises(LaunchError, match="cannot be understood"):
        report_of("x-1", "pool", [MARK + '{"what": "timed", "operation": 3}'])


def test_sizes_are_binary():
    assert [size(count) for count in (0, 1000, 1024, 65536, 2**26, 2**30)] == [
        "0 B", "1000 B", "1 KB", "64 KB", "64 MB", "1 GB"
    ]  # fmt: skip
