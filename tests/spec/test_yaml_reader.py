"""The tree and its limits, with both of PyYAML's parsers."""

import time
from typing import Any

import pytest
import yaml

from launcher.spec.tree import Mapping, Mark, Scalar, Sequence
from launcher.spec.yaml_reader import MAX_DEPTH, read_tree
from launcher.spec.yaml_text import MAX_BYTES

# Of the processor, generously: a machine where much else runs takes its time for that too.
BOUND_S = 10.0
LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(params=LOADERS, ids=lambda loader: loader.__name__)
def loader(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_scalars_keep_their_text_and_place(loader: Any) -> None:
    root = read_tree("a: 010\nb: 'yes'\nc: [1e3,  x]\nd:\n", loader=loader).root
    assert isinstance(root, Mapping)
    values = [entry.value for entry in root]
    assert values[:2] == [Scalar("010", True, Mark(1, 4)), Scalar("yes", False, Mark(2, 4))]
    assert values[2] == Sequence([Scalar("1e3", True, Mark(3, 5)), Scalar("x", True, Mark(3, 11))], Mark(3, 4))
    assert values[3] == Scalar("", True, Mark(4, 3))
    assert [entry.key.mark for entry in root] == [Mark(1, 1), Mark(2, 1), Mark(3, 1), Mark(4, 1)]


@pytest.mark.parametrize("opening", ["[", "{", "[{", "- ", "? ", "{? "])
@pytest.mark.parametrize("count", [MAX_DEPTH + 1, 5_000, 60_000])
def test_depth_is_limited_before_it_costs_anything(loader: Any, opening: str, count: int) -> None:
    started = time.thread_time()
    read = read_tree(opening * count, loader=loader)
    assert time.thread_time() - started < BOUND_S
    assert [problem.reason for problem in read.problems] == [f"nested more than {MAX_DEPTH} deep"]


def test_the_greatest_depth_is_no_problem(loader: Any) -> None:
    assert read_tree("[" * MAX_DEPTH + "]" * MAX_DEPTH, loader=loader).problems == []


def took_s(text):
    """The least processor time that reading it takes: a busy machine is not busy each time."""
    times = []
    for _ in range(3):
        began = time.process_time()
        read_tree(text)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("opening", ["[", "{a: ", "[{", "- ", "[\n", "? "])
def test_nesting_without_end_is_refused_sooner_than_a_plain_text_of_that_length_is_read(opening):
    assert took_s(opening * (MAX_BYTES // len(opening))) < 2 * took_s("- a\n" * (MAX_BYTES // 4)) + 0.02


@pytest.mark.parametrize(
    "text",
    [
        "a: [" + "[]," * 80_000 + "]",
        "[" + "a: b," * 50_000 + "]",
        "a: " + "x " * 100_000,
        "a: |\n" + " x\n" * 80_000,
        "\n" * 250_000,
        "%A b\n" * 50_000,
        "a: 1\n" * 50_000,
        "&a " * 80_000,
        "a: '" + "''" * 120_000 + "'",
        "\x00" * 250_000,
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_no_text_takes_long(loader: Any, text: str) -> None:
    started = time.thread_time()
    read_tree(text, loader=loader)
    assert time.thread_time() - started < BOUND_S


# What both parsers say in their own words is the same in ours.
BROKEN = [
    "a: b: c", "a: 'x\nb: 1\n", 'a: "x', "a: [1\nb: 2\n", "a: {x: 1\nb: 2\n", "a: ]", "a: }", "a:\n  b: 1\n c: 2\n",
    "\ta: 1",
    "a:\n\tb: 1\n", "a:\n  b: 1\n\tc: 1\n", "a: @x", "a: `x", "a: %x", "a: - b", "- a\nb: 1", "a: 1\n- b", "a\nb: 1",
    "a: 1\n... b", "%YAML 2.0\n---\na: 1", "'a': 1\n'b' 2", "a: {b: c: d}", "a: b\nc", "a: 'b'c: d", "a: ,",
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=ascii)
def test_both_parsers_complain_alike(text: str) -> None:
    told = [read_tree(text, loader=loader) for loader in LOADERS]
    assert all(read.root is None and len(read.problems) == 1 for read in told)
    assert len({(read.problems[0].mark, read.problems[0].reason) for read in told}) == 1
    assert "not valid YAML" not in told[0].problems[0].reason


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', 'a: "\\U00110000"', "%YAML " + "9" * 5000 + ".1\n---\na"])
def test_numbers_out_of_range_are_a_problem(loader: Any, text: str) -> None:
    read = read_tree(text, loader=loader)
    assert read.root is None and len(read.problems) == 1
