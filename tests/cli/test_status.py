import io
import json
import os
import re
import time

import pytest
from run_folder import RunFolder, before_this_boot, of_another_machine

from launcher.cli import terminal
from launcher.run.records import Failure, Handle, NodeState, NotFinite, RankState
from launcher.states import Cause, State

FAILURE = Failure(
    Cause.USER_ERROR, "ValueError: bad shape", 1, 2, rank=3, node=1, where="train.py:41 in step",
    log="logs/a0001.g0002/rank-00003.log", tail=("Traceback:", "  in step", "ValueError: bad shape"),
)  # fmt: skip


def test_no_runs(desk):
    done = desk.launch("status")
    assert done.stdout == ""
    assert "launch submit" in done.stderr
    assert json.loads(desk.launch("status", "--json").stdout) == []


def test_the_table_is_newest_first(desk):
    now = time.time()
    desk.run("old-aaaa").succeeded(submitted_at=now - 7300, started_at=now - 7300, ended_at=now - 100)
    desk.run("new-bbbb").running(submitted_at=now - 60, nodes=(NodeState(0, "127.0.0.1", "up", (0, 1)),))
    desk.run("mid-cccc").failed(submitted_at=now - 600, restarts={"killed": 2, "hang": 1})
    lines = desk.launch("status").stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "STEP", "RATE", "RESTARTS", "AGE", "DURATION", "NODES", "WHERE"]
    assert [line.split()[0] for line in lines[1:]] == ["new-bbbb", "mid-cccc", "old-aaaa"]
    assert lines[1].split()[1:5] == ["running", "40/100", "2/s", "0"]
    assert lines[2].split()[1:3] == ["failed", "(user_error)"]
    assert lines[3].split()[-5:] == ["01m", "2h", "00m", "-", "local"]
    assert len({line.index("local") for line in lines[1:]}) == 1


def test_the_table_as_json(desk):
    desk.run("old-aaaa").succeeded(submitted_at=time.time() - 7300)
    desk.run("new-bbbb").running()
    assert [run["run"] for run in json.loads(desk.launch("status", "--json").stdout)] == ["new-bbbb", "old-aaaa"]


def test_many_runs_are_cut_short_but_no_active_one(desk):
    for number in range(25):
        desk.run(f"job-{number:04d}").succeeded(submitted_at=1000.0 + number)
    desk.run("job-live").running(submitted_at=1.0)
    done = desk.launch("status")
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert names == [*(f"job-{number:04d}" for number in range(24, 4, -1)), "job-live"]
    assert done.stderr == "5 more have ended; `launch status --all` shows them\n"
    assert len(desk.launch("status", "--all").stdout.splitlines()) == 27


def test_a_run_whose_folder_is_gone_is_left_out(desk):
    desk.run("here-aaaa").succeeded()
    gone = desk.run("gone-bbbb")
    gone.path.rmdir()
    assert "gone" not in desk.launch("status").stdout


def test_one_damaged_run_does_not_hide_the_others(desk):
    desk.run("good-aaaa").succeeded()
    desk.run("torn-bbbb").succeeded().run.state.write_text("{")
    lines = desk.launch("status").stdout
    assert "good-aaaa" in lines
    assert "torn-bbbb" in lines


def test_a_failed_run_shows_its_failure_first(desk):
    desk.run().failed(FAILURE).event("generation 2 with 4 ranks")
    page = desk.launch("status", "job").stdout
    assert page.splitlines()[0] == "job-abcd failed (user_error): ValueError: bad shape"
    order = [
        "rank 3 on node 1: user_error at train.py:41 in step",
        "│ ValueError: bad shape",
        "/logs/a0001.g0002/rank-00003.log",
        "\n  attempt ",
        "lately",
        "generation 2 with 4 ranks",
        "launch resume job-abcd",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_the_page_of_a_running_run(desk):
    nodes = (NodeState(0, "127.0.0.1", "up", (0, 1, 2)), NodeState(1, "127.0.0.2", "lost"))
    loss = {"loss": 0.25}
    ranks = tuple(RankState(rank, 0, 100 + rank, "running", 40) for rank in range(20))
    desk.run().running(nodes=nodes, ranks=ranks, checkpoint=35, restarts={"hang": 1}, generation=4, metrics=loss)
    page = " ".join(desk.launch("status", "last").stdout.split())
    for text in (
        "job-abcd running",
        "attempt 1.4",
        "step 40/100, 2/s, 30s to go",
        "checkpoint step 35, saved by the script itself",
        "restarts 1 (1 hang)",
        "metrics loss 0.25",
        "node 0 127.0.0.1 up ranks 0..2",
        "node 1 127.0.0.2 lost no ranks",
        "rank 0 node 0 running pid 100 step 40",
        "and 4 ranks more",
        "next launch logs job-abcd -f",
    ):
        assert text in page


def test_of_ten_thousand_nodes_the_page_shows_a_few_and_those_with_a_reason_first(desk):
    nodes = tuple(
        NodeState(number, f"10.0.{number >> 8}.{number & 255}", "up", (number,), why="slow" * (number == 12_000))
        for number in range(12_500)
    )
    desk.run().running(nodes=nodes, world_size=12_500)
    page = desk.launch("status", "last").stdout
    rows = [line.split()[:2] for line in page.splitlines() if line.startswith("  node ")]
    assert rows == [["node", str(number)] for number in (12_000, *range(15))]
    assert "and 12484 nodes more; `--json` has all" in page


def test_a_loss_that_is_no_number_is_red_and_lines_that_are_no_reports_are_counted(desk):
    desk.run().running(not_finite={"loss": NotFinite("NaN", 17)}, malformed=3)
    assert "\x1b[31mloss is NaN since step 17\x1b[0m" in desk.on_terminal("status", "last")[1]
    page = " ".join(desk.launch("status", "last").stdout.split())
    assert "no reports 3 lines on the progress wire: expected one JSON object a line" in page
    known = json.loads(desk.launch("status", "last", "--json").stdout)
    assert (known["not_finite"], known["malformed"]) == ({"loss": {"value": "NaN", "since": 17}}, 3)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"safe_checkpoint": 20}, "the newest checkpoint that survives a disk is step 20, 15 steps behind"),
        ({"safe_checkpoint": None}, "no checkpoint survives a disk yet"),
        ({"safe_checkpoint": 35}, None),
        ({"safe_checkpoint": None, "second_copies": False}, None),
        ({"checkpoint": None}, None),
    ],
)
def test_what_the_loss_of_a_disk_would_cost(desk, known, said):
    desk.run().running(**{"checkpoint": 35, "second_copies": True} | known)
    page = " ".join(desk.launch("status", "last").stdout.split())
    assert (said in page) if said else ("survives" not in page)


def test_what_survives_a_node_in_memory(desk):
    desk.run().running(checkpoint=35, memory_copy=45)
    page = " ".join(desk.launch("status", "last").stdout.split())
    assert "memory step 45 of each node is in another one's memory, too" in page
    assert json.loads(desk.launch("status", "last", "--json").stdout)["memory_copy"] == 45


def test_the_last_events_with_their_age(desk):
    run = desk.run().running()
    for number in range(12):
        run.event(f"event {number}")
    page = desk.launch("status", "last").stdout
    assert "event 3\n" not in page
    assert re.search(r"\ds ago  event 4\n", page)


def test_json_has_what_is_promised(desk):
    desk.run().failed(FAILURE, restarts={"killed": 2})
    status = json.loads(desk.launch("status", "last", "--json").stdout)
    promised = {
        "run",
        "name",
        "state",
        "cause",
        "exit_code",
        "attempt",
        "generation",
        "step",
        "world_size",
        "restarts",
        "checkpoint",
        "nodes",
        "ranks",
        "started_at",
        "ended_at",
        "run_dir",
        "next",
        "failure",
        "message",
    }
    assert promised <= set(status)
    assert status["restarts"] == {"total": 2, "by_cause": {"killed": 2}}
    assert (status["exit_code"], status["checkpoint"]) == (10, None)


def test_how_much_of_its_time_a_run_has_trained(desk):
    desk.run().trained(for_s=9 * 3600, starting_s=3600).running()
    assert "90% of 10h 00m, starting 1h 00m\n" in desk.launch("status", "last").stdout
    told = json.loads(desk.launch("status", "last", "--json").stdout)
    assert 0.89 < told["goodput"] < 0.91 and 3599 < told["spent_s"]["starting"] < 3601


@pytest.mark.parametrize("name", ["metrics.jsonl", "reported.n000.a0001.jsonl"])
def test_a_metrics_file_that_is_a_link_to_itself_stops_no_page(desk, name):
    run = desk.run().running(metrics={"loss": 0.5}).run
    run.metrics.mkdir()
    (run.metrics / name).symlink_to(name)
    assert "loss 0.5" in desk.launch("status", "last").stdout


def test_a_run_on_another_machine(desk):
    desk.run().plan().attempt(supervisor=of_another_machine()).state()
    page = desk.launch("status", "last").stdout
    assert page.startswith("job-abcd unknown: last seen RUNNING at ")
    assert "another-machine" in page
    assert "as of" in page


def test_what_a_run_says_cannot_steer_the_terminal(desk):
    evil = "\x1b]0;owned\x07\x1b[2Jtext\r\n\x1b[31m"
    failure = Failure(Cause.USER_ERROR, evil, 1, 1, where=evil, log=evil, tail=(evil,))
    desk.run().failed(failure, message=evil, metrics={evil: 1.0}, nodes=(NodeState(0, evil, evil),)).event(evil)
    for done in (desk.launch("status", "last"), desk.launch("status")):
        assert "\x1b" not in done.stdout
        assert "\r" not in done.stdout


@pytest.mark.parametrize("words", [("status",), ("status", "last")])
def test_colour_only_on_a_terminal_that_wants_it(desk, words):
    desk.run().failed(FAILURE)
    assert "\x1b" not in desk.launch(*words).stdout
    assert "\x1b[31m" in desk.on_terminal(*words)[1]
    assert "\x1b" not in desk.on_terminal(*words, env={"NO_COLOR": "1"})[1]
    assert "\x1b" not in desk.on_terminal(*words, env={"TERM": "dumb"})[1]


def test_watch_draws_until_the_run_has_ended(desk):
    run = desk.run().running()

    def ends(_process):
        run.end(State.SUCCEEDED).state(State.SUCCEEDED, exit_code=0)

    code, shown = desk.on_terminal("status", "last", "--watch", until="running", then=ends)
    assert code == 0
    assert shown.index("job-abcd running") < shown.index("job-abcd succeeded")
    assert "A\r\x1b[J" in shown


def test_watching_the_table_ends_with_the_last_run(desk):
    desk.run("one-aaaa").succeeded()
    desk.run("two-bbbb").plan().attempt(supervisor=before_this_boot()).state()
    code, shown = desk.on_terminal("status", "--watch")
    assert code == 0
    assert "lost" in shown


def test_status_writes_nothing(desk):
    run = desk.run().running()
    desk.run("dead-bbbb").plan().attempt(supervisor=before_this_boot()).state()
    before = {path: os.stat(path).st_mtime_ns for path in desk.root.rglob("*")}
    desk.launch("status")
    desk.launch("status", run.path.name)
    assert {path: os.stat(path).st_mtime_ns for path in desk.root.rglob("*")} == before


# Of another home


@pytest.fixture
def project(desk):
    """A folder with runs that were submitted with another HOME."""
    project = desk.root / "project"
    runs = project / ".launch" / "runs"
    RunFolder(runs / "done-aaaa").succeeded(submitted_at=time.time() - 100)
    queued = RunFolder(runs / "queued-bbbb").plan().intent(kind="slurm")
    queued.write(queued.run.attempt(1).handle, Handle("slurm", job_id="7", submit_token="x")).state(State.STARTING)
    RunFolder(runs / "live-cccc").running()
    return project


def test_runs_of_another_home_are_seen_from_their_project(desk, project):
    (project / "deeper").mkdir()
    for folder in (project, project / "deeper"):
        done = desk.launch("status", cwd=folder)
        assert {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()[1:]} == {
            "done-aaaa": "succeeded", "live-cccc": "running", "queued-bbbb": "unknown",
        }  # fmt: skip
        assert "queued-bbbb: it was submitted with another HOME or XDG_STATE_HOME" in done.stderr
    assert desk.launch("status").stdout == ""
    page = json.loads(desk.launch("status", "queued", "--json", cwd=project).stdout)
    assert (page["run"], page["state"], page["next"]) == ("queued-bbbb", "unknown", "")
    assert "another HOME" in page["message"]


@pytest.mark.parametrize("verb", ["cancel", "resume", "logs", "wait", "pardon"])
def test_runs_of_another_home_are_only_looked_at(desk, project, verb):
    before = {path: os.stat(path).st_mtime_ns for path in project.rglob("*")}
    said = desk.launch(verb, "live-cccc", check=3, cwd=project).stderr
    assert "live-cccc: it was submitted with another HOME or XDG_STATE_HOME" in said
    newest = desk.launch(verb, "last", check=3, cwd=project).stderr
    assert "live-cccc: it was submitted with another HOME" in newest and "no run yet" not in newest
    desk.launch("status", cwd=project)
    assert {path: os.stat(path).st_mtime_ns for path in project.rglob("*")} == before


def test_what_others_can_write_to_is_no_run_of_another_home(desk, project):
    (project / ".launch" / "runs" / "live-cccc").chmod(0o777)
    assert "live-cccc" not in desk.launch("status", cwd=project).stdout


def test_a_window_that_is_made_narrower_is_drawn_over_as_a_whole(monkeypatch):
    """What was one row of 60 is three of 20 by then."""
    widths = iter([(100, 30), (20, 30)])
    monkeypatch.setattr(terminal, "size", lambda _: next(widths))
    stream = io.StringIO()
    screen = terminal.Screen(stream)
    screen.show(["x" * 60, "short"])
    screen.show(["y"])
    assert stream.getvalue().count("\x1b[4A") == 1


def test_a_folder_without_a_plan_is_no_run_of_another_home(desk, project):
    (project / ".launch" / "runs" / "some-aaaa").mkdir()
    done = desk.launch("status", cwd=project)
    assert len(done.stdout.splitlines()) == 4 and "some-aaaa" not in done.stderr
