"""recovery.health on one machine: a node that computes wrongly has no ranks, and the run ends as it would have."""

import pytest
from lab import kill

pytestmark = pytest.mark.nightly

STEPS = 60
# A script of anybody's: its first rank finds that the others wait for rank 1.
WAITS = """
import os, sys, time

wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
told = False
for step in range(4000):
    wire.write('{"step": %d}\\n' % step)
    time.sleep(0.02)
    if not told and step > 20 and os.environ["RANK"] == "0" and os.path.exists(sys.argv[1]):
        told = True
        wire.write('{"slow_rank": 1, "slow_s": 0.3, "usual_s": 0.1}\\n')
    if os.environ["LAUNCH_GENERATION"] == "2" and step == 100:
        break
"""
# Imported into each zygote: node 2 is not ready before the file is there.
LATE = """
import os, time

while os.environ["LAUNCH_NODE"] == "2" and not os.path.exists({there!r}):
    time.sleep(0.01)
"""
SEEN = "1 of 65536 numbers are wrong"


def test_nodes_that_compute_wrongly_are_left_out_before_they_have_ranks_and_after_one_failed(lab):
    options = lab.fall_sick("1")
    resources = "nodes: 2\nranks_per_node: 2"
    wanted = lab.wait(lab.submit(lab.chain(args=f"steps: {STEPS}\npause: 0", resources=resources)))["fingerprint"]
    spec = lab.chain(
        args=f"steps: {STEPS}",
        resources=resources,
        hold=STEPS - 1,
        more="recovery: {spares: 2}\n",
    )
    run = lab.submit(spec, *options)
    lab.until("both spares", lambda: len(lab.events(run, "node_fit")) == 3)
    lab.until_step(run, 7)
    (first,) = lab.events(run, "node_unfit")
    assert first["node"] == 1 and first["cause"] == "node_lost"
    assert first["evidence"].startswith("cpu (") and first["evidence"].endswith(SEEN)
    before = lab.read_state(run)
    assert [node["ranks"] for node in before["nodes"]][:2] == [[0, 1], []]
    (second,) = [node["node"] for node in before["nodes"][2:] if node["ranks"]]
    assert f"unfit  {first['evidence']}" in lab.launch("status", run).stdout

    lab.fall_sick("1", str(second))
    assert kill(before["ranks"][2]["pid"])
    lab.let_go()
    after = lab.wait(run)
    assert [(event["node"], event["generation"]) for event in lab.events(run, "node_unfit")[1:]] == [(second, 1)]
    assert [node["node"] for node in after["nodes"] if node["state"] == "unfit"] == [1, second]
    assert (after["generation"], after["restarts"]) == (2, {"total": 1, "by_cause": {"killed": 1}})
    assert after["fingerprint"] == wanted
    checked = lab.events(run, "links_checked")  # before each start
    assert len(checked) == 2 and all(" between nodes measured: " in event["text"] for event in checked)
    assert not lab.events(run, "link_slow")


def test_the_ranks_of_a_slow_node_move_to_the_spare_once_there_is_one(lab, tmp_path):
    lab.script("waits.py", WAITS)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/late.py").write_text(LATE.format(there=str(tmp_path / "spare")))
    (tmp_path / "there").touch()
    spec = f"name: waits\nrun: {{script: waits.py, args: ['{tmp_path}/there'], preload: [late]}}\n"
    spec += f"env: {{PYTHONPATH: {tmp_path / 'modules'}}}\nresources: {{nodes: 2, ranks_per_node: 1}}\n"
    run = lab.submit(lab.spec(f"{spec}recovery: {{replace_stragglers: true, spares: 1, grace: 1s}}\n"))
    lab.until("no spare", lambda: lab.events(run, "not_moved"))
    (tmp_path / "spare").touch()
    after = lab.wait(run)
    slow = (
        "rank 1 on node 1 is slow: its own work takes 0.3 s of each step, the usual rank's 0.1 s, and all others wait"
    )
    assert [event["text"] for event in lab.events(run, "straggler")] == [
        f"{slow} for it",
        f"{slow} for it".replace("node 1", "node 2"),
    ]
    assert [event["node"] for event in lab.events(run, "moved")] == [1]
    assert lab.events(run, "regroup")[0]["text"].startswith(f"the ranks of node 1 move to node 2: {slow}")
    assert after["restarts"]["total"] == 0
    assert [event["text"].split(": ")[1] for event in lab.events(run, "not_moved")] == [
        "no spare is ready; they do once another one is",
        "each spare that is ready was slow itself; they do once another one is",
    ]
    assert [node["ranks"] for node in after["nodes"]] == [[0], [], [1]]
