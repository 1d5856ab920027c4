"""Build a run's batch script: sbatch's options, derived from the plan, and the one command to run. Pure functions. A
spare is a node beyond those that the run needs.

submitit renders the script; nothing else of submitit goes into the job: no pickle, no handler, no state.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.places.batch.batch import SubmitToken, batch_command, nodes_asked, warned_before_s
from launcher.places.batch.job.guard import ENDS_WITH_0
from launcher.places.slurm.queries.nodes import hostlist, is_in_hostlist
from launcher.plan.model import Plan
from launcher.plan.on_hosts import AlikeHosts, HostShare, alike_hosts, hosts_asked, most_of_a_host

# What becomes of a value with one of these is sbatch's guess, and a new line would be shell.
_UNQUOTABLE = ("\n", "\r", "\0")
_LIMIT_SIGNAL = "USR1"
# A warning signal would end the watchdog while its Python starts.
_DEAF = "trap '' USR1 USR2"
# Slurm takes these of the first component for all.
_OF_THE_JOB = frozenset(
    ("comment", "open-mode", "output", "chdir", "signal", "requeue", "mail-user", "mail-type", "no-kill", "hold")
)


def options(
    plan: Plan,
    submit_token: SubmitToken,
    output: str,
    hosts_to_avoid: Sequence[str] = (),
    dependency: str = "",
    *,
    expedites: bool = False,
) -> dict[str, str | bool]:
    """Return sbatch's long options for the plan, without their dashes; an option without a value is True. Raise
    ValueError if a value has characters that cannot stand in a script's line.

    `output` is the file for the batch process's output; `hosts_to_avoid` are excluded; `dependency` is the value of
    --dependency, or ""; `expedites` adds the option by which Slurm, after the loss of a node, requeues the job at once,
    as the first in the queue.
    """
    spec, slurm, resources = plan.spec, plan.spec.slurm, plan.spec.resources
    fewest, most = plan.nodes_min, plan.nodes_max
    first, *others = components(plan, is_array=submit_token.array is not None)
    found: dict[str, str | bool | None] = {
        **_start_conditions(plan, dependency),
        "job-name": plan.run_id if submit_token.array is None else plan.name,
        "nodes": str(len(first.hosts)) if others else nodes_asked(plan),
        # With a range Slurm would take it for the wish to have no more nodes than tasks, and give the fewest.
        "ntasks-per-node": "1" if fewest == most else None,
        **_each_node(plan, first.share),
        "time": None if resources.time_s is None else str(max(1, math.ceil(resources.time_s / 60))),
        "signal": f"B:{_LIMIT_SIGNAL}@{math.ceil(signal_before_s(plan))}",
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodelist": ",".join(slurm.nodelist) or None,
        "exclude": hostlist(left_out(plan, hosts_to_avoid)) or None,
        "mail-user": slurm.mail_user,
        "mail-type": ",".join(slurm.mail_type) or None,
        "requeue": "expedite" if expedites else True,
        "no-kill": outlives_a_node(plan) or None,
        "open-mode": "append",
        "output": output,
        "chdir": "/",
    }
    extra = {name: value or True for name, value in slurm.extra.items()}
    note = extra.pop("comment", None)
    found["comment"] = submit_token.mark if note in (None, True) else f"{submit_token.mark} {note}"
    if submit_token.array is not None:
        at_once = f"%{spec.queue.max_parallel}" if spec.queue.max_parallel else ""
        found["array"] = f"0-{submit_token.array - 1}{at_once}"
    chosen = {**extra, **{name: value for name, value in found.items() if value is not None}}
    for name, value in chosen.items():
        if isinstance(value, str) and any(sign in value for sign in _UNQUOTABLE):
            raise ValueError(f"--{name}: expected one line, got {value!r}")
    return chosen


def components(plan: Plan, *, is_array: bool) -> list[AlikeHosts]:
    """Return the components of the job: several, each of equal nodes, if the plan's nodes differ (a heterogeneous job),
    else one.

    An array, or a job with named nodes, has one component, whose nodes get the most that any of them needs: Slurm has
    no arrays of heterogeneous jobs, and a named node could be of any component.
    """
    if is_array or plan.spec.slurm.nodelist or len(found := alike_hosts(plan)) == 1:
        return [AlikeHosts(range(hosts_asked(plan)), most_of_a_host(plan))]
    return found


def _each_node(plan: Plan, share: HostShare) -> dict[str, str | bool | None]:
    """Return the sbatch options for the CPUs, GPUs and memory of each node; None for an option that is not set. `share`
    has how many CPUs and GPUs and how much memory of a node the job takes.
    """
    memory = None if share.memory_gb is None else f"{math.ceil(share.memory_gb * 1000)}M"
    return {"cpus-per-task": str(share.cpus), "gres": gres_of(plan, share), "mem": memory}


def _further(plan: Plan, submit_token: SubmitToken, chosen: Mapping[str, str | bool]) -> list[dict[str, str | bool]]:
    """Return the sbatch options of each component after the first, whose options are `chosen`. Only a job whose nodes
    differ in what they need has several components (a heterogeneous job); for any other the list is empty.
    """
    found = []
    for one in components(plan, is_array=submit_token.array is not None)[1:]:
        own = {"nodes": str(len(one.hosts)), **_each_node(plan, one.share)}
        usual = {name: value for name, value in chosen.items() if name not in _OF_THE_JOB and name not in own}
        found.append(usual | {name: value for name, value in own.items() if value is not None})
    return found


def _start_conditions(plan: Plan, dependency: str) -> dict[str, str | bool | None]:
    """Return the sbatch options that delay the start (hold, begin, nice, dependency), by name: True is a flag, and None
    an option that is not used. `dependency` is the value of --dependency, such as `afterok:123`, or "".
    """
    queue, at = plan.spec.queue, plan.starts_at
    return {
        "hold": queue.hold or None,
        "begin": None if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)),
        "nice": str(-queue.priority) if queue.priority else None,
        "dependency": dependency or None,
        "kill-on-invalid-dep": "yes" if dependency else None,
    }


def left_out(plan: Plan, hosts_to_avoid: Sequence[str]) -> list[str]:
    """Return the nodes that the job must not get: those that the spec excludes, and `hosts_to_avoid`.

    A node that the spec requires is not among them, because Slurm would refuse such a job or never start it.
    """
    slurm = plan.spec.slurm
    free = [host for host in hosts_to_avoid if not any(is_in_hostlist(host, text) for text in slurm.nodelist)]
    return list(dict.fromkeys((*slurm.exclude, *free)))


def outlives_a_node(plan: Plan) -> bool:
    """Return whether the job is to continue when it loses a node, because it has spares or may shrink."""
    return plan.nodes_min < plan.nodes_max or plan.spec.recovery.spares > 0


def fewest_nodes(plan: Plan) -> int:
    """Return the number of nodes that the job needs to start: the minimum if the spec gives a range, else all nodes and
    the spares.
    """
    return plan.nodes_min if plan.nodes_min < plan.nodes_max else hosts_asked(plan) + plan.spec.recovery.spares


def gres_of(plan: Plan, share: HostShare) -> str | None:
    """Return the value of --gres for each node: the spec's or, without one, the number of GPUs in `share`, which is
    what the run needs on a node; None if it needs none.
    """
    return plan.spec.slurm.gres or (f"gpu:{share.gpus}" if share.gpus else None)


def signal_before_s(plan: Plan) -> float:
    """Return how many seconds before its time limit the run is warned by a signal: the spec's `slurm.signal_before`,
    but at most half of the limit, and ten seconds at least.
    """
    return warned_before_s(plan.spec.resources.time_s, plan.spec.slurm.signal_before_s)


def script_of(
    plan: Plan,
    submit_token: SubmitToken,
    where: Path,
    avoid: Sequence[str],
    dependency: str = "",
    *,
    expedites: bool = False,
) -> str:
    """Return the batch script for sbatch, with the submit token, by which the job can be found again.

    `where` is the folder that the batch process gets as its argument, and in which its first output is written; the
    nodes in `avoid` are excluded; `dependency` is the value of --dependency, or ""; with `expedites` Slurm, after the
    loss of a node, requeues the job at once, as the first in the queue.
    """
    chosen = options(plan, submit_token, _output(submit_token, str(where)), avoid, dependency, expedites=expedites)
    # Slurm puts an expedited job that exits otherwise back, too, and holds it: one for each run that has failed.
    always_0 = f" {ENDS_WITH_0}" if expedites else ""
    command = f"{_DEAF}\n{batch_command('slurm', where, guarded=True)}{always_0}"
    return render(chosen, command, _further(plan, submit_token, chosen))


def _output(submit_token: SubmitToken, folder: str) -> str:
    """Return sbatch's pattern for the path of the file in `folder` that gets the batch process's output before it has a
    log of its own: one file for each job or, if the submit token is an array's, for each of the array's jobs.

    Return /dev/null if sbatch cannot write into a folder of this name.
    """
    if any(sign in folder for sign in "\\\n\r"):
        return os.devnull  # neither sbatch nor the patterns of its file names have a way to write these
    name = "slurm-%j.out" if submit_token.array is None else "slurm-%A_%a.out"
    return f"{folder.replace('%', '%%')}/{name}"  # in a folder's own name a % is no pattern


def render(chosen: Mapping[str, str | bool], command: str, further: Sequence[Mapping[str, str | bool]] = ()) -> str:
    """Return the whole script as it is passed to sbatch, with the options `chosen` and the one command to run. In a
    heterogeneous job `further` has the options of each component after the first.
    """
    from launcher.places.slurm.executor import SbatchExecutor  # late: submitit's 130 ms only a submit has to pay

    # Of what submitit quotes for a shell sbatch still takes each backslash for an escape.
    safe = {name: value.replace("\\", r"\\") if isinstance(value, str) else value for name, value in chosen.items()}
    text = SbatchExecutor(safe, command).text()
    last = [*_directives(text).values()][-1]
    others = [line for one in further for line in ("#SBATCH hetjob", *_lines_of(one, chosen))]
    return text.replace(last, "\n".join([last, *others]), 1)


def _lines_of(component: Mapping[str, str | bool], chosen: Mapping[str, str | bool]) -> list[str]:
    """Return the #SBATCH lines for `component`, the options of a heterogeneous job's component after the first.

    submitit formats only whole scripts. So it also gets the options of the first component, `chosen`, that `component`
    does not set, and their lines are left out of the result.
    """
    found = _directives(render({**chosen, **component}, "true"))
    return [line for name, line in found.items() if name in component]


def _directives(text: str) -> dict[str, str]:
    """Return the #SBATCH lines of a script, each whole, by the name of the option that it sets (without dashes)."""
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {line.removeprefix("#SBATCH --").partition("=")[0]: line for line in lines}
