"""The batch script of a run: which of its plan is an option of qsub, and the one command that is run. Pure."""

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.clusters.batch.job.environment import with_it
from launcher.clusters.batch.queue import Ticket, batch_command, nodes_asked, warned_before_s
from launcher.clusters.gridengine.queries import TICKET
from launcher.errors import BadInput
from launcher.plan.model import AwaitedRun, Plan

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@%=-]*")  # of others qsub would make hosts, variables, or two words
_ONE_HOST = "$pe_slots"
_HINT = "hint: ask the site for one whose allocation_rule is 1; `launch doctor` lists what there is"


Follows = Sequence[tuple[AwaitedRun, str]]


def script_of(
    plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str], rule: str | None, follows: Follows = ()
) -> str:
    """The text that qsub gets. `rule`: how the parallel environment gives out slots; None without one. `follows`: runs
    to be waited for, and their jobs."""
    chosen = options(plan, ticket, where, avoid, rule)
    if follows:
        chosen["hold_jid"] = ",".join(job for _, job in follows)
    lines = [f"#$ -{name} {value}".rstrip() for name, value in chosen.items()]
    # A clock of our own tells that the limit is near: of a job that has been put back once, s_rt is the end.
    limit_s = plan.spec.resources.time_s
    environment = shlex.join(with_it(None if limit_s is None else limit_s - warn_before_s(plan)))
    keeper = batch_command("gridengine", where).removeprefix("exec ")
    return "\n".join(["#!/bin/sh", *lines, f"exec {environment} {keeper}", ""])


def options(plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str], rule: str | None) -> dict[str, str]:
    """Those of qsub, without their dash."""
    own, queue, at, limit_s = plan.spec.gridengine, plan.spec.queue, plan.starts_at, plan.spec.resources.time_s
    hosts = dict.fromkeys((*own.exclude, *avoid))
    resources = {
        "h_rt": None if limit_s is None else str(math.ceil(limit_s)),
        **_gpus(plan, rule),
        "hostname": f"!({'|'.join(hosts)})" if hosts else None,
    }
    listed = [*(f"{name}={value}" for name, value in resources.items() if value), own.extra.get("l")]
    found = {
        **{name: value or "" for name, value in own.extra.items() if name != "l"},
        "h": "" if queue.hold else None,
        "a": None if at is None else time.strftime("%Y%m%d%H%M.%S", time.localtime(at)),
        "p": str(queue.priority) if queue.priority else None,
        "S": "/bin/sh",
        "N": job_name(plan.run_id),
        "j": "y",
        "o": f"{where}/gridengine-$JOB_ID.out" if _PLAIN_PATH.fullmatch(str(where)) else "/dev/null",
        "r": "y",
        "notify": "",
        "ac": f"{TICKET}={ticket.text}",
        "pe": f"{own.pe} {nodes_asked(plan, _slots_of_a_host(plan, rule))}" if own.pe and rule is not None else None,
        "q": own.queue,
        "P": own.project,
        "l": ",".join(filter(None, listed)) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def job_name(run_id: str) -> str:
    """What the job of a run is called: it has to begin with a letter."""
    return run_id if run_id[0].isalpha() else f"run-{run_id}"


def _slots_of_a_host(plan: Plan, rule: str | None) -> int:
    return plan.ranks_per_node * plan.cpus_per_rank if rule == _ONE_HOST else int(rule or 1)


def _gpus(plan: Plan, rule: str | None) -> Mapping[str, str]:
    """Grid Engine counts by slots what it counts: a host's GPUs are asked for in as many parts as it gives slots."""
    gpus, slots = plan.gpus_per_node, _slots_of_a_host(plan, rule)
    if gpus % slots:
        text = f"{gpus} GPUs on a host cannot be asked for in {slots} equal parts, one for each slot"
        raise BadInput(f"gridengine.pe: {text}", _HINT)
    return {plan.spec.gridengine.gpu_resource: str(gpus // slots)} if gpus else {}


def warn_before_s(plan: Plan) -> float:
    """How long before the limit the run is told."""
    return warned_before_s(plan.spec.resources.time_s, plan.spec.gridengine.warn_before_s)


def check_rule(pe: str | None, rule: str | None, nodes: int) -> None:
    """Raises BadInput where the parallel environment does not give so many hosts to a job for sure."""
    why = ""
    if pe is None:
        why = f"{nodes} nodes need a parallel environment" if nodes > 1 else ""
    elif rule is None:
        why = f"there is no parallel environment {pe}"
    elif rule == _ONE_HOST:
        why = f"{pe} gives a job slots on one host alone, and {nodes} are asked for" if nodes > 1 else ""
    elif not rule.isdigit():
        why = f"{pe} (allocation_rule {rule}) gives slots wherever some are free, on any number of hosts"
    if why:
        raise BadInput(f"gridengine.pe: {why}", _HINT)
