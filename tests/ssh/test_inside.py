"""Looking into a run on the hosts of a pool: over both transports, and nothing is left there."""

import json

import at_breakpoint
import pytest

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_beside_ranks_on_two_hosts(desk, transport):
    pool = {"pool": {"kind": "ssh", "hosts": ["node0", "node1"], "transport": transport}}
    named = {"LAUNCH_CLUSTERS": str(desk.project / desk.spec(json.dumps(pool), "pool.yaml"))}
    run = desk.submit(desk.job(100_000), "--on", "pool", env=named)
    desk.until_step_there(0, run, 5)
    words = ("sh", "-c", "hostname; echo $RANK $LAUNCH_NODE; pwd; echo aside >&2; exit 7")
    done = desk.launch("exec", run, "--rank", "3", "--", *words, env=named, check=7)
    host, numbers, folder = done.stdout.splitlines()
    assert (host, numbers, done.stderr) == ("node1", "3 1", "aside\n")
    assert folder.endswith(f"launch/runs/{run}/code")
    found = json.loads(desk.launch("stacks", run, "--json", env=named).stdout)
    assert [(each["rank"], each["node"], each["problem"]) for each in found] == [
        (rank, rank // 2, "") for rank in range(4)
    ]
    assert all(any("chain.py" in line for line in each["stacks"]) for each in found)
    desk.until("a sample of both hosts", lambda: sampled(desk, run, named) == [0, 1])
    desk.launch("cancel", run, env=named)
    assert "no rank of it runs" in desk.launch("exec", run, "--", "true", env=named, check=4).stderr


def test_a_shell_and_a_debugger_on_a_host(desk):
    """Of the rank on the second one."""
    desk.script("stops.py", at_breakpoint.SCRIPT)
    spec = desk.spec(at_breakpoint.RUN + "resources: {nodes: 2, ranks_per_node: 1}\n")
    run = desk.submit(spec, "--on", "pool")
    desk.until("a rank that waits", lambda: at_breakpoint.waits_in(desk.status(run)))
    desk.until("what it says then", at_breakpoint.look_inside(desk, run))
    desk.launch("cancel", run)


def sampled(desk, run, env):
    """The nodes whose ranks `launch top` shows at work."""
    told = json.loads(desk.launch("top", run, "--json", env=env).stdout)
    return [node["node"] for node in told["nodes"] if [one["memory"] > 0 for one in node["ranks"]] == [True] * 2]
