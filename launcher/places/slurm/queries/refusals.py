"""Explain why sbatch refuses a job, and what the user can do, next to Slurm's own message. Pure functions."""

import re

import msgspec

from launcher.places.slurm.queries.reasons import plain

_ASSOCIATIONS = "`sacctmgr show assoc user=$USER format=account,partition,qos` lists what is yours"
_PARTITIONS = "`sinfo` lists what there is"


class _Refusal(msgspec.Struct, frozen=True):
    """A known refusal: a part of Slurm's message (`sign`), its meaning in plain `words`, and what the user can do
    (`cure`).
    """

    sign: str
    words: str
    cure: str


# The first that fits; from Slurm 22.05's own list of errors, and what newer ones say for the same.
_KNOWN = (
    _Refusal(
        "invalid account",
        "its account does not exist, is not yours, or may not use this partition",
        f"set slurm.account to one of yours: {_ASSOCIATIONS}",
    ),
    _Refusal("invalid qos", "its QOS does not exist, or your account or this partition does not allow it",
           f"set slurm.qos to one of yours, or leave it out: {_ASSOCIATIONS}"),
    _Refusal("invalid partition name", "there is no such partition for you", f"set slurm.partition: {_PARTITIONS}"),
    _Refusal("group not permitted", "only members of certain groups may use this partition",
           f"set slurm.partition to another one: {_PARTITIONS}"),
    _Refusal("required partition not available", "its partition takes no jobs now",
           f"set slurm.partition to another one: {_PARTITIONS}"),
    _Refusal("no partition specified", "this site has no default partition", f"set slurm.partition: {_PARTITIONS}"),
    _Refusal("time limit is invalid", "its time limit is missing, or longer than its partition allows",
           "set resources.time: `sinfo -o '%P %l'` lists the limits; the run continues in a new job after each"),
    _Refusal("memory required by task", "asks for more memory on a node than its partition allows",
           "set resources.memory_gb lower: `scontrol show partition` has the limit as MaxMemPerNode or MaxMemPerCPU"),
    _Refusal("memory specification can not be satisfied", "asks for more memory than a node has",
           "set resources.memory_gb lower: `sinfo -o '%P %m'` lists what nodes have, in MB"),
    _Refusal("node count specification invalid", "asks for more, or fewer, nodes than its partition has or allows",
           "set resources.nodes, or recovery.spares, lower: `sinfo -o '%P %D %s'` lists how many there are"),
    _Refusal("more processors requested", "asks for more CPUs on a node than any has",
           "set resources.ranks_per_node or resources.cpus_per_rank lower: `sinfo -o '%P %c'` lists what nodes have"),
    _Refusal("invalid generic resource", "asks for a generic resource that no node has",
           "set slurm.gres: `sinfo -o '%P %G'` lists what nodes have"),
    _Refusal("invalid feature", "asks for a feature that no node has",
           "set slurm.constraint: `sinfo -o '%P %f'` lists what nodes have"),
    _Refusal("reservation is invalid", "its reservation does not exist", "set slurm.reservation: `scontrol show res`"),
    _Refusal("access denied to requested reservation", "its reservation is not for you", "set slurm.reservation"),
    _Refusal("invalid node name", "slurm.nodelist or slurm.exclude names a node that does not exist",
           "`sinfo -N` lists what there is"),
    _Refusal("node configuration is not available", "no node, or not enough of them, has all that it asks for",
           "compare resources, slurm.gres, slurm.constraint, slurm.nodelist and slurm.exclude with `sinfo -N -l`"),
    _Refusal("violates accounting/qos policy", "a limit of your account or QOS forbids it",
           "`sacctmgr show assoc user=$USER` and `sacctmgr show qos` list the limits"),
    _Refusal("user/account not authorized", "your account may not use it", f"set slurm.account: {_ASSOCIATIONS}"),
)  # fmt: skip
_LONGEST = 300
_SAID = re.compile(r"^(?:sbatch: )?(?:error: |fatal: )?(?:Batch job submission failed: |allocation failure: )?")


def refusal(text: str) -> list[str]:
    """Return why sbatch refused a job, given its output: a line in plain words, Slurm's own message, and a hint. An
    unknown message is returned alone.
    """
    said = list(dict.fromkeys(filter(None, (_line(line) for line in text.splitlines()))))
    if not said:
        return ["it does not say why"]
    whole = "\n".join(said).lower()
    known = next((one for one in _KNOWN if one.sign in whole), None)
    if known is None:
        return [said[-1], *said[:-1]]  # what matters most comes last
    return [_which_limit(said) or known.words, f"Slurm says: {'; '.join(said)}", f"hint: {known.cure}"]


def _line(text: str) -> str:
    """Return a line of sbatch's output in printable form, without the prefix that sbatch puts before its messages."""
    return _SAID.sub("", "".join(char if char.isprintable() else " " for char in text[:_LONGEST])).strip()


def _which_limit(said: list[str]) -> str:
    """Return the sentence for the first limit that one of Slurm's lines names, such as `QOSMaxCpuPerUserLimit`, or ""
    if none names a known one.
    """
    named = (plain(line) for line in said if re.fullmatch(r"(?:QOS|Assoc|Max)\w+", line))
    return next((words for words in named if not words.startswith("Slurm says")), "")
