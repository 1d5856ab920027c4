"""Run on Kubernetes: a run is a JobSet whose pods are its nodes, on a volume shared with the submitting machine.

kubectl is used, in the namespace of its current context. The code has not been run on a real cluster.
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import BadInput, LaunchError, NotStarted, Unreachable
from launcher.places.batch.answers import number, read_json
from launcher.places.batch.batch import (
    LIMIT_S,
    SUBMIT_S,
    BatchSystem,
    ExecHost,
    Fate,
    NodeAnswer,
    Phase,
    QueuedJob,
    SubmitToken,
    job_name,
)
from launcher.places.batch.client import Programs
from launcher.places.batch.cluster import BatchCluster
from launcher.places.kubernetes.pod import FOLDER, meet
from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.run.layout import AttemptDir
from launcher.spec.model import JobSpec
from launcher.states import State

if TYPE_CHECKING:
    from launcher.supervisor.agent_processes import AgentProcess

CALLED = "Kubernetes"
_NO_ANSWER = (
    "unable to connect to the server", "connection refused", "was refused", "i/o timeout", "no route to host",
    "tls handshake timeout", "etcdserver", "context deadline exceeded", "service unavailable",
)  # fmt: skip
ask = Programs(CALLED, "API server", _NO_ANSWER).ask
_MANAGED = {"app.kubernetes.io/managed-by": "launch"}
_MARK_LABEL, _RUN = "launch/ticket", "launch/run"
_QUEUE = "kueue.x-k8s.io/queue-name"
_INDEX = "batch.kubernetes.io/job-completion-index"
_SET = "jobset.sigs.k8s.io/jobset-name"
_LONGEST = 36  # of what a run adds to the name of a JobSet: its pods have 63 signs
_AGAIN = 99  # a pod that leaves with any code but 0 has the JobSet start all of them again
_MOST_STARTS = 1000
_KEPT_S = 24 * 3600  # a JobSet that has ended is shown so long
_SPARE_S = 15.0
_MEETS_S = 600.0  # so long the first pod waits for the others


class KubernetesCluster(BatchCluster):
    """Kubernetes as a cluster to which runs are submitted. `takes` are the supported options of the spec's `queue`."""

    doctor = "launcher.places.kubernetes.doctor"  # module with its checks
    takes = ("hold",)

    def __init__(self) -> None:
        super().__init__(KubernetesSystem())

    def machine(self, spec: JobSpec) -> Machine:
        """Return what a node offers, as for every batch system, with `limit_per_job` False: the run itself keeps its
        time limit, because a job has none on Kubernetes.
        """
        return replace(super().machine(spec), limit_per_job=False)


class KubernetesSystem(BatchSystem):
    """Kubernetes as a batch system, queried with kubectl. Pods may not query it, so the exit codes of its pods decide
    whether a JobSet has ended or starts again.
    """

    kind, called, ask = "k8s", CALLED, staticmethod(ask)
    sees, ends = "kubectl describe jobset", "kubectl delete jobset --wait=false"  # by which a user shows, ends a job
    id_variable = "JOB_LAUNCH_JOBSET"  # holds the job's id in the job
    gpu_resource = "nvidia.com/gpu"  # the resource name for GPUs
    leaves_with: int | None = _AGAIN  # the exit code upon which the JobSet starts again

    def script(self, plan: Plan, submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:  # noqa: ARG002 - a cordoned node is avoided by Kubernetes
        """Return the JobSet's manifest as JSON, with the submit token, for the run in the folder `where`. Kubernetes
        itself avoids nodes, so that `avoid` is not used. Raise BadInput if the spec lacks an option that is needed, or
        pods could not see the folder.
        """
        return json.dumps(job_set(plan, submit_token, where), indent=2) + "\n"

    def submit(self, script: Path, environ: Mapping[str, str], lock: int) -> str:
        """Submit the manifest in the file `script` and return the JobSet's name. Raise NotStarted if Kubernetes refuses
        it, as it does a second one with that name, and LaunchError if kubectl prints no name. kubectl gets the
        variables `environ`, and inherits the descriptor `lock` of a lock file.
        """
        argv, text = ["kubectl", "create", "-f", "-", "-o", "name"], script.read_text()
        answer = ask(argv, limit_s=SUBMIT_S, environ=environ, stdin=text, pass_fds=[lock])
        if answer.code != 0:
            raise NotStarted(f"{CALLED} refuses the JobSet: {answer.refusal}")
        name = str(json.loads(text)["metadata"]["name"])
        if f"/{name}" not in answer.out:
            raise LaunchError(f"kubectl create: expected the name of a JobSet, got {answer.out.strip()[:200]!r}")
        return name

    def may_submit(self) -> bool:
        """Return False: pods may not submit jobs."""
        return False

    def try_out(self, script: str) -> str:
        """Return the API server's answer about this manifest as a sentence, by a dry run that creates nothing: what it
        would create, or why it refuses.
        """
        answer = ask(["kubectl", "create", "--dry-run=server", "-f", "-"], stdin=script)
        return f"{CALLED} says: {(answer.refusal or answer.out).strip()}"

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return the JobSets with these ids, those of the run named `called`, or all of the launcher's. Raise
        Unreachable if there is no answer within `limit_s`.
        """
        chosen = ",".join(f"{name}={value}" for name, value in _MANAGED.items())
        answer = ask(["kubectl", "get", "jobsets,pods", "-l", chosen, "-o", "json"], limit_s=limit_s)
        if answer.code != 0:
            raise Unreachable(f"kubectl cannot tell: {answer.refusal}")
        return [job for job in read_jobs(answer.out) if (not ids or job.id in ids) and called in ("", job.name)]

    def release(self, job: str) -> str:
        """Release a suspended JobSet; return why Kubernetes refuses, or ""."""
        return ask(["kubectl", "patch", "jobset", job, "--type=merge", "-p", '{"spec": {"suspend": false}}']).refusal

    def fate(self, job: str) -> Fate:  # noqa: ARG002 - pods cannot ask
        """Return UNKNOWN, because a pod cannot ask why it was told to exit; the JobSet decides by the pod's exit code
        whether it starts again.
        """
        return Fate.UNKNOWN

    def nodes(self, hosts: Sequence[str], *, limit_s: float = LIMIT_S) -> dict[str, NodeAnswer]:  # noqa: ARG002 - a run knows its pods, and they cannot ask
        """Return an empty dict, because pods may not query nodes."""
        return {}

    def this_host(self) -> str:
        """Return the name of this pod."""
        return os.environ["JOB_LAUNCH_POD"]

    def hosts(self) -> dict[str, str]:
        """Wait in the first pod until all pods of this start of the JobSet run, and return the address of each by the
        pod's name; addresses are new at each start. Raise LaunchError if a pod is missing after ten minutes.
        """
        return meet(Path(os.environ[FOLDER]), int(os.environ["JOB_LAUNCH_PODS"]), _MEETS_S)

    def processes(self, plan: Plan, attempt: AttemptDir) -> "list[AgentProcess]":
        """Return the first node's agent as the only process to start, because every other pod starts its own agent."""
        from launcher.supervisor.agent_processes import agent_process  # late: only a job needs it

        return [agent_process(plan, attempt, 0)]

    def exec_hosts(self, queue: str | None, gpu: str, *, limit_s: float = LIMIT_S) -> list[ExecHost]:  # noqa: ARG002 - Kueue's queues have quotas, not nodes
        """Return the nodes, or a single one of unknown size if the user may not list nodes; `gpu` is the resource name
        for GPUs, and `queue` is not used.
        """
        answer = ask(["kubectl", "get", "nodes", "-o", "json"], limit_s=limit_s)
        return [ExecHost("any", 1)] if answer.code != 0 else read_nodes(answer.out, gpu)


# -- the JobSet


def job_set(plan: Plan, submit_token: SubmitToken, where: Path) -> dict[str, Any]:
    """Return the JobSet's manifest for the run whose folder is `where`.

    Raise BadInput if a needed option of `k8s` is missing, if a hold is requested in a queue of Kueue, or if pods could
    not see the folder.
    """
    own, resources, count = plan.spec.k8s, plan.spec.resources, plan.nodes_max + plan.spec.recovery.spares
    for option, value in (("image", own.image), ("claim", own.claim), ("mount", own.mount)):
        if not value:
            raise BadInput(f"k8s.{option}: missing", f"hint: `launch help kubernetes` explains k8s.{option}")
    if own.queue and plan.spec.queue.hold:
        raise BadInput("queue.hold: Kueue lets runs of its queues start", "hint: leave k8s.queue out, or the hold")
    if not where.is_relative_to(own.mount or "/"):
        hint = f"hint: LAUNCH_RUNS={own.mount}/runs, on this machine too"
        raise BadInput(f"k8s.mount: pods see {own.mount}, and the run would be in {where}", hint)
    name = f"{job_name(plan.run_id).lower().replace('_', '-')[:_LONGEST].rstrip('-')}-{submit_token.text[:6]}"
    labels = {**_MANAGED, _MARK_LABEL: submit_token.text, _RUN: plan.run_id}
    asked = {
        "cpu": str(plan.ranks_per_node * plan.cpus_per_rank),
        own.gpu_resource: str(plan.gpus_per_node) if plan.gpus_per_node else None,
        "memory": f"{math.ceil(resources.memory_gb * 1024)}Mi" if resources.memory_gb else None,
    }
    needs = {key: value for key, value in asked.items() if value}
    told = {"JOB_LAUNCH_JOBSET": name, "JOB_LAUNCH_PODS": str(count), FOLDER: f"{where}/pods"}
    fields = {"JOB_LAUNCH_POD": "metadata.name", "JOB_LAUNCH_POD_ADDRESS": "status.podIP"}
    container = {
        "name": "launch",
        "image": own.image,
        "command": [sys.executable, "-P", "-m", "launcher.programs", "pod", str(where)],
        "env": [
            *({"name": key, "value": value} for key, value in told.items()),
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
        ],
        "resources": {"requests": needs, "limits": {key: value for key, value in needs.items() if key != "cpu"}},
        "volumeMounts": [{"name": "runs", "mountPath": own.mount}, {"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108 # nosec B108 - the name of shared memory
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(plan.spec.recovery.grace_s + _SPARE_S),
        "securityContext": {"runAsUser": os.getuid(), "runAsGroup": os.getgid()},  # as whom the run's folder is open
        "nodeSelector": dict(one.split("=", 1) for one in own.selector),
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": own.claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    job = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": labels | ({_QUEUE: own.queue} if own.queue else {})},
        "spec": {
            **({"suspend": True} if plan.spec.queue.hold else {}),
            "failurePolicy": {"maxRestarts": _MOST_STARTS},
            "ttlSecondsAfterFinished": _KEPT_S,
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }


# -- answers


def read_jobs(text: str) -> list[QueuedJob]:
    """Return the JobSets in the output of `kubectl get jobsets,pods -o json`, with the reasons why pods wait; raise
    Unreachable if it is damaged.
    """
    items = read_json(CALLED, text).get("items")
    if not isinstance(items, list):
        raise Unreachable(f"an answer of {CALLED} is damaged: expected items, got {str(items)[:100]!r}")
    pods = [one for one in items if _at(one, "kind") == "Pod"]
    return [_job(one, pods) for one in items if _at(one, "kind") == "JobSet" and _at(one, "metadata", "name")]


def _job(one: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> QueuedJob:
    """Return the job that a JobSet and its pods form."""
    name = str(_at(one, "metadata", "name"))
    ours = sorted(
        (pod for pod in pods if _at(pod, "metadata", "labels", _SET) == name and not _is_being_deleted(pod)),
        key=lambda pod: number(str(_at(pod, "metadata", "labels", _INDEX))) or 0.0,
    )
    true = _true_conditions(one)
    word = next((word for word in ("Completed", "Failed", "Suspended") if word in true), "")
    runs = bool(ours) and _at(ours[0], "status", "phase") == "Running"
    if _at(one, "metadata", "deletionTimestamp"):
        phase, word = Phase.ENDING, "Deleting"
    elif word in ("Completed", "Failed"):
        phase = Phase.ENDED
    elif word == "Suspended" or not runs:
        phase, word = Phase.QUEUED, word or "Pending"
    else:
        phase, word = Phase.RUNNING, "Running"
    nodes = ",".join(dict.fromkeys(str(node) for pod in ours if (node := _at(pod, "spec", "nodeName"))))
    return QueuedJob(
        id=name,
        name=str(_at(one, "metadata", "labels", _RUN) or ""),
        phase=phase,
        word=word,
        text=_why(one, ours, true) if phase is Phase.QUEUED else f"on {nodes}" if nodes else "",
        hosts=nodes,
        submit_tokens=frozenset({str(_at(one, "metadata", "labels", _MARK_LABEL) or "")} - {""}),
        ended_as=State.LOST if phase is Phase.ENDED else None,
    )


def _is_being_deleted(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is being deleted, as those of a previous start are."""
    return bool(_at(pod, "metadata", "deletionTimestamp"))


def _why(one: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], true: Mapping[str, str]) -> str:
    """Return why the JobSet `one` does not run yet, by its pods and by its conditions that are `true`, as {type:
    message}; if these do not tell, return that its pods are being started.
    """
    if "Suspended" in true:
        queue = _at(one, "metadata", "labels", _QUEUE)
        return f"Kueue has not admitted it to queue {queue}" if queue else "it is held: launch release lets it go"
    for pod in pods:
        for told in _listed(_at(pod, "status", "containerStatuses")):
            reason, message = (
                _at(told, "state", "waiting", "reason"),
                _at(told, "state", "waiting", "message"),
            )
            if reason and reason != "ContainerCreating":
                return f"{CALLED} says: {reason}{f': {message}' if message else ''}"[:500]
        for told in _listed(_at(pod, "status", "conditions")):
            if _at(told, "type") == "PodScheduled" and _at(told, "status") == "False":
                return f"{CALLED} says: {_at(told, 'message') or _at(told, 'reason')}"[:500]
    return f"{CALLED} starts its pods"


def _true_conditions(one: Mapping[str, Any]) -> dict[str, str]:
    """Return the JobSet's conditions that are true: their messages by type."""
    found = (told for told in _listed(_at(one, "status", "conditions")) if _at(told, "status") == "True")
    return {str(_at(told, "type")): str(_at(told, "message") or "") for told in found}


def read_nodes(text: str, gpu: str) -> list[ExecHost]:
    """Return the nodes of `kubectl get nodes -o json`; `gpu` is the resource name for GPUs."""
    return [_node(one, gpu) for one in _listed(read_json(CALLED, text).get("items")) if _at(one, "metadata", "name")]


def _node(one: Mapping[str, Any], gpu: str) -> ExecHost:
    """Return a Kubernetes node as a host on which jobs run; `gpu` is the resource name for GPUs."""
    ready = "Ready" in _true_conditions(one)
    cordoned = _at(one, "spec", "unschedulable") is True
    gpus = int(number(str(_at(one, "status", "allocatable", gpu) or "0")) or 0)
    text = "cordoned" if cordoned else "ready" if ready else "not ready"
    return ExecHost(str(_at(one, "metadata", "name")), _cores(one), gpus, up=ready, drains=cordoned, text=text)


def _cores(one: Mapping[str, Any]) -> int:
    """Return the number of cores that a node offers to pods, at least 1; `one` is the node's object in the API.

    Kubernetes writes the number as `16`, or as `15890m` in thousandths.
    """
    text = str(_at(one, "status", "allocatable", "cpu") or "1")
    thousandths = number(text.removesuffix("m")) if text.endswith("m") else (number(text) or 1) * 1000
    return max(1, int((thousandths or 1000) // 1000))


def _at(one: object, *path: str) -> object:
    """Return the value that is found in nested JSON objects under these keys, one after the other; None if one of the
    keys is missing or what should have it is no object.
    """
    for name in path:
        one = one.get(name) if isinstance(one, dict) else None
    return one


def _listed(found: object) -> list[Mapping[str, Any]]:
    """Return those items of a list that are JSON objects, or an empty list if `found` is no list."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
