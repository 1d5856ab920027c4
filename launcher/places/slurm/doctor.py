"""`launch doctor slurm`: query the site with Slurm's programs, and with `--try` have a job examine its nodes."""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from launcher.errors import Unreachable
from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding
from launcher.places.batch.batch import Phase
from launcher.places.batch.trial.carry_out import all_findings, minutes
from launcher.places.batch.trial.checks import QueueNames, TrialJob
from launcher.places.batch.trial.trial_jobs import TrialJobs
from launcher.places.slurm import doctor_checks as checks
from launcher.places.slurm.queries import nodes, site
from launcher.places.slurm.queries.jobs import read_sacct, read_test_only, sacct_jobs, show_job
from launcher.places.slurm.queries.reasons import plain
from launcher.places.slurm.queries.states import read_state
from launcher.places.slurm.queries.values import read_fields, read_number, read_time, read_word
from launcher.places.slurm.queue import SlurmSystem, hosts_of
from launcher.places.slurm.reach import ask

_LEAST_MEMORY_MB, _MEMORY_MB = 4000, 2000  # torch with CUDA needs 1 GB
WORDS = QueueNames(
    queue=SlurmSystem,
    server="controller",
    silent_hint="runs continue without it; `scontrol ping` shows when it is back",
    submit="sbatch",
    shows_ended="scontrol show job",
    shows_nodes="sinfo -N -l",
    others="--partition, --account and --qos",
    starter="srun",
    starts="slurmd",
    # The first error in its output, other than that a program ended: later errors follow from it.
    complaint=re.compile(r"^srun: (?:error|fatal): (?!\S+: tasks? )(.+)$", re.MULTILINE),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources on which a job can rely: how many nodes of the chosen partitions take jobs, and the GPUs, memory
    and time limit that all of them have.
    """

    nodes: int  # number of nodes that take jobs
    gpus: int  # number that each of them has at least
    memory_mb: int  # that each of them has at least
    max_time_s: float  # infinity: no limit


def check_up(request: DoctorRequest, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Yield all findings about the Slurm site; `tell` is called with a line of text before each check that takes
    long.
    """
    request.refuse_all_but("try", "nodes", "within", "partition", "account", "qos", "interface")
    return all_findings(_site(request), WORDS, request, tell)


def _site(request: DoctorRequest) -> Generator[Finding, None, TrialJobs | None]:
    """Yield findings about the site's commands and controller; return how to submit a trial, or None if none is
    possible.
    """
    sbatch = shutil.which("sbatch")
    version = site.read_version(ask(["sbatch", "--version"]).out) if sbatch is not None else None
    yield checks.sbatch_finding(sbatch, version)
    if sbatch is None:
        return None
    wanted, began = request.chosen.get("partition"), time.monotonic()
    config = site.read_config(ask(site.show_config()).out)
    took_s = time.monotonic() - began
    up = site.read_ping(ask(["scontrol", "ping"]).out)
    partitions = nodes.read_partitions(ask(nodes.partitions()).out)
    rules = site.read_rules(ask(site.show_partitions()).out)
    known_nodes = nodes.read_partition_nodes(ask(nodes.partition_nodes()).out)
    shape = _shape(checks.chosen_partitions(partitions, wanted), known_nodes)
    strangers = checks.strangers(partitions, wanted)
    yield from checks.controller_findings(config, took_s, up, version)
    yield from checks.partition_findings(partitions, rules, known_nodes, wanted)
    if not strangers:
        answer = ask(["sbatch", "--test-only", *options(request, shape, 1), "--wrap=true"])
        yield checks.start_finding(*read_test_only(answer.err), time.time())
    yield from checks.setting_findings(config, rules.values(), expedites=SlurmSystem().expedites)
    unkept = _accounting_problem(config)
    yield checks.accounting_finding(config.accounting, unkept, config.min_job_age_s)
    yield checks.memory_finding(config.min_job_age_s, accounting=config.accounting is not False and not unkept)
    return None if strangers else trial_of(request, shape)


def _accounting_problem(config: site.Config) -> str:
    """Return why the cluster's accounting does not answer this user through sacct, or "" if it does."""
    if config.accounting is False:
        return "there is none"
    try:
        answer = ask(sacct_jobs(["1"], time.time()))
    except Unreachable as error:
        return str(error.lines[0])
    return "" if read_sacct(answer.code, answer.out, answer.err) is not None else "sacct knows of none"


def _shape(chosen: Sequence[nodes.Partition], known: Sequence[nodes.Node]) -> Shape:
    """Return how many nodes of the chosen partitions take jobs, and on what a job can rely in each of them: the fewest
    GPUs and least memory of such a node, and the partitions' shortest time limit. `known` are all nodes of the site.
    """
    names = {partition.name for partition in chosen}
    able = [node for node in known if node.partition in names and node.takes_jobs]
    return Shape(
        nodes=len({node.name for node in able}),
        gpus=min((node.gpus for node in able), default=0),
        memory_mb=min((node.memory_mb for node in able), default=0),
        max_time_s=min((limit for one in chosen if (limit := one.max_time_s) is not None), default=math.inf),
    )


# The trial


class SlurmTrials(TrialJobs):
    """Trial jobs on Slurm; their state is read from scontrol, which shows more than squeue."""

    def look(self, job: str) -> TrialJob | None:
        """Return the job's state by `scontrol show job`, or None if Slurm no longer shows it."""
        answer = ask(show_job(job))
        return read_job(answer.out) if answer.code == 0 else None

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """Return the names of the nodes in a list such as `node[00-03]`."""
        return tuple(hosts_of(nodes))


def trial_of(request: DoctorRequest, shape: Shape) -> SlurmTrials:
    """Return the object that submits trial jobs, which examine the nodes they run on, and reads their state.

    `shape` says how many nodes of the chosen partitions take jobs, and which GPUs, memory and time limit each of these
    has. A job asks for no more than that, and for as many nodes as the request says (2 if it says nothing).
    """
    nodes = min(request.nodes or 2, max(1, shape.nodes))
    srun = [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--label",
        "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--input=none", "--quiet",
    ]  # fmt: skip
    on_each = f"exec {' '.join(srun)} /bin/sh -c 'NODE=$SLURMD_NODENAME; eval \"$1\"' each {{program}}"
    submits = ["sbatch", "--parsable", *options(request, shape, nodes)]
    return SlurmTrials(SlurmSystem(), WORDS, ask, submits, on_each, nodes, minutes(shape.max_time_s))


def options(request: DoctorRequest, shape: Shape, nodes: int) -> list[str]:
    """Return the options of sbatch for a trial job of `nodes` nodes of this shape, in the partition, account and QOS
    that the request chooses.
    """
    chosen = {
        "job-name": "launch-doctor",
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": "1",
        "time": str(minutes(shape.max_time_s)),
        "gres": "gpu:1" if shape.gpus else None,
        "mem": f"{_MEMORY_MB}M" if shape.memory_mb >= _LEAST_MEMORY_MB else None,
        "partition": request.chosen.get("partition"),
        "account": request.chosen.get("account"),
        "qos": request.chosen.get("qos"),
        "chdir": "/",
        "output": os.devnull,
    }
    return ["--requeue", *(f"--{name}={value}" for name, value in chosen.items() if value is not None)]


def read_job(text: str) -> TrialJob:
    """Return the trial job's state from the output of `scontrol show job`."""
    fields = read_fields(text)
    state = read_state(fields.get("JobState", ""))
    return TrialJob(
        waits=state.phase in (Phase.QUEUED, Phase.UNKNOWN),
        has_ended=state.phase is Phase.ENDED,
        word=state.word,
        reason=plain(fields.get("Reason", "")),
        nodes=read_word(fields.get("NodeList", "")),
        starts_at=read_time(fields.get("StartTime", "")),
        exit_code=read_number(fields.get("ExitCode", "").partition(":")[0]) or 0,
        requeue={"0": False, "1": True}.get(fields.get("Requeue", "")),
        restarts=read_number(fields.get("Restarts", "")) or 0,
    )
