"""Turn what the nodes of a trial job reported into findings of `launch doctor`. Pure functions."""

import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TypeVar

import msgspec

from launcher.health.checks import torch_finding
from launcher.health.findings import Finding, all_of, ok, problem, warning
from launcher.health.machine_there import Torch
from launcher.health.ways import Way
from launcher.places.batch.batch import BatchSystem

T = TypeVar("T")
_CLOCK_S = 2.0
_SLOW_FOLDER_S = 5.0
_RUNS_ROOT_HINT = "start runs from a folder that nodes share, or set LAUNCH_RUNS to one"
_PROGRAMS_HINT = "install launch, and the Python that it runs under, where nodes see it too"
_SHARED_HINT = "nodes and this machine should share one installation"
_LABELLED = re.compile(r"([0-9]+): (.*)")
_STOPPED = re.compile(r"stopped (\S+) ([0-9]{1,3})")


class Stage(IntEnum):
    """The exit codes with which the trial job's script stops on a node: what is missing there, or not writable."""

    NOT_THERE = 41  # the trial's folder
    NOT_WRITABLE = 42  # the trial's folder
    NO_PYTHON = 43  # the launcher's interpreter


class Hello(msgspec.Struct, frozen=True):
    """A node's first answer: versions of launcher and Python, its clock, and its addresses by interface ("" for the
    batch system's own). `error` says why the requested interface has none.
    """

    launcher: str
    python: str
    now: float  # Unix time by its clock
    addresses: Mapping[str, str]  # by interface; "": the address that the batch system gives
    error: str = ""  # why the requested interface has no address


class NodeReport(msgspec.Struct, frozen=True):
    """A node's answer to the trial job's last request: the torch that the Python of the ranks imports there, and the
    number of GPUs that the job sees on the node.
    """

    torch: Torch
    gpus: int


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The difference between a node's clock and this machine's: the node's is ahead by `ahead_s`. `took_s` is how long
    asking took, which limits the accuracy.
    """

    ahead_s: float
    took_s: float


@dataclass(slots=True)
class SeenNode:
    """A node of the trial that has answered, with its answers so far."""

    hello: Hello  # its first answer
    clock: NodeClock | None = None  # None: not compared yet
    report: NodeReport | None = None  # its last answer; None: not sent yet


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The trial job's state as the queue reports it; the defaults apply until it has reported one.

    `word` is the queue's own name for the state, `nodes` its list of nodes; `requeue` is whether the job may be
    requeued, and `restarts` how often it was.
    """

    waits: bool = True  # it has no nodes yet
    has_ended: bool = False
    word: str = ""  # the queue's own name of the state; RUNNING if it has its nodes
    reason: str = ""  # why it waits, in plain words
    nodes: str = ""  # in the queue's own notation
    starts_at: float | None = None  # Unix time; the queue's estimate while it waits
    exit_code: int = 0  # if it has ended
    requeue: bool | None = None  # it may be requeued; None: unknown
    restarts: int = 0  # how often it was requeued


@dataclass(slots=True)
class Trial:
    """A trial job, with everything found on its nodes so far.

    `first_word_s` is the time from submit to the first answer, `ways` are measured links by network interface ("": the
    batch system's own addresses), `closed` is why nodes cannot be reached, `log` is what the job printed, and `over` is
    False if the job was not seen to end.
    """

    job: str  # its id
    hosts: Sequence[str] = ()  # names of its nodes
    first_word_s: float | None = None  # from the submit; None: no node has answered
    state: TrialJob = TrialJob()  # as the queue reports it
    seen: dict[str, SeenNode] = field(default_factory=dict)  # nodes that have answered, by host
    ways: dict[str, list[Way]] = field(default_factory=dict)  # measured links by interface; "": the batch system's
    closed: dict[str, str] = field(default_factory=dict)  # why a node cannot be reached, by host
    log: str = ""  # what the job printed
    over: bool = True  # the job was seen to end

    @property
    def reported(self) -> bool:
        """Return whether any node has sent its report, the last of its answers."""
        return any(node.report for node in self.seen.values())

    @property
    def seen_on(self) -> list[str]:
        """Return all hosts of the trial if each of them has answered a question, which shows that it has the launcher's
        files and sees the shared folder. Return an empty list if a host has not answered yet, or none is known.
        """
        told = {name for name, node in self.seen.items() if node.clock}
        return list(self.hosts) if self.hosts and set(self.hosts) <= told else []


def launcher_version() -> str:
    """Return the version of the launcher that runs here."""
    # By its name: as an import, the package stands for its whole API, which is floors above.
    return str(import_module("launcher").__version__)


@dataclass(frozen=True, slots=True)
class Expected:
    """The versions and folders that nodes should have: those of this machine."""

    rank_python: str  # path of the ranks' interpreter
    runs_root: str  # the folder in which runs will be stored
    launcher: str = field(default_factory=launcher_version)  # its version
    python: str = platform.python_version()  # the version of the launcher's Python
    executable: str = sys.executable  # path of the launcher's interpreter


def read_stopped(log: str) -> dict[str, tuple[int, str]]:
    """Return the nodes on which the job's script stopped early, each with its exit code and the last line that it
    printed.

    Each line of the log begins with its task's number, as with `srun --label`.
    """
    stopped: list[tuple[str, str, str]] = []
    said: dict[str, str] = {}
    for task, text in (row.groups() for line in log.split("\n") if (row := _LABELLED.fullmatch(line))):
        if stop := _STOPPED.fullmatch(text):
            stopped.append((task, stop[1], stop[2]))
        elif text.strip() and not text.startswith("stopped "):
            said[task] = text.strip()
    return {node: (int(code), said.get(task, "")) for task, node, code in stopped}


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The names of a batch system and its programs, for the texts of findings.

    `server` is what the commands ask, `silent_hint` what to do if it does not answer, `others` the options that request
    other nodes, `starter` the command that starts programs on nodes, `starts` the service on a node that must answer
    it, and `complaint` matches the starter's errors.
    """

    queue: type[BatchSystem]  # the class of the batch system
    server: str  # what its commands ask, such as a controller
    silent_hint: str  # what to do if the server does not answer
    submit: str  # the submitting command, such as sbatch
    shows_ended: str  # the command that shows an ended job
    shows_nodes: str  # the command that shows the nodes' states
    others: str  # the options that request other nodes
    starter: str  # the command that starts programs on nodes
    starts: str  # the service on a node that must answer the starter
    complaint: re.Pattern[str]  # matches errors of the starter in the job's log


def no_nodes_finding(job: str, within_s: float, why: str, starts_at: float | None, words: QueueNames) -> Finding:
    """Return the finding, a warning, that the trial job with the id `job` got no nodes within `within_s` and was
    cancelled. `why` is the queue's reason, `starts_at` its estimate of the start as Unix time (None: it gave none), and
    `words` are the names of its commands and options, for the hint.
    """
    text = f"no node was free within {within_s:g} s; job {job} was cancelled: {why}"
    if starts_at is None:
        return warning("trial", text, f"--within {within_s * 10:g} waits longer; {words.others} ask for other nodes")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
    hint = f"{words.queue.called} expects one at {at}; --within waits longer, {words.others} ask for others"
    return warning("trial", text, hint)


def silence_finding(lines: Sequence[str], words: QueueNames) -> Finding:
    """Return the finding that the scheduler did not answer, with the first of `lines`, the error of its command.

    Its hint is the line of the error that begins with `hint: `, or else the usual one for this scheduler in `words`.
    """
    hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), words.silent_hint)
    return problem(words.server, lines[0], hint, unreachable=True)


def refused_finding(said: str, words: QueueNames) -> Finding:
    """Return the finding that the scheduler refused the trial job, with its message `said`."""
    return problem("trial", f"{words.queue.called} refuses a job: {said}", f"{words.others} ask for others")


def trial_findings(trial: Trial, expected: Expected, words: QueueNames) -> Iterable[Finding]:
    """Yield the findings about everything that the nodes of the job reported, compared with what is `expected` of them.

    `words` are the names of the scheduler and its programs, for the texts.
    """
    stopped = read_stopped(trial.log)
    if trial.state.exit_code in list(Stage) and trial.hosts and not stopped:
        stopped = {trial.hosts[0]: (trial.state.exit_code, "")}  # the batch script itself came no further
    if trial.seen:
        took_s = trial.first_word_s
        took = "" if took_s is None else f", its first word {took_s:.1f} s after {words.submit}"
        yield ok("trial", f"job {trial.job} on {all_of(trial.hosts)}{took}")
    for node, (code, said) in stopped.items():
        yield _stopped_finding(node, code, said, expected)
    yield from _broken_findings(trial, stopped, words)
    if not trial.over:
        text = f"job {trial.job} was cancelled and has not ended yet"
        yield warning("trial", text, f"`{words.queue.sees} {trial.job}` shows when it has gone")
    yield from _folder_findings(trial)
    yield from _python_findings(trial, expected)
    yield from _torch_findings(trial, expected)
    yield from _clock_findings(trial)
    yield from _network_findings(trial, words)
    if trial.state.requeue:
        yield ok("requeue", "the job was taken as one that may be requeued")
    elif trial.state.requeue is False:
        hint = (
            "a run that is preempted or reaches its time limit continues in a new job instead, at the end of the queue"
        )
        yield warning("requeue", "the job asked to be requeued, and the site has taken that away", hint)


def _broken_findings(trial: Trial, stopped: Mapping[str, object], words: QueueNames) -> Iterable[Finding]:
    """Yield at most one problem that says why the trial is incomplete: the first of these that is true.

    The scheduler requeued the job; its starter, such as srun, complained; nodes fell silent that are not keys of
    `stopped` (nodes on which the job's script stopped early, and about which there are findings); or the job has ended
    or runs without a sign from any node.
    """
    state, where = trial.state, f" on {all_of(trial.hosts)}" if trial.hosts else ""
    gone = f"`{words.shows_nodes}` shows whether nodes are well; one that has just gone is called idle for a while"
    lines = [line.strip()[:200] for line in trial.log.splitlines() if line.strip()]
    last = f"; it last said: {lines[-1]}" if lines else ""
    if state.restarts:
        began = f"{words.queue.called} began job {trial.job}{where} and put it back"
        yield problem("trial", f"{began}: a node does not answer, or cannot begin it", gone)
    elif said := words.complaint.search(trial.log):
        yield problem(
            words.starter,
            said[1].strip()[:200],
            f"a run's first node starts the others by {words.starter}: their {words.starts} must answer it",
        )
    elif trial.seen and (lost := [host for host in trial.hosts if host not in stopped and _is_lost(trial, host)]):
        yield problem(
            "trial", f"nothing more came from {all_of(lost)}", f"`{words.shows_nodes}` shows whether it is well"
        )
    elif trial.seen or stopped:
        return
    elif state.word in ("RUNNING", "CONFIGURING", "COMPLETING"):
        text = f"no word came from job {trial.job}{where}, which {words.queue.called} says is there{last}"
        yield problem("trial", text, gone)
    else:
        how = f"{state.word.lower()}, exit code {state.exit_code}"
        text = f"job {trial.job}{where} ended ({how}) before it said a word{last}"
        yield problem("trial", text, f"`{words.shows_ended} {trial.job}` shows more, for a while")


def _is_lost(trial: Trial, host: str) -> bool:
    """Return whether nothing more can come from the node `host`: it never answered, or it has sent no report and will
    send none.

    The report is asked for last. It will not come if the node has answered the questions before it, or the job has
    ended.
    """
    node = trial.seen.get(host)
    return node is None or (node.report is None and (node.clock is not None or trial.state.has_ended))


def _stopped_finding(node: str, code: int, said: str, expected: Expected) -> Finding:
    """Return the problem of a node on which the check failed. Its exit code `code` tells at which stage: at the folder
    of runs, which is another or not writable, or at Python, which is missing or fails; `said` is its last line.

    `expected` has the paths that the node should see.
    """
    match code:
        case Stage.NOT_THERE:
            return problem("runs root", f"{expected.runs_root} is not the same folder on {node}", _RUNS_ROOT_HINT)
        case Stage.NOT_WRITABLE:
            return problem("runs root", f"{expected.runs_root} cannot be written on {node}", _RUNS_ROOT_HINT)
        case Stage.NO_PYTHON:
            hint = "install launch where nodes see it too"
            return problem("python", f"{expected.executable} is not there on {node}", hint)
        case _:
            text = f"{expected.executable} on {node}: {said or f'it leaves with {code}'}"
            return problem("python", text, _PROGRAMS_HINT)


def _folder_findings(trial: Trial) -> Iterable[Finding]:
    """Yield findings about the shared folder: whether nodes see files that are written here, and how soon."""
    if deaf := [name for name, node in trial.seen.items() if node.clock is None]:
        text = f"what is written here was not seen on {all_of(deaf)} in time"
        yield warning("runs root", text, "the file system tells others late: `launch cancel` will take as long")
    took = {name: node.clock.took_s for name, node in trial.seen.items() if node.clock}
    if slow := [name for name, took_s in took.items() if took_s > _SLOW_FOLDER_S]:
        text = f"a question and its answer took {max(took.values()):.0f} s through it, with {all_of(slow)}"
        hint = "nodes see each other's files that late: shorter attribute caching (NFS: actimeo, lookupcache) helps"
        yield warning("runs root", text, hint)


def _python_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    """Yield a finding for each pair of versions, of Python and the launcher, on the nodes. It is ok if both are this
    machine's, a warning if only Python's patch version differs, else a problem.
    """
    versions = {name: (node.hello.python, node.hello.launcher) for name, node in trial.seen.items()}
    for (version, ours), nodes in _alike(trial, versions):
        text = f"{version} and launch {ours} on {all_of(nodes)}"
        differs = f"{text}, but {expected.python} and {expected.launcher} here"
        if (version, ours) == (expected.python, expected.launcher):
            yield ok("python", text)
        elif (version.rpartition(".")[0], ours) == (expected.python.rpartition(".")[0], expected.launcher):
            yield warning("python", differs, _SHARED_HINT)
        else:  # packages are built for 3.11, whatever follows
            yield problem("python", differs, _SHARED_HINT)


def _torch_findings(trial: Trial, expected: Expected) -> Iterable[Finding]:
    """Yield a finding about torch and the GPUs that it sees, for each group of nodes that reported the same."""
    for report, nodes in _alike(trial, {name: one.report for name, one in trial.seen.items() if one.report}):
        yield torch_finding(report.torch, f"{expected.rank_python} on {all_of(nodes)}", report.gpus, of_the_job=True)


def _clock_findings(trial: Trial) -> Iterable[Finding]:
    """Yield a finding about each node's clock that was measured: a warning if it differs from this machine's by more
    than two seconds even if the whole error of the measurement is subtracted.
    """
    for name, clock in ((name, node.clock) for name, node in trial.seen.items() if node.clock):
        text = f"{name} is {clock.ahead_s:+.2f} s from here, to within {clock.took_s / 2:.2f} s"
        if abs(clock.ahead_s) - clock.took_s / 2 > _CLOCK_S:
            yield warning("clock", text, "times in logs will differ by so much; a time service (NTP) keeps them alike")
        else:
            yield ok("clock", text)


def _network_findings(trial: Trial, words: QueueNames) -> Iterable[Finding]:
    """Yield a problem for each node that cannot be reached or has not the requested network interface, and for each
    connection between two nodes that fails.

    For each interface by which all nodes reach each other, yield the longest round trip as an `ok` finding. `words` has
    the name of the batch system, for the texts.
    """
    need = "a run's nodes need each other's TCP ports from 20000 on"
    errors = {name: node.hello.error for name, node in trial.seen.items() if node.hello.error} | trial.closed
    for name, error in errors.items():
        yield problem("network", f"{name}: {error}", f"{words.queue.kind}.interface names the network of nodes")
    for interface, ways in trial.ways.items():
        through = f"by {interface}" if interface else f"by the addresses that {words.queue.called} has"
        for way in (way for way in ways if way.error):
            text = f"{way.start} does not reach {way.end} {through}{f' ({way.at})' if way.at else ''}: {way.error}"
            yield problem("network", text, f"{need}; {words.queue.kind}.interface names the network they share")
        if ways and not any(way.error for way in ways):
            slowest_ms = 1000 * max(way.round_trip_s for way in ways)
            addresses, nodes = ", ".join(sorted({way.at for way in ways})), all_of(sorted({way.start for way in ways}))
            yield ok("network", f"{nodes} reach each other {through} ({addresses}) within {slowest_ms:.1f} ms")


def _alike(trial: Trial, found: Mapping[str, T]) -> Iterable[tuple[T, list[str]]]:
    """Yield each distinct value of `found`, which is by host, with the trial's hosts that have it."""
    groups: dict[T, list[str]] = {}
    for node in (host for host in trial.hosts if host in found):
        groups.setdefault(found[node], []).append(node)
    return groups.items()
