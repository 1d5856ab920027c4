"""Where a row of parts is cut: no process group, and no clock."""

from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import BadSettings
from trainer.strategies.pipeline_cutting import (
    BY_LAYERS,
    BY_TIME,
    Cut,
    Sample,
    SavedCut,
    choose_cut,
    cut_at,
    cut_by_layers,
    cut_by_time,
)

PARTS = ["embedding", *(f"blocks.{number}" for number in range(4)), "head"]
LAYERS = PARTS[1:-1]
TRAINED = [True] * len(PARTS)
UNEVEN = dict(zip(PARTS, (1.0, 8.0, 2.0, 2.0, 2.0, 1.0), strict=True))


@given(layers=st.integers(1, 20), stages=st.integers(1, 8))
def test_stages_have_equally_many_layers_or_one_more(layers, stages):
    names = [f"blocks.{number}" for number in range(layers)]
    parts = ["embedding", *names, "norm", "head"]
    if layers < stages:
        with pytest.raises(BadSettings, match=f"at least {stages} layers for {stages} stages, found {layers}"):
            cut_by_layers(parts, names, stages)
        return
    found = cut_by_layers(parts, names, stages)
    assert [name for row in found for name in row] == parts
    sizes = [sum(name in names for name in row) for row in found]
    assert len(found) == stages and max(sizes) - min(sizes) <= 1 and min(sizes) > 0


def every_way(many, stages):
    for places in combinations(range(1, many), stages - 1):
        yield list(pairwise([0, *places, many]))


@given(
    measured=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=8), stages=st.integers(1, 4)
)
def test_of_all_ways_the_one_with_the_fastest_slowest_stage_is_taken(measured, stages):
    seconds, trained = [float(one) for one, _ in measured], [learns for _, learns in measured]
    parts = [str(number) for number in range(len(measured))]
    ways = [
        [sum(seconds[begin:end]) for begin, end in way]
        for way in every_way(len(parts), stages)
        if all(any(trained[begin:end]) for begin, end in way)
    ]
    if not ways:
        with pytest.raises(BadSettings, match=f"at least {stages} parts with parameters to train"):
            cut_by_time(parts, seconds, trained, stages)
        return
    rows = cut_by_time(parts, seconds, trained, stages)
    assert [name for row in rows for name in row] == parts and all(rows)
    times = [sum(seconds[int(name)] for name in row) for row in rows]
    assert all(any(trained[int(name)] for name in row) for row in rows)
    slowest = min(map(max, ways))
    assert max(times) == slowest
    assert sum(time**2 for time in times) == min(sum(time**2 for time in way) for way in ways if max(way) == slowest)


def test_a_wide_layer_has_a_stage_for_itself():
    rows = cut_by_time(PARTS, list(UNEVEN.values()), TRAINED, 2)
    assert rows == [["embedding", "blocks.0"], ["blocks.1", "blocks.2", "blocks.3", "head"]]


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        (["tiem"], "expected layers, time, or parts with which stages begin, got 'tiem'\nhint: parts are embedding, "),
        (["blocks.1"], "expected 2 parts with which stages begin, as there are 3 stages, got 1: blocks.1"),
        (["blocks.2", "blocks.1"], "expected parts in the order of the model"),
        (["embedding", "blocks.1"], "the first of all left out"),
    ],
)
def test_parts_that_no_stages_can_begin_with_are_refused(begins, said):
    with pytest.raises(BadSettings) as refused:
        cut_at(PARTS, begins, 3)
    assert said in str(refused.value)


@dataclass
class Known:
    """Cuts that are kept in memory."""

    before: list = field(default_factory=list)
    measures: bool = True
    kept_now: list = field(default_factory=list)

    def kept(self):
        return self.before

    def sample(self):
        return Sample(torch.zeros(1), torch.sum) if self.measures else None

    def keep(self, cut):
        self.kept_now.append(cut)


def cut_so(cuts, wanted=BY_TIME, stages=2):
    return choose_cut(wanted, PARTS, LAYERS, TRAINED, stages, cuts, lambda _: list(UNEVEN.values()))


def test_what_is_measured_is_kept_and_told():
    cuts = Known()
    found = cut_so(cuts)
    assert found.begins == ["blocks.1"] and found.way == BY_TIME and cuts.kept_now == [found]
    assert found.shares == [9 / 16, 7 / 16]
    assert found.summary() == (
        "by measured time: embedding to blocks.0 56%, blocks.1 to head 44%; by layers the slowest would have 69%"
    )
    assert found.lines()[1:] == ["stage 0: embedding to blocks.0 56%", "stage 1: blocks.1 to head 44%"]


def test_what_was_kept_is_gone_by_and_nothing_is_measured():
    cuts = Known([SavedCut(["blocks.3"], (1.0, 3.0), 0.7)])
    found = cut_so(cuts)
    assert found.begins == ["blocks.3"] and found.shares == [0.25, 0.75] and not cuts.kept_now


@pytest.mark.parametrize(
    "before", [SavedCut(["blocks.1", "blocks.2"]), SavedCut(["layers.1"]), SavedCut(["blocks.1"], (1.0,))]
)
def test_what_was_kept_of_other_stages_does_not_count(before):
    found = cut_so(Known([before]))
    assert found.begins == ["blocks.1"] and len(found.seconds) in (0, 2)


def test_where_nothing_is_to_be_measured_layers_count():
    for cuts in (None, Known(measures=False)):
        found = cut_so(cuts)
        assert (found.way, found.begins, found.shares) == (BY_LAYERS, ["blocks.2"], [])
    assert (
        Cut(found.rows, BY_TIME, (1.0, 3.0), 0.75).summary()
        == "by measured time: embedding to blocks.1 25%, blocks.2 to head 75%"
    )
    assert cut_so(None, BY_LAYERS).summary() == "by layers: embedding to blocks.1, blocks.2 to head"


def test_stages_may_be_said():
    found = cut_so(None, "blocks.1, head", stages=3)
    assert found.rows == [PARTS[:2], PARTS[2:5], ["head"]]
    assert found.summary() == "as given: embedding to blocks.0, blocks.1 to blocks.3, head"
    assert Cut(found.rows).begins == ["blocks.1", "head"]
