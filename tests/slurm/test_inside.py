"""Looking into a job: a step of its own beside the ranks of the node."""

import json

import pytest
from runs import two_nodes

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_beside_ranks_on_two_nodes(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 5)
    words = ("sh", "-c", 'hostname; echo $RANK $LAUNCH_NODE; test -n "$SLURM_JOB_ID"; echo aside >&2; exit 7')
    done = desk.launch("exec", run, "--rank", "2", "--", *words, check=7)
    assert (done.stdout, done.stderr) == (f"{slurm.nodes[1].name}\n2 1\n", "aside\n")
    found = json.loads(desk.launch("stacks", run, "--json").stdout)
    assert [(each["rank"], each["node"], each["problem"]) for each in found] == [
        (rank, rank // 2, "") for rank in range(4)
    ]
    assert all(any("chain.py" in line for line in each["stacks"]) for each in found)
    state = desk.status(run)
    assert (state["state"], state["restarts"]["total"]) == ("running", 0)
    desk.launch("cancel", run)
