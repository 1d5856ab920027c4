"""A training whose ranks wait for each other, through the real command line."""

from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "node/scripts/hangs.py"
SPEC = "name: hangs\nrun: {script: hangs.py, args: [order, hand]}\nresources: {ranks_per_node: 2, gpus_per_node: 0}\n"


def test_ranks_out_of_step_are_named_with_both_source_lines_and_end_the_run_the_second_time(lab):
    lab.script("hangs.py", SCRIPT.read_text())
    run = lab.submit(lab.spec(SPEC))
    lab.until("who hangs", lambda: "different collectives" in lab.launch("status", run).stdout.splitlines()[0])
    status = lab.wait(run, check=10)
    assert (status["state"], status["cause"], status["restarts"]["total"]) == ("failed", "user_error", 1)
    failure = status["failure"]
    assert (failure["rank"], failure["cause"]) == (1, "hang")
    assert "rank 1 on node 0 in broadcast at hangs.py:" in failure["summary"]
    assert "rank 0 on node 0 in all_reduce at hangs.py:" in failure["summary"]
    assert lab.launch("stacks", run, "--last").stdout.startswith(failure["summary"])
