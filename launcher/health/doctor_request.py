"""The options of one `launch doctor`, the same for every kind of cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import BadInput
from launcher.spec.tree import Scalar
from launcher.spec.yaml_reader import read_tree

OF_THIS_MACHINE = "of this machine"


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """The options of one `launch doctor`: what to check, for which job, and whether to run a trial job.

    `python` is the ranks' interpreter; `defaults` are the cluster's spec options in the clusters file; `health` checks
    only devices; a trial has `nodes` nodes and waits `within_s` for them. `asked` are options of the trial job, such as
    its partition, and `given` the options on the command line, each with the kind of cluster to which it belongs.
    """

    runs_root: Path  # the folder in which runs are stored
    python: str  # the interpreter that would run ranks
    cluster: str = ""  # the user's name for the cluster
    defaults: tuple[tuple[str, str], ...] = ()  # from the clusters file: paths of spec options, and their YAML text
    trial: bool = False  # run a trial job on nodes, or try connections between hosts
    health: bool = False  # check only whether devices compute, store and transfer correctly
    nodes: int | None = None  # number of nodes of the trial
    within_s: float = 60.0  # how long the trial waits for nodes
    asked: Mapping[str, str] = field(default_factory=dict)  # of the trial job: partition, account, qos, interface
    given: Mapping[str, str] = field(default_factory=dict)  # on the command line, and the cluster kind of each

    @property
    def chosen(self) -> dict[str, str]:
        """Return the options of the trial job: those of the clusters file, overridden by the user's."""
        usual = {path.partition(".")[2]: read_tree(text).root for path, text in self.defaults}
        words = {name: one.text for name, one in usual.items() if isinstance(one, Scalar) and not one.is_null}
        return words | dict(self.asked)

    def refuse_all_but(self, *known: str) -> None:
        """Raise BadInput if the command line has an option that is not among `known`, the names (without dashes) of the
        options that the caller's kind of cluster has.
        """
        for name, whose in self.given.items():
            if name not in known:
                place = "" if whose == OF_THIS_MACHINE else " slurm"
                raise BadInput(f"--{name} is {whose}", f"hint: launch doctor{place} --{name}")
