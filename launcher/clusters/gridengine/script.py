"""The batch script of a run: which of its plan is an option of qsub, and the one command that is run. Pure."""

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.clusters.batch.job.environment import WITH_IT
from launcher.clusters.batch.queue import Ticket, keeper_command, warned_before_s
from launcher.clusters.gridengine.queries import TICKET
from launcher.errors import BadInput
from launcher.plan.model import Plan

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@%=-]*")  # of others qsub would make hosts, variables, or two words
_ONE_HOST = "$pe_slots"
_HINT = "hint: ask the site for one whose allocation_rule is 1; `launch doctor` lists what there is"


def script_of(plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str], rule: str | None) -> str:
    """The text that qsub gets. `rule`: how the parallel environment gives out slots; None without one."""
    lines = [f"#$ -{name} {value}".rstrip() for name, value in options(plan, ticket, where, avoid, rule)]
    command = f"{shlex.join((*WITH_IT, *_clock(plan)))} {keeper_command('gridengine', where).removeprefix('exec ')}"
    return "\n".join(["#!/bin/sh", *lines, f"exec {command}", ""])


def options(plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str], rule: str | None) -> list[tuple[str, str]]:
    """Those of qsub, without their dash."""
    own = plan.spec.gridengine
    output = f"{where}/gridengine-$JOB_ID.out"
    limit_s = plan.spec.resources.time_s
    limit = {} if limit_s is None else {"h_rt": str(math.ceil(limit_s))}
    resources = {**limit, **_gpus(plan, rule)}
    hosts = dict.fromkeys((*own.exclude, *avoid))
    if hosts:
        resources["hostname"] = f"!({'|'.join(hosts)})"
    listed = [f"{name}={value}" for name, value in resources.items()] + [own.extra.get("l", "")]
    queue, at = plan.spec.queue, plan.starts_at
    found = {
        "h": "" if queue.hold else None,
        "a": None if at is None else time.strftime("%Y%m%d%H%M.%S", time.localtime(at)),
        "p": str(queue.priority) if queue.priority else None,
        "S": "/bin/sh",
        "N": job_name(plan.run_id),
        "j": "y",
        "o": output if _PLAIN_PATH.fullmatch(str(where)) else "/dev/null",
        "r": "y",
        "notify": "",
        "ac": f"{TICKET}={ticket.text}",
        "pe": f"{own.pe} {_slots(plan, rule)}" if own.pe and rule is not None else None,
        "q": own.queue,
        "P": own.project,
        "l": ",".join(part for part in listed if part) or None,
    }
    more = {name: value or "" for name, value in own.extra.items() if name != "l"}
    return [(name, value) for name, value in {**more, **found}.items() if value is not None]


def job_name(run_id: str) -> str:
    """What the job of a run is called: it has to begin with a letter."""
    return run_id if run_id[0].isalpha() else f"run-{run_id}"


def slots_of_a_host(plan: Plan, rule: str | None) -> int:
    return plan.ranks_per_node * plan.cpus_per_rank if rule == _ONE_HOST else int(rule or 1)


def _slots(plan: Plan, rule: str | None) -> str:
    one, more = slots_of_a_host(plan, rule), plan.spec.recovery.spares
    fewest, most = plan.nodes_min * one, (plan.nodes_max + more) * one
    return str(most) if plan.nodes_min == plan.nodes_max else f"{fewest}-{most}"


def _gpus(plan: Plan, rule: str | None) -> Mapping[str, str]:
    """Grid Engine counts by slots what it counts: a host's GPUs are asked for in as many parts as it gives slots."""
    gpus, slots = plan.gpus_per_node, slots_of_a_host(plan, rule)
    if not gpus:
        return {}
    if gpus % slots:
        text = f"{gpus} GPUs on a host cannot be asked for in {slots} equal parts, one for each slot"
        raise BadInput(f"gridengine.pe: {text}", _HINT)
    return {plan.spec.gridengine.gpu_resource: str(gpus // slots)}


def _clock(plan: Plan) -> tuple[str, ...]:
    """A clock of our own tells that the limit is near: of a job that has been put back once, s_rt is the end. One that
    is set to 0 never rings."""
    limit_s = plan.spec.resources.time_s
    return () if limit_s is None else ("--warn-after", str(max(1, math.ceil(limit_s - warn_before_s(plan)))))


def warn_before_s(plan: Plan) -> float:
    return warned_before_s(plan.spec.resources.time_s, plan.spec.gridengine.warn_before_s)


def check_rule(pe: str | None, rule: str | None, nodes: int) -> None:
    """Raises BadInput where the parallel environment does not give so many hosts to a job for sure."""
    if pe is None and nodes > 1:
        raise BadInput(f"gridengine.pe: {nodes} nodes need a parallel environment", _HINT)
    if pe is not None and rule is None:
        raise BadInput(f"gridengine.pe: there is no parallel environment {pe}", _HINT)
    if rule == _ONE_HOST and nodes > 1:
        raise BadInput(f"gridengine.pe: {pe} gives a job slots on one host alone, and {nodes} are asked for", _HINT)
    if rule is not None and rule != _ONE_HOST and not rule.isdigit():
        text = f"{pe} (allocation_rule {rule}) gives slots wherever some are free, on any number of hosts"
        raise BadInput(f"gridengine.pe: {text}", _HINT)
