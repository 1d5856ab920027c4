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

    cpus: int
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them
    apart: bool = False  # each node is such a machine; else one machine plays them all
    asked_gpus: int | None = None  # how many of them the job asks for in words that only the cluster knows: slurm.gres
    own_python: bool = False  # its nodes have interpreters of their own: the one that submits need not exist there
    disks_apart: bool = False  # each node has a disk of its own for the run
    elects: bool = False  # its nodes choose another leader where the one that they have falls silent
    interface: str | None = None  # the network interface by which nodes reach each other, where the spec names one
    nodes: int | None = None  # how many nodes there are, where they are known to be all
    limit_per_job: bool = False  # it ends each job at resources.time, and the run goes on in the next one


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
    imports: Collection[str]  # dotted names that the entry needs and the code does not have; "*": cannot tell
    module_found: bool  # whether run.module can be imported from the code or from the interpreter
    own_folders: tuple[str, ...] = ()  # of them: where its own packages are imported from
    not_python: str = ""  # where and why the entry cannot be compiled: train.py:7: '(' was never closed
    lacking: tuple[Misfit, ...] = ()  # modules that the entry needs and the interpreter here surely does not have


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The identity of a new run: its id, cluster and paths. `defaults` are the cluster's values for options of the
    spec, as YAML; `repeat` is its number among several runs of one spec, and `umask` that of its user.
    """

    run_id: RunId
    run_dir: str  # absolute
    cluster: str
    cluster_kind: str
    spec_file: str  # absolute
    submitted_at: float
    defaults: tuple[tuple[str, str], ...] = ()  # options of the spec as this cluster has them, as YAML
    repeat: int | None = None  # which of several runs of one spec
    umask: int | None = None  # of who submits it
