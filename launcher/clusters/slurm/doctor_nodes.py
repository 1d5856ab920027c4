"""What is said of nodes, from what a job of `launch doctor slurm --try` brought back from them. Pure."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from launcher.clusters.slurm.doctor_records import Expected, Stage, Trial, read_stopped
from launcher.doctor.findings import Finding, ok, problem, warning
from launcher.doctor.words import all_of

T = TypeVar("T")
_CLOCK_S = 2.0
_SLOW_FOLDER_S = 5.0
_GONE_HINT = "`sinfo -N -l` shows whether nodes are well; one that has just gone is called idle for a while"
_RUNS_ROOT_HINT = "start runs from a folder that nodes share, or set LAUNCH_RUNS to one"
_NETWORK_HINT = "a run's nodes need each other's TCP ports from 20000 on; slurm.interface names the network they share"


def no_nodes_finding(job: str, within_s: float, why: str, starts_at: float | None) -> Finding:
    """It waited for nodes for as long as it may, and was cancelled."""
    text = f"no node was free within {within_s:g} s; job {job} was cancelled: {why}"
    if starts_at is None:
        return warning("trial", text, f"--within {within_s * 10:g} waits longer; --partition asks for other nodes")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
    return warning("trial", text, f"Slurm expects one at {at}; --within waits longer, --partition asks for others")


def refused_finding(said: str) -> Finding:
    hint = "--partition, --account and --qos ask for others"
    return problem("trial", f"Slurm refuses a job: {said}", hint)


def trial_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    """Everything that the nodes told."""
    stopped = read_stopped(trial.log)
    if trial.exit_code in list(Stage) and trial.hosts and not stopped:
        stopped = {trial.hosts[0]: (trial.exit_code, "")}  # the batch script itself came no further
    if trial.greetings:
        took = "" if trial.started_after_s is None else f", its first word {trial.started_after_s:.1f} s after sbatch"
        yield ok("trial", f"job {trial.job} on {all_of(trial.hosts)}{took}")
    for node, (code, said) in stopped.items():
        yield _stopped_finding(node, code, said, expected)
    lost = [host for host in trial.hosts if host not in trial.reports and host not in stopped]
    if trial.again:
        text = f"Slurm began job {trial.job}{_where(trial)} and put it back: a node does not answer, or cannot begin it"
        yield problem("trial", text, _GONE_HINT)
    elif said := _complaint_of_srun(trial.log):
        yield problem("srun", said, "a run's first node starts the others by srun: their slurmd must answer it")
    elif trial.greetings and lost:
        yield problem("trial", f"nothing more came from {all_of(lost)}", "`sinfo -N -l` shows whether it is well")
    elif not trial.greetings and not stopped:
        yield _nothing_came(trial)
    if not trial.over:
        hint = f"`squeue -j {trial.job}` shows when it has gone"
        yield warning("trial", f"job {trial.job} was cancelled and has not ended yet", hint)
    if trial.greetings:
        yield from _folder_findings(trial)
        yield from _python_findings(trial, expected)
        yield from _torch_findings(trial, expected)
        yield from _clock_findings(trial)
        yield from _network_findings(trial)
    if trial.requeue is not None:
        yield _requeue_finding(trial.requeue)


def _nothing_came(trial: Trial) -> Finding:
    lines = [line.strip()[:200] for line in trial.log.splitlines() if line.strip()]
    last = f"; it last said: {lines[-1]}" if lines else ""
    if trial.word in ("RUNNING", "CONFIGURING", "COMPLETING"):
        text = f"no word came from job {trial.job}{_where(trial)}, which Slurm says is there{last}"
        return problem("trial", text, _GONE_HINT)
    how = f"{trial.word.lower()}, exit code {trial.exit_code}"
    text = f"job {trial.job}{_where(trial)} ended ({how}) before it said a word{last}"
    return problem("trial", text, f"`scontrol show job {trial.job}` shows more, for a while")


def _where(trial: Trial) -> str:
    return f" on {all_of(trial.hosts)}" if trial.hosts else ""


def _complaint_of_srun(log: str) -> str:
    """The first thing that it says went wrong: what follows comes from that. Empty where a program did, or nothing."""
    found = re.search(r"^srun: (?:error|fatal): (?!\S+: tasks? )(.+)$", log, re.MULTILINE)
    return found[1].strip()[:200] if found else ""


def _stopped_finding(node: str, code: int, said: str, expected: Expected) -> Finding:
    match code:
        case Stage.NOT_THERE:
            return problem("runs root", f"{expected.runs_root} is not the same folder on {node}", _RUNS_ROOT_HINT)
        case Stage.NOT_WRITABLE:
            return problem("runs root", f"{expected.runs_root} cannot be written on {node}", _RUNS_ROOT_HINT)
        case Stage.NO_PYTHON:
            hint = "install launch where nodes see it too"
            return problem("python", f"{expected.executable} is not there on {node}", hint)
        case _:
            words = said or f"it leaves with {code}"
            hint = "install launch, and the Python that it runs under, where nodes see it too"
            return problem("python", f"{expected.executable} on {node}: {words}", hint)


def _folder_findings(trial: Trial) -> Iterable[Finding]:
    deaf = [node for node in trial.greetings if node not in trial.clocks]
    if deaf:
        text = f"what is written here was not seen on {all_of(deaf)} in time"
        yield warning("runs root", text, "the file system tells others late: `launch cancel` will take as long")
    slow = {node: clock.took_s for node, clock in trial.clocks.items() if clock.took_s > _SLOW_FOLDER_S}
    if slow:
        text = f"a question and its answer took {max(slow.values()):.0f} s through it, with {all_of(list(slow))}"
        hint = "nodes see each other's files that late: shorter attribute caching (NFS: actimeo, lookupcache) helps"
        yield warning("runs root", text, hint)


def _python_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    greetings = [trial.greetings[host] for host in trial.hosts if host in trial.greetings]
    for (version, ours), nodes in _alike({one.node: (one.python, one.launcher) for one in greetings}):
        text = f"{version} and launch {ours} on {all_of(nodes)}"
        differs = f"{text}, but {expected.python} and {expected.launcher} here"
        hint = "nodes and this machine should share one installation"
        if (version, ours) == (expected.python, expected.launcher):
            yield ok("python", text)
        elif (_feature(version), ours) == (_feature(expected.python), expected.launcher):
            yield warning("python", differs, hint)
        else:
            yield problem("python", differs, hint)


def _feature(version: str) -> str:
    """`3.11` of `3.11.7`: packages are built for it."""
    return version.rpartition(".")[0]


def _torch_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    reports = [trial.reports[host] for host in trial.hosts if host in trial.reports]
    for (torch, gpus), nodes in _alike({one.node: (one.torch, one.gpus) for one in reports}):
        where = f"{expected.rank_python} on {all_of(nodes)}"
        if torch.error:
            text = torch.error if torch.error == "not installed" else f"does not work: {torch.error}"
            yield warning("torch", f"{where}: {text}", "a job that trains needs it; run.python names an interpreter")
        elif gpus > torch.gpus:
            text = f"{where}: {torch.words}, but the job has {gpus}"
            why = "`nvidia-smi` on the node shows the driver" if torch.built_for else "its build is for CPUs alone"
            yield warning("torch", text, why)
        else:
            yield ok("torch", f"{torch.words} in {where}")


def _clock_findings(trial: Trial) -> Iterable[Finding]:
    for node, clock in trial.clocks.items():
        sure_s = max(0.0, abs(clock.ahead_s) - clock.took_s / 2)
        text = f"{node} is {clock.ahead_s:+.2f} s from here, to within {clock.took_s / 2:.2f} s"
        if sure_s > _CLOCK_S:
            yield warning("clock", text, "times in logs will differ by so much; a time service (NTP) keeps them alike")
        else:
            yield ok("clock", text)


def _network_findings(trial: Trial) -> Iterable[Finding]:
    for greeting in trial.greetings.values():
        for door in (door for door in greeting.doors if door.error):
            yield problem("network", f"{greeting.node}: {door.error}", "slurm.interface names the network of nodes")
    # Of a node that has said nothing, other findings tell.
    calls = [call for report in trial.reports.values() for call in report.calls if call.called in trial.greetings]
    for interface in dict.fromkeys(call.interface for call in calls):
        mine = [call for call in calls if call.interface == interface]
        through = f"by {interface}" if interface else "by the addresses that Slurm has"
        failed = [call for call in mine if call.took_ms is None]
        for call in failed:
            to = f"{call.address} port {call.port}" if call.port else call.address
            text = f"{call.caller} does not reach {call.called} {through}{f' ({to})' if to else ''}: {call.error}"
            yield problem("network", text, _NETWORK_HINT)
        if not failed:
            slowest = max(call.took_ms or 0.0 for call in mine)
            addresses = ", ".join(sorted({call.address for call in mine}))
            nodes = all_of(sorted({call.caller for call in mine}))
            yield ok("network", f"{nodes} reach each other {through} ({addresses}) within {slowest:.1f} ms")


def _requeue_finding(may_be: bool) -> Finding:
    if may_be:
        return ok("requeue", "the job was taken as one that may be requeued")
    hint = "a run that is preempted or reaches its time limit goes on in a new job instead, at the end of the queue"
    return warning("requeue", "the job asked to be requeued, and the site has taken that away", hint)


def _alike(found: Mapping[str, T]) -> Iterable[tuple[T, list[str]]]:
    """What was found, and the nodes where it was."""
    groups: dict[T, list[str]] = {}
    for node, what in found.items():
        groups.setdefault(what, []).append(node)
    return groups.items()
