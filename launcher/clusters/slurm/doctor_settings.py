"""What the settings of a Slurm controller mean for runs. Pure."""

import re
from collections.abc import Iterable

from launcher.clusters.slurm.doctor import Rules
from launcher.clusters.slurm.queries.site import Config
from launcher.doctor.findings import Finding, ok, warning
from launcher.doctor.words import time_words
from launcher.spec.model import Recovery

_RULES = Recovery()
_LONG_SILENCE_S = 600.0
_SHORT_MEMORY_S = 60.0
_SUSPENDS = ("SUSPEND", "GANG")


def read_preempt_type(config: str) -> str | None:
    """From `scontrol show config`: `preempt/partition_prio`."""
    found = re.search(r"^PreemptType[ \t]*=[ \t]*(\S+)", config, re.MULTILINE)
    return found[1] if found else None


def setting_findings(config: Config, preempt_type: str | None, rules: Iterable[Rules]) -> Iterable[Finding]:
    """What the controller's configuration means for runs."""
    yield requeue_finding(config.requeue)
    yield preemption_finding(preempt_type, config.preempt_mode, {rule.preempt_mode for rule in rules})
    yield kill_wait_finding(config.kill_wait_s)
    yield silent_node_finding(config.slurmd_timeout_s)
    yield array_finding(config.max_array_size)


def requeue_finding(default: bool | None) -> Finding:
    if default is None:
        return warning("requeue", "Slurm does not say whether it requeues jobs", "--try asks for a job that may be")
    if default:
        return ok("requeue", "on (JobRequeue=1)")
    return ok("requeue", "off unless asked for (JobRequeue=0), and runs ask for it")


def accounting_finding(kept: bool | None, said: str, min_job_age_s: float | None) -> Finding:
    """`kept`: by the configuration; `said`: what kept sacct from answering."""
    known = "" if min_job_age_s is None else f" for {time_words(min_job_age_s)} (MinJobAge)"
    lost = f"how a job ended that left no word in its run's folder is known{known} only"
    if kept is False:
        hint = "after that such a run is called lost, and `launch resume` goes on with it; all else works without"
        return warning("accounting", f"off: {lost}", hint)
    if said:
        return warning("accounting", f"on, but {said}: {lost}", "`sacct` shows when it answers again")
    return ok("accounting", "on, and sacct answers")


def memory_finding(min_job_age_s: float | None, accounting: bool) -> Finding:
    """How long Slurm knows of a job that has ended."""
    if min_job_age_s is None:
        return warning("MinJobAge", "Slurm does not say how long it knows of ended jobs", "ask the administrators")
    text = f"{time_words(min_job_age_s)}: so long Slurm knows of a job that has ended"
    if 0 < min_job_age_s < _SHORT_MEMORY_S and not accounting:
        hint = f"ask for accounting, or for MinJobAge={_SHORT_MEMORY_S:.0f} or more"
        return warning("MinJobAge", f"{text}, and there is no accounting", hint)
    return ok("MinJobAge", "0: Slurm never forgets a job" if min_job_age_s == 0 else text)


def preemption_finding(kind: str | None, mode: str | None, of_partitions: set[str]) -> Finding:
    """`mode`: the cluster's; those of partitions count where they differ."""
    if kind in (None, "preempt/none", "(null)") or mode == "OFF":
        return ok("preemption", "off: no job makes way for another")
    suspends = [one for one in ({mode or ""} | of_partitions) if any(word in one.upper() for word in _SUSPENDS)]
    by = (kind or "").removeprefix("preempt/").replace("_prio", "")
    text = f"by {by}, PreemptMode={mode}"
    if suspends:
        hint = "a run that is frozen longer than its lease begins again from its newest checkpoint when it is let go on"
        return warning("preemption", f"{text}: jobs may be frozen where they are", hint)
    if by == "qos":
        return ok("preemption", f"{text}; `sacctmgr show qos format=name,preemptmode,gracetime` shows the grace")
    return ok("preemption", f"{text}; the table shows each partition's")


def kill_wait_finding(kill_wait_s: float | None) -> Finding:
    grace_s = _RULES.grace_s
    if kill_wait_s is None:
        return warning("KillWait", "Slurm does not say", "ask the administrators")
    if kill_wait_s >= grace_s:
        return ok(
            "KillWait", f"{kill_wait_s:g} s, and ranks need no more than recovery.grace, by default {grace_s:g} s"
        )
    return warning(
        "KillWait",
        f"ranks get {kill_wait_s:g} s after scancel or a preemption, not the {grace_s:g} s of recovery.grace",
        "a save that takes longer is lost then; `launch cancel` and the time limit leave them their grace",
    )


def silent_node_finding(timeout_s: float | None) -> Finding:
    lease_s = _RULES.lease_s
    if timeout_s is None:
        return warning("SlurmdTimeout", "Slurm does not say", "ask the administrators")
    if timeout_s == 0:
        text = "0: Slurm never gives a silent node up, so a run that has lost its first node is not started again"
        return warning("SlurmdTimeout", text, "`launch cancel` and `launch resume` do it by hand")
    text = f"{time_words(timeout_s)} until Slurm gives a silent node up"
    if timeout_s < lease_s:
        return warning(
            "SlurmdTimeout",
            f"{text}, before launch does ({lease_s:g} s, recovery.lease)",
            "two copies of a run may overlap, and the fence keeps the older from writing; "
            f"recovery.lease: {timeout_s:g}s in a spec ends it in time",
        )
    if timeout_s > _LONG_SILENCE_S:
        hint = "recovery.spares or a range of nodes lets a run go on without; the loss of its first node costs so long"
        return warning("SlurmdTimeout", text, hint)
    return ok("SlurmdTimeout", f"{text}; launch itself notices after {lease_s:g} s (recovery.lease)")


def array_finding(most: int | None) -> Finding:
    if most is None:
        return warning("MaxArraySize", "Slurm does not say", "`launch submit --repeat` submits one job each")
    if most < 2:
        return warning("MaxArraySize", f"{most}: no arrays", "`launch submit --repeat` submits one job each")
    return ok("MaxArraySize", f"{most}: more runs than that at once become several arrays")
