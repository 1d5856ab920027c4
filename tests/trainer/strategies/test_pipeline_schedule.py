"""A model in stages, and who does what when: no process group."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import schedules

from trainer.errors import BadSettings
from trainer.strategies.pipeline_schedule import (
    SCHEDULES,
    STAGES_OF_RANK,
    bubble,
    drawn,
    fits,
    micro_batches,
    order_of,
    parts_of,
    picture,
    timetable,
)
from trainer.tasks.transformer import Shape, Transformer


def test_the_parts_of_the_shipped_transformer_in_their_order():
    parts = parts_of(Transformer(Shape(layers=3)))
    assert parts == ["embedding", "dropout", "blocks.0", "blocks.1", "blocks.2", "norm", "head"]


def test_a_sequence_is_the_row_of_its_parts_and_of_those_of_its_sequences():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.ModuleList())
    assert parts_of(model) == ["0", "1.0", "1.1", "2"]


class Named(nn.Module):
    def __init__(self, *pipeline):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)
        self.pipeline = pipeline


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.Bilinear(1, 1, 1),
            "expected the parts of Bilinear in their order, got none\nhint: an attribute `pipeline`",
        ),
        (Named("first", "third"), "Named has no part 'third'"),
        (Named("first", "second", "*"), "first of Named comes twice"),
    ],
)
def test_a_model_without_an_order_is_refused(model, said):
    with pytest.raises(BadSettings, match=re.escape(said)):
        parts_of(model)


def test_a_method_may_say_the_order():
    model = Named()
    model.pipeline = lambda: ["second", "first"]
    assert parts_of(model) == ["second", "first"]


@given(samples=st.integers(1, 200), stages=st.integers(1, 8), wanted=st.none() | st.integers(1, 64))
def test_micro_batches_are_equal_parts_and_not_more_than_wanted(samples, stages, wanted):
    count = micro_batches(samples, stages, wanted)
    assert samples % count == 0 and count <= (wanted or 4 * stages)
    if wanted is not None and wanted <= samples and samples % wanted == 0:
        assert count == wanted


class Stage:
    """The interface that torch's schedules need of a stage to state an order."""

    def __init__(self, number, ranks, many):
        self.stage_index, self.num_stages = number, ranks * many
        self.group_size, self.group_rank, self.has_backward = ranks, number % ranks, True
        self.submod, self.is_first, self.is_last = nn.Identity(), number == 0, number == ranks * many - 1
        self.stage_index_to_group_rank = {one: one % ranks for one in range(ranks * many)}
        self.group, self.device = None, "cpu"


TORCHS = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micros"), [(2, 2), (2, 4), (2, 8), (4, 4), (4, 8), (4, 12), (3, 6)])
def test_the_order_is_that_of_torch(schedule, ranks, micros):
    many = STAGES_OF_RANK.get(schedule, 1)
    stages = [Stage(number, ranks, many) for number in range(0, ranks * many, ranks)]
    made = TORCHS[schedule](stages if many > 1 else stages[0], micros, loss_fn=lambda *_: None)
    for rank, actions in made.pipeline_order.items():
        theirs = [
            (one.computation_type.name == "FULL_BACKWARD", one.stage_index, one.microbatch_index)
            for one in actions
            if one is not None and one.microbatch_index is not None and one.computation_type.name in _PASSES
        ]
        ours = [(work.backward, work.stage, work.micro) for work in order_of(schedule, ranks, rank, micros)]
        # What torch says of 1f1b begins with micro-batch 1 on the second stage; what it does begins with 0.
        known = 2 if schedule == "1f1b" else 3
        assert [one[:known] for one in ours] == [one[:known] for one in theirs]


_PASSES = ("FORWARD", "FULL_BACKWARD")


@given(schedule=st.sampled_from(SCHEDULES), ranks=st.integers(2, 5), micros=st.integers(1, 12))
def test_every_pass_comes_once_and_after_what_it_needs(schedule, ranks, micros):
    rows = timetable(schedule, ranks, micros)
    last = ranks * STAGES_OF_RANK.get(schedule, 1) - 1
    when = {work: time for row in rows for time, work in enumerate(row) if work is not None}
    assert len(when) == 2 * micros * (last + 1)
    for micro in range(micros):
        times = [when[work] for work in sorted((one for one in when if one.micro == micro), key=_way(last))]
        assert all(one < other for one, other in pairwise(times))


def _way(last):
    return lambda work: 2 * last + 1 - work.stage if work.backward else work.stage


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_that_of_the_books(schedule):
    for ranks, micros in ((2, 4), (4, 8), (3, 3)):
        assert bubble(schedule, ranks, micros) == pytest.approx((ranks - 1) / (micros + ranks - 1))
    assert bubble("interleaved", 4, 8) < bubble("1f1b", 4, 8)


def test_too_few_micro_batches_go_forward_first_and_then_back():
    assert not fits("1f1b", 4, 2) and not fits("interleaved", 2, 5)
    assert order_of("1f1b", 4, 0, 2) == order_of("gpipe", 4, 0, 2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_a_picture_for_people_has_each_pass_once_at_its_time(schedule):
    svg = ET.fromstring(picture(schedule, 2, 4))
    name = "{http://www.w3.org/2000/svg}"
    texts = [one.text for one in svg.iter(f"{name}text")]
    stages = 2 * STAGES_OF_RANK.get(schedule, 1)
    assert sum(text[0] in "FB" for text in texts) == 2 * 4 * stages == len([*svg.iter(f"{name}rect")]) - 1
    assert f"{bubble(schedule, 2, 4):.0%} of a step is waiting" in texts[0]
    at = [(one.get("x"), one.get("y")) for one in svg.iter(f"{name}rect")]
    assert len(at) == len({*at})
    assert texts[0].startswith(f"{schedule}, 2 ranks")


def test_lines_about_the_stages_stand_below_the_picture_and_fit():
    about = ["cut by layers", "stage 0: " + "a long name <of> a part " * 20]
    svg = ET.fromstring(picture("1f1b", 2, 4, about))
    texts = [*svg.iter("{http://www.w3.org/2000/svg}text")]
    assert [one.text for one in texts[-2:]] == about
    _, _, wide, high = map(int, svg.get("viewBox").split())
    assert int(texts[-1].get("y")) < high and wide > 60 + 26 * 10
    assert int(texts[-2].get("y")) > int(texts[-3].get("y"))


def test_a_picture_says_what_is_done_where_there_are_too_few_micro_batches():
    assert "gpipe, 4 ranks" in picture("1f1b", 4, 2) and "gpipe, 2 ranks" in picture("interleaved", 2, 5)


def test_a_picture():
    assert drawn("1f1b", 2, 4) == (
        "  stage 0  F0 F1 .. B0 F2 B1 F3 B2 .. B3\n"
        "  stage 1  .. F0 B0 F1 B1 F2 B2 F3 B3 .."
    )  # fmt: skip
    assert drawn("1f1b", 2, 9) == ""
    assert "F0'" in drawn("interleaved", 2, 2)
