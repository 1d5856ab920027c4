"""The command lines of scontrol and sinfo about nodes and partitions, and the parsing of their output. Functions for a
command about named hosts raise ValueError for a name that it could take for an option.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from launcher.places.slurm.queries.values import (
    FIELD,
    ROW,
    read_duration,
    read_fields,
    read_number,
    read_rows,
    read_time,
    read_word,
)

_NODE_FORMAT = ("%N", "%P", "%T", "%c", "%m", "%G", "%E")
_PARTITION_FORMAT = ("%P", "%a", "%l", "%L", "%F")


class Node(msgspec.Struct, frozen=True):
    """A node; from sinfo, once for each of its partitions. Unknown values are empty or 0.

    `state` are the words of its state, `default` tells whether `partition` is Slurm's default, and `taken_gpus` and
    `taken_cpus` are in use by jobs.
    """

    name: str
    state: tuple[str, ...]
    cpus: int
    memory_mb: int
    gres: str  # its generic resources, such as `gpu:a100:4`
    gpus: int
    reason: str  # the administrator's, for its state
    partition: str = ""  # from sinfo: the one of its partitions for which this row stands
    default: bool = False  # `partition` is Slurm's default
    address: str = ""
    booted_at: float | None = None  # Unix time
    taken_gpus: int = 0  # in use by jobs
    taken_cpus: int = 0  # in use by jobs
    partitions: tuple[str, ...] = ()  # from scontrol: all its partitions

    @property
    def is_down(self) -> bool:
        """Return whether Slurm has given the node up: a word of its state is DOWN, NOT_RESPONDING, FAIL or ERROR. A
        drained node, or one that has not reported since its boot, need not be down.
        """
        return not _DOWN.isdisjoint(self.state)

    @property
    def is_drained(self) -> bool:
        """Return whether the node takes no new jobs because it is drained or draining."""
        return not _DRAINED.isdisjoint(self.state)

    @property
    def takes_jobs(self) -> bool:
        """Return whether every word of the node's state is one of a usable node; an unknown word makes the answer
        False.
        """
        return bool(self.state) and _UP.issuperset(self.state)


_DOWN = frozenset({"DOWN", "NOT_RESPONDING", "FAIL", "ERROR"})
_DRAINED = frozenset({"DRAIN", "DRAINING", "DRAINED"})
_UP = frozenset({
    "IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN", "POWERING_UP",
})  # fmt: skip


class Partition(msgspec.Struct, frozen=True):
    """A partition's time limits (`math.inf` for none, None if unknown), and how many of its nodes exist and are
    idle.
    """

    name: str
    default: bool  # jobs go there that name no partition
    availability: str  # up, down, drain, inact
    max_time_s: float | None
    default_time_s: float | None
    idle_nodes: int
    nodes: int


def show_hostnames(hostlist: str) -> list[str]:
    """Return the command that expands a list such as `node[00-03,7]` into names; for an allocation the first host comes
    first.
    """
    return ["scontrol", "show", "hostnames", _operand(hostlist)]


def read_hostnames(text: str) -> list[str]:
    """Return one name from each line; lines that cannot be a name, which scontrol prints for damaged lists, are left
    out.
    """
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", line)]


def hostlist(hosts: Iterable[str]) -> str:
    """Return the hosts as Slurm takes them, with `node[001-128]` for three or more that follow each other.

    A list of ten thousand names would be longer than an argument of a program may be.
    """
    runs = list[list[str]]()
    for host in hosts:
        if runs and _follows(runs[-1][-1], host):
            runs[-1].append(host)
        else:
            runs.append([host])
    return ",".join(_range(run) if len(run) >= _LEAST_IN_A_RANGE else ",".join(run) for run in runs)


def _follows(before: str, host: str) -> bool:
    """Return whether the host's name is the one before with a number that is larger by one."""
    (start, first), (same, second) = _NUMBERED.findall(before)[0], _NUMBERED.findall(host)[0]
    whole = _DIGITS.fullmatch(first) and _DIGITS.fullmatch(second)
    return bool(start == same and whole and second == str(int(first) + 1).zfill(len(first)))


def _range(run: Sequence[str]) -> str:
    """Return names with consecutive numbers as one name with a range: `n[1-3]` for n1, n2, n3."""
    start, first = _NUMBERED.findall(run[0])[0]
    return f"{start}[{first}-{run[-1][len(start) :]}]"


def is_in_hostlist(host: str, text: str) -> bool:
    """Return whether the host is among the names in a list such as `node[00-03,7]`."""
    return any(_fits_ranges(host, part) for part in re.split(r",(?![^\[]*\])", text))


def _fits_ranges(host: str, part: str) -> bool:
    """Return whether the host's name fits `part`, a name with ranges in brackets such as `node[00-03]`."""
    pieces = re.split(r"\[([^\]]*)\]", part)  # text, and between the texts ranges
    found = re.fullmatch("([0-9]+)".join(map(re.escape, pieces[::2])), host)
    return found is not None and all(map(_is_in_ranges, found.groups(), pieces[1::2]))


def _is_in_ranges(number: str, ranges: str) -> bool:
    """Return whether the number is in ranges such as `00-03,7` and has as many digits as the range's first number."""
    for first, _, last in (one.partition("-") for one in ranges.split(",")):
        known = _DIGITS.fullmatch(first) and _DIGITS.fullmatch(last or first)
        if known and int(first) <= int(number) <= int(last or first) and number == str(int(number)).zfill(len(first)):
            return True
    return False


_DIGITS = re.compile(r"[0-9]{1,9}")
_NUMBERED = re.compile(r"\A(.*?)([0-9]*)\Z")  # a host's name: what comes before its last number, and that
_LEAST_IN_A_RANGE = 3


def show_nodes(hosts: Sequence[str] = (), *, details: bool = False) -> list[str]:
    """Return the command for the records of these nodes, or of all. If one is unknown, it exits with 1 and shows the
    others.

    `details` adds how much of each node's generic resources (GRES) is in use.
    """
    more = ["--details"] if details else []
    return ["scontrol", "--oneliner", *more, "show", "node", *([_operand(hostlist(hosts))] if hosts else [])]


def read_nodes(text: str) -> dict[str, Node]:
    """Return the nodes in the output of `show_nodes`, by name."""
    found = (_node(line) for line in text.splitlines() if re.match(r"NodeName=\S", line))
    return {node.name: node for node in found}


_SIGNED = re.compile(r" \[[^\s\[\]@]+@[^\s\[\]]+\].*")  # who gave a reason and when, and what stands behind it


def _node(line: str) -> Node:
    """Return the node in a line of scontrol's output."""
    head, _, free = line.partition(" Reason=")  # what administrators write comes last, and may look like fields
    fields = read_fields(head)
    name, gres = fields["NodeName"], read_word(fields.get("Gres", ""))
    return Node(
        name=name,
        state=read_node_state(fields.get("State", "")),
        cpus=read_number(fields.get("CPUTot", "")) or 0,
        memory_mb=read_number(fields.get("RealMemory", "")) or 0,
        gres=gres,
        gpus=gpu_count(gres),
        reason=_SIGNED.sub("", free).strip(),
        address=read_word(fields.get("NodeAddr", "")) or name,
        booted_at=read_time(fields.get("BootTime", "")),
        taken_gpus=gpu_count(read_word(fields.get("GresUsed", ""))),
        taken_cpus=read_number(fields.get("CPUAlloc", "")) or 0,
        partitions=tuple(filter(None, read_word(fields.get("Partitions", "")).split(","))),
    )


def partition_nodes(partition: str | None = None) -> list[str]:
    """Return the sinfo command that lists every node of a partition, or of all partitions for None. For an unknown
    partition, sinfo lists no node and reports no error.
    """
    return ["sinfo", "--noheader", "--Node", *_partition_option(partition), f"--format={FIELD.join(_NODE_FORMAT)}{ROW}"]


def read_partition_nodes(text: str) -> list[Node]:
    """Return the nodes in the output of `partition_nodes`, each once for each of its partitions."""
    return [
        Node(
            name=name,
            state=read_node_state(state),
            cpus=read_number(cpus.rstrip("+")) or 0,
            memory_mb=read_number(memory.rstrip("+")) or 0,
            gres=read_word(gres),
            gpus=gpu_count(gres),
            reason=read_word(reason),
            partition=partition.removesuffix("*"),
            default=partition.endswith("*"),
        )
        for name, partition, state, cpus, memory, gres, reason in read_rows(text, len(_NODE_FORMAT), _ANY)[0]
    ]


def partitions(partition: str | None = None) -> list[str]:
    """Return the sinfo command that shows a partition's time limits, its numbers of nodes by state, and whether it
    takes jobs; None stands for all partitions. `read_partitions` reads the output.
    """
    return ["sinfo", "--noheader", *_partition_option(partition), f"--format={FIELD.join(_PARTITION_FORMAT)}{ROW}"]


def read_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of `partitions`; a star marks Slurm's default."""
    found = []
    for name, availability, longest, usual, counts in read_rows(text, len(_PARTITION_FORMAT), _ANY)[0]:
        numbers = [read_number(part) or 0 for part in counts.split("/")]  # allocated/idle/other/total
        found.append(
            Partition(
                name=name.removesuffix("*"),
                default=name.endswith("*"),
                availability=availability,
                max_time_s=read_duration(longest),
                default_time_s=read_duration(usual),
                idle_nodes=numbers[1] if len(numbers) == 4 else 0,
                nodes=numbers[-1],
            )
        )
    return found


_NODE_MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "!": "POWER_DOWN",
    "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip


def read_node_state(text: str) -> tuple[str, ...]:
    """Return the words of a state in capitals, each once: MIXED and DRAIN for `MIXED+DRAIN`. A mark behind a word
    becomes a word of its own: DOWN and NOT_RESPONDING for `down*`.
    """
    words: list[str] = []
    for part in text.upper().split("+"):
        stem = part.strip().rstrip("".join(_NODE_MARKS))
        words += [stem] if stem else []
        words += [_NODE_MARKS[mark] for mark in part.strip()[len(stem) :]]
    return tuple(dict.fromkeys(words))


def gpu_count(gres: str) -> int:
    """Return the number of GPUs in a node's generic resources: 4 for `gpu:a100:4(S:0-1),mps:400`."""
    count = 0
    for entry in re.sub(r"\([^()]*\)", "", gres).split(","):
        kind, *more = entry.strip().split(":")
        number = read_number(more[-1]) if more else None
        if kind == "gpu":
            count += 1 if number is None else number
    return count


_ANY = re.compile(r".+")


def _operand(text: str) -> str:
    """Return a list of hosts, checked so that a command cannot take it for an option; raise ValueError if it could."""
    if not text or text.startswith("-"):
        raise ValueError(f"expected a list of hosts, got {text!r}")
    return text


def _partition_option(partition: str | None) -> list[str]:
    """Return sinfo's option for the partition, or an empty list for None."""
    return [] if partition is None else [f"--partition={partition}"]
