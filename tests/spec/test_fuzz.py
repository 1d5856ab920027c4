"""Whatever the text: a spec or BadInput, in well-formed lines, within a second. FUZZ_EXAMPLES sets how many."""

import os
import re
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import BadInput
from launcher.spec import parse_spec
from launcher.spec.fields import JOB
from launcher.spec.kinds.sections import Section
from launcher.spec.model import JobSpec

FULL = (Path(__file__).parent / "full.yaml").read_text()
PIECES = re.findall(r"\w+|[^\w]", FULL)
LINE = re.compile(r"job\.yaml:[1-9]\d*:[1-9]\d*: .+?: .+|hint: .+|and \d+ more|--set .+?: .+")

fuzz = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(text: str, *overrides: str) -> None:
    started = time.thread_time()  # of the processor: a busy machine may stall
    try:
        assert isinstance(parse_spec(text, "job.yaml", overrides), JobSpec)
    except BadInput as error:
        assert error.lines
        for line in error.lines:
            assert LINE.fullmatch(line), line
            assert line.isprintable()
            assert len(line) < 1000
    assert time.thread_time() - started < 1


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
