"""Taking runs away: one, many, or checkpoints of theirs; what they take of the disk."""

import json
import resource
import shutil
import time

import pytest
from run_folder import dead_process
from saved_checkpoints import keep_best, save

from launcher.run import drafts
from launcher.states import State


@pytest.fixture
def many(desk):
    """Write three runs, one of them active, with code in the store that one of them uses and some that none does."""
    now = time.time()
    for name, ago in (("old-aaaa", 9 * 86400), ("new-bbbb", 2 * 3600)):
        desk.run(name).succeeded(submitted_at=now - ago, ended_at=now - ago).log(0, "x" * 50_000)
    desk.run("bad-dddd").failed(submitted_at=now - 8 * 86400, ended_at=now - 8 * 86400)
    desk.run("live-cccc").running()
    store = desk.root / "runs" / ".code"
    for digest in ("d" * 64, "e" * 64):
        (store / digest).mkdir(parents=True)
        (store / digest / "train.py").write_text("1" * 5000)
    return desk


def left(desk):
    return {path.name for path in (desk.root / "runs").iterdir()} - {".code"}


def names(desk):
    return {path.name for path in (desk.root / "state" / "launch" / "runs").iterdir()}


def test_a_run_is_taken_away(many):
    done = many.launch("rm", "old", "bad")
    assert [line.split(" with ")[0] for line in done.stdout.splitlines()] == ["old-aaaa is gone,", "bad-dddd is gone,"]
    assert left(many) == names(many) == {"new-bbbb", "live-cccc"}
    assert [path.name for path in (many.root / "runs" / ".code").iterdir()] == ["d" * 64]
    many.launch("status", "old", check=3)


def test_a_live_run_is_refused_and_with_it_the_others(many):
    done = many.launch("rm", "old", "live", check=4)
    assert done.stderr == "launch: live-cccc is running\nhint: launch cancel live-cccc ends it first\n"
    assert len(left(many)) == 4
    many.launch("rm", "old", "nope", check=3)
    assert len(left(many)) == 4


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (("--older", "7d"), {"old-aaaa", "bad-dddd"}),
        (("--older", "7d", "--state", "failed"), {"bad-dddd"}),
        (("--name", "*-bbbb"), {"new-bbbb"}),
        (("--state", "ended"), {"old-aaaa", "new-bbbb", "bad-dddd"}),
        (("--state", "running"), set()),
    ],
)
def test_many_are_taken_away(many, words, gone):
    shown = many.launch("prune", *words, "--dry-run").stdout
    assert {line.split()[0] for line in shown.splitlines()[1:-1]} == gone
    assert len(left(many)) == 4
    assert many.launch("prune", *words, "--yes").stdout == shown
    assert left(many) == names(many) == {"old-aaaa", "new-bbbb", "bad-dddd", "live-cccc"} - gone


def test_nothing_goes_unless_somebody_says_yes(many):
    refused = many.launch("prune", "--older", "7d", check=4)
    assert "no terminal here to ask on\nhint: --yes takes it away" in refused.stderr
    assert "old-aaaa" in refused.stdout
    assert "which runs?" in many.launch("prune", "--yes", check=2).stderr
    assert len(left(many)) == 4
    for answer, code, there in (("no", 4, 4), ("yes", 0, 2)):
        assert many.on_terminal("prune", "--older", "7d", until="type yes:", keys=f"{answer}\n")[0] == code
        assert len(left(many)) == there


def test_code_that_no_run_needs_goes_unless_somebody_submits(many):
    store = many.root / "runs" / ".code"
    assert "of code that no run needs" in many.launch("du").stdout
    later = many.root / "runs" / "live-cccc" / "attempts" / "0002"
    later.mkdir()
    (store / ("f" * 64)).mkdir()
    plan = (many.root / "runs" / "live-cccc" / "plan.json").read_text()
    (later / "plan.json").write_text(plan.replace("d" * 64, "f" * 64))
    draft = drafts.new_draft(many.root / "runs")
    draft.mkdir()
    many.launch("prune", "--older", "7d", "--yes")
    assert len([*store.iterdir()]) == 3
    draft.rmdir()
    many.launch("prune", "--older", "7d", "--yes")
    assert {path.name for path in store.iterdir()} == {"d" * 64, "f" * 64}


def test_a_folder_that_was_removed_by_hand_leaves_no_name(many):
    shutil.rmtree(many.root / "runs" / "new-bbbb")
    away = many.run("away-eeee")
    (many.root / "elsewhere").mkdir()
    link = many.root / "state" / "launch" / "runs" / "away-eeee"
    link.unlink()
    link.symlink_to(many.root / "not-mounted" / "runs" / "away-eeee")
    shutil.rmtree(away.path)
    done = many.launch("prune", "--older", "7d", "--yes")
    assert "new-bbbb: its folder had been taken away; its name is forgotten" in done.stderr
    assert names(many) == {"live-cccc", "away-eeee"}
    many.launch("rm", "live", check=4)


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        ("newest", {"step-00000030"}),
        ("2", {"step-00000030", "step-00000020"}),
        ("best", {"best-00000020"}),
    ],
)
def test_only_checkpoints_go(desk, keep, stay):
    folder = desk.run("a-bbbb").succeeded().run.path / "checkpoints"
    for step in (10, 20, 30):
        save(folder, step)
    keep_best(folder, 20)
    desk.launch("prune", "--state", "ended", "--keep", keep, "--yes")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == stay
    assert "0 runs" in desk.launch("prune", "--state", "ended", "--keep", keep, "--yes").stdout
    assert "a-bbbb succeeded" in desk.launch("status", "a").stdout


def test_what_runs_take(many):
    lines = many.launch("du").stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "TOTAL", "CHECKPOINTS", "LOGS", "CODE"]
    assert {line.split()[0] for line in lines[1:3]} == {"old-aaaa", "new-bbbb"}
    assert lines[-1].startswith("4 runs, ")
    by_id = [line.split()[0] for line in many.launch("du", "--sort", "run").stdout.splitlines()[1:5]]
    assert by_id == sorted(by_id)
    assert [one["run"] for one in json.loads(many.launch("du", "--name", "old*", "--json").stdout)] == ["old-aaaa"]
    [one] = json.loads(many.launch("du", "old", "--json").stdout)
    assert one["run"] == "old-aaaa"
    assert one["total"] > one["logs"] >= 50_000


def test_the_plan_for_a_thousand_runs_is_there_at_once(desk):
    dead = dead_process()
    for number in range(1000):
        folder = desk.run(f"job-{number:04d}").plan().attempt(supervisor=dead).log(0, "x")
        folder.state(State.SUCCEEDED, ended_at=1000.0, submitted_at=900.0)
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "1000 runs, " in desk.launch("prune", "--older", "7d", "--name", "job*", "--dry-run").stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if took[-1] < 2.0:
            break
    assert min(took) < 2.0
