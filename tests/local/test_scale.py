"""`launch scale` on this machine: real trainings on one rank and on two, and what is said of them."""

import json

import pytest
from scaled_training import measured

from launcher.errors import Exit

pytestmark = pytest.mark.nightly

THEIRS = """
import json, os, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "--alone" in sys.argv and size > 1:
    raise MemoryError("too many ranks")
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    for step in range(1, int(sys.argv[2]) + 1):
        time.sleep(0.05)
        rate = {"samples_per_s": 100.0 * size} if "--silent" not in sys.argv else {}
        if rank == 0:
            wire.write(json.dumps({"step": step, "loss": 1.0, **rate}) + chr(10))
"""
KINDS = ("data", "compute", "optimizer", "communication", "straggler", "other")


def test_one_rank_and_two_in_both_scalings(lab, tmp_path):
    report = measured(lab, "--ranks", "1,2", "--steps", "12", "-o", str(tmp_path / "report"))
    points = {(one["scaling"], one["ranks"]): one for one in report["points"]}
    assert [*points] == [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
    for one in points.values():
        assert len(one["rates"]) == 6, "2 steps a line"
        assert sum(one["parts"][kind] for kind in KINDS) == pytest.approx(one["step_s"])
        assert one["memory_gb"] > 0
    assert points["strong", 1]["runs"] == points["weak", 1]["runs"], "run once"
    assert points["strong", 2]["step_samples"] == pytest.approx(64, rel=0.3)
    assert points["weak", 2]["step_samples"] == pytest.approx(128, rel=0.3)
    two = points["strong", 2]
    assert two["parts"]["communication"] + two["parts"]["hidden"] > 0
    assert two["parts"]["bytes"] >= (64 * 256 + 256 * 2 + 1) * 4, "gradients of each parameter"
    assert points["strong", 1]["parts"]["messages"] < two["parts"]["messages"]
    assert two["says"].startswith("2 ranks are ") and " times as fast as one " in two["says"]
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"index.html", "scaling.md", "scaling.json"}
    assert json.loads(lab.launch("status", "--json").stdout) == [], "its runs are of no use any more"
    assert lab.processes() == []


def test_baselines_beside_an_all_reduce(lab):
    report = measured(lab, "--ranks", "2", "--strong", "--strategies", "dp,master,ddp", "--steps", "12")
    points = {one["strategy"]: one for one in report["points"]}
    assert all(one["why"] == "" and len(one["rates"]) == 6 for one in points.values())
    model = (64 * 256 + 256 * 2 + 1) * 4
    assert {name: (one["volume"]["who"], one["volume"]["bytes"]) for name, one in points.items()} == {
        "dp": ("the first GPU", model), "master": ("the first rank", model), "ddp": ("each rank", model)
    }  # fmt: skip
    sent = {name: one["parts"]["bytes"] for name, one in points.items()}
    assert sent["dp"] < model, "in one process there are no messages"
    assert sent["ddp"] == pytest.approx(model, rel=0.1)
    assert sent["master"] == pytest.approx(3 * model, rel=0.1), "what two ranks gave, and what all were sent"


@pytest.mark.daily
def test_what_fails_on_more_ranks_is_told_and_kept(lab):
    lab.script("train.py", THEIRS)
    rest = "resources: {ranks_per_node: 2}\nrecovery: {user_error: 0}\n"
    spec = lab.spec(f"name: own\nrun: {{script: train.py, preload: [], args: {{steps: 9, alone: true}}}}\n{rest}")
    done = lab.launch("scale", spec, "--steps", "6", check=Exit.REFUSED, timeout=280)
    assert "2 ranks: it failed: " in done.stdout and "too many ranks" in done.stdout
    assert "1 rank: what all others are compared with" in done.stdout
    [left] = json.loads(lab.launch("status", "--json").stdout)
    assert left["run"].endswith("-2") and left["run"] in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("silent", [False, True])
def test_of_a_script_of_ones_own_the_rate_that_it_reports(lab, silent):
    lab.script("train.py", THEIRS)
    args = f"{{steps: 9{', silent: true' if silent else ''}}}"
    spec = lab.spec(
        f"name: own\nrun: {{script: train.py, preload: [], args: {args}}}\nresources: {{ranks_per_node: 2}}\n"
    )
    words = ("--steps", "12", "--json")
    done = lab.launch("scale", spec, *words, check=Exit.REFUSED if silent else Exit.OK, timeout=280)
    one, two = json.loads(done.stdout)["points"]
    assert (one["scaling"], one["ranks"], two["ranks"]) == ("as it is", 1, 2)
    if silent:
        assert one["why"] == "it reports no samples_per_s, by which its rate could be known"
    else:
        assert (two["speedup"]["usual"], two["efficiency"]) == (2.0, 1.0)
        assert two["parts"] is None


def test_the_ranks_of_a_role_beside_the_main_one(lab):
    lab.script("worker.py", "import time\ntime.sleep(600)\n")
    lab.script(
        "train.py", THEIRS.replace('int(os.environ["WORLD_SIZE"])', 'len(__import__("launcher").peers("workers"))')
    )
    lab.spec(
        "name: own\nroles:\n  master: {main: true, run: {script: train.py, preload: [], args: {steps: 9}}}\n"
        "  workers: {run: {script: worker.py, preload: []}, restart: alone, resources: {ranks_per_node: 3}}\n"
    )
    done = lab.launch("scale", "job.yaml", "--role", "workers", "--steps", "12", "--json", timeout=280)
    one, two = json.loads(done.stdout)["points"]
    assert (one["ranks"], two["ranks"], two["speedup"]["usual"]) == (1, 2, 2.0)
