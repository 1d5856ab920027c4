import json
import re
import signal
import time
from pathlib import Path

import pytest
from run_folder import before_this_boot

from launcher.run.layout import RunDir
from launcher.run.records import Failure, NodeState, NotFinite, RankState
from launcher.states import Cause, State


def test_lines_have_time_node_and_rank(desk):
    desk.run().succeeded().log(0, "hello\n", times=[(3661.0, 6)]).log(1, "there\n")
    assert desk.launch("logs", "last").stdout == "01:01:01 0:0 │ hello\n         0:1 │ there\n"


def test_one_rank_only(desk):
    desk.run().succeeded().log(0, "a\n").log(1, "b\n").log(2, "c\n")
    shown = desk.launch("logs", "last", "--rank", "0", "--rank", "2").stdout
    assert [line[-1] for line in shown.splitlines()] == ["a", "c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rank", "7"), "no rank 7: job-abcd has ranks 0 to 1\n"),
        (("--node", "3,1"), "no node 1: job-abcd has nodes 0 to 0\n"),
        (("--rank", "0,7", "--grep", "c"), "no such lines of job-abcd\n"),
        (("--grep", "a"), ""),
    ],
)
def test_why_there_is_nothing(desk, words, said):
    ranks = tuple(RankState(rank, 0, None, "done", None) for rank in (0, 1))
    nodes = (NodeState(0, "127.0.0.1", "up"),)
    desk.run().succeeded(ranks=ranks, nodes=nodes).log(0, "a\n").log(1, "b\n")
    assert desk.launch("logs", "last", *words).stderr == said


def test_a_run_that_has_printed_nothing(desk):
    desk.run().succeeded()
    assert desk.launch("logs", "last").stderr == "job-abcd has printed nothing\n"


def test_as_json(desk):
    desk.run().succeeded().log(1, "\x1b[31mred\x1b[0m\n", times=[(5.0, 13)])
    lines = desk.launch("logs", "last", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"at": 5.0, "attempt": 1, "generation": 1, "node": 0, "rank": 1, "text": "red"}
    ]


def test_colours_of_a_log_reach_only_a_terminal(desk):
    desk.run().succeeded().log(0, "\x1b[35mpink\x1b[2J\x1b]0;t\x07\n")
    assert "\x1b" not in desk.launch("logs", "last").stdout
    shown = desk.on_terminal("logs", "last")[1]
    assert "\x1b[35mpink\x1b[0m" in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown
    assert "\x1b" not in desk.on_terminal("logs", "last", env={"NO_COLOR": "1"})[1]


def test_ranks_have_colours_of_their_own(desk):
    desk.run().succeeded().log(0, "a\n").log(1, "b\n")
    shown = desk.on_terminal("logs", "last")[1]
    assert len(set(re.findall(r"\x1b\[(3\d)m\d:\d │", shown))) == 2


def test_following_an_ended_run_ends_with_its_exit_code(desk):
    failure = Failure(Cause.USER_ERROR, "KeyError: 'x'", 1, 1, rank=0, node=0, tail=("KeyError: 'x'",))
    desk.run().failed(failure).log(0, "working\n")
    done = desk.launch("logs", "last", "-f", check=10)
    assert done.stdout.endswith("0:0 │ working\n")
    assert done.stderr.index("first to fail: rank 0 on node 0") < done.stderr.index("job-abcd failed (user_error)")
    assert done.stderr.endswith("next: mend the code, then launch resume job-abcd --code\n")
    assert "\x1b" not in done.stdout + done.stderr


def test_of_a_failure_each_traceback_is_shown_once_and_why_the_run_was_given_up(desk):
    log = str(RunDir(Path()).rank_log(1, 1, 0))
    failure = Failure(Cause.USER_ERROR, "KeyError: 'x'", 1, 1, rank=0, node=0, tail=("KeyError: 'x'",), log=log)
    desk.run().failed(failure, message="the same error at the same place again").log(0, "KeyError: 'x'\n")
    done = desk.launch("logs", "last", "-f", check=10)
    assert "│ KeyError" in done.stdout and "│ KeyError" not in done.stderr
    assert "\ngave up: the same error at the same place again\n" in done.stderr
    assert "│ KeyError" in desk.launch("logs", "last", "-f", "--rank", "1", check=10).stderr


def test_following_a_lost_run(desk):
    desk.run().plan().attempt(supervisor=before_this_boot()).state().log(0, "last words")
    done = desk.launch("logs", "last", "-f", check=21)
    assert "last words" in done.stdout
    assert "lost" in done.stderr


def test_a_status_line_stays_under_the_log_on_a_terminal(desk):
    run = desk.run().running(restarts={"killed": 3})

    def goes_on(_process):
        run.log(0, "new line\n").end(State.SUCCEEDED).state(State.SUCCEEDED, exit_code=0)

    code, shown = desk.on_terminal("logs", "last", "-f", until="3 restarts", then=goes_on)
    assert code == 0
    assert "job-abcd · running · step 40/100 · 2/s · 30s to go · 3 restarts" in shown
    assert re.search(r"\r\x1b\[K.*new line", shown)
    assert "\x1b[7m" not in shown.partition("new line")[2].partition("job-abcd succeeded")[2]


def test_the_status_line_never_wraps(desk):
    run = desk.run().running(message="very " * 100)
    ends = lambda _: run.end(State.SUCCEEDED).state(State.SUCCEEDED, exit_code=0)  # noqa: E731
    shown = desk.on_terminal("logs", "last", "-f", until="very", then=ends)[1]
    assert max(len(line) for line in re.findall(r"\x1b\[7m(.*?)\x1b\[0m", shown)) < 100


def test_ctrl_c_stops_the_following_and_nothing_else(desk):
    run = desk.run().running()
    interrupt = lambda process: process.send_signal(signal.SIGINT)  # noqa: E731
    code, shown = desk.on_terminal("logs", "last", "-f", until="running", then=interrupt)
    assert code == 130
    assert (
        "stopped following; job-abcd goes on. Come back: launch logs job-abcd -f; end it: launch cancel job-abcd"
        in shown
    )
    assert "Traceback" not in shown
    assert not run.run.attempt(1).stop.exists()


def test_following_as_json(desk):
    desk.run().failed().log(0, "a\n")
    assert json.loads(desk.launch("logs", "last", "-f", "--json", check=10).stdout)["text"] == "a"


def test_restarts_are_told_between_the_lines(desk):
    run = desk.run().succeeded().log(0, "a\n").log(0, "b\n", generation=2)
    run.event("x", kind="regroup", generation=1, brief="restart 1 of 3: KeyError in train.py:3, rank 0")
    for words in ((), ("-f",)):
        lines = desk.launch("logs", "last", *words).stdout.splitlines()
        assert [line.strip() for line in lines] == [
            "0:0 │ a", "── restart 1 of 3: KeyError in train.py:3, rank 0 ──", "0:0 │ b",
        ]  # fmt: skip
    assert "restart" not in desk.launch("logs", "last", "--json").stdout


def test_progress_bars_are_shown_as_they_move(desk):
    run = desk.run().running(not_finite={"loss": NotFinite("NaN", 17)})
    run.log(0, "\r 10%|#   |").log(1, "\r\x1b[2J 30%|##  |")

    def goes_on(_process):
        run.log(0, "\r100%|####|\n").end(State.SUCCEEDED).state(State.SUCCEEDED, exit_code=0)

    shown = desk.on_terminal("logs", "last", "-f", until="loss is NaN", then=goes_on)[1]
    assert "0 │  10%|#   |\r\n1 │  30%|##  |\r\n\x1b[7;31mjob-abcd" in shown
    assert "\x1b[2A\x1b[J" in shown.partition("100%")[0]


def test_some_lines_only(desk):
    run = desk.run().succeeded()
    run.log(0, "a loss\nb\n", times=[(100.0, 7), (200.0, 9)]).log(3, "c loss\n", times=[(300.0, 7)])
    last = lambda *words: [line[-1] for line in desk.launch("logs", "last", *words).stdout.splitlines()]  # noqa: E731
    assert last("-n", "2") == ["b", "s"]
    assert last("--grep", "^. loss", "--rank", "0,2") == ["s"]
    assert last("--rank", "1-3", "--rank", "0", "-n", "1") == ["s"]
    assert last("--node", "0", "-n", "5") == ["s", "b", "s"]
    assert last("--node", "1") == []
    assert last("-n", "1", "-f") == ["s"]
    assert last("--since", f"{time.time() - 250:.0f}s") == ["s"]


def test_restarts_before_the_last_lines_are_left_out(desk):
    run = desk.run().succeeded()
    for generation in (1, 2, 3):
        run.log(0, f"g{generation}\n", generation=generation)
    for generation in (1, 2):
        run.event("x", kind="regroup", generation=generation, brief=f"restart {generation}")
    lines = [line.split()[-1] for line in desk.launch("logs", "last", "-n", "2").stdout.splitlines()]
    assert lines == ["g2", "──", "g3"]
    assert "restart" not in desk.launch("logs", "last", "--grep", "g").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-n", "-1"), "expected a number of lines such as 50, got '-1'"),
        (("--since", "yesterday"), "expected a time such as 30s, 5m, 2h or 1d, got 'yesterday'"),
        (("--grep", "("), "expected a regular expression, got '('"),
        (("--rank", "5-3"), "expected numbers such as 0 or 0,3-5, got '5-3'"),
        (("--node", "0,"), "expected numbers such as 0 or 0,3-5, got '0,'"),
    ],
)
def test_what_cannot_be_chosen(desk, words, said):
    desk.run().succeeded()
    assert said in desk.launch("logs", "last", *words, check=2).stderr
