"""recovery.health on one machine: a node that computes wrongly has no ranks, and the run ends as it would have."""

import pytest
from lab import kill

pytestmark = pytest.mark.dealt(2)

STEPS = 60
# Imported into each zygote; on a node that the file names, one number of a product comes out wrong.
SICK = """
import os
import torch

right = torch.mm

def multiply(*matrices, out=None):
    product = right(*matrices, out=out)
    with open({there!r}) as file:
        if os.environ["LAUNCH_NODE"] in file.read().split():
            product[3, 4] += 1
    return product

torch.mm = multiply
"""
SEEN = "1 of 65536 numbers are wrong"


def test_nodes_that_compute_wrongly_are_left_out_before_they_have_ranks_and_after_one_failed(lab, tmp_path):
    there = tmp_path / "sick nodes"
    there.write_text("1")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/sick.py").write_text(SICK.format(there=str(there)))
    resources = "nodes: 2\nranks_per_node: 2"
    wanted = lab.wait(lab.submit(lab.chain(args=f"steps: {STEPS}\npause: 0", resources=resources)))["fingerprint"]
    spec = lab.chain(
        args=f"steps: {STEPS}",
        resources=resources,
        hold=STEPS - 1,
        more=f"recovery: {{health: true, spares: 2}}\nenv: {{PYTHONPATH: {tmp_path / 'modules'}}}\n",
    )
    run = lab.submit(spec, "--set", "run.preload=[sick]")
    lab.until("both spares", lambda: len(lab.events(run, "node_fit")) == 3)
    lab.until_step(run, 7)
    (first,) = lab.events(run, "node_unfit")
    assert first["node"] == 1 and first["cause"] == "node_lost"
    assert first["evidence"].startswith("cpu (") and first["evidence"].endswith(SEEN)
    before = lab.read_state(run)
    assert [node["ranks"] for node in before["nodes"]][:2] == [[0, 1], []]
    (second,) = [node["node"] for node in before["nodes"][2:] if node["ranks"]]
    assert f"unfit  {first['evidence']}" in lab.launch("status", run).stdout

    there.write_text(f"1 {second}")
    assert kill(before["ranks"][2]["pid"])
    lab.let_go()
    after = lab.wait(run)
    assert [(event["node"], event["generation"]) for event in lab.events(run, "node_unfit")[1:]] == [(second, 1)]
    assert [node["node"] for node in after["nodes"] if node["state"] == "unfit"] == [1, second]
    assert (after["generation"], after["restarts"]) == (2, {"total": 1, "by_cause": {"killed": 1}})
    assert after["fingerprint"] == wanted
