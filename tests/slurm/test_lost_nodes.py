"""Nodes, daemons and cables that go: the run goes on with what is left, or elsewhere."""

import time

import pytest
from runs import causes, fingerprint_here, job_of, own, record, strike, two_nodes

from launcher.run.avoided import avoid, avoided
from launcher.run.layout import RunDir
from launcher.run.processes import runs
from launcher.run.records import Exclusion
from tests.lab.nodes import Cut

pytestmark = pytest.mark.nightly

STEPS = 600
SHORT = "recovery:\n  lease: 4s\n  wait: 20s\n"


def test_an_agent_that_is_killed_is_back_at_once(desk, slurm):
    run = desk.submit(two_nodes(desk, STEPS, hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 20)
    for generation in (1, 2):
        pid = own(desk, run, f"launcher.node\0{desk.run_dir(run)}\0{1}\0{1}")[0]
        strike(pid)
        desk.until("the next generation", lambda now=generation: desk.read_state(run)["generation"] > now)
        desk.until("ranks", lambda: desk.read_state(run)["state"] == "running")
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], status["generation"]) == (1, 3)
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)


def test_the_coordinators_agent_is_followed_by_another_attempt_in_the_same_allocation(desk, slurm):
    """Its standby is the next attempt's agent, so the batch process's node imports nothing again."""
    preload = "--set", "run.preload=[decimal]"  # with nothing to import a zygote leaves no standby
    run = desk.submit(two_nodes(desk, STEPS, hold=STEPS - 1), "--on", "slurm", *preload)
    desk.until_step(run, 20)
    agent = own(desk, run, f"launcher.node\0{desk.run_dir(run)}\0{1}\0{0}")[0]
    before = own(desk, run, f"launcher.node\0{desk.run_dir(run)}\0{1}\0{1}")[0]
    standby = desk.until("its standby", lambda: len(found := desk.zygotes(agent)) == 2 and found)[1]
    strike(agent)
    again = f"launcher.node\0{desk.run_dir(run)}\0{2}\0{0}"
    desk.until("the next attempt's agent", lambda: own(desk, run, again)[:1] == [standby])
    other = f"launcher.node\0{desk.run_dir(run)}\0{2}\0{1}"
    desk.until("that of the other node", lambda: own(desk, run, other))
    assert not runs(before), "the ranks of the other node's agent before would run beside the new ones"
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], causes(desk, run)) == (2, ["node_lost"])
    assert job_of(desk, run, 1) == job_of(desk, run, 2)
    assert slurm.ask("scontrol", "--oneliner", "show", "job", status["job"]).count("Restarts=0") == 1
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)


def test_with_a_range_of_nodes_the_run_goes_on_without_the_lost_one(desk, slurm):
    spec = desk.chain(args="steps: 100000", resources="nodes: 1..2\nranks_per_node: 2", more=SHORT)
    run = desk.submit(spec, "--on", "slurm")
    desk.until("both nodes", lambda: desk.until_step(run, 10)["world_size"] == 4)
    slurm.nodes[1].power_off()
    desk.until("a smaller world", lambda: desk.until_step(run, 10)["world_size"] == 2)
    status = desk.status(run)
    assert (status["attempt"], status["generation"]) == (1, 2)
    assert causes(desk, run) == ["node_lost"]
    desk.launch("cancel", run)


def test_a_node_that_an_administrator_drains_has_its_ranks_moved_to_the_spare(desk, slurm):
    """It would run on there for Slurm's part; nobody has to know of launch to have it free."""
    run = desk.submit(two_nodes(desk, STEPS, "recovery:\n  spares: 1\n", hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 20)
    desk.until("a spare", lambda: [node["state"] for node in desk.read_state(run)["nodes"]] == ["up", "up", "spare"])
    host = record(desk, run, "plan.json")["nodes"][1]["host"]
    slurm.ask("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=its fan is loud")
    desk.until("ranks on the spare", lambda: {rank["node"] for rank in desk.read_state(run)["ranks"]} == {0, 2})
    [asked] = desk.events(run, "drain_asked")
    assert asked["node"] == 1 and "drain: its fan is loud" in asked["text"]
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], status["restarts"]["total"], causes(desk, run)) == (1, 0, [])
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)


@pytest.mark.parametrize("lost", [0, 1])
def test_without_one_it_moves_to_other_nodes_and_avoids_the_lost_one(desk, slurm, lost):
    """Where it is the first one Slurm starts the job anew."""
    run = desk.submit(two_nodes(desk, STEPS, SHORT, hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 20)
    slurm.nodes[lost].power_off()
    desk.let_go()
    status = desk.wait(run, timeout=180)
    assert (status["attempt"], causes(desk, run)) == (2, ["node_lost"])
    if lost:
        assert "node1" not in [node["host"] for node in status["nodes"]]
    else:
        assert "node0" in desk.events(run, "failure")[0]["text"]
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)
    slurm.nodes[lost].power_on()


def test_a_lost_node_is_shown_with_the_evidence_and_can_be_pardoned(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, SHORT), "--on", "slurm")
    desk.until_step(run, 20)
    slurm.nodes[1].power_off()
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    shown = desk.until("the exclusion", lambda: desk.status(run)["avoided"])
    assert [(one["host"], one["attempt"]) for one in shown] == [("node1", 1)] and "not heard" in shown[0]["evidence"]
    page = desk.launch("status", run).stdout
    assert f"launch nodes include {run}" in page and "node1" in page
    desk.launch("cancel", run)
    assert "does not avoid node3" in desk.launch("pardon", run, "node3", check=4).stderr
    assert "node1 may be used again" in desk.launch("pardon", run).stdout
    assert desk.status(run)["avoided"] == []
    slurm.nodes[1].power_on()


@pytest.fixture
def waiting(desk, slurm):
    """Begin a run on all nodes, whose job waits for ever: it was told to avoid one of them until then."""

    def begin(until_s):
        spec = desk.chain(args="steps: 20", resources="nodes: 4\nranks_per_node: 1")
        slurm.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
        try:
            run = desk.submit(spec, "--on", "slurm")
            slurm.ask("scontrol", "update", f"JobId={job_of(desk, run)}", "ExcNodeList=node1")
        finally:
            slurm.ask("scontrol", "update", "PartitionName=main", "State=UP")
        reason = ("squeue", "--noheader", "--format=%r", f"--jobs={job_of(desk, run)}")
        desk.until("a job that waits for ever", lambda: slurm.ask(*reason).strip() == "BadConstraints")
        now = time.time()
        avoid(RunDir(desk.run_dir(run)), [Exclusion("node1", "no heartbeat for 30 s", 1, now, now + until_s)])
        return run

    return begin


def test_a_pardon_lets_a_job_start_that_waited_for_ever(desk, waiting):
    run = waiting(until_s=3600)
    said = desk.status(run)
    assert said["state"] == "queued", said
    assert "no node has what it asks for" in said["message"] and "it avoids node1 until" in said["message"]
    desk.launch("pardon", run)
    status = desk.wait(run)  # Slurm looks at its whole queue once a minute
    assert (status["state"], [node["host"] for node in status["nodes"]][1]) == ("succeeded", "node1")


def test_a_job_that_waited_for_ever_starts_when_the_time_of_its_nodes_is_over(desk, waiting):
    run = waiting(until_s=3)
    assert "node1" in [node["host"] for node in desk.wait(run)["nodes"]]


def test_a_cut_that_has_healed_by_the_end_of_the_attempt_blames_no_node(desk, slurm):
    """The first node heard nobody: neither the other, nor Slurm, which would have said whose fault that was."""
    run = desk.submit(two_nodes(desk, STEPS, SHORT, hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 20)
    slurm.nodes[0].cut(Cut.BOTH)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    slurm.nodes[0].mend()
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], avoided(RunDir(desk.run_dir(run)))) == ("succeeded", [])
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)


def test_a_cancel_names_the_node_that_cannot_be_asked_and_nothing_lives_there_after_its_lease(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, SHORT), "--on", "slurm")
    desk.until_step(run, 20)
    slurm.nodes[1].cut(Cut.LINK)
    said = desk.launch("cancel", run)
    assert f"{run} is cancelled" in said.stdout
    assert "node1 does not answer Slurm" in said.stderr and "lease of 4 s" in said.stderr, said.stderr
    assert "node0" not in said.stderr
    desk.until("the end of what is left", lambda: not desk.processes(desk.run_dir(run)))
    slurm.nodes[1].mend()
    slurm.nodes[1].kill_slurmd()  # else it is told of the job's end once more after a minute only
    slurm.nodes[1].start_slurmd()


@pytest.mark.daily
def test_a_first_copy_that_lives_on_is_fenced(desk, slurm):
    """slurmd dies, its job lives on; Slurm believes the node dead and starts the job elsewhere: twice at once."""
    run = desk.submit(two_nodes(desk, 100_000, "recovery:\n  lease: 60s\n"), "--on", "slurm")
    desk.until_step(run, 20)
    first = own(desk, run, f"launcher.node\0{desk.run_dir(run)}\0{1}\0{0}")
    slurm.nodes[0].kill_slurmd()
    desk.until("a second copy", lambda: record(desk, run, "handle.json", 2))
    desk.until("its ranks", lambda: desk.until_step(run, 21)["attempt"] == 2)
    desk.until("the end of the first copy", lambda: not set(first) & set(desk.processes()))
    assert record(desk, run, "exit.json", 1)["state"] == "queued"  # what the second one wrote for it
    assert desk.read_state(run)["attempt"] == 2
    desk.launch("cancel", run)
    slurm.nodes[0].start_slurmd()


def test_the_first_of_a_range_of_nodes_gone_another_node_has_the_job_started_anew(desk, slurm):
    """Slurm lets such a job be, without its batch process: it was told not to kill it for a lost node."""
    spec = desk.chain(args=f"steps: {STEPS}", resources="nodes: 1..2\nranks_per_node: 2", more=SHORT, hold=STEPS - 1)
    run = desk.submit(spec, "--on", "slurm")
    desk.until("both nodes", lambda: desk.until_step(run, 10)["world_size"] == 4)
    slurm.nodes[0].power_off()
    desk.let_go()
    status = desk.wait(run, timeout=200)
    assert (status["state"], status["attempt"], causes(desk, run)) == ("succeeded", 2, ["node_lost"])
    slurm.nodes[0].power_on()
