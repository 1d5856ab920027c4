"""The answers of the board's server, asked over loopback."""

import json
import socket
import time

import msgspec
import pytest
from run_folder import RunFolder, plan_of
from saved_checkpoints import save

from launcher.apps.board.run_view import command_in
from launcher.apps.web.listening import listen
from launcher.run.hangs import Collective, Frame, GroupLook, HangKind, HangReport, HangVerdict, LastRank, RankLook
from launcher.run.records import Failure, NotFinite, RankState
from launcher.states import Cause
from tests.apps.board.conftest import opened, until
from tests.apps.board.page.conftest import measure

HOSTILE = "<script>alert(1)</script>\x1b]0;x\x07\u202e"


def reported(folder, values, generation=1, first=1):
    folder.run.metrics.mkdir(exist_ok=True)
    with folder.run.reported(1, 0).open("a") as file:
        file.write(json.dumps({"generation": generation, "at": 1.0}) + "\n")
        for step, value in enumerate(values, first):
            file.write(json.dumps({"step": step, "at": 1000.0 + step, "rank": 0, "values": value}) + "\n")


def test_the_table_has_every_run_newest_first(board, house):
    house.run("old-aaaa").succeeded(submitted_at=time.time() - 500, metrics={"loss": 0.5})
    house.run("new-bbbb").running(not_finite={"loss": NotFinite("NaN", 17)}, metrics={})
    rows = board.rows(lambda rows: {row["state"] for row in rows} == {"running", "succeeded"})
    assert [row["id"] for row in rows] == ["new-bbbb", "old-aaaa"]
    assert rows[0]["state"] == "running"
    assert rows[0]["metrics"] == {"loss": "nan"}
    assert rows[1]["metrics"] == {"loss": 0.5}
    assert rows[1]["args"] == {"--lr": "0.1"}


def test_one_run_in_words(board, house):
    failure = Failure(Cause.USER_ERROR, f"ValueError: {HOSTILE}", 1, 2, rank=3, tail=(HOSTILE,))
    house.run().failed(failure, restarts={"killed": 2}, generation=2)
    board.rows(lambda rows: [row["state"] for row in rows] == ["failed"])
    head = board.get("/api/runs/job-ab").json()["head"]
    assert head["state_text"] == "failed (user_error)"
    assert head["words"] == "ValueError: <script>alert(1)</script>"
    assert head["next"] == "mend the code, then launch resume job-abcd --code"
    assert head["next_command"] == "launch resume job-abcd --code"
    assert head["failure"]["tail"] == ["<script>alert(1)</script>"]
    assert head["restarts"] == {"total": 2, "by_cause": {"killed": 2}}


def test_the_head_has_the_loss_that_its_curve_ends_with(board, house):
    """What ranks told last, without a step, may be that of one rank, or older."""
    folder = house.run().running(step=5, metrics={"loss": 9.0})
    reported(folder, [{"loss": 1.0}, {"loss": 0.5}, {"acc": 0.1}])
    last = {"name": "loss", "value": 0.5, "step": 2}
    board.rows(lambda rows: [row["last"] for row in rows] == [last])
    assert board.get("/api/runs/job-abcd").json()["head"]["last"] == last
    with board.live("job-abcd") as told:
        assert until(told, "head")["last"] == last
        reported(folder, [{"loss": "nan"}], first=4)
        assert until(told, "head", lambda head: head["last"] != last)["last"] == {**last, "value": "nan", "step": 4}


def test_the_last_point_of_a_long_curve_is_its_own_however_many_a_pixel_has(board, house):
    reported(house.run().succeeded(), [{"loss": 1 / step} for step in range(1, 401)])
    curve = board.get("/api/runs/job-abcd/curves?px=16").json()["curves"]["loss"]
    assert curve["last"] == [400, 0.0025]
    assert curve["max"][-1] > 0.0025


def test_a_checkpoint_that_the_script_saves_itself_is_told_alike_in_head_and_tab(board, house):
    said = "step 30, saved by the script itself"
    folder = house.run().running(checkpoint=30)
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    assert board.get("/api/runs/job-abcd").json()["head"]["checkpoint_words"] == said
    assert board.get("/api/runs/job-abcd/checkpoints").json() == {"checkpoints": [], "error": "", "by_script": said}
    with board.live("job-abcd") as told:
        assert until(told, "head")["checkpoint_words"] == said
        save(folder.path / "checkpoints", 40)
        folder.running(checkpoint=40)
        assert until(told, "head", lambda head: head["checkpoint"] == 40)["checkpoint_words"] == "step 40"
    assert board.get("/api/runs/job-abcd/checkpoints").json()["by_script"] == ""


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        ("launch logs job -f", "launch logs job -f"),
        ("mend train.py:3, then launch resume job --code", "launch resume job --code"),
        ("ask whoever has the disk", ""),
        ("", ""),
    ],
)
def test_only_a_command_is_one(advice, command):
    assert command_in(advice) == command


def sampled(folder, node, values, first=1000):
    folder.run.metrics.mkdir(exist_ok=True)
    lines = [
        {"generation": 0},
        *(
            {"step": at, "at": at + 0.5, "rank": node, "values": {f"node{node}/cpu": value}}
            for at, value in enumerate(values, first)
        ),
    ]
    folder.run.system(1, node).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_each_node_used_is_no_metric_and_has_curves_of_its_own(board, house):
    folder = house.run().running()
    reported(folder, [{"loss": 1.0}])
    sampled(folder, 0, [1.0, 2.0])
    sampled(folder, 1, [3.0, 4.0], first=999)
    answer = board.get("/api/runs/job-abcd/curves?of=system&by=time").json()
    assert answer["curves"]["node0/cpu"]["y"] == [1.0, 2.0]
    assert answer["curves"]["node1/cpu"]["y"] == [3.0, 4.0]
    assert board.get("/api/runs/job-abcd/curves").json()["names"] == ["loss"]
    refused = board.get("/api/runs/job-abcd/curves?of=all")
    assert (refused.status, refused.json()["error"]) == (400, "of: expected metrics or system, got 'all'")


def test_the_rank_that_the_others_wait_for_is_marked(board, house):
    ranks = tuple(RankState(rank, 0, 7 + rank, "running", 40) for rank in range(2))
    house.run().running(ranks=ranks, last_rank=LastRank(1, 0, 46, 50, 0.052, 0.38))
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    head = board.get("/api/runs/job-abcd").json()["head"]
    assert head["last_rank"].startswith("rank 1 on node 0 is last into 46 of 50 collectives, by 52 ms")
    assert [one["straggler"] for one in head["ranks"]] == [False, True]


def test_who_waits_for_whom_in_a_hang(board, house):
    text = "rank 1 on node 0 never entered all_reduce #7; 1 rank waits in it"
    call = Collective(7, "all_reduce", age_s=41.0)
    waits = RankLook(0, 0, 7, "S", answered=True, groups=(GroupLook("0/gloo", entered=7, last=(call,)),))
    late = RankLook(1, 0, 8, "S", answered=True, stack=(Frame("/job/data.py", 88, "load\x1b"),))
    ranks = tuple(RankState(rank, 0, 7 + rank, "running", 40) for rank in range(2))
    folder = house.run().running(ranks=ranks, message=text)
    report = HangReport(1.0, 1, 1, HangVerdict(HangKind.NEVER_ENTERED, text, (1,)), (waits, late))
    folder.write(folder.run.attempt(1).hang(1), report)
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    head = board.get("/api/runs/job-abcd").json()["head"]
    assert head["hang"] == text
    assert [(one["in_hang"], one["straggler"]) for one in head["ranks"]] == [
        ("waits in all_reduce #7 for 41 s", False),
        ("at data.py:88 in load", True),
    ]


def test_a_hang_that_is_over_is_not_shown(board, house):
    folder = house.run().running(message="another matter")
    verdict = HangVerdict(HangKind.UNKNOWN, "it was over")
    folder.write(folder.run.attempt(1).hang(1), HangReport(1.0, 1, 1, verdict, ()))
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    assert board.get("/api/runs/job-abcd").json()["head"]["hang"] == ""


def test_curves_are_exact_where_there_are_few_points(board, house):
    reported(house.run().succeeded(), [{"loss": 1.0}, {"loss": "nan"}, {"loss": 0.5, "acc": 0.1}])
    answer = board.get("/api/runs/job-abcd/curves").json()
    assert answer["names"] == ["loss", "acc"]
    assert answer["curves"]["loss"] == {"x": [1, 2, 3], "y": [1.0, "nan", 0.5]}
    assert answer["curves"]["acc"] == {"x": [3], "y": [0.1]}
    assert board.get("/api/runs/job-abcd/curves?from=2&to=2&names=loss").json()["curves"]["loss"]["x"] == [2]
    assert board.get("/api/runs/job-abcd/curves?by=time&names=acc").json()["curves"]["acc"]["x"] == [1003.0]


@pytest.mark.parametrize("query", ["from=x", "to=nan", "by=colour", "px=many"])
def test_a_question_that_is_none_is_said(board, house, query):
    house.run().succeeded()
    answer = board.get(f"/api/runs/job-abcd/curves?{query}")
    assert answer.status == 400
    assert "expected" in answer.json()["error"]


def test_code_beside_its_commit_and_beside_another_run(board, house):
    house.run("one-aaaa").succeeded().of_commit("x = 1\n", "x = 2\n")
    house.run("two-bbbb").succeeded()
    told = board.get("/api/runs/one-aaaa/code").json()
    assert [(one["path"], one["diff"][-2:]) for one in told["changes"]] == [("train.py", ["-x = 1", "+x = 2"])]
    assert board.get("/api/runs/two-bbbb/code").json()["unknown"] == "no commit was known when it was submitted"
    assert board.get("/api/runs/one-aaaa/code?with=two-bbbb").json()["unknown"] == "the code of two-bbbb is not here"


def test_no_answer_waits_for_an_acknowledgement():
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_who_is_not_known_is_not_found(board):
    answer = board.get("/api/runs/nobody-here")
    assert answer.status == 404
    assert answer.json()["hint"] == "`launch status` shows all runs"


def test_the_log_page_by_page(board, house):
    house.run().succeeded().log(0, "".join(f"line {number}\n" for number in range(10))).log(1, HOSTILE + "\n")
    page = board.get("/api/runs/job-abcd/logs?ranks=0&limit=4").json()
    assert [line["text"] for line in page["lines"]] == ["line 6", "line 7", "line 8", "line 9"]
    page = board.get(f"/api/runs/job-abcd/logs?ranks=0&limit=4&before={page['before']}").json()
    assert [line["text"] for line in page["lines"]] == ["line 2", "line 3", "line 4", "line 5"]
    page = board.get(f"/api/runs/job-abcd/logs?ranks=0&limit=4&before={page['before']}").json()
    assert [line["text"] for line in page["lines"]] == ["line 0", "line 1"]
    assert page["before"] is None
    page = board.get("/api/runs/job-abcd/logs?ranks=1-3").json()
    assert [line["rank"] for line in page["lines"]] == [1]
    found = board.get("/api/runs/job-abcd/logs?search=SCRIPT").json()["lines"]
    assert [line["text"] for line in found] == ["<script>alert(1)</script>"]


def test_roles_are_shown_with_their_logs(house):
    whole = house.run().succeeded().log(0, "of the learner\n")
    whole.write(whole.run.plan, msgspec.structs.replace(plan_of(whole.path), role="learner"))
    for number in (0, 1):
        part = RunFolder(whole.run.roles / f"actors-{number}").succeeded(step=7).log(0, f"of actor {number}\n")
        part.write(part.run.plan, msgspec.structs.replace(plan_of(part.path), role="actors", role_rank=number))
    measure(whole, {1: {"loss": 2.0}})
    measure(part, {1: {"reward": 3.0}})
    with opened() as board:  # of a run that is only half written it would keep what it has seen first
        roles = board.get("/api/runs/job-abcd").json()["head"]["roles"]
        (line,) = board.get("/api/runs/job-abcd/logs?role=actors-1").json()["lines"]
        hint = board.get("/api/runs/job-abcd/logs?role=actors").json()["hint"]
        unknown = board.get("/api/runs/job-abcd/logs?role=none").status
        measured = [board.get(f"/api/runs/job-abcd/curves{role}").json()["names"] for role in ("", "?role=actors-1")]
    assert [(one["name"], one["state"], one["step"]) for one in roles] == [
        ("actors-0", "succeeded", 7),
        ("actors-1", "succeeded", 7),
    ]
    assert (line["text"], hint, unknown) == ("of actor 1", "role=actors-0", 400)
    assert measured == [["loss"], ["reward"]]


@pytest.mark.parametrize("ranks", ["x", "1-", "9" * 5000])
def test_ranks_that_are_none_are_said(board, house, ranks):
    house.run().succeeded()
    answer = board.get(f"/api/runs/job-abcd/logs?ranks={ranks}")
    assert (answer.status, "expected numbers" in answer.json()["error"]) == (400, True)


def test_a_line_without_end_is_cut(board, house):
    house.run().succeeded().log(0, "x" * (1 << 20) + "\n")
    (line,) = board.get("/api/runs/job-abcd/logs").json()["lines"]
    assert len(line["text"]) <= (64 << 10) + 100


def test_runs_are_compared(board, house):
    for name in ("one-aaaa", "two-bbbb"):
        reported(house.run(name).succeeded(), [{"loss": 0.5}])
    answer = board.get("/api/compare?runs=one-aaaa,two-bbbb").json()
    assert answer["runs"] == ["one-aaaa", "two-bbbb"]
    assert answer["results"]["state"] == ["succeeded", "succeeded"]
    assert [one["last"] for one in answer["metrics"]["loss"]] == [0.5, 0.5]
    assert board.get("/api/compare?runs=one-aaaa").status == 400


def test_what_is_new_comes_to_an_open_page(board, house):
    folder = house.run().running()
    reported(folder, [{"loss": 1.0}])
    with board.live("job-abcd") as told:
        assert until(told, "head")["row"]["id"] == "job-abcd"
        reported(folder, [{"loss": 0.5}, {"loss": "inf"}], first=2, generation=2)
        points = until(told, "points")["loss"]
        assert points == {"x": [2, 3], "at": [1002.0, 1003.0], "y": [0.5, "inf"]}
        folder.event("rank 1 was killed", "failure", rank=1, cause=Cause.KILLED)
        mark = until(told, "mark")
        assert (mark["kind"], mark["rank"], mark["cause"]) == ("failure", 1, "killed")
        folder.log(0, HOSTILE + "\n")
        assert until(told, "log")["lines"][0]["text"] == "<script>alert(1)</script>"
        reported(folder, [{"loss": 0.25}], first=2, generation=3)
        assert until(told, "rewind") == {"step": 2}
        assert until(told, "points")["loss"]["y"] == [0.25]


def test_a_run_that_is_taken_away_leaves_the_table(board, house):
    folder = house.run().succeeded()
    board.rows(lambda rows: [row["state"] for row in rows] == ["succeeded"])
    with board.live() as told:
        until(told, "hello")
        (house.root / "state" / "launch" / "runs" / "job-abcd").unlink()
        assert until(told, "runs", lambda data: data["gone"])["gone"] == ["job-abcd"]
    assert folder.path.exists()


def test_actions_say_first_what_they_will_do(house):
    folder = house.run().succeeded()
    with opened(actions=True) as board:
        said = board.post("/api/runs/job-abcd/cancel", {"dry": True}).json()
        assert said["said"].startswith("cancel job-abcd: its ranks get SIGTERM")
        assert said["done"] is False
        assert (
            board.post("/api/runs/job-abcd/tag", {"add": ["good"], "dry": True}).json()["said"] == "tag job-abcd: +good"
        )
        assert not folder.run.labels.exists()
        assert board.post("/api/runs/job-abcd/tag", {"add": ["good"]}).json() == {"said": "tags: good", "done": True}
        assert board.post("/api/runs/job-abcd/tag", {"add": ["two words"]}).status == 400
        assert board.post("/api/runs/job-abcd/explode", {}).status == 404
        assert board.post("/api/runs/job-abcd/note", {"text": 7}).status == 400


def test_metrics_for_prometheus(board, house):
    house.run().running()
    board.rows(lambda rows: [row["state"] for row in rows] == ["running"])
    answer = board.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert b'launch_runs{state="running"} 1\n' in answer.body
    assert answer.body.endswith(b"# EOF\n")
