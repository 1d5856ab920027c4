"""A check-up of a Slurm site, from a machine that has its programs: asks, and hands the answers to `doctor`."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.clusters.slurm import doctor, doctor_settings
from launcher.clusters.slurm.doctor_job import Shape, Wish, options
from launcher.clusters.slurm.doctor_nodes import trial_findings
from launcher.clusters.slurm.doctor_trial import NoTrial, expected, try_nodes
from launcher.clusters.slurm.queries.jobs import read_sacct, read_test_only, sacct_jobs
from launcher.clusters.slurm.queries.nodes import (
    Node,
    Partition,
    partition_nodes,
    partitions,
    read_partition_nodes,
    read_partitions,
)
from launcher.clusters.slurm.queries.site import Config, read_config, read_version, show_config
from launcher.clusters.slurm.reach import ask
from launcher.doctor.findings import Finding
from launcher.errors import Unreachable
from launcher.rundir.file_systems import file_system_of

_SYSTEM = Path("/usr")  # every machine has its own


@dataclass(frozen=True, slots=True)
class _Site:
    """What the controller says."""

    config: Config
    preempt_type: str | None
    took_s: float
    controllers: dict[str, bool]
    partitions: list[Partition]
    rules: dict[str, doctor.Rules]
    nodes: list[Node]


def check_up(wish: Wish, *, trial: bool, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Everything about the site, as it is found. `trial`: by a job too; `tell`: what goes on meanwhile."""
    sbatch = shutil.which("sbatch")
    version = read_version(ask(["sbatch", "--version"]).out) if sbatch is not None else None
    yield doctor.sbatch_finding(sbatch, version)
    seen_on: list[str] = []
    tried = False
    if sbatch is not None:
        try:
            site = _ask_site()
            yield from _site_findings(site, wish, version)
            if trial and not doctor.strangers(site.partitions, wish.partition):
                done = try_nodes(wish, _shape(site, wish), tell)
                tried, seen_on = True, done.seen_on
                yield from trial_findings(done, expected(wish))
        except NoTrial as reason:
            yield reason.finding
        except Unreachable as error:
            yield doctor.silence([str(line) for line in error.lines])
    yield doctor.place_finding("runs root", [_place(wish.runs_root)], seen_on, tried=tried)
    yield doctor.place_finding("programs", _programs(Path(wish.rank_python)), seen_on, tried=tried)


def _ask_site() -> _Site:
    began = time.monotonic()
    text = ask(show_config()).out
    took_s = time.monotonic() - began
    return _Site(
        read_config(text),
        doctor_settings.read_preempt_type(text),
        took_s,
        doctor.read_ping(ask(["scontrol", "ping"]).out),
        read_partitions(ask(partitions()).out),
        doctor.read_rules(ask(doctor.show_partitions()).out),
        read_partition_nodes(ask(partition_nodes()).out),
    )


def _site_findings(site: _Site, wish: Wish, version: str | None) -> Iterator[Finding]:
    config = site.config
    yield from doctor.controller_findings(config, site.took_s, site.controllers, version)
    yield from doctor.partition_findings(site.partitions, site.rules, site.nodes, wish.partition)
    if not doctor.strangers(site.partitions, wish.partition):
        answer = ask(["sbatch", "--test-only", *options(wish, _shape(site, wish), 1), "--wrap=true"])
        yield doctor.start_finding(*read_test_only(answer.err), time.time())
    yield from doctor_settings.setting_findings(config, site.preempt_type, site.rules.values())
    kept = _is_accounted(config)
    yield doctor_settings.accounting_finding(config.accounting, kept, config.min_job_age_s)
    yield doctor_settings.memory_finding(config.min_job_age_s, accounting=config.accounting is not False and not kept)


def _is_accounted(config: Config) -> str:
    """What keeps sacct from answering; nothing where it does."""
    if config.accounting is False:
        return "there is none"
    try:
        answer = ask(sacct_jobs(["1"], time.time()))
    except Unreachable as error:
        return str(error.lines[0])
    return "" if read_sacct(answer.code, answer.out, answer.err) is not None else "sacct knows of none"


def _shape(site: _Site, wish: Wish) -> Shape:
    """What the nodes have in common that a job may get."""
    chosen = doctor.chosen_partitions(site.partitions, wish.partition)
    names = {partition.name for partition in chosen}
    able = [node for node in site.nodes if node.partition in names and node.takes_jobs]
    return Shape(
        nodes=len({node.name for node in able}),
        gpus=min((node.gpus for node in able), default=0),
        memory_mb=min((node.memory_mb for node in able), default=0),
        max_time_s=min((limit for one in chosen if (limit := one.max_time_s) is not None), default=math.inf),
    )


def _programs(rank_python: Path) -> list[doctor.Place]:
    """Where this Python, the launcher and the Python of ranks are."""
    apart: list[Path] = []
    code = Path(__file__).resolve().parents[3]
    for path in (code, Path(sys.prefix), Path(sys.base_prefix), rank_python.parent.parent):
        if path != _SYSTEM and not any(path.is_relative_to(other) for other in apart):
            apart.append(path)
    return [_place(path) for path in apart]


def _place(path: Path) -> doctor.Place:
    return doctor.Place(str(path), file_system_of(path))
