"""What is said of a Slurm site, from what its clients answer. Pure: facts in, findings out."""

import difflib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.clusters.slurm.queries.nodes import Node, Partition
from launcher.clusters.slurm.queries.site import Config
from launcher.doctor.findings import Finding, ok, problem, warning
from launcher.doctor.words import all_of, time_words
from launcher.rundir.file_systems import FileSystem, Reach

_NAMED = 8
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class Rules:
    """What `scontrol show partition` says of a partition, on top of what sinfo does."""

    preempt_mode: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that nodes need to see."""

    path: str
    file_system: FileSystem


# Answers that nobody else reads


def show_partitions() -> list[str]:
    return ["scontrol", "--oneliner", "show", "partition"]


def read_rules(text: str) -> dict[str, Rules]:
    """By the name of the partition."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if name := fields.get("PartitionName"):
            grace = re.fullmatch(r"[0-9]{1,9}", fields.get("GraceTime", ""))
            found[name] = Rules(fields.get("PreemptMode", ""), float(grace[0]) if grace else 0.0)
    return found


def read_ping(text: str) -> dict[str, bool]:
    """Whether each controller is up: `Slurmctld(primary) at control is UP`."""
    found = re.findall(r"^Slurmctld\(\w+\) at (\S+) is (UP|DOWN)", text, re.MULTILINE)
    return {host: state == "UP" for host, state in found}


# The programs and the controller


def sbatch_finding(path: str | None, version: str | None) -> Finding:
    if path is None:
        hint = "run this on a login node of the cluster, or load the module that has Slurm's programs"
        return problem("sbatch", "not on PATH", hint)
    return ok("sbatch", f"{version or 'of unknown version'}, {path}")


def controller_findings(config: Config, took_s: float, up: Mapping[str, bool], client: str | None) -> Iterable[Finding]:
    """`client`: sbatch's version."""
    where = "".join(f" on {host}" for host, well in up.items() if well)
    text = f"cluster {config.cluster or '?'}{where} answers in {took_s * 1000:.0f} ms, version {config.version or '?'}"
    ours, theirs = _release(client), _release(config.version)
    if ours is not None and theirs is not None and ours > theirs:
        hint = "a client must not be newer than the controller: load the module of the controller's version"
        yield warning("controller", f"{text}, which is older than sbatch's {client}", hint)
    else:
        yield ok("controller", text)
    for host in (host for host, well in up.items() if not well):
        yield warning("controller", f"the one on {host} is down", "tell the administrators: nothing is left to step in")


def silence(lines: Sequence[str]) -> Finding:
    """What the client said that got no answer."""
    hint = "runs go on without it; `scontrol ping` shows when it is back"
    hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), hint)
    return problem("controller", lines[0], hint, unreachable=True)


# Partitions and nodes


def partition_findings(
    partitions: Sequence[Partition], rules: Mapping[str, Rules], nodes: Sequence[Node], wanted: str | None
) -> Iterable[Finding]:
    """All of them as a table, and what is wrong with the wanted ones, by default with Slurm's default."""
    yield ok("partitions", str(len(partitions)), _table(partitions, rules, nodes))
    known = {partition.name: partition for partition in partitions}
    for name in strangers(partitions, wanted):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(list(known)[:_NAMED])}"
        yield problem("partition", f"Slurm knows no partition {name!r}", hint)
    chosen = chosen_partitions(partitions, wanted)
    if wanted is None and not chosen:
        yield warning("partition", "none is the default", "name one: slurm.partition in the spec, --partition here")
    for partition in chosen:
        if partition.availability != "up":
            hint = "jobs wait in it until an administrator changes that; slurm.partition names another"
            yield problem("partition", f"{partition.name} is {partition.availability}", hint)
        yield from _node_findings(partition.name, [node for node in nodes if node.partition == partition.name])


def chosen_partitions(partitions: Sequence[Partition], wanted: str | None) -> list[Partition]:
    """Those that a job may go to."""
    if wanted is None:
        return [partition for partition in partitions if partition.default]
    return [partition for partition in partitions if partition.name in wanted.split(",")]


def strangers(partitions: Sequence[Partition], wanted: str | None) -> list[str]:
    """Wanted ones that do not exist."""
    known = {partition.name for partition in partitions}
    return [name for name in (wanted or "").split(",") if name and name not in known]


def _node_findings(partition: str, nodes: Sequence[Node]) -> Iterable[Finding]:
    gone = [node for node in nodes if not node.takes_jobs]
    if not nodes:
        yield problem("nodes", f"{partition} has none", "slurm.partition names another partition")
    elif not gone:
        yield ok("nodes", f"all {len(nodes)} of {partition} take jobs")
    else:
        listed = ", ".join(f"{node.name} ({_why(node)})" for node in gone[:_NAMED])
        more = f", and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        text = f"{len(gone)} of {len(nodes)} of {partition} take no jobs: {listed}{more}"
        hint = "`sinfo -R` shows why; administrators bring them back"
        if len(gone) == len(nodes):
            yield problem("nodes", text, hint)
        elif len(gone) * 10 > len(nodes):
            yield warning("nodes", text, f"{hint}; a run that fits on the others is not touched")
        else:
            yield ok("nodes", text)


def _why(node: Node) -> str:
    state = " ".join(word.lower().replace("_", " ") for word in node.state)
    return f"{state}: {node.reason}" if node.reason else state


def _table(
    partitions: Sequence[Partition], rules: Mapping[str, Rules], nodes: Sequence[Node]
) -> Iterable[tuple[str, ...]]:
    yield "PARTITION", "STATE", "IDLE", "NODES", "CPUS", "MEMORY", "GPUS", "TIME LIMIT", "PREEMPTED"
    for partition in partitions:
        own = [node for node in nodes if node.partition == partition.name]
        yield (
            f"{partition.name}{'*' if partition.default else ''}",
            partition.availability,
            str(partition.idle_nodes),
            str(partition.nodes),
            _range([node.cpus for node in own]),
            f"{_range([round(node.memory_mb / 1000) for node in own])} GB",
            _range([node.gpus for node in own]),
            time_words(partition.max_time_s),
            _preempted(rules.get(partition.name)),
        )


def _range(numbers: Sequence[int]) -> str:
    """Of one node."""
    if not numbers:
        return "-"
    return str(numbers[0]) if min(numbers) == max(numbers) else f"{min(numbers)}-{max(numbers)}"


def _preempted(rules: Rules | None) -> str:
    if rules is None or not rules.preempt_mode:
        return "?"
    if rules.preempt_mode == "OFF":
        return "never"
    after = f" after {rules.grace_s:g} s" if rules.grace_s else ""
    return f"{rules.preempt_mode.lower()}{after}"


def start_finding(starts_at: float | None, words: str, now: float) -> Finding:
    """What `sbatch --test-only` says of a job of one node."""
    if starts_at is None:
        hint = "--partition, --account and --qos here, and those of slurm in a spec, ask for others"
        return problem("start", f"Slurm would refuse a job of one node: {words}", hint)
    if starts_at <= now + 1:
        return ok("start", "a job of one node could start now")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
    return ok("start", f"a job of one node could start at {at}, as Slurm sees it now")


# What nodes must see


def place_finding(about: str, places: Sequence[Place], seen_on: Sequence[str] = (), *, tried: bool = False) -> Finding:
    """`seen_on`: the nodes on which all of it was found; `tried`: whether any have looked."""
    text = all_of([f"{place.path} ({place.file_system.kind})" for place in places])
    if seen_on:
        return ok(about, f"{text}: seen on {all_of(seen_on)}")
    reaches = {place.file_system.reach for place in places}
    if reaches == {Reach.NETWORK}:
        return ok(about, text)
    doubtful = [place for place in places if place.file_system.reach is not Reach.NETWORK]
    text = all_of([f"{place.path} ({place.file_system.kind})" for place in doubtful])
    them = "it" if len(doubtful) == 1 else "them"
    why = f"this machine's own, nodes may not see {them}" if Reach.THIS_MACHINE in reaches else f"may nodes see {them}?"
    hint = "see what the trial says of it" if tried else "`launch doctor slurm --try` has a node look"
    return warning(about, f"{text}: {why}", hint)


def _release(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None
