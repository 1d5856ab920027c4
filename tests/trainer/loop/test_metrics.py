import json
import math
import stat

import pytest
from trainings import idle_training

from trainer.loop.metrics import JsonLines, TensorBoard
from trainer.metrics_files import FILE, read_metrics
from trainer.wire import Launched


def write(folder, start, losses, values=None, launched=None):
    """Log these losses from step `start` + 1 on, as one start of a training does."""
    lines = JsonLines(folder, launched)
    lines.on_start(idle_training(step=start))
    for step, loss in enumerate(losses, start + 1):
        lines.on_log(idle_training(step=step), {"step": step, "epoch": 0, "loss": loss})
        if values and step in values:
            lines.on_validation(idle_training(step=step), {"val_loss": values[step]})
    lines.on_end(idle_training())


def test_what_is_read_is_what_was_written_to_the_last_digit(tmp_path):
    losses = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308]
    write(tmp_path, 0, losses, {2: 0.7})
    found = read_metrics(tmp_path)
    assert [line["loss"] for line in found] == losses
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert found[1]["val_loss"] == 0.7
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_restart_goes_on_at_its_step_and_what_was_done_again_counts_once(tmp_path):
    write(tmp_path, 0, [1.0, 2.0, 3.0, 4.0, 5.0], {4: 0.4})
    write(tmp_path, 2, [3.5, 4.5])
    found = read_metrics(tmp_path)
    assert [line["loss"] for line in found] == [1.0, 2.0, 3.5, 4.5]
    assert "val_loss" not in found[3]


def test_attempts_on_disks_apart_are_one_training_once_their_files_are_together(tmp_path):
    first, second, here = (tmp_path / name for name in ("first host", "second host", "here"))
    write(first, 0, [1.0, 2.0, 3.0], launched=Launched(attempt=1, disks_apart=True))
    write(second, 2, [3.5, 4.5], launched=Launched(attempt=2, disks_apart=True))
    write(here, 3, [4.6, 5.6], launched=Launched(attempt=3))  # resumed where there is one disk
    write(here, 4, [5.7], launched=Launched(attempt=3))
    for folder in (second, first):
        for path in folder.iterdir():
            assert not (here / path.name).exists()
            path.rename(here / path.name)
    write(here, 5, [6.7], launched=Launched(attempt=4, disks_apart=True))
    assert [line["loss"] for line in read_metrics(here)] == [1.0, 2.0, 3.5, 4.6, 5.7, 6.7]
    (here / FILE).unlink()
    assert [line["loss"] for line in read_metrics(here)] == [1.0, 2.0, 3.5, 4.5, 6.7]


def test_a_line_cut_short_by_a_kill_spoils_neither_itself_nor_the_next(tmp_path):
    write(tmp_path, 0, [1.0, 2.0])
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-9])
    write(tmp_path, 1, [2.5])
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.5]


def test_numbers_that_json_does_not_have_come_back(tmp_path):
    write(tmp_path, 0, [math.nan, math.inf, -math.inf])
    for text in (tmp_path / FILE).read_text().splitlines():
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    losses = [line["loss"] for line in read_metrics(tmp_path)]
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, -math.inf]


def test_a_disk_that_is_full_ends_the_lines_and_not_the_training(tmp_path, caplog):
    lines = JsonLines(tmp_path)
    (tmp_path / FILE).symlink_to("/dev/full")
    lines.on_start(idle_training())
    lines.on_log(idle_training(step=1), {"step": 1})
    assert "metrics: no more are written" in caplog.text


def test_tensorboard_files_hold_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.on_start(idle_training())
    for step in (1, 2):
        line = {"step": step, "epoch": 0, "loss": 1 / step, "seconds": {"forward": 0.25}}
        board.on_log(idle_training(step=step), line)
    board.on_validation(idle_training(step=2), {"val_loss": 0.75})
    board.on_end(idle_training())
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5)]
    assert [(event.step, event.value) for event in events.Scalars("val_loss")] == [(2, 0.75)]
    assert [event.value for event in events.Scalars("seconds/forward")] == [0.25, 0.25]
