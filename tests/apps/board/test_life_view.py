"""The strip of a run's life, as a page is told of it: checkpoints and validations beside what happened."""

import json
from itertools import pairwise

from saved_checkpoints import keep_best, save

from launcher.apps.board.life_view import validations
from tests.apps.board.conftest import until
from tests.apps.board.test_server import reported


def marks(board):
    found = board.get("/api/runs/job-abcd/life").json()["marks"]
    assert [mark["at"] for mark in found] == sorted(mark["at"] for mark in found)
    return sorted((mark["kind"], mark["step"], mark["text"]) for mark in found)


def test_checkpoints_and_validations_are_marks(board, house):
    folder = house.run().running(safe_checkpoint=10)
    folder.event("generation 1 trains", "training", 60.0, generation=1, step=1)
    for step in (10, 20):
        save(folder.path / "checkpoints", step)
    keep_best(folder.path / "checkpoints", 10)
    reported(folder, [{"loss": 1.0}, {"loss": 0.5, "val_loss": 0.25, "val_acc": "nan"}, {"valve": 1.0}])
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    assert marks(board) == [
        ("best", 10, ""), ("checkpoint", 20, ""), ("safe", 10, ""), ("training", 1, "generation 1 trains"),
        ("validation", 2, "val_loss 0.25, val_acc nan"),
    ]  # fmt: skip


def test_a_wall_of_validations_is_thinned_evenly_and_those_without_a_time_are_left_out(board, house):
    folder = house.run().succeeded()
    reported(folder, [{"val/loss": 1 / step} for step in range(1, 3000)])
    written = [{"step": 4000, "val": {"acc": 0.5}}, {"step": 4001, "at": 5.0, "val": {"acc": 0.25}}]
    folder.run.metrics.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    steps = [step for kind, step, _ in marks(board) if kind == "validation"]
    assert (len(steps), steps[0], steps[-1]) == (200, 1, 4001)
    assert max(after - before for before, after in pairwise(steps[:-1])) <= 3000 / 200 * 2


def points(*values):
    return [(step, 1000.0 + step, value) for step, value in enumerate(values, 1)]


def test_only_what_a_validation_has_found_is_one():
    """A rate or a count of a validation is none, nor a value that a script says again until the next one."""
    told = {"val/lr": points(1.0, 2.0), "val/loss": points(0.5, 0.5, 0.5, 0.25, 0.25), "eval_batches": points(3.0)}
    assert [(mark.step, mark.text) for mark in validations(told)] == [(1, "val/loss 0.5"), (4, "val/loss 0.25")]
    seldom = [(10, 1010.0, 0.5), (20, 1020.0, 0.5)]
    assert [mark.step for mark in validations({"val_acc": seldom})] == [10, 20]


def test_new_ones_come_to_an_open_page(board, house):
    folder = house.run().running(checkpoint=10)
    with board.live("job-abcd") as told:
        assert until(told, "head")["checkpoint"] == 10
        folder.running(checkpoint=20, safe_checkpoint=10)
        found = [until(told, "mark"), until(told, "mark")]
        assert [(mark["kind"], mark["step"]) for mark in found] == [("checkpoint", 20), ("safe", 10)]
        reported(folder, [{"loss": 1.0, "val_loss": 0.25}])
        found = until(told, "mark")
        assert (found["kind"], found["step"], found["text"]) == ("validation", 1, "val_loss 0.25")
