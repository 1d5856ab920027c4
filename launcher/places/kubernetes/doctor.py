"""`launch doctor k8s`: ask the API server for what a run needs, without starting anything."""

import re
from collections.abc import Callable, Generator, Iterator

from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding, ok, problem, warning
from launcher.places.batch.trial.carry_out import all_findings
from launcher.places.batch.trial.checks import QueueNames
from launcher.places.batch.trial.trial_jobs import TrialJobs
from launcher.places.kubernetes.kubernetes import CALLED, KubernetesSystem, ask, read_nodes

WORDS = QueueNames(
    queue=KubernetesSystem,
    server="API server",
    silent_hint="`kubectl config current-context` shows which cluster is asked",
    submit="kubectl create",
    shows_ended="kubectl describe jobset",
    shows_nodes="kubectl get nodes",
    others="`selector` and `queue` among the defaults of the clusters file",
    starter="JobSet",
    starts="kubelet",
    complaint=re.compile(r"(?!)"),  # there is no trial
)
_RIGHTS = (("create", "jobsets"), ("list", "jobsets"), ("delete", "jobsets"), ("list", "pods"))


def check_up(request: DoctorRequest, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Yield all findings about the cluster; `tell` is called with a line of text before each check that takes long."""
    request.refuse_all_but()
    return all_findings(_site(request), WORDS, request, tell)


def _site(request: DoctorRequest) -> Generator[Finding, None, TrialJobs | None]:
    """Yield findings about the API server, and return None because no trial job is possible."""
    kinds = ask(["kubectl", "api-resources", "-o", "name"]).out.split()
    yield ok("API server", f"{ask(['kubectl', 'config', 'current-context']).out.strip() or CALLED} answers")
    if "jobsets.jobset.x-k8s.io" in kinds:
        yield ok("JobSet", "the cluster knows JobSets")
    else:
        hint = "an administrator installs it: https://jobset.sigs.k8s.io"
        yield problem("JobSet", "the cluster does not know JobSets", hint)
    kueue = "localqueues.kueue.x-k8s.io" in kinds
    yield ok("Kueue", "is installed" if kueue else "is not installed: pods are started as they come")
    missing = [f"{verb} {what}" for verb, what in _RIGHTS if ask(["kubectl", "auth", "can-i", verb, what]).code != 0]
    if missing:
        yield problem("rights", f"you may not {', '.join(missing)}", "ask for a role that allows it in this namespace")
    else:
        yield ok("rights", "JobSets can be created, listed and deleted here")
    answer = ask(["kubectl", "get", "nodes", "-o", "json"])
    if answer.code != 0:
        yield warning("hosts", "nodes may not be listed", "specs have to say resources.gpus_per_node")
    else:
        gpu = request.chosen.get("gpu_resource", KubernetesSystem.gpu_resource)
        hosts = [one for one in read_nodes(answer.out, gpu) if one.up]
        yield ok("hosts", f"{len(hosts)} are ready, with {sum(one.gpus or 0 for one in hosts)} of {gpu}")
    for option in ("image", "claim", "mount"):
        if option not in request.chosen:
            text = f"the clusters file has no {option}"
            yield warning("volume" if option != "image" else "image", text, f"each spec has to say k8s.{option}")
    return None
