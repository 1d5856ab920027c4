"""The strip of a run's life, as a page is told of it: checkpoints and validations beside what happened."""

import json

from saved_checkpoints import keep_best, save

from tests.board.conftest import until
from tests.board.test_server import reported


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


def test_a_wall_of_validations_is_cut_and_those_without_a_time_are_left_out(board, house):
    folder = house.run().succeeded()
    reported(folder, [{"val/loss": 0.5}] * 300)
    written = [{"step": 1000, "val": {"acc": 0.5}}, {"step": 1001, "at": 5.0, "val": {"acc": 0.5}}]
    folder.run.metrics.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    steps = [step for kind, step, _ in marks(board) if kind == "validation"]
    assert steps == [*range(103, 301), 1001]


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
