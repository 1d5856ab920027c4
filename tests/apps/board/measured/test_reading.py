"""Metrics that are read on as they grow say what reading them whole says."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.apps.board.measured.reading import MeasuredRun
from launcher.run.layout import RunDir
from launcher.status.series import AT, read_rows
from tests.sizes import SCALE

NAMES = st.sampled_from(["loss", "acc", "val/loss"])
VALUES = st.one_of(st.floats(-10, 10), st.sampled_from(["nan", "inf", "-inf"]))
STEP = st.integers(0, 12)
LINE = st.fixed_dictionaries(
    {"step": STEP, "at": st.floats(1, 99), "rank": st.integers(0, 2), "values": st.dictionaries(NAMES, VALUES)}
)
GENERATION = st.fixed_dictionaries({"generation": st.integers(1, 4), "at": st.just(1.0)})
WRITTEN = st.one_of(
    st.fixed_dictionaries({"start": STEP, "world": st.just(1), "attempt": st.integers(1, 2)}),
    st.fixed_dictionaries({"step": STEP, "loss": VALUES, "seconds": st.fixed_dictionaries({"data": st.floats(0, 1)})}),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["reported.n000.a0001.jsonl", "reported.n001.a0001.jsonl"]), st.one_of(LINE, GENERATION)
        ),
        st.tuples(st.just("metrics.jsonl"), WRITTEN),
        st.just(None),
    ),
    max_size=40,
)


def in_order(events):
    """Generations of a file go up, as an agent's do, and so do attempts of the trainer's."""
    newest = {}
    for event in events:
        name, line = event or ("", {})
        if "generation" in line:
            newest[name] = newest.get(name, 0) + line["generation"]
            yield name, {**line, "generation": newest[name]}
        elif "attempt" in line:
            newest[name] = max(newest.get(name, 1), line["attempt"])
            yield name, {**line, "attempt": newest[name]}
        else:
            yield event


@given(EVENTS)
@settings(max_examples=SCALE * 60, deadline=None)
def test_it_says_what_reading_all_says(tmp_path_factory, events):
    run = RunDir(tmp_path_factory.mktemp("run") / "job-abcd")
    run.metrics.mkdir(parents=True)
    read = MeasuredRun(run)
    for event in in_order(events):
        if event is None:
            read.renew()
            continue
        name, line = event
        with (run.metrics / name).open("a") as file:
            file.write(json.dumps(line) + "\n")
    read.renew()
    rows = read_rows(run)
    names = {name for row in rows.values() for name in row} - {AT}
    wanted = {name: [[step, row[name]] for step, row in rows.items() if name in row] for name in names}
    found = {name: [[step, value] for step, _, value in read.points(name)] for name in read.names}
    shown = {name: points for name, points in found.items() if points}
    assert json.dumps(shown, sort_keys=True) == json.dumps(wanted, sort_keys=True)
