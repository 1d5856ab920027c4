"""Test the parsing of kubectl's answers, the JobSet that it gets, and how the pods of a start find each other."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from run_folder import RunFolder, plan_of

from launcher.errors import BadInput, LaunchError, NotStarted, Unreachable
from launcher.places.batch.batch import Fate, Phase, SubmitToken
from launcher.places.kubernetes.kubernetes import KubernetesCluster, KubernetesSystem, ask, read_jobs, read_nodes
from launcher.places.kubernetes.pod import YOUNG_S, OtherPod, meet, stand_by
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode, NodePlan
from launcher.spec.model import JobSpec, Resources, RunOptions
from launcher.spec.read import read_spec

RECORDED = Path(__file__).parent / "recorded"
RUN = Path("/shared/runs/train-7k3f")
HEAD = "name: train\nrun:\n  script: train.py\n"
WHERE = "k8s: {image: 'train:1', claim: runs, mount: /shared"
NODE = Machine(8, ("0", "1", "2", "3"), apart=True)


def recorded(name):
    return (RECORDED / name).read_text()


def job_set(folder, body, run_id="train-7k3f", where=RUN):
    (folder / "job.yaml").write_text(HEAD + body)
    place = RunIdentity(run_id, str(where), "k8s", "k8s", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    plan = build(read_spec(folder / "job.yaml", ()), (), place, NODE, project, FrozenCode("d", 1, 10), sys.executable)
    return json.loads(KubernetesSystem().script(plan, SubmitToken("c0ffee77"), where, []))


# -- the JobSet


def test_every_pod_runs_an_agent_and_asks_for_what_a_node_needs(tmp_path):
    body = f"resources: {{nodes: 2, gpus_per_node: 4, memory_gb: 64}}\n{WHERE}, queue: team, selector: gpu=a100}}\n"
    made = job_set(tmp_path, body)
    labels = {"app.kubernetes.io/managed-by": "launch", "launch/ticket": "c0ffee77", "launch/run": "train-7k3f"}
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert made["metadata"] == {"name": "train-7k3f-c0ffee", "labels": {**labels, "kueue.x-k8s.io/queue-name": "team"}}
    [replicated] = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["completions"], job["parallelism"], job["backoffLimit"]) == (1, 2, 2, 0)
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == [sys.executable, "-P", "-m", "launcher.programs", "pod", str(RUN)]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "65536Mi"}
    assert container["resources"]["requests"]["cpu"] == "8"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert (container["volumeMounts"][0]["mountPath"], pod["nodeSelector"]) == ("/shared", {"gpu": "a100"})
    assert (pod["restartPolicy"], pod["securityContext"]["runAsUser"]) == ("Never", os.getuid())
    assert job["template"]["metadata"]["labels"] == labels


def test_nothing_of_a_submitters_environment_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    assert "s3cret" not in json.dumps(job_set(tmp_path, f"{WHERE}}}\n"))


def test_a_name_leaves_its_pods_room(tmp_path):
    name = job_set(tmp_path, f"{WHERE}}}\n", run_id=f"7_{'long-' * 12}x")["metadata"]["name"]
    assert len(f"{name}-node-0-1000-abcde") <= 63 and name.startswith("run-7-long-") and "_" not in name


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("{claim: runs, mount: /shared}", r"k8s\.image: missing"),
        ("{image: 'train:1', mount: /shared}", r"k8s\.claim: missing"),
        ("{image: 'train:1', claim: runs}", r"k8s\.mount: missing"),
        ("{image: 'train:1', claim: runs, mount: /other}", "pods see /other, and the run would be in /shared/runs"),
        ("{image: 'a b'}", r"k8s\.image"),
        ("{selector: 'a'}", r"k8s\.selector"),
    ],
)
def test_what_pods_could_not_use_is_refused(tmp_path, own, why):
    with pytest.raises(BadInput, match=why):
        job_set(tmp_path, f"k8s: {own}\n")


# -- answers


def test_what_job_sets_do_and_why_they_wait():
    told = {job.id: (job.phase, job.word, job.text) for job in read_jobs(recorded("get.json"))}
    assert told == {
        "train-7k3f-c0ffee": (Phase.RUNNING, "Running", "on gpu7,gpu8"),
        "waits-1": (Phase.QUEUED, "Suspended", "Kueue has not admitted it to queue team"),
        "full-1": (Phase.QUEUED, "Pending", "Kubernetes says: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu."),
        "image-1": (Phase.QUEUED, "Pending", "Kubernetes says: ImagePullBackOff: Back-off pulling image"),
        "done-1": (Phase.ENDED, "Completed", ""),
        "gone-1": (Phase.ENDING, "Deleting", ""),
    }
    first = read_jobs(recorded("get.json"))[0]
    assert (first.submit_tokens, first.name, first.hosts) == ({"c0ffee"}, "train-7k3f", "gpu7,gpu8")


@pytest.mark.parametrize("damaged", ["", "error: x", "{", "{}", '{"items": 7}'])
def test_a_damaged_answer_is_no_answer(damaged):
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(damaged)


def test_nodes():
    told = {
        one.name: (one.cpus, one.gpus, one.up, one.drains)
        for one in read_nodes(recorded("nodes.json"), "nvidia.com/gpu")
    }
    assert told == {"gpu7": (15, 4, True, False), "cpu1": (32, 0, True, True), "lost": (8, 0, False, False)}


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Return a function that puts a `kubectl` with this shell body on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(body):
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "kubectl").chmod(0o755)

    return write


def test_only_a_refusal_is_one(kubectl, tmp_path):
    file = tmp_path / "job.sh"
    file.write_text('{"metadata": {"name": "train-1"}}')
    environ = {"PATH": f"{tmp_path}:/bin"}
    kubectl(f"cat > {tmp_path}/got; echo jobset.jobset.x-k8s.io/train-1")
    assert KubernetesSystem().submit(file, environ, 1) == "train-1"
    assert (tmp_path / "got").read_text() == file.read_text()
    kubectl("echo 'error: resource mapping not found: no matches for kind \"JobSet\"' >&2; exit 1")
    with pytest.raises(NotStarted, match="refuses the JobSet: error: resource mapping not found"):
        KubernetesSystem().submit(file, environ, 1)
    kubectl(
        "echo 'The connection to the server 10.0.0.1:6443 was refused - did you specify the right host?' >&2; exit 1"
    )
    with pytest.raises(Unreachable, match="the Kubernetes API server does not answer"):
        ask(["kubectl", "get", "pods"])
    kubectl("echo 'Error from server (Forbidden): pods is forbidden' >&2; exit 1")
    with pytest.raises(Unreachable, match=r"kubectl cannot tell: .*Forbidden"):
        KubernetesSystem().jobs()


def test_without_the_right_to_list_nodes_the_spec_says_what_they_have(kubectl):
    kubectl("echo 'Error from server (Forbidden): nodes is forbidden' >&2; exit 1")
    spec = JobSpec("job", RunOptions(script="train.py"), resources=Resources(gpus_per_node=4))
    machine = KubernetesCluster().machine(spec)
    assert (len(machine.gpus), machine.apart, machine.limit_per_job) == (4, True, False)


def test_pods_ask_nothing():
    queue = KubernetesSystem()
    assert (queue.fate("train-1"), queue.may_submit(), queue.nodes(["a"])) == (Fate.UNKNOWN, False, {})


# -- pods


def pod(monkeypatch, index):
    monkeypatch.setenv("JOB_LAUNCH_POD", f"pod-{index}")
    monkeypatch.setenv("JOB_LAUNCH_POD_ADDRESS", f"10.0.0.{index}")


def test_pods_meet_in_the_order_of_their_indices(tmp_path, monkeypatch):
    for index in (2, 1):
        pod(monkeypatch, index)
        stand_by(tmp_path / "pods", index)
    pod(monkeypatch, 0)
    assert list(meet(tmp_path / "pods", 3, 0.0).items()) == [
        ("pod-0", "10.0.0.0"), ("pod-1", "10.0.0.1"), ("pod-2", "10.0.0.2"),
    ]  # fmt: skip


def test_a_pod_of_an_earlier_start_is_not_waited_with(tmp_path, monkeypatch):
    pod(monkeypatch, 1)
    stand_by(tmp_path, 1)
    old = (tmp_path / "1.json").stat().st_mtime - 2 * YOUNG_S
    os.utime(tmp_path / "1.json", (old, old))
    pod(monkeypatch, 0)
    with pytest.raises(LaunchError, match="1 of 2 pods did not come within 0 s"):
        meet(tmp_path, 2, 0.0)


def test_one_that_comes_late_is_waited_for(tmp_path, monkeypatch):
    pod(monkeypatch, 0)
    found = []
    waits = threading.Thread(target=lambda: found.append(meet(tmp_path, 2, 60.0)))
    waits.start()
    (tmp_path / "1.json.new").write_text('{"host": "pod-1", "address": "10.0.0.1"}')
    (tmp_path / "1.json.new").rename(tmp_path / "1.json")
    waits.join(60.0)
    assert list(found[0]) == ["pod-0", "pod-1"]


def test_a_pod_that_is_removed_while_its_agent_is_started_ends_the_agent(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run").plan().attempt()
    own = folder.run.attempt(1).plan
    folder.write(
        own, msgspec.structs.replace(plan_of(folder.path), nodes=(NodePlan(0, "10.0.0.1", False, None, "pod-1"),))
    )
    monkeypatch.setenv("JOB_LAUNCH_POD", "pod-1")

    def told_meanwhile(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return ["sleep", "600"]

    monkeypatch.setattr("launcher.places.kubernetes.pod.node_command", told_meanwhile)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert OtherPod(folder.run, tmp_path / "pods", 1).serve() is False
    finally:
        signal.signal(signal.SIGTERM, before)
