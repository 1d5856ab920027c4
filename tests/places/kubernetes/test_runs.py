"""Runs on Kubernetes, as far as a kubectl that keeps objects and starts their pods here can show them."""

import json
import os
import signal

import pytest

from tests.places.kube_cluster import objects, set_up, tear_down

ONE = "ranks_per_node: 1\ngpus_per_node: 0\ncpus_per_rank: 1"
TWO = f"nodes: 2\n{ONE}"
SAVES = "checkpoint: {every: 1 steps}\n"


@pytest.fixture
def cluster(lab, tmp_path):
    """The folder of a cluster, whose kubectl is on the user's PATH and which the clusters file says all of."""
    folder = set_up(lab, tmp_path)
    yield folder
    tear_down(lab, folder)


def restarts(folder):
    return sum(one["restarts"] for one in objects(folder).values())


def test_a_dry_run_prints_a_job_set_with_its_queue_and_creates_nothing(lab, cluster):
    said = lab.launch("submit", lab.chain(resources=TWO), "--on", "k8s", "--dry-run").stdout
    made, _ = json.JSONDecoder().raw_decode(said.partition("batch script\n")[2].lstrip())
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (made["kind"], job["completions"]) == ("JobSet", 2)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["template"]["spec"]["containers"][0]["command"][-3:-1] == ["launcher.programs", "pod"]
    assert "created (server dry run)" in said and not objects(cluster)


def test_a_run_on_two_nodes_from_submit_to_its_end_with_its_logs(lab, cluster):
    run = lab.submit(lab.chain(args="steps: 3", resources=TWO), "--on", "k8s")
    status = lab.wait(run)
    assert (status["state"], status["step"], len(status["nodes"])) == ("succeeded", 3, 2)
    [name] = objects(cluster)
    assert [node["host"].rsplit("-", 1)[0] for node in status["nodes"]] == [f"{name}-node-0-0", f"{name}-node-0-1"]
    assert lab.launch("logs", run, check=None).returncode == 0
    lab.until("the end of its JobSet", lambda: objects(cluster)[name]["conditions"])
    assert restarts(cluster) == 0


def test_why_it_waits_and_that_it_can_be_cancelled_meanwhile(lab, cluster):
    (cluster / "suspended").touch()
    run = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "k8s")
    assert "queued: Kueue has not admitted it to queue team" in lab.launch("status", run).stdout
    (cluster / "full").touch()
    (cluster / "suspended").unlink()
    lab.until("its pods", lambda: next(iter(objects(cluster).values()))["pods"])
    assert "0/2 nodes are available: 2 Insufficient cpu." in lab.launch("status", run).stdout
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled" and not objects(cluster)


def test_a_run_whose_pods_are_taken_goes_on_when_it_is_let_in_again(lab, cluster):
    run = lab.submit(lab.chain(args="steps: 6", resources=TWO, more=SAVES, hold=3), "--on", "k8s")
    lab.until_step(run, 3)
    (cluster / "suspended").touch()
    lab.until("no pods", lambda: not next(iter(objects(cluster).values()))["pods"])
    (cluster / "suspended").unlink()
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert len(objects(cluster)) == 1


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.nightly
def test_a_lost_pod_has_all_of_them_start_again(lab, cluster, lost):
    run = lab.submit(lab.chain(args="steps: 6", resources=TWO, more=SAVES, hold=3), "--on", "k8s")
    lab.until_step(run, 3)
    [job_set] = objects(cluster).values()
    os.killpg(job_set["pods"][lost]["pid"], signal.SIGKILL)
    lab.until("another start", lambda: restarts(cluster) == 1)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert restarts(cluster) == 1


@pytest.mark.nightly
def test_a_run_that_follows_another_waits_on_this_machine(lab, cluster):
    spec = lab.chain(args="steps: 3", resources=ONE)
    first = lab.submit(spec, "--on", "k8s")
    then = lab.submit(spec, "--on", "k8s", "--after", first)
    assert [lab.wait(run)["state"] for run in (first, then)] == ["succeeded", "succeeded"]
    assert lab.status(then)["started_at"] >= lab.status(first)["ended_at"]
    refused = lab.launch("submit", spec, "--on", "k8s", "--set", "queue.priority=-5", check=2)
    assert "queue.priority: is not known to k8s clusters" in refused.stderr


@pytest.mark.nightly
def test_a_failed_run_is_not_started_again_and_again(lab, cluster):
    lab.script("fails.py", "import sys\nsys.exit(3)")
    recovery = "recovery: {user_error: 0}\n"
    spec = lab.spec(
        f"name: fails\nrun: {{script: fails.py, preload: []}}\nresources: {{{ONE.replace(chr(10), ', ')}}}\n{recovery}"
    )
    run = lab.submit(spec, "--on", "k8s")
    assert lab.wait(run, check=None)["state"] == "failed"
    lab.until("the end of its JobSet", lambda: next(iter(objects(cluster).values()))["conditions"])
    assert restarts(cluster) <= 1


def test_what_is_missing_or_refused_is_said_before_anything_runs(lab, cluster):
    spec = lab.chain(resources=ONE)
    refused = lab.launch("submit", spec, "--on", "k8s", "--set", "k8s.queue=closed", check=None)
    assert refused.returncode != 0 and "Kubernetes refuses the JobSet" in refused.stderr
    elsewhere = lab.launch("submit", spec, "--on", "k8s", "--set", "k8s.mount=/shared", check=None)
    assert elsewhere.returncode != 0 and "k8s.mount: pods see /shared" in elsewhere.stderr
    held = lab.launch("submit", spec, "--on", "k8s", "--hold", check=None)
    assert held.returncode != 0 and "queue.hold: Kueue lets runs of its queues start" in held.stderr


def test_the_doctor_knows_what_a_run_needs(lab, cluster):
    told = json.loads(lab.launch("doctor", "k8s", "--json", check=None).stdout)
    by_name = {one["about"]: one for one in told}
    assert {by_name[name]["level"] for name in ("API server", "JobSet", "Kueue", "rights", "hosts")} == {"ok"}
