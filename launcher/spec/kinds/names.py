"""Kinds of names: of variables, secrets, jobs and Slurm options. A kind reads one form of value from a node of the YAML
tree, describes it in messages, and gives its JSON Schema.
"""

import re

from msgspec import Struct

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.kinds.text import Text, any_path
from launcher.spec.model import Secret
from launcher.spec.problems import Gather, Wrong, wrong
from launcher.spec.rank_variables import EXPRESSION, misleads
from launcher.spec.tree import Node, Scalar, Sequence, Unusable

JOB_NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_LONGEST_VARIABLE = 256


def job_name() -> Text:
    """Return the kind of value for a job's name: a to z, digits, `_` and `-`, at most 63 characters. A refused name's
    message has a valid one like it.
    """
    return Text("a name of a-z, 0-9, _ and -, at most 63 long", JOB_NAME, cure=_job_name_like)


def _job_name_like(text: str) -> str:
    """Return a hint with a valid job name that resembles the text, or "" if no character of the text can be kept."""
    like = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_")[:63]
    return f"for example {like}" if like else ""


class VariableName(Leaf, frozen=True):
    """The name of an environment variable that the user may set; those that the launcher sets for each rank are
    refused.
    """

    WORDS = "a variable name"
    PATTERN = f"(?!(?:{EXPRESSION})$){_VARIABLE}"

    def convert(self, scalar: Scalar) -> str:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        name = scalar.text
        # Never shown: where a name is expected, a careless paste may have put a secret's value.
        if not re.fullmatch(_VARIABLE, name) or len(name) > _LONGEST_VARIABLE:
            raise Unfit(reason="expected a variable name of letters, digits and _, such as HF_TOKEN")
        if misleads(name):
            raise Unfit(reason=f"{name} is set by the launcher or the cluster, for each rank")
        return name


# sbatch takes any unambiguous beginning of an option, so a beginning of one of these is refused as well.
_OUR_OPTIONS = (
    "account", "array", "batch", "bb", "bbf", "chdir", "clusters", "constraint", "container", "container-id",
    "cpus-per-task", "error", "exclude", "export", "export-file", "get-user-env", "gid", "gres", "help", "input",
    "job-name", "mail-type", "mail-user", "mem", "no-requeue", "nodefile", "nodelist", "nodes", "ntasks",
    "ntasks-per-node", "open-mode", "output", "parsable", "partition", "prefer", "propagate", "qos", "quiet", "requeue",
    "reservation", "signal", "test-only", "time", "uid", "usage", "verbose", "version", "wait", "wrap",
)  # fmt: skip
_OUR_FIELDS = {
    "nodes": "resources.nodes", "time": "resources.time", "mem": "resources.memory_gb", "job-name": "name",
    "cpus-per-task": "resources.cpus_per_rank", "ntasks-per-node": "resources.ranks_per_node", "chdir": "run.workdir",
    "signal": "slurm.signal_before", "mail-user": "slurm.mail_user", "mail-type": "slurm.mail_type",
    "wrap": "run.command", "export": "env", "no-requeue": "recovery.preempted", "requeue": "recovery.preempted",
    **{name: f"slurm.{name}" for name in (
        "account", "constraint", "container", "exclude", "gres", "nodelist", "partition", "qos", "reservation",
    )},
}  # fmt: skip


class SlurmOption(Leaf, frozen=True):
    """The name of a long option of sbatch, without its dashes; options that the launcher writes itself are refused."""

    WORDS = "an option of sbatch without its dashes"
    PATTERN = f"(?!(?:{'|'.join(_OUR_OPTIONS)})$)[a-z][a-z-]*"

    def convert(self, scalar: Scalar) -> str:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        name = scalar.text
        if not re.fullmatch("[a-z][a-z-]*", name):
            bare = name.lstrip("-").replace("_", "-")
            raise Unfit(f"write {bare}" if re.fullmatch("[a-z][a-z-]*", bare) and bare != name else "")
        if name in _OUR_FIELDS:
            raise Unfit(f"use {_OUR_FIELDS[name]}", f"--{name} is written by the launcher")
        ours = next((option for option in _OUR_OPTIONS if option.startswith(name)), None)
        if ours is not None:
            raise Unfit(reason=f"--{ours} cannot be set here")
        return name


_SECRET, _FILE = VariableName(), any_path("the path of a file")


class SecretSource(Struct, frozen=True):
    """A secret: the name of a variable in the submitting environment, or `NAME: path/to/file` with the file that holds
    the variable's value.
    """

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a variable name or `NAME: path/to/file`"

    def parse(self, node: Node) -> Secret:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Scalar | Unusable):
            return Secret(_SECRET.parse(node))
        if isinstance(node, Sequence):
            raise wrong(node, f"expected {self.words()}, got a list")
        if len(node.entries) != 1:
            raise wrong(node, "expected `NAME: path/to/file`", "put a dash before each name")
        (entry,), gather, name = node, Gather(), ""
        try:
            name = _SECRET.parse(entry.key)
        except Wrong as error:
            # Without the name in the key path: it may be a value that was pasted to the wrong place.
            gather.blame(error)
        file = gather.take("file", _FILE.parse, entry.value)
        gather.close()
        return Secret(name, file)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        names, file = _SECRET.schema(), _FILE.schema()
        one = {"minProperties": 1, "maxProperties": 1, "propertyNames": names, "additionalProperties": file}
        return {"anyOf": [names, {"type": "object", **one}]}
