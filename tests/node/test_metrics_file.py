"""Test that ranks' reports are stored in order, without the agent ever waiting for a disk."""

import json
import math

from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.run.layout import RunDir
from launcher.status.series import figures_of, read_rows, thinned
from launcher.wire.progress import Progress


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def reported(path):
    return [(one["rank"], one["step"], one["values"]) for one in lines_of(path) if "step" in one]


def test_each_start_says_so_and_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "reported.jsonl"
    for generation in (1, 2):
        file = MetricsFile(path, generation)
        file.add(0, 10 * generation, {"loss": 0.5})
        file.close()
    found = lines_of(path)
    assert [one.get("generation", one.get("step")) for one in found] == [1, 10, 2, 20]
    assert found[1]["at"] > 1_700_000_000
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_reports_nothing_has_no_file(tmp_path):
    file = MetricsFile(tmp_path / "reported.jsonl", 1)
    file.close()
    file.close()
    assert [*tmp_path.iterdir()] == []


def test_all_reports_of_a_quick_training_are_kept(tmp_path):
    path, now = tmp_path / "reported.jsonl", [0.0]
    file = MetricsFile(path, 1, now=lambda: now[0])
    for step in range(30):
        now[0] = 0.02 * step
        file.add(0, step, {"loss": 1.0})
    file.close()
    assert [step for _, step, _ in reported(path)] == [*range(30)]


def test_of_thinned_reports_best_and_last_are_exact_and_the_others_counted(tmp_path):
    run = RunDir(tmp_path / "train-7k3f")
    run.metrics.mkdir(parents=True)
    file = MetricsFile(run.reported(1, 0), 1, now=lambda: 0.0, kept_whole=2)
    losses = [5.0, 4.0, 3.0, 0.25, 3.0, 9.0, 2.0]
    for step, loss in enumerate(losses):
        file.add(0, step, {"loss": loss})
    file.close()
    [loss] = figures_of(read_rows(run))
    assert (loss.best, loss.best_step, loss.last, loss.last_step) == (0.25, 3, 2.0, 6)
    assert [step for _, step, _ in reported(run.reported(1, 0))] == [0, 1, 3, 5, 6]
    assert thinned(run) == (5, 7)


def test_of_quick_reports_the_newest_is_kept_and_other_metrics_have_a_pace_of_their_own(tmp_path):
    path, now = tmp_path / "reported.jsonl", [0.0]
    file = MetricsFile(path, 1, now=lambda: now[0], kept_whole=0)
    for step in range(10):
        file.add(0, step, {"loss": step})
    file.add(0, 9, {"val_loss": 0.1})
    file.add(1, 9, {"loss": 7})
    file.close()
    assert reported(path) == [(0, 0, {"loss": 0}), (0, 9, {"val_loss": 0.1}), (1, 9, {"loss": 7}), (0, 9, {"loss": 9})]


def test_a_run_of_a_month_costs_megabytes(tmp_path):
    """Ten reports a second: all in the first minutes, later as far apart as the time that has passed wants."""
    path, now = tmp_path / "reported.jsonl", [0.0]
    file = MetricsFile(path, 1, now=lambda: now[0], kept_whole=0)
    month = 30 * 86_400.0
    for step in range(2_000):
        now[0] = (0.0 if step < 1_000 else month) + 0.1 * (step % 1_000)
        file.add(0, step, {"loss": 1.0})
    file.close()
    steps = [step for _, step, _ in reported(path)]
    assert steps[:1_000] == [*range(1_000)]
    assert steps[1_000:] == [1_000, 1_999]  # a month is 20,000 times two minutes


def test_numbers_that_json_does_not_have_are_text(tmp_path):
    path = tmp_path / "reported.jsonl"
    file = MetricsFile(path, 1)
    file.add(0, 1, {"loss": math.nan, "norm": math.inf, "low": -math.inf})
    file.close()
    assert reported(path) == [(0, 1, {"loss": "nan", "norm": "inf", "low": "-inf"})]


def test_a_disk_that_takes_nothing_costs_the_reports_of_that_time_alone(tmp_path):
    path = tmp_path / "gone" / "reported.jsonl"
    file = MetricsFile(path, 1)
    file.add(0, 1, {"loss": 1.0})
    file.close()
    path.parent.mkdir()
    path.write_bytes(b'{"step": 1, "val')  # and whoever was killed in the middle of a line
    file = MetricsFile(path, 2)
    file.add(0, 2, {"loss": 0.5})
    file.close()
    torn, *rest = path.read_bytes().splitlines()
    assert torn == b'{"step": 1, "val'
    assert json.loads(rest[-1])["step"] == 2


def test_a_rank_is_heard_with_the_step_that_its_numbers_are_of():
    heard = []
    progress = Progress(lambda step, values: heard.append((step, values)))
    progress.take(b'{"step": 3, "total_steps": 9, "loss": 0.5, "note": "x"}')
    progress.take(b'{"val_loss": 0.25}')
    progress.take(b'{"step": 4}')
    progress.take(b'{"checkpoint": 4}')
    assert heard == [(3, {"loss": 0.5}), (3, {"val_loss": 0.25})]
