"""Test that an error with one run or one page does not affect the others."""

import json
import os

import pytest

from launcher.apps.board.live.feed import MOST_CHARACTERS, MOST_HELD_BYTES, Feed, OpenPage, newest_lines
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.measured.reading import MeasuredRun
from launcher.status.logs import LogLine
from launcher.status.series import read_rows
from tests.apps.board.conftest import opened, until
from tests.apps.board.test_export import SECRET_PARTS, with_secret_arguments
from tests.apps.board.test_server import reported


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
    page = OpenPage("")
    for _ in range(100):
        page.put(b"x" * (MOST_HELD_BYTES // 4))
    assert [*page.waiting] == [None]
    assert page.take() is None


def test_what_a_look_has_found_is_told_once_and_in_one_piece(house):
    folder = house.run().running()
    reported(folder, [{"loss": 0.5}, {"loss": 0.25}])
    feed, page = Feed(MeasuredRuns()), OpenPage("job-abcd")
    feed._pages.add(page)
    feed._look()
    assert page.take()
    reported(folder, [{"loss": 0.125}], first=3)
    folder.running(step=77)
    feed._look()
    data = page.take()
    feed.runs.close()
    names = [line.removeprefix(b"event: ") for line in data.split(b"\n") if line.startswith(b"event: ")]
    assert (names, page.take()) == ([b"runs", b"head", b"points"], b"")
    assert b'"spark":[0.5,0.25,0.125]' in data and b'"step":77' in data


def test_a_page_that_comes_in_the_midst_of_a_look_hears_what_it_found(house, monkeypatch):
    """It has asked for the rows of before: with many runs the first look takes longer than a browser to start."""
    house.run().running()
    feed, page = Feed(MeasuredRuns()), OpenPage("")
    look = feed.runs.look

    def slow():
        seen = look()
        feed._pages.add(page)
        return seen

    monkeypatch.setattr(feed.runs, "look", slow)
    feed._look()
    feed.runs.close()
    assert b'"id":"job-abcd"' in page.take()


@pytest.mark.parametrize("line", [{"step": 1 << 63}, {"step": -(1 << 63) - 1}])
def test_a_step_that_is_none_is_left_out(board, house, line):
    folder = house.run().running()
    reported(folder, [{"loss": 0.5}], first=line["step"])
    reported(folder, [{"loss": 0.25}], generation=2)
    assert board.get("/api/runs/job-abcd/curves").json()["curves"]["loss"] == {"x": [1], "y": [0.25]}


def written(folder, lines):
    """Write metrics as a trainer does, in the JSON that Python writes."""
    with folder.run.metrics.joinpath("metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_numbers_and_names_that_cannot_be_written_down_stop_no_answer(board, house):
    folder = house.run().succeeded()
    reported(folder, [{"loss": 0.5}])
    many = 10**400
    first = [
        {"start": -many},
        {"step": 1, "\ud800": 2.0, "huge": many, "parts": {"least": -many}},
        {"step": 2, "at": many, "mine": 1.0},
    ]
    then = [{"start": -many, "attempt": 2}, {"step": 3, "mine": 2.0, "parts": {"\udc00": "nan"}}]
    written(folder, first)
    with board.live("job-abcd") as told:
        assert until(told, "head")["row"]["id"] == "job-abcd"
        answer = board.get("/api/runs/job-abcd/curves?names=huge,parts/least,%3F")
        assert answer.status == 200, answer.body
        curves = answer.json()["curves"]
        assert [curves[name]["y"] for name in ("huge", "parts/least", "?")] == [["inf"], ["-inf"], [2.0]]
        written(folder, then)
        assert until(told, "points", lambda points: "mine" in points)["mine"]["y"][-1] == 2.0
    for path in ("/api/runs", "/api/runs/job-abcd", "/api/compare?runs=job-abcd,job-abcd", "/metrics"):
        assert board.get(path).status == 200, path


@pytest.mark.parametrize("name", ["metrics/metrics.jsonl", "metrics/reported.n000.a0001.jsonl", "spec.yaml"])
def test_a_pipe_in_the_place_of_a_file_holds_up_nobody(board, house, name):
    """Nobody will ever write into it."""
    odd, good = house.run("odd-aaaa").running(), house.run("good-bbbb").running()
    reported(good, [{"loss": 0.5}, {"loss": 0.25}])
    reported(odd, [{"loss": 0.5}])
    odd.path.joinpath(name).unlink(missing_ok=True)
    os.mkfifo(odd.path / name)
    assert {row["id"]: row["spark"] for row in board.rows(lambda rows: any(row["spark"] for row in rows))}
    for path in ("odd-aaaa", "odd-aaaa/curves", "good-bbbb/curves"):
        assert board.get(f"/api/runs/{path}").status == 200
    assert read_rows(good.run)
    assert list(read_rows(odd.run)) == ([1] if name != "metrics/reported.n000.a0001.jsonl" else [])


def test_no_secret_comes_to_a_page(house):
    folder = with_secret_arguments(house.run().running())
    with_secret_arguments(house.run("lr2-bbbb").succeeded())
    of_run = "/api/runs/job-abcd"
    paths = [
        of_run,
        "/api/compare?runs=job-abcd,lr2-bbbb",
        *(f"{of_run}/{name}" for name in ("logs", "life", "curves")),
    ]
    with opened() as board:  # of a run that is only half written it would keep what it has seen first
        rows = board.rows(lambda rows: len(rows) == 2)
        assert [row["args"]["--api-key"] for row in rows] == ["(secret)"] * 2
        with board.live("job-abcd") as told:
            told_of = [until(told, "head")]
            folder.log(0, "again with sk-undeclared\n")
            told_of.append(until(told, "log"))
            folder.event("and sk-undeclared", "failure", rank=1)
            told_of.append(until(told, "mark"))
        written = json.dumps([rows, told_of, [board.get(path).json() for path in paths]])
    assert not [part for part in SECRET_PARTS if part in written]
    assert told_of[1]["lines"][0]["text"] == "again with (secret)"
    assert told_of[2]["text"] == "and (secret)"
