"""What is said of nodes, from what a trial's job brought back from them. Pure: facts in, findings out."""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from launcher.doctor.findings import Finding, ok, problem, warning
from launcher.doctor.trial.records import Expected, Stage, Trial, read_stopped
from launcher.doctor.words import all_of

T = TypeVar("T")
_CLOCK_S = 2.0
_SLOW_FOLDER_S = 5.0
_RUNS_ROOT_HINT = "start runs from a folder that nodes share, or set LAUNCH_RUNS to one"
_PROGRAMS_HINT = "install launch, and the Python that it runs under, where nodes see it too"
_SHARED_HINT = "nodes and this machine should share one installation"


@dataclass(frozen=True, slots=True)
class QueueWords:
    """What a batch queue and its programs are called in findings; `{job}` stands for the job's id."""

    called: str  # Slurm
    module: str  # what its nodes run: it calls `node.look_around`
    node_name: str  # how a shell on a node has the name that the queue gives it
    submit: str  # sbatch
    cancel: str
    ask_for_others: str  # which options ask for other nodes: `--partition asks for`
    refused_hint: str
    nodes_hint: str  # what shows how nodes are
    job_hint: str  # what shows how a job ended
    gone_hint: str  # what shows when a job has gone
    interface: str  # the option that names a network of nodes
    complaint: re.Pattern[str]  # of what starts the nodes' programs, in their log
    starter: str  # what that is
    starter_hint: str


def no_nodes_finding(job: str, within_s: float, why: str, starts_at: float | None, words: QueueWords) -> Finding:
    """It waited for nodes for as long as it may, and was cancelled."""
    text = f"no node was free within {within_s:g} s; job {job} was cancelled: {why}"
    if starts_at is None:
        return warning("trial", text, f"--within {within_s * 10:g} waits longer; {words.ask_for_others} other nodes")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
    hint = f"{words.called} expects one at {at}; --within waits longer, {words.ask_for_others} others"
    return warning("trial", text, hint)


def refused_finding(said: str, words: QueueWords) -> Finding:
    return problem("trial", f"{words.called} refuses a job: {said}", words.refused_hint)


def trial_findings(trial: Trial, expected: Expected, words: QueueWords) -> Iterable[Finding]:
    """Everything that the nodes told."""
    stopped = read_stopped(trial.log)
    if trial.exit_code in list(Stage) and trial.hosts and not stopped:
        stopped = {trial.hosts[0]: (trial.exit_code, "")}  # the batch script itself came no further
    if trial.greetings:
        took_s = trial.started_after_s
        took = "" if took_s is None else f", its first word {took_s:.1f} s after {words.submit}"
        yield ok("trial", f"job {trial.job} on {all_of(trial.hosts)}{took}")
    for node, (code, said) in stopped.items():
        yield _stopped_finding(node, code, said, expected)
    yield from _broken_findings(trial, stopped, words)
    if not trial.over:
        text = f"job {trial.job} was cancelled and has not ended yet"
        yield warning("trial", text, words.gone_hint.format(job=trial.job))
    if trial.greetings:
        yield from _folder_findings(trial)
        yield from _python_findings(trial, expected)
        yield from _torch_findings(trial, expected)
        yield from _clock_findings(trial)
        yield from _network_findings(trial, words)
    if trial.requeue is not None:
        yield _requeue_finding(trial.requeue)


def _broken_findings(trial: Trial, stopped: Mapping[str, object], words: QueueWords) -> Iterable[Finding]:
    """Why not all of it happened: the first reason, where there are several."""
    where = f" on {all_of(trial.hosts)}" if trial.hosts else ""
    gone = f"{words.nodes_hint} shows whether nodes are well; one that has just gone is called idle for a while"
    lost = [host for host in trial.hosts if host not in trial.reports and host not in stopped]
    lines = [line.strip()[:200] for line in trial.log.splitlines() if line.strip()]
    last = f"; it last said: {lines[-1]}" if lines else ""
    if trial.again:
        began = f"{words.called} began job {trial.job}{where} and put it back"
        yield problem("trial", f"{began}: a node does not answer, or cannot begin it", gone)
    elif said := words.complaint.search(trial.log):
        yield problem(words.starter, said[1].strip()[:200], words.starter_hint)
    elif trial.greetings and lost:
        yield problem("trial", f"nothing more came from {all_of(lost)}", f"{words.nodes_hint} shows whether it is well")
    elif trial.greetings or stopped:
        return
    elif trial.word in ("RUNNING", "CONFIGURING", "COMPLETING"):
        text = f"no word came from job {trial.job}{where}, which {words.called} says is there{last}"
        yield problem("trial", text, gone)
    else:
        how = f"{trial.word.lower()}, exit code {trial.exit_code}"
        text = f"job {trial.job}{where} ended ({how}) before it said a word{last}"
        yield problem("trial", text, words.job_hint.format(job=trial.job))


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
            return problem(
                "python", f"{expected.executable} on {node}: {said or f'it leaves with {code}'}", _PROGRAMS_HINT
            )


def _folder_findings(trial: Trial) -> Iterable[Finding]:
    if deaf := [node for node in trial.greetings if node not in trial.clocks]:
        text = f"what is written here was not seen on {all_of(deaf)} in time"
        yield warning("runs root", text, "the file system tells others late: `launch cancel` will take as long")
    if slow := {node: clock.took_s for node, clock in trial.clocks.items() if clock.took_s > _SLOW_FOLDER_S}:
        text = f"a question and its answer took {max(slow.values()):.0f} s through it, with {all_of(list(slow))}"
        hint = "nodes see each other's files that late: shorter attribute caching (NFS: actimeo, lookupcache) helps"
        yield warning("runs root", text, hint)


def _python_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    versions = {node: (one.python, one.launcher) for node, one in trial.greetings.items()}
    for (version, ours), nodes in _alike(trial, versions):
        text = f"{version} and launch {ours} on {all_of(nodes)}"
        differs = f"{text}, but {expected.python} and {expected.launcher} here"
        if (version, ours) == (expected.python, expected.launcher):
            yield ok("python", text)
        elif (_feature(version), ours) == (_feature(expected.python), expected.launcher):
            yield warning("python", differs, _SHARED_HINT)
        else:
            yield problem("python", differs, _SHARED_HINT)


def _feature(version: str) -> str:
    """`3.11` of `3.11.7`: packages are built for it."""
    return version.rpartition(".")[0]


def _torch_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    for (torch, gpus), nodes in _alike(trial, {node: (one.torch, one.gpus) for node, one in trial.reports.items()}):
        where = f"{expected.rank_python} on {all_of(nodes)}"
        if torch.error:
            text = torch.error if torch.error == "not installed" else f"does not work: {torch.error}"
            yield warning("torch", f"{where}: {text}", "a job that trains needs it; run.python names an interpreter")
        elif gpus > torch.gpus:
            why = "`nvidia-smi` on the node shows the driver" if torch.built_for else "its build is for CPUs alone"
            yield warning("torch", f"{where}: {torch.words}, but the job has {gpus}", why)
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


def _network_findings(trial: Trial, words: QueueWords) -> Iterable[Finding]:
    need = "a run's nodes need each other's TCP ports from 20000 on"
    for greeting in trial.greetings.values():
        for door in (door for door in greeting.doors if door.error):
            yield problem("network", f"{greeting.node}: {door.error}", f"{words.interface} names the network of nodes")
    calls = [call for report in trial.reports.values() for call in report.calls if call.called in trial.greetings]
    for interface in dict.fromkeys(call.interface for call in calls):
        mine = [call for call in calls if call.interface == interface]
        through = f"by {interface}" if interface else f"by the addresses that {words.called} has"
        failed = [call for call in mine if call.took_ms is None]
        for call in failed:
            to = f" ({call.address} port {call.port})" if call.port else ""
            text = f"{call.caller} does not reach {call.called} {through}{to}: {call.error}"
            yield problem("network", text, f"{need}; {words.interface} names the network they share")
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


def _alike(trial: Trial, found: Mapping[str, T]) -> Iterable[tuple[T, list[str]]]:
    """What was found, and the nodes where it was."""
    groups: dict[T, list[str]] = {}
    for node in (host for host in trial.hosts if host in found):
        groups.setdefault(found[node], []).append(node)
    return groups.items()
