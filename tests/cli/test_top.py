"""Test what a run uses now, as text and as JSON."""

import json
import time

import pytest

from launcher.run.hangs import LastRank
from launcher.run.records import GpuLoad, NodeLoad, NodeState, RankLoad

GB = 1_000_000_000


@pytest.fixture
def busy(desk):
    ranks = (RankLoad(0, 1.0, 300_000_000, 5, gpus=(0,), gpu_memory=30 * GB), RankLoad(1, 0.25, 9_000_000, read=2_000))
    gpus = (GpuLoad(0, 40 * GB, 80 * GB, 90), GpuLoad(1, 0, 80 * GB, None))
    now = time.time()
    loads = (NodeLoad(0, now - 3, 8, 2.5, 12 * GB, 64 * GB, received=1_500_000, gpus=gpus, ranks=ranks),)
    desk.run("busy-aaaa").running(loads=loads, nodes=(NodeState(0, "10.0.0.1", "up", (0, 1), "gpu\x0701"),))
    return desk


def test_by_node_and_rank(busy):
    head, empty, columns, *rows = busy.launch("top", "busy").stdout.splitlines()
    assert head.startswith("busy-aaaa running  step 40/100, 2/s, sampled ")
    assert empty == ""
    assert columns.split() == ["CPU", "MEMORY", "READ", "WRITTEN", "RECEIVED", "SENT", "GPU", "GPU", "MEMORY"]
    shown = [[cell for cell in row.split("  ") if cell.strip()] for row in rows]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["node 0 gpu01", "2.50 of 8", "12.0 GB of 64.0 GB", "-", "-", "1.5 MB/s", "-", "90 %", "40.0 GB of 160.0 GB"],
        ["rank 0", "1.00", "300.0 MB", "-", "-", "90 %", "30.0 GB of 80.0 GB"],
        ["rank 1", "0.25", "9.0 MB", "2.0 kB/s", "-", "-", "-"],
    ]


def test_for_programs(busy):
    told = json.loads(busy.launch("top", "busy", "--json").stdout)
    assert (told["run"], told["state"], told["step"]) == ("busy-aaaa", "running", 40)
    (node,) = told["nodes"]
    assert (node["node"], node["cores"], node["cpu"], node["received"]) == (0, 8, 2.5, 1_500_000)
    assert [(one["rank"], one["cpu"], one["memory"], one["processes"]) for one in node["ranks"]] == [
        (0, 1.0, 300_000_000, 5),
        (1, 0.25, 9_000_000, 1),
    ]
    assert node["gpus"][0] == {"index": 0, "memory": 40 * GB, "memory_total": 80 * GB, "busy": 90}


def test_the_rank_that_the_others_wait_for(desk):
    desk.run("late-aaaa").running(last_rank=LastRank(3, 1, 46, 50, 0.052, 0.38))
    line = "rank 3 on node 1 is last into 46 of 50 collectives, by 52 ms: 38% of the time others wait for it"
    assert desk.launch("top", "late").stdout.splitlines()[1] == line
    told = json.loads(desk.launch("top", "late", "--json").stdout)["last_rank"]
    assert (told["rank"], told["by_s"], told["share"]) == (3, 0.052, 0.38)


def test_on_a_terminal_it_is_drawn_until_the_run_has_ended(busy):
    def end(_):
        folder = busy.root / "runs" / "busy-aaaa"
        state = json.loads((folder / "state.json").read_text())
        ended = {"state": "succeeded", "exit_code": 0, "ended_at": time.time()}
        (folder / "state.json.new").write_text(json.dumps(state | ended))
        (folder / "state.json.new").rename(folder / "state.json")

    code, shown = busy.on_terminal("top", "busy", until="rank 1", then=end)
    assert code == 0
    assert "busy-aaaa succeeded" in shown
    assert "gpu\x0701" not in shown


def test_before_the_first_sample_and_after_the_end(desk):
    desk.run("young-aaaa").running()
    done = desk.launch("top", "young")
    assert "young-aaaa running" in done.stdout
    assert "no sample yet" in done.stderr
    assert json.loads(desk.launch("top", "young", "--json").stdout)["nodes"] == []
    desk.run("over-bbbb").succeeded()
    assert "over-bbbb succeeded: nothing of it runs\nhint:" in desk.launch("top", "over", check=4).stderr
