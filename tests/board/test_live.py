"""What goes wrong with one run, or with one page, is no matter of the others."""

import asyncio

import pytest

from launcher.board.live.feed import MOST_HELD_BYTES, OpenPage
from launcher.board.live.watched import MOST_CHARACTERS, newest_lines
from launcher.board.measured.reading import MeasuredRun
from launcher.status.logs import LogLine
from tests.board.conftest import until
from tests.board.test_server import reported


def test_a_run_that_cannot_be_looked_at_holds_up_no_other(board, house, monkeypatch, caplog):
    renew = MeasuredRun.renew

    def failing(self):
        if self._run.path.name.startswith("bad"):
            raise ValueError("odd numbers")
        renew(self)

    monkeypatch.setattr(MeasuredRun, "renew", failing)
    for name in ("bad-aaaa", "good-bbbb", "bad-cccc"):  # whichever comes first
        reported(house.run(name).running(), [{"loss": 0.5}, {"loss": 0.25}])
    rows = board.rows(lambda rows: any(row["spark"] for row in rows))
    assert {row["id"]: row["spark"] for row in rows}["good-bbbb"] == [0.5, 0.25]
    with board.live("bad-aaaa") as _, board.live("good-bbbb") as told, board.live("bad-cccc") as _:
        assert until(told, "head")["row"]["id"] == "good-bbbb"
    assert "odd numbers" in caplog.text


def test_of_a_flood_of_lines_the_newest_are_told():
    flood = (LogLine(1.0, 1, 1, 0, 0, f"{number} {'x' * 60_000}") for number in range(40))
    told = newest_lines(flood)
    assert sum(len(line.text) for line in told.lines) <= MOST_CHARACTERS
    assert told.lines[-1].text.startswith("39 ")
    assert told.skipped + len(told.lines) == 40
    assert len(newest_lines(LogLine(1.0, 1, 1, 0, 0, "x") for _ in range(600)).lines) == 500


def test_a_page_that_takes_nothing_begins_anew_and_holds_little():
    async def slow():
        page = OpenPage("", asyncio.get_running_loop())
        for _ in range(100):
            page.put(b"x" * (MOST_HELD_BYTES // 4))
        return [page.waiting.get_nowait() for _ in range(page.waiting.qsize())]

    assert asyncio.run(slow()) == [None]


@pytest.mark.parametrize("line", [{"step": 1 << 63}, {"step": -(1 << 63) - 1}])
def test_a_step_that_is_none_is_left_out(board, house, line):
    folder = house.run().running()
    reported(folder, [{"loss": 0.5}], first=line["step"])
    reported(folder, [{"loss": 0.25}], generation=2)
    assert board.get("/api/runs/job-abcd/curves").json()["curves"]["loss"] == {"x": [1], "y": [0.25]}
