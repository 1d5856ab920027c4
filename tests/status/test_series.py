"""Test the metrics of a run: every start's reports, and in the end each step once."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.layout import RunDir
from launcher.status.series import (
    AT,
    Figure,
    better,
    figures_of,
    first_steps,
    names_in,
    newest_reported,
    read_rows,
    rows_of_ranks,
    size,
)


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "train-7k3f")
    run.metrics.mkdir(parents=True)
    return run


def report(run, *lines, attempt=1, node=0):
    with run.reported(attempt, node).open("a") as file:
        for line in lines:
            words = {"generation": line} if isinstance(line, int) else dict(zip(("step", "values"), line, strict=False))
            file.write(
                json.dumps(words | {"rank": line[2] if not isinstance(line, int) and len(line) > 2 else 0}) + "\n"
            )


def values(rows):
    return {step: {name: value for name, value in row.items() if name != AT} for step, row in rows.items()}


def test_steps_that_were_done_again_count_as_they_went_the_last_time(run):
    report(run, 1, (1, {"loss": 3}), (2, {"loss": 2}), (3, {"loss": 1}), 2, (2, {"loss": 2.5}))
    report(run, 1, (3, {"loss": 1.5}), (4, {"loss": 1}), attempt=2)
    assert values(read_rows(run)) == {1: {"loss": 3}, 2: {"loss": 2.5}, 3: {"loss": 1.5}, 4: {"loss": 1}}


def test_attempts_go_by_their_numbers_and_nodes_together(run):
    report(run, 1, (5, {"loss": 5}), attempt=10)
    report(run, 1, (5, {"loss": 4}), (9, {"loss": 9}), attempt=2)
    report(run, 1, (6, {"gpu": 0.5}), attempt=10, node=1)
    assert values(read_rows(run)) == {5: {"loss": 5}, 6: {"gpu": 0.5}}


def test_the_lowest_rank_that_reports_speaks_for_all(run):
    report(run, 1, (1, {"loss": 1}, 0), (1, {"loss": 2, "mine": 3}, 1))
    assert values(read_rows(run)) == {1: {"loss": 1, "mine": 3}}


def test_what_the_trainer_wrote_itself_is_there_too(run):
    report(run, 1, (10, {"loss": 0.5}), (20, {"loss": 0.4}))
    lines = [
        {"start": 0, "world": 2, "attempt": 1},
        {"step": 10, "epoch": 1, "loss": 0.5, "parts": {"kl": 0.25}, "grad_norm": "nan"},
        {"step": 30, "loss": 9.0},
        {"start": 20, "world": 2, "attempt": 2},
        {"step": 40, "loss": 0.3},
    ]
    (run.metrics / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 5')
    rows = read_rows(run)
    assert [*rows] == [10, 20, 40]
    assert rows[10]["parts/kl"] == 0.25 and math.isnan(rows[10]["grad_norm"]) and "epoch" not in rows[10]
    assert names_in(rows) == ["loss", "parts/kl", "grad_norm"]


def test_the_trainers_files_of_disks_apart_go_by_their_attempts(run):
    for attempt, start in ((2, 1), (1, 0)):
        lines = [
            {"start": start, "attempt": attempt},
            {"step": start + 1, "loss": attempt},
            {"step": start + 2, "loss": 9},
        ]
        path = run.metrics / f"metrics.a{attempt:04d}.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert values(read_rows(run)) == {1: {"loss": 1}, 2: {"loss": 2}, 3: {"loss": 9}}


def test_last_and_best_and_where(run):
    report(run, 1, (1, {"val_loss": 3.0, "acc": 0.5, "lr": 1.0}), (2, {"val_loss": 1.0, "acc": 0.75}))
    report(run, (3, {"val_loss": "nan", "acc": 0.75}))
    loss, accuracy, rate = figures_of(read_rows(run))
    assert (loss.last_step, loss.best, loss.best_step) == (3, 1.0, 2) and math.isnan(loss.last)
    assert accuracy == Figure("acc", 0.75, 3, 0.75, 2)
    assert rate == Figure("lr", 1.0, 1)


@pytest.mark.parametrize(
    ("name", "way"), [("val_loss", -1), ("Loss/train", -1), ("top5-acc", 1), ("glossy", 0), ("samples_per_s", 0)]
)
def test_what_is_better_says_the_name(name, way):
    assert better(name) == way


def test_a_run_without_any_has_none(tmp_path):
    assert read_rows(RunDir(tmp_path / "train-7k3f")) == {}


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.a0001.jsonl", "reported.n000.a0001.jsonl", ""])
@pytest.mark.parametrize("target", ["ITSELF", "nowhere", "/", "/dev/zero"])
def test_a_link_that_leads_to_no_file_holds_no_metrics(run, name, target):
    if not name:
        run.metrics.rmdir()
    path = run.metrics / name
    path.symlink_to(path.name if target == "ITSELF" else target)
    assert (read_rows(run), rows_of_ranks(run), newest_reported(run, 1)) == ({}, {}, 0)
    assert size(run) < 1 << 20  # of a folder that it leads to


@given(
    st.binary()
    | st.lists(
        st.sampled_from(
            [b'{"step":1,"values":{"a":1}}', b'{"generation":"x"}', b"[]", b"\xff", b'{"start":0}', b'{"step":9e99}']
        ),
        max_size=5,
    ).map(b"\n".join)
)
def test_no_file_can_make_it_raise(tmp_path_factory, data):
    run = RunDir(tmp_path_factory.mktemp("runs") / "train-7k3f")
    run.metrics.mkdir(parents=True)
    for name in ("reported.n000.a0001.jsonl", "metrics.jsonl", "metrics.a0001.jsonl"):
        (run.metrics / name).write_bytes(data)
    figures_of(read_rows(run))


def test_each_rank_speaks_for_itself(run):
    report(run, 1, (1, {"loss": 3}), (1, {"loss": 4}, 1), (2, {"loss": 2}), (3, {"loss": 1}), 2, (2, {"loss": 2.5}, 1))
    found = rows_of_ranks(run)
    assert {rank: values(rows) for rank, rows in found.items()} == {
        0: {1: {"loss": 3}, 2: {"loss": 2}, 3: {"loss": 1}}, 1: {1: {"loss": 4}, 2: {"loss": 2.5}},
    }  # fmt: skip
    assert first_steps(run) == {(1, 1): 1, (1, 2): 2}
    assert (newest_reported(run, 1), newest_reported(run, 2)) == (2, 0), "the last line, whatever was before it"


def test_what_the_trainer_wrote_down_is_all_that_counts_where_it_did(run):
    report(run, 1, (1, {"loss": 3}), (2, {"loss": 2}))
    (run.metrics / "metrics.jsonl").write_text('{"start": 0}\n{"step": 2, "loss": 2.5, "epoch": 0}\n')
    assert rows_of_ranks(run) == {0: {2: {"loss": 2.5}}}
