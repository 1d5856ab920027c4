"""Several runs of one file: in order, with what one is given of another, failed and resumed, cut off and completed."""

import json
import random
import re
import shutil
import subprocess
import sys

import pytest

from tests.sizes import SCALE, SEED

pytestmark = pytest.mark.nightly

DEEDS = "rename,fsync,mkdir,symlink,unlink,vfork"
WORK = """
import os, sys
with open(os.environ["LEDGER"], "a") as file:
    file.write(os.environ["LAUNCH_RUN_ID"] + "\\n")
print(*sys.argv[1:], os.environ.get("GIVEN", ""))
sys.exit(3 if os.path.exists(os.environ["LEDGER"] + "." + sys.argv[1]) else 0)
"""
THREE = """\
name: three
run: {script: work.py, preload: []}
resources: {ranks_per_node: 1, gpus_per_node: 0}
recovery: {user_error: 0}
steps:
  last:
    needs: [middle, first]
    run: {args: [last]}
    env: {GIVEN: "${steps.first.run_dir} ${steps.middle.checkpoints} ${steps.middle.best_checkpoint}"}
  middle: {needs: first, run: {args: [middle]}}
  first: {run: {args: [first]}}
"""


@pytest.fixture
def desk(lab, tmp_path):
    lab.ledger = tmp_path / "ledger"
    lab.env["LEDGER"] = str(lab.ledger)
    lab.script("work.py", WORK)
    lab.spec(THREE)
    return lab


def fail(desk, step, *, go_on=False):
    """Make that step end with exit code 3, or no longer."""
    flag = desk.ledger.with_name(f"ledger.{step}")
    flag.unlink() if go_on else flag.touch()


def carried_out(desk, graph):
    """The steps whose ranks have begun, in that order."""
    return [line.removeprefix(f"{graph}-") for line in desk.ledger.read_text().split()]


def states(desk, graph):
    told = desk.status(graph)
    return [told["state"], *(step["status"] and step["status"]["state"] for step in told["steps"])]


@pytest.mark.daily
def test_each_step_follows_those_that_it_needs_and_is_given_what_they_made(desk):
    graph = desk.submit("job.yaml")
    assert re.fullmatch("three-[a-z0-9]{4}", graph)
    desk.launch("wait", graph)
    assert carried_out(desk, graph) == ["first", "middle", "last"]
    first, middle = desk.run_dir(f"{graph}-first"), desk.run_dir(f"{graph}-middle")
    given = f"last {first} {middle}/checkpoints {middle}/checkpoints/best"
    assert given in desk.launch("logs", graph).stdout
    told = desk.status(graph)
    assert [(one["step"], one["needs"], one["run"]) for one in told["steps"]] == [
        ("first", [], f"{graph}-first"),
        ("middle", ["first"], f"{graph}-middle"),
        ("last", ["middle", "first"], f"{graph}-last"),
    ]
    spec = desk.run_dir(f"{graph}-last") / "spec.yaml"
    assert "steps" not in spec.read_text(), "a run has the spec of its own"


def test_they_are_shown_as_a_tree_in_the_table_too(desk):
    graph = desk.submit("job.yaml", "--hold")
    page = desk.launch("status", graph).stdout.splitlines()
    assert page[0] == f"{graph} queued"
    assert [line[: line.index(graph)].rstrip() for line in page[2:]] == ["└─ first", "   └─ middle", "      └─ last"]
    alone = desk.submit("job.yaml", "--set", "steps={only: {run: {args: [x]}}}")
    desk.launch("wait", alone)
    lines = desk.launch("status").stdout.splitlines()[1:]
    assert [" ".join(line.split()[:3]) for line in lines] == [
        f"{alone} succeeded", f"└─ {alone}-only succeeded",
        f"{graph} queued", f"└─ {graph}-first queued", f"└─ {graph}-middle queued", f"└─ {graph}-last queued",
    ]  # fmt: skip
    rows = json.loads(desk.launch("status", "--json").stdout)
    assert rows[-1]["graph"] == {"id": graph, "step": "last", "needs": ["middle", "first"]}
    flat = desk.launch("status", "--sort", "age").stdout
    assert "└─" not in flat and f"{graph}-last" in flat
    assert "is not held any more" in desk.launch("release", graph).stdout
    desk.launch("wait", graph)


def test_resume_goes_on_at_the_step_that_failed_and_those_after_it_follow_again(desk):
    fail(desk, "middle")
    graph = desk.submit("job.yaml")
    done = desk.launch("wait", graph, check=10)
    assert f"{graph}-last cancelled: {graph}-middle, which it was to follow, is failed" in done.stdout
    assert states(desk, graph) == ["failed", "succeeded", "failed", "cancelled"]
    assert f"launch resume {graph} goes on" in desk.launch("status", graph).stdout
    fail(desk, "middle", go_on=True)
    refused = desk.launch("resume", graph, "--set", "env.A=1", check=2).stderr
    assert "--on, --set and --without are for one" in refused
    assert desk.launch("resume", graph).stdout.split() == [f"{graph}-middle", f"{graph}-last"]
    assert "queued (cancelled)" not in desk.launch("status", graph).stdout
    desk.launch("wait", graph)
    assert carried_out(desk, graph) == ["first", "middle", "middle", "last"]
    assert "there is nothing to resume" in desk.launch("resume", graph, check=4).stderr


def test_cancel_ends_all_of_them_and_resume_has_all_go_on(desk):
    graph = desk.submit("job.yaml", "--hold")
    desk.launch("cancel", graph)
    assert states(desk, graph) == ["cancelled"] * 4
    assert not desk.processes()
    desk.launch("resume", graph, "--follow")
    assert carried_out(desk, graph) == ["first", "middle", "last"]
    desk.launch("rm", f"{graph}-last")
    assert states(desk, graph) == ["lost", "succeeded", "succeeded", None]
    assert f"{graph}-last was removed" in desk.launch("resume", graph, check=4).stderr
    desk.launch("rm", graph)
    desk.launch("status", graph, check=3)
    assert not any((desk.project / ".launch" / "runs" / ".graphs").iterdir())


def test_nothing_is_started_where_one_step_cannot_run_and_its_place_is_told(desk):
    wrong = THREE.replace("run: {args: [middle]}", "run: {script: wrok.py}")
    done = desk.launch("submit", desk.spec(wrong, "wrong.yaml"), check=2)
    assert "wrong.yaml:10:40: steps.middle.run.script: no file 'wrok.py' among the frozen code" in done.stderr
    assert desk.launch("validate", "wrong.yaml", check=2).stderr == done.stderr.replace("launch: ", "")
    both = desk.launch("submit", "job.yaml", "--repeat", "2", check=2)
    assert "a file with steps does not go with --repeat" in both.stderr
    assert desk.launch("status").stdout == ""


def test_a_dry_run_shows_every_step_and_starts_none(desk):
    shown = desk.launch("submit", "job.yaml", "--dry-run").stdout
    heads = [line for line in shown.splitlines() if line.startswith("---")]
    assert heads == [
        "--- first",
        "--- middle, once first has succeeded",
        "--- last, once middle and first have succeeded",
    ]
    plans = json.loads(desk.launch("submit", "job.yaml", "--dry-run", "--json").stdout)
    assert [plan["name"] for plan in plans] == ["three-first", "three-middle", "three-last"]
    assert desk.launch("status").stdout == ""


def test_from_python(desk):
    program = (
        "import launcher\n"
        "graph = launcher.submit_graph('job.yaml')\n"
        "assert launcher.Graph.get(graph.id) == graph\n"
        "print(graph.wait(), *(step.name for step in graph.steps()), len(graph.runs()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=150
    )
    assert (done.returncode, done.stdout) == (0, "succeeded first middle last 3\n"), done.stderr


@pytest.mark.timeout(600)
def test_a_submit_that_is_killed_on_the_way_is_completed_and_each_step_is_carried_out_once(desk):
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    print("seed", SEED)
    desk.env["PYTHONDONTWRITEBYTECODE"] = "1"
    desk.rest()
    desk.launch("wait", desk.submit("job.yaml"))  # the first submit makes folders that the others find
    points = [(call, k) for call, n in occurrences(desk).items() for k in range(1, n + 1)]
    known, fired, completed = ids_of(desk), 0, 0
    for call, k in random.Random(SEED).sample(points, min(len(points), 10 * SCALE)):
        desk.ledger.write_text("")
        done = strace(desk, "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={k}")
        fired += done.returncode == -9
        new = ids_of(desk) - known
        known |= new
        assert len(new) <= 1
        for graph in new:
            completed += complete(desk, graph)
            assert sorted(carried_out(desk, graph)) == ["first", "last", "middle"], (call, k)
        if not new:
            desk.launch("status")
            assert desk.ledger.read_text() == "", (call, k)
    assert fired and completed, f"{fired} kills fired, after {completed} of them something was missing"


def strace(desk, *options):
    command = ["strace", "-qq", *options, sys.executable, "-m", "launcher.cli.main", "submit", "job.yaml"]
    return subprocess.run(command, cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=60)


def occurrences(desk):
    counts = desk.ledger.with_name("counts")
    before = ids_of(desk)
    assert strace(desk, "-e", f"trace={DEEDS}", "-c", "-o", str(counts)).returncode == 0
    for graph in ids_of(desk) - before:
        desk.launch("wait", graph)
    rows = [line.split() for line in counts.read_text().splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[-1] in DEEDS.split(",")}


def ids_of(desk):
    folder = desk.project / ".launch" / "runs" / ".graphs"
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def complete(desk, graph):
    """Resume the graph if a step has no run, and wait for its end; return whether one was missing."""
    told = desk.launch("status").stderr
    missing = any(step["status"] is None for step in desk.status(graph)["steps"])
    assert missing == (f"launch resume {graph} does it" in told), told
    if missing:
        assert "there is no run of" in desk.launch("wait", graph, check=4).stderr
        desk.launch("resume", graph)
    desk.launch("wait", graph)
    return missing
