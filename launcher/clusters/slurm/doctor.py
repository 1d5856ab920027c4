"""`launch doctor slurm`: asks Slurm's programs what the site is like, and with `--try` has a job look at its nodes."""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.clusters.batch.queue import Phase
from launcher.clusters.slurm import doctor_checks as checks
from launcher.clusters.slurm.hosts import hosts_of
from launcher.clusters.slurm.queries import nodes, site
from launcher.clusters.slurm.queries.fate import show_job
from launcher.clusters.slurm.queries.jobs import cancel, read_sacct, read_submitted, read_test_only, sacct_jobs
from launcher.clusters.slurm.queries.reasons import plain
from launcher.clusters.slurm.queries.states import read_state
from launcher.clusters.slurm.queries.values import read_number, read_time, read_word
from launcher.clusters.slurm.reach import ask
from launcher.doctor.findings import Finding
from launcher.doctor.shared_places import shared_findings
from launcher.doctor.trial.checks import QueueWords, refused_finding
from launcher.doctor.trial.here import NoTrial, TrialJob, findings_of, minutes, try_nodes
from launcher.doctor.wish import DoctorWish
from launcher.errors import Unreachable

_SUBMIT_S = 30.0
_LEAST_MEMORY_MB, _MEMORY_MB = 4000, 2000  # torch with CUDA needs 1 GB
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
WORDS = QueueWords(
    called="Slurm",
    module="launcher.clusters.slurm.doctor_node",
    node_name="$SLURMD_NODENAME",
    submit="sbatch",
    cancel="scancel",
    ask_for_others="--partition asks for",
    refused_hint="--partition, --account and --qos ask for others",
    nodes_hint="`sinfo -N -l`",
    job_hint="`scontrol show job {job}` shows more, for a while",
    gone_hint="`squeue -j {job}` shows when it has gone",
    interface="slurm.interface",
    # The first thing that it says went wrong, and not of a program that ended: what follows comes from that.
    complaint=re.compile(r"^srun: (?:error|fatal): (?!\S+: tasks? )(.+)$", re.MULTILINE),
    starter="srun",
    starter_hint="a run's first node starts the others by srun: their slurmd must answer it",
)


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """What the controller says."""

    config: site.Config
    took_s: float
    controllers: dict[str, bool]
    partitions: list[nodes.Partition]
    rules: dict[str, site.PartitionRules]
    nodes: list[nodes.Node]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the nodes that a job may get have in common."""

    nodes: int  # that take jobs
    gpus: int  # that each of them has
    memory_mb: int
    max_time_s: float


def check_up(wish: DoctorWish, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Everything about the site, as it is found. `tell`: what goes on meanwhile."""
    wish.refuse_all_but("try", "nodes", "within", "partition", "account", "qos", "interface")
    sbatch = shutil.which("sbatch")
    version = site.read_version(ask(["sbatch", "--version"]).out) if sbatch is not None else None
    yield checks.sbatch_finding(sbatch, version)
    seen_on: list[str] = []
    tried = False
    if sbatch is not None:
        try:
            found = _ask_site()
            yield from _site_findings(found, wish, version)
            if wish.trial and not checks.strangers(found.partitions, wish.chosen.get("partition")):
                queue = SlurmTrials(wish, _shape(found, wish))
                trial = try_nodes(queue, wish, queue.most_nodes, minutes(queue.shape.max_time_s), tell)
                tried, seen_on = True, trial.seen_on
                yield from findings_of(trial, queue, wish)
        except NoTrial as reason:
            yield reason.finding
        except Unreachable as error:
            yield checks.silence([str(line) for line in error.lines])
    yield from shared_findings(wish, "launch doctor slurm --try", seen_on, tried=tried)


def _ask_site() -> SlurmSite:
    began = time.monotonic()
    config = site.read_config(ask(site.show_config()).out)
    return SlurmSite(
        config,
        time.monotonic() - began,
        site.read_ping(ask(["scontrol", "ping"]).out),
        nodes.read_partitions(ask(nodes.partitions()).out),
        site.read_rules(ask(site.show_partitions()).out),
        nodes.read_partition_nodes(ask(nodes.partition_nodes()).out),
    )


def _site_findings(found: SlurmSite, wish: DoctorWish, version: str | None) -> Iterator[Finding]:
    config, wanted = found.config, wish.chosen.get("partition")
    yield from checks.controller_findings(config, found.took_s, found.controllers, version)
    yield from checks.partition_findings(found.partitions, found.rules, found.nodes, wanted)
    if not checks.strangers(found.partitions, wanted):
        answer = ask(["sbatch", "--test-only", *options(wish, _shape(found, wish), 1), "--wrap=true"])
        yield checks.start_finding(*read_test_only(answer.err), time.time())
    yield from checks.setting_findings(config, found.rules.values())
    unkept = _what_keeps_accounts_from_us(config)
    yield checks.accounting_finding(config.accounting, unkept, config.min_job_age_s)
    yield checks.memory_finding(config.min_job_age_s, accounting=config.accounting is not False and not unkept)


def _what_keeps_accounts_from_us(config: site.Config) -> str:
    """Nothing where sacct answers."""
    if config.accounting is False:
        return "there is none"
    try:
        answer = ask(sacct_jobs(["1"], time.time()))
    except Unreachable as error:
        return str(error.lines[0])
    return "" if read_sacct(answer.code, answer.out, answer.err) is not None else "sacct knows of none"


def _shape(found: SlurmSite, wish: DoctorWish) -> Shape:
    chosen = checks.chosen_partitions(found.partitions, wish.chosen.get("partition"))
    names = {partition.name for partition in chosen}
    able = [node for node in found.nodes if node.partition in names and node.takes_jobs]
    return Shape(
        nodes=len({node.name for node in able}),
        gpus=min((node.gpus for node in able), default=0),
        memory_mb=min((node.memory_mb for node in able), default=0),
        max_time_s=min((limit for one in chosen if (limit := one.max_time_s) is not None), default=math.inf),
    )


# The trial


@dataclass(frozen=True, slots=True)
class SlurmTrials:
    """Slurm as a trial needs it."""

    wish: DoctorWish
    shape: Shape
    words: QueueWords = WORDS

    @property
    def most_nodes(self) -> int:
        return min(self.wish.nodes or 2, max(1, self.shape.nodes))

    def submit(self, script: str, nodes: int) -> str:
        argv = ["sbatch", "--parsable", *options(self.wish, self.shape, nodes)]
        answer = ask(argv, limit_s=_SUBMIT_S, stdin=script)
        job = read_submitted(answer.out)
        if answer.code != 0 or job is None:
            lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in answer.err.strip().splitlines()]
            said = "; ".join(dict.fromkeys(lines)) or f"sbatch leaves with {answer.code}"
            raise NoTrial(refused_finding(said, WORDS))
        return job

    def on_each_node(self, command: list[str], nodes: int) -> list[str]:
        return [
            "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--label",
            "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--input=none", "--quiet", *command,
        ]  # fmt: skip

    def look(self, job: str) -> TrialJob | None:
        answer = ask(show_job(job))
        return read_job(answer.out) if answer.code == 0 else None

    def hosts(self, nodes: str) -> tuple[str, ...]:
        return tuple(hosts_of(nodes))

    def cancel(self, job: str) -> None:
        ask(cancel(job))


def options(wish: DoctorWish, shape: Shape, nodes: int) -> list[str]:
    """Those of sbatch, and so much time, that a job of this kind has."""
    chosen = {
        "job-name": "launch-doctor",
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": "1",
        "time": str(minutes(shape.max_time_s)),
        "gres": "gpu:1" if shape.gpus else None,
        "mem": f"{_MEMORY_MB}M" if shape.memory_mb >= _LEAST_MEMORY_MB else None,
        "partition": wish.chosen.get("partition"),
        "account": wish.chosen.get("account"),
        "qos": wish.chosen.get("qos"),
        "chdir": "/",
        "output": os.devnull,
    }
    return ["--requeue", *(f"--{name}={value}" for name, value in chosen.items() if value is not None)]


def read_job(text: str) -> TrialJob:
    """What `scontrol show job` says of ours."""
    fields = dict(_FIELD.findall(text))
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
