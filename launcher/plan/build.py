"""Build a Plan from a JobSpec, the cluster and the code, or return every reason why it cannot work. Pure. Below,
`machine` describes a node of the cluster (or this machine, which plays all nodes of a local run), and `project` is the
code as it will be frozen.
"""

import dataclasses
import posixpath
from collections.abc import Collection

from msgspec.structs import replace

from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.model import FrozenCode, NodePlan, Plan, RankCommand
from launcher.plan.preload import preload_for, surely_on_cpu
from launcher.spec.kinds.queueing import moment
from launcher.spec.model import Budget, JobSpec, Resources

REPEAT = "LAUNCH_REPEAT"  # tells the ranks of a repeated run which one it is


def check(spec: JobSpec, machine: Machine, project: Project, unset_secrets: Collection[str]) -> list[Misfit]:
    """Return every problem of the spec on this machine; a plan can be built if the list is empty.

    `unset_secrets` are the names of secrets that have no value.
    """
    return [
        *check_code(spec, project, own_python=machine.own_python),
        *(() if machine.apart else project.lacking),
        *_device_problems(spec.resources, without_unasked_gpus(spec, machine, project)),
        *_node_problems(spec, machine),
        *secret_problems(unset_secrets),
    ]


def crowded(resources: Resources, machine: Machine) -> str:
    """Return a warning if the one machine that plays all nodes has fewer cores than the ranks of all nodes, with
    `cpus_per_rank` threads each, would keep busy; else "".
    """
    ranks, threads = ranks_per_node(resources, machine) * resources.nodes.max, resources.cpus_per_rank or 1
    if machine.apart or ranks * threads <= machine.cpus:
        return ""
    what = f"{ranks} ranks" + (f" with {threads} threads each" if threads > 1 else "")
    return f"{what} take turns on the {machine.cpus} cores of this machine"


def secret_problems(unset: Collection[str]) -> list[Misfit]:
    """Return one problem for each name in `unset`, the secrets without a value."""
    hint = "export {0}=... before you submit, or name a file: `- {0}: path/to/file`"
    return [Misfit("secrets", f"{name} is not set", hint.format(name)) for name in unset]


def build(
    spec: JobSpec,
    overrides: tuple[str, ...],
    place: RunIdentity,
    machine: Machine,
    project: Project,
    code: FrozenCode,
    python: str,
) -> Plan:
    """Return the plan of a spec in which `check` found no problem.

    `overrides` are the values of --set, `place` is the new run's identity, `machine` describes the cluster's nodes,
    `project` is the code as it will be imported and `code` its frozen copy, and `python` the interpreter of its ranks.
    """
    resources, machine = spec.resources, without_unasked_gpus(spec, machine, project)
    gpus = gpus_per_node(resources, machine)
    ranks = ranks_per_node(resources, machine)
    cpus = resources.cpus_per_rank or _cpus_per_rank(resources, machine, gpus, ranks)
    which = {} if place.repeat is None else {REPEAT: str(place.repeat)}
    return Plan(
        run_id=place.run_id,
        name=spec.name,
        cluster=place.cluster,
        cluster_kind=place.cluster_kind,
        submitted_at=place.submitted_at,
        spec_file=place.spec_file,
        project=project.path,
        run_dir=place.run_dir,
        workdir=posixpath.normpath(posixpath.join("code", spec.run.workdir)),
        spec=_with_time_limit_budget(spec, machine),
        overrides=overrides,
        defaults=place.defaults,
        entry=_entry(spec, project, python),
        setup=spec.run.setup,
        nodes=_nodes(resources.nodes.max, spec.recovery.spares, gpus, machine),
        nodes_min=resources.nodes.min,
        nodes_max=resources.nodes.max,
        ranks_per_node=ranks,
        cpus_per_rank=cpus,
        gpus_per_node=gpus,
        env={"OMP_NUM_THREADS": str(cpus), **spec.env, **which},
        secrets=tuple(secret.name for secret in spec.secrets),
        code=code,
        disks_apart=machine.disks_apart,
        elects=machine.elects,
        limit_per_job=machine.limit_per_job,
        interface=machine.interface,
        one_machine=not machine.apart,
        own_folders=project.own_folders,
        umask=place.umask,
        starts_at=None if spec.queue.at is None else moment(spec.queue.at, place.submitted_at),
    )


def repeat_of(plan: Plan) -> int | None:
    """Return the run's index, from 0, among the runs that one `launch submit --repeat` started, or None for any other
    run.
    """
    which = plan.env.get(REPEAT)
    return None if which is None else int(which)


def without_unasked_gpus(spec: JobSpec, machine: Machine, project: Project) -> Machine:
    """Return the machine; with `asked_gpus` 0, so that ranks get none of its GPUs, if the spec is for a batch job that
    certainly uses none.

    That is so if the spec states the number of ranks, requests no GPUs, and runs a script or module, without `preload`,
    that imports nothing which could use a GPU.
    """
    resources = spec.resources
    auto = resources.gpus_per_node is None and machine.asked_gpus is None and machine.limit_per_job
    known = spec.run.command is None and spec.run.preload is None
    if auto and known and resources.ranks_per_node is not None and surely_on_cpu(project.imports):
        return dataclasses.replace(machine, asked_gpus=0)
    return machine


def gpus_per_node(resources: Resources, machine: Machine) -> int:
    """Return the number of GPUs per node: the spec's, else that which slurm.gres requests, else all of the machine's.

    In the last case, if the machine plays several nodes, each gets an equal share of its GPUs, rounded down.
    """
    if resources.gpus_per_node is not None:
        return resources.gpus_per_node
    if machine.asked_gpus is not None:
        return machine.asked_gpus
    return len(machine.gpus) if machine.apart else len(machine.gpus) // resources.nodes.max


def ranks_per_node(resources: Resources, machine: Machine) -> int:
    """Return the ranks per node: the spec's number, else one per GPU or, if there are no GPUs, the spec's
    `resources.ranks_without_gpus`.
    """
    if resources.ranks_per_node is not None:
        return resources.ranks_per_node
    return gpus_per_node(resources, machine) or resources.ranks_without_gpus


def _cpus_per_rank(resources: Resources, machine: Machine, gpus: int, ranks: int) -> int:
    """Return the CPUs per rank, at least 1, for `gpus` GPUs and `ranks` ranks on each node.

    If one machine plays all nodes, it is an equal share of the cores. Else it is a share in proportion to the part of
    the node's GPUs that the job has, or 1 if it has none.
    """
    if not machine.apart:
        return max(1, machine.cpus // (ranks * resources.nodes.max))
    return max(1, machine.cpus * gpus // len(machine.gpus) // ranks) if gpus and machine.gpus else 1


def _with_time_limit_budget(spec: JobSpec, machine: Machine) -> JobSpec:
    """Return the spec with a default for `recovery.time_limit`, the number of restarts after a job has reached its time
    limit: unlimited if the cluster limits each job, so that the run continues in the next job, else 0.
    """
    if spec.recovery.time_limit is not None:
        return spec
    budget = Budget(None) if machine.limit_per_job else Budget(0)
    return replace(spec, recovery=replace(spec.recovery, time_limit=budget))


def _entry(spec: JobSpec, project: Project, python: str) -> RankCommand:
    """Return the command that starts each rank with the interpreter `python`, from the script, module or command that
    the spec names; the imports of `project` decide which modules are preloaded.
    """
    run = spec.run
    preload = preload_for(spec, project.imports)
    if run.script is not None:
        return RankCommand("script", _in_code(spec, run.script), run.args, python, preload)
    if run.module is not None:
        return RankCommand("module", run.module, run.args, python, preload)
    if isinstance(run.command, str):
        text = f'{run.command} "$@"' if run.args else run.command
        return RankCommand("command", "/bin/sh", ("-c", text, "sh", *run.args), python, ())
    program, *rest = run.command or ()
    return RankCommand("command", program, (*rest, *run.args), python, ())


def _in_code(spec: JobSpec, path: str) -> str:
    """Return a path from the spec, which is relative to run.workdir, as one relative to the code's root."""
    return posixpath.normpath(posixpath.join(spec.run.workdir, path))


def _nodes(nodes: int, spares: int, gpus: int, machine: Machine) -> tuple[NodePlan, ...]:
    """Return the plans of `nodes` nodes and `spares` spares.

    They are unnamed if the cluster chooses machines later. If this machine plays all nodes, each has a loopback address
    and `gpus` GPUs of its own; a spare has those of the first node. No GPUs are listed if a single node gets all.
    """
    if machine.apart:
        return tuple(NodePlan(index, "", spare=index >= nodes, gpus=None) for index in range(nodes + spares))
    devices = machine.gpus
    shared_out = nodes > 1 or gpus < len(devices)

    def of_node(index: int) -> tuple[str, ...] | None:
        """Return the GPUs of a node, or None if the node itself chooses them."""
        if not devices or not shared_out:
            return None
        first = (index if index < nodes else 0) * gpus  # a spare takes over the devices of whom it stands in for
        return devices[first : first + gpus]

    return tuple(
        NodePlan(index, f"127.0.0.{index + 1}", spare=index >= nodes, gpus=of_node(index))
        for index in range(nodes + spares)
    )


def check_code(spec: JobSpec, project: Project, *, own_python: bool = False) -> list[Misfit]:
    """Return every problem of the spec with this code, such as a missing script.

    `own_python` says that the ranks' interpreter is on other machines, where it cannot be examined.
    """
    run = spec.run
    folders = {posixpath.dirname(file) for file in project.files}
    inside = posixpath.normpath(run.workdir)
    if inside != "." and not any(folder == inside or folder.startswith(f"{inside}/") for folder in folders):
        return [Misfit("run.workdir", f"no folder {run.workdir!r} in {project.path}")]
    if run.script is not None and _in_code(spec, run.script) not in project.files:
        return [_no_script(_in_code(spec, run.script), inside, project)]
    if project.not_python and not own_python:
        key = "run.script" if run.script is not None else "run.module"
        return [Misfit(key, project.not_python, "the ranks' interpreter would say the same")]
    if run.module is not None and not project.module_found and not own_python:
        hint = f"modules are looked for in {project.path} and in the interpreter that runs the job"
        return [Misfit("run.module", f"no module named {run.module!r}", hint)]
    return []


def _no_script(path: str, workdir: str, project: Project) -> Misfit:
    """Return the problem that the script at `path` is not among the code, with a near miss as its hint.

    `path` and `workdir`, the folder in which ranks start, are relative to the code's root.
    """
    same_name = sorted(file for file in project.files if posixpath.basename(file) == posixpath.basename(path))
    below = [near for file in same_name if not (near := posixpath.relpath(file, workdir)).startswith("../")]
    if below:
        hint = f"did you mean {below[0]}?"
    elif same_name:
        hint = f"it begins at run.workdir, and {same_name[0]} is not below that"
    else:
        hint = "paths are relative to that folder"
    return Misfit("run.script", f"no file {path!r} among the frozen code of {project.path}", hint)


def _node_problems(spec: JobSpec, machine: Machine) -> list[Misfit]:
    """Return a problem if the job asks for more nodes than the cluster has and would never start, else an empty
    list.
    """
    nodes, spares = spec.resources.nodes, spec.recovery.spares
    least = nodes.min + (spares if nodes.min == nodes.max else 0)
    if machine.nodes is None or least <= machine.nodes:
        return []
    asked = f"asks for {least}" + (f", {spares} of them spares" if spares and least != nodes.min else "")
    there = "1 node" if machine.nodes == 1 else f"{machine.nodes} nodes"
    hint = "another slurm.partition may have more: `sinfo` shows them"
    return [Misfit("resources.nodes", f"{asked}, but there are {there}", hint)]


def _device_problems(resources: Resources, machine: Machine) -> list[Misfit]:
    """Return a problem if the job asks for GPUs that the machine does not have, for another number of them in
    `gpus_per_node` than in `slurm.gres`, or for more ranks than GPUs; else an empty list.
    """
    here = len(machine.gpus)
    wanted, asked, nodes = resources.gpus_per_node, machine.asked_gpus, resources.nodes.max
    if wanted is not None and asked and wanted != asked:
        hint = "leave out one of the two: without gpus_per_node it is what slurm.gres asks for"
        return [Misfit("resources.gpus_per_node", f"is {wanted}, but slurm.gres asks for {asked} on each node", hint)]
    if wanted is None and asked is not None and asked > here:
        return [Misfit("slurm.gres", f"asks for {asked} GPUs, but no node there has more than {here}")]
    if wanted is not None and machine.apart and wanted > here:
        return [Misfit("resources.gpus_per_node", f"asks for {wanted}, but no node there has more than {here}")]
    if wanted is not None and not machine.apart and wanted * nodes > here:
        each = f"{nodes} nodes with {wanted} each" if nodes > 1 else str(wanted)
        return [Misfit("resources.gpus_per_node", f"asks for {each}, but this machine has {here}")]
    gpus, ranks = gpus_per_node(resources, machine), resources.ranks_per_node
    if ranks is not None and 0 < gpus < ranks:
        hint = "set ranks_per_node: auto for one rank on each GPU, or gpus_per_node: 0 to run without"
        return [Misfit("resources.ranks_per_node", f"{ranks} ranks would share {gpus} GPUs", hint)]
    return []
