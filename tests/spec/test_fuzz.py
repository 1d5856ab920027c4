"""Whatever the text: a value or BadInput, in well-formed lines, within seconds and in bounded memory.

A few hundred texts of each kind; 100,000 of them with --nightly.
"""

import gc
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import BadInput
from launcher.places.clusters_file import ClusterEntry, clusters_of
from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Section
from launcher.spec.model import JobSpec
from launcher.spec.read import parse_spec
from tests.sizes import SCALE
from tests.spec import test_malformed as malformed

FULL = (Path(__file__).parent / "full.yaml").read_text()
PIECES = re.findall(r"\w+|[^\w]", FULL)
LINE = re.compile(r"job\.yaml:[1-9]\d*:[1-9]\d*: .+?: .+|hint: .+|and \d+ more|--set .+?: .+")

MOST_KIB = 64 * 1024  # that reading a text may take
TARGETS = 9
fuzz = settings(
    max_examples=300 if SCALE == 1 else 50_000 * SCALE // TARGETS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


pytestmark = pytest.mark.timeout(120 * SCALE**3)


def check(text: str, *overrides: str) -> None:
    bounded(lambda: isinstance(parse_spec(text, "job.yaml", overrides), JobSpec))


def check_clusters(text: str) -> None:
    bounded(lambda: all(isinstance(place, ClusterEntry) for place in clusters_of(text, "job.yaml").values()))


def bounded(parses: Callable[[], bool]) -> None:
    gc.disable()  # what hypothesis has gathered is not ours to look through
    before, started = peak_kib(), time.thread_time()
    try:
        assert parses()
    except BadInput as error:
        assert error.lines
        for line in error.lines:
            assert LINE.fullmatch(line), line
            assert line.isprintable()
            assert len(line) < 1000
    finally:
        gc.enable()
    assert time.thread_time() - started < malformed.BOUND_S
    assert peak_kib() - before < MOST_KIB


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


OPTIONS = [field.key for field in JOB.options]
INNER = [field.key for option in JOB.options if isinstance(option.kind, Section) for field in option.kind.options]
VALUES = st.sampled_from(
    [
        "1", "0", "010", "-1", "2..4", "4..2", "1e3", "yes", "off", "true", "~", "null", "10m", "02:00:00", "500 steps",
        "1GB", "auto", "unlimited", "a.b", "../x", "/x", "''", "[]", "{}", "*a", "&a", "!!str", "<<",
    ]
)  # fmt: skip


@fuzz
@given(st.text(alphabet=st.characters(codec=None), max_size=200))
def test_any_text(text: str) -> None:
    check(text)


@fuzz
@given(st.text(alphabet="ab:-?[]{},#&*!|>'\"%@`<\\ \n\t0x~.", max_size=120))
def test_text_of_what_yaml_minds(text: str) -> None:
    check(text)


@fuzz
@given(st.lists(st.tuples(st.sampled_from(OPTIONS + INNER + ["x"]), VALUES, st.integers(0, 3)), max_size=12))
def test_options_and_values_at_random(lines: list[tuple[str, str, int]]) -> None:
    check("".join(f"{'  ' * depth}{key}: {value}\n" for key, value, depth in lines))


@fuzz
@given(st.data())
def test_a_good_spec_with_pieces_lost_doubled_and_moved(data: st.DataObject) -> None:
    pieces = list(PIECES)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(pieces) - 1))
        with_what = data.draw(
            st.sampled_from(["", pieces[place] * 2, pieces[place - 1]]) | st.sampled_from(PIECES) | st.characters()
        )
        pieces[place] = with_what
    check("".join(pieces))


TREES = st.recursive(
    VALUES | st.sampled_from(OPTIONS + INNER),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(OPTIONS + INNER + ["'x'", "1"]), inner), max_size=5).map(
            lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items) + "}"
        )
    ),
    max_leaves=25,
)


@fuzz
@given(st.dictionaries(st.sampled_from(OPTIONS), TREES, max_size=8))
def test_trees_at_random(tree: dict[str, str]) -> None:
    check("".join(f"{key}: {value}\n" for key, value in tree.items()))


PATHS = st.lists(st.sampled_from([*OPTIONS, *INNER, "x", "", "killed", "backoff"]), max_size=4).map(".".join)


@fuzz
@given(st.lists(st.tuples(PATHS, TREES | st.text(max_size=20)).map("=".join) | st.text(max_size=20), max_size=4))
def test_overrides_at_random(overrides: list[str]) -> None:
    check("name: a\nrun: {script: t.py, args: [a]}\n", *overrides)
    check(FULL, *overrides)


CORPUS = [text for text, *_ in (*malformed.TEXTS, *malformed.FILES)]
CORPUS += [malformed.with_value(option, value)[0] for option, value, _ in malformed.VALUES]
POOLS = """
hpc: {kind: slurm, login: me@login.example.org, launch: ~/bin/launch, defaults: {partition: gpu, extra: {comment: "x"}}}
lab: {kind: ssh, hosts: [gpu01, {name: gpu02, gpus: 2, port: 22}], python: ~/venv/bin/python, transport: openssh}
here: {kind: gridengine, defaults: {pe: launch, warn_before: 2m}}
"""
NAMES = ["kind", "ssh", "slurm", "gridengine", "login", "hosts", "defaults", "local", "node", *INNER]


@fuzz
@given(st.sampled_from(CORPUS), st.data())
def test_two_wrong_specs_made_one(text: str, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from(CORPUS))
    check(text[: data.draw(st.integers(0, len(text)))] + other[data.draw(st.integers(0, len(other))) :])


@fuzz
@given(st.data())
def test_a_clusters_file_with_pieces_lost_doubled_and_moved(data: st.DataObject) -> None:
    pieces = re.findall(r"\w+|[^\w]", POOLS)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(pieces) - 1))
        pieces[place] = data.draw(st.sampled_from(["", pieces[place] * 2, *pieces]) | st.characters())
    check_clusters("".join(pieces))


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(["a", "local", "x-1", "'*'", "hpc"]),
        st.dictionaries(st.sampled_from(NAMES), TREES, max_size=3),
        max_size=3,
    )
)
def test_clusters_at_random(tree: dict[str, dict[str, str]]) -> None:
    lines = (f"  {key}: {value}\n" for said in tree.values() for key, value in said.items())
    check_clusters("".join(f"{name}:\n{''.join(lines)}" for name in tree))
