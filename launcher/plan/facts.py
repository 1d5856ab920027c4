"""The facts about a cluster's machines, the user's project and the new run's identity from which a plan is made."""

from collections.abc import Collection
from dataclasses import dataclass

from launcher.ids import RunId


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a cluster, and how its nodes relate: `apart` if each node is a machine, not all played by one;
    `asked_gpus` counted in slurm.gres; `own_python` if nodes have their own interpreters; `disks_apart` without a
    shared disk; `elects` if nodes elect another leader; `nodes` how many exist, if known; `limit_per_job` if
    resources.time limits each job and the run continues in the next.
    """

    cpus: int  # cores of a node
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them
    apart: bool = False  # each node is a machine; else one machine plays all nodes
    asked_gpus: int | None = None  # GPUs per node that slurm.gres asks for; None: it does not
    own_python: bool = False  # nodes have their own interpreters; the submitting one need not exist on them
    disks_apart: bool = False  # each node has a disk of its own for the run
    elects: bool = False  # nodes elect another leader if theirs falls silent
    interface: str | None = None  # the network interface between nodes, if the spec names one
    nodes: int | None = None  # how many nodes exist; None: not known
    limit_per_job: bool = False  # the scheduler ends each job at resources.time, and the run continues in the next job


@dataclass(frozen=True, slots=True)
class Misfit:
    """A problem: a part of the spec that cannot work on the chosen cluster. `key` is its path, such as run.script."""

    key: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """The user's code as it will be frozen. `imports` are modules that the program needs and the code lacks ("*":
    unknown); `module_found` tells whether run.module can be imported, `own_folders` are those that the project's
    packages are imported from, `not_python` is the program's syntax error, and `lacking` has a problem for each module
    that the interpreter surely lacks.
    """

    path: str  # absolute
    files: Collection[str]  # relative paths
    imports: Collection[str]  # modules that the program needs and the code lacks, as dotted names; "*": unknown
    module_found: bool  # whether run.module can be imported from the code or from the interpreter
    own_folders: tuple[str, ...] = ()  # from which the project's own packages are imported
    not_python: str = ""  # the syntax error of the program: train.py:7: '(' was never closed
    lacking: tuple[Misfit, ...] = ()  # a problem for each module that the interpreter here certainly lacks


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The identity of a new run: its id, cluster and paths. `defaults` are the cluster's values for options of the
    spec, as YAML; `repeat` is its index among several runs of one spec, and `umask` that of its user.
    """

    run_id: RunId
    run_dir: str  # absolute
    cluster: str  # `local`, or a name in the clusters file
    cluster_kind: str  # such as slurm or ssh
    spec_file: str  # absolute
    submitted_at: float  # Unix time
    defaults: tuple[tuple[str, str], ...] = ()  # the cluster's values for options of the spec, as YAML
    repeat: int | None = None  # its index, from 0, among several runs of one spec
    umask: int | None = None  # of the user; None: not known
