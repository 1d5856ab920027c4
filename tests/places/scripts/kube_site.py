"""A kubectl that keeps objects in a folder, and a controller for each JobSet that carries its pods out on this machine.

    python kube_site.py ARGUMENTS OF KUBECTL ...      with the folder in $KUBE_SITE

Of JobSet's manual it does: indexed pods, all of them anew after one that fails, as often as `maxRestarts`; suspension,
as Kueue does it (a file `suspended`); nodes that have no room (a file `full`); deletion with a grace period. A pod gets
nothing of the environment of who submits.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

SITE = Path(os.environ["KUBE_SITE"])
STEP_S = 0.02
INDEX, SET = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/jobset-name"
NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."


def write(name, whole):
    draft = SITE / f"{name}.{os.getpid()}"
    draft.write_text(json.dumps(whole))
    draft.rename(SITE / f"{name}.json")


def create(argv):
    made = json.loads(sys.stdin.read())
    name, count = made["metadata"]["name"], made["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
    if made["apiVersion"] != "jobset.x-k8s.io/v1alpha2" or len(f"{name}-node-0-{count}-abcde") > 63:
        sys.exit(f"The JobSet {name!r} is invalid")
    if made["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "closed":
        sys.exit("error: admission webhook denied the request: no such local queue")
    if (SITE / f"{name}.json").exists():
        sys.exit(f'Error from server (AlreadyExists): jobsets.jobset.x-k8s.io "{name}" already exists')
    if "--dry-run=server" in argv:
        print(f"jobset.jobset.x-k8s.io/{name} created (server dry run)")
        return
    if made["spec"].get("suspend"):
        (SITE / f"{name}.suspended").touch()
    write(name, {"set": made, "conditions": [], "pods": [], "restarts": 0})
    quiet = subprocess.DEVNULL
    words = [sys.executable, __file__, "control", name]
    subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, cwd="/")
    print(f"jobset.jobset.x-k8s.io/{name}")


def control(name):
    """Do what the controllers of JobSet, Job and Kueue do with one JobSet."""
    whole = json.loads((SITE / f"{name}.json").read_text())
    deleted, suspended, full = SITE / f"{name}.deleted", SITE / "suspended", SITE / "full"
    if whole["set"]["spec"].get("suspend"):
        suspended = SITE / f"{name}.suspended"
    while not deleted.exists():
        conditions = (
            [{"type": "Suspended", "status": "True", "message": "jobset is suspended"}] if suspended.exists() else []
        )
        pods = [] if conditions else [pod(whole, index, "Pending") for index in range(size(whole))]
        write(name, {**whole, "conditions": conditions, "pods": pods})
        if conditions or full.exists():
            time.sleep(STEP_S)
            continue
        running = [(one, start(whole, one)) for one in pods]
        shown = [{**one, "status": {"phase": "Running"}, "pid": child.pid} for one, child in running]
        write(name, {**whole, "pods": shown})
        codes = [child.poll() for _, child in running]
        while None in codes and not any(codes) and not deleted.exists() and not suspended.exists():
            time.sleep(STEP_S)
            codes = [child.poll() for _, child in running]
        grace_s = spec_of(whole)["terminationGracePeriodSeconds"]
        end([child for _, child in running], grace_s)
        if not any(codes) and None not in codes:
            write(
                name, {**whole, "conditions": [{"type": "Completed", "status": "True", "message": "done"}], "pods": []}
            )
            return
        if any(codes):
            whole["restarts"] += 1
            if whole["restarts"] > whole["set"]["spec"]["failurePolicy"]["maxRestarts"]:
                write(name, {**whole, "conditions": [{"type": "Failed", "status": "True", "message": "x"}], "pods": []})
                return
    (SITE / f"{name}.json").unlink()


def size(whole):
    return whole["set"]["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]


def spec_of(whole):
    return whole["set"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def pod(whole, index, phase):
    name = whole["set"]["metadata"]["name"]
    labels = whole["set"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["labels"]
    status = {"phase": phase}
    if (SITE / "full").exists():
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-node-0-{index}-{secrets.token_hex(3)[:5]}",
            "labels": {**labels, INDEX: str(index), SET: name},
        },
        "spec": {"nodeName": f"kube{index}"},
        "status": status,
    }


def start(whole, one):
    container, index = spec_of(whole)["containers"][0], one["metadata"]["labels"][INDEX]
    fields = {"metadata.name": one["metadata"]["name"], "status.podIP": f"127.0.0.{int(index) + 1}"}
    env = {"PATH": "/usr/bin:/bin", "HOME": "/", "JOB_COMPLETION_INDEX": index}
    for given in container["env"]:
        env[given["name"]] = given.get("value") or fields[given["valueFrom"]["fieldRef"]["fieldPath"]]
    with open(SITE / f"{one['metadata']['name']}.log", "wb") as log:
        return subprocess.Popen(
            container["command"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def end(children, grace_s):
    """End a pod as a kubelet does: SIGTERM to its first process, and SIGKILL to all of it after a while."""
    living = [child for child in children if child.poll() is None]
    for child in living:
        child.send_signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    while any(child.poll() is None for child in living) and time.monotonic() < until:
        time.sleep(STEP_S)
    for child in children:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for child in children:
        child.wait()


def get(argv):
    if argv[0] == "nodes":
        status = {"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]}
        nodes = [{"kind": "Node", "metadata": {"name": f"kube{index}"}, "status": status} for index in range(2)]
        print(json.dumps({"kind": "List", "items": nodes}))
        return
    items = []
    for file in sorted(SITE.glob("*.json")):
        whole = json.loads(file.read_text())
        made = json.loads(json.dumps(whole["set"]))
        if file.with_suffix(".deleted").exists():
            made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        items += [
            {**made, "status": {"conditions": whole["conditions"], "restarts": whole["restarts"]}},
            *whole["pods"],
        ]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def main():
    verb, *argv = sys.argv[1:]
    match verb:
        case "control":
            control(*argv)
        case "create":
            create(argv)
        case "get":
            get(argv)
        case "delete":
            if not (SITE / f"{argv[-1]}.json").exists():
                sys.exit(f'Error from server (NotFound): jobsets.jobset.x-k8s.io "{argv[-1]}" not found')
            (SITE / f"{argv[-1]}.deleted").touch()
        case "patch":
            (SITE / f"{argv[1]}.suspended").unlink()
        case "api-resources":
            print("pods\njobsets.jobset.x-k8s.io\nlocalqueues.kueue.x-k8s.io")
        case "config":
            print("lab")
        case "auth":
            print("yes")


if __name__ == "__main__":
    sys.exit(main())
