"""Turn the output of a site's Slurm commands into findings of `launch doctor`. Pure functions."""

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence

from launcher.health.findings import Finding, ok, problem, time_words, warning
from launcher.places.slurm.queries.nodes import Node, Partition
from launcher.places.slurm.queries.site import Config, PartitionRules, read_release
from launcher.spec.model import Recovery

_NAMED = 8
_RULES = Recovery()
_LONG_SILENCE_S = 600.0
_SHORT_MEMORY_S = 60.0
_SUSPENDS = ("SUSPEND", "GANG")
_ASK = "ask the administrators"


# The programs and the controller


def sbatch_finding(path: str | None, version: str | None) -> Finding:
    """Return the finding about sbatch: its path and version (None: unknown), or that it is missing (`path` is None)."""
    if path is None:
        hint = "run this on a login node of the cluster, or load the module that has Slurm's programs"
        return problem("sbatch", "not on PATH", hint)
    return ok("sbatch", f"{version or 'of unknown version'}, {path}")


def controller_findings(config: Config, took_s: float, up: Mapping[str, bool], client: str | None) -> Iterable[Finding]:
    """Yield findings about the controllers: how long an answer took (`took_s`), whether sbatch, whose version is
    `client` (None: unknown), is newer than they are, and which are down; `up` tells by host whether its controller is
    up.
    """
    where = "".join(f" on {host}" for host, well in up.items() if well)
    text = f"cluster {config.cluster or '?'}{where} answers in {took_s * 1000:.0f} ms, version {config.version or '?'}"
    ours, theirs = read_release(client), read_release(config.version)
    if ours is not None and theirs is not None and ours > theirs:
        hint = "a client must not be newer than the controller: load the module of the controller's version"
        yield warning("controller", f"{text}, which is older than sbatch's {client}", hint)
    else:
        yield ok("controller", text)
    for host in (host for host, well in up.items() if not well):
        yield warning("controller", f"the one on {host} is down", "tell the administrators: nothing is left to step in")


# Partitions and nodes


def partition_findings(
    partitions: Sequence[Partition], rules: Mapping[str, PartitionRules], nodes: Sequence[Node], wanted: str | None
) -> Iterable[Finding]:
    """Yield a finding with a table of all partitions, their `rules` (by name) and nodes, then a finding for each
    problem of the partitions in `wanted` (separated by commas) or, for None, of Slurm's default.
    """
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
    """Return the partitions to which a job may go: those named in `wanted` (separated by commas) or, for None, Slurm's
    default. Names that the site does not have are ignored.
    """
    if wanted is None:
        return [partition for partition in partitions if partition.default]
    return [partition for partition in partitions if partition.name in wanted.split(",")]


def strangers(partitions: Sequence[Partition], wanted: str | None) -> list[str]:
    """Return those names in `wanted` (separated by commas) that are no partition."""
    known = {partition.name for partition in partitions}
    return [name for name in (wanted or "").split(",") if name and name not in known]


def _node_findings(partition: str, nodes: Sequence[Node]) -> Iterable[Finding]:
    """Yield one finding about how many of `nodes`, those of the partition, take no jobs: a problem if none takes any or
    there are no nodes, a warning if more than a tenth take none, else OK.
    """
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
    """Return the node's state, with the administrator's reason if one is set."""
    state = " ".join(word.lower().replace("_", " ") for word in node.state)
    return f"{state}: {node.reason}" if node.reason else state


def _table(
    partitions: Sequence[Partition], rules: Mapping[str, PartitionRules], nodes: Sequence[Node]
) -> Iterable[tuple[str, ...]]:
    """Yield the rows of the table of partitions, head first, with each one's `rules` (by name) and the states of its
    nodes.
    """
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
    """Return the range of the numbers as text, such as `4` or `4-8`; "-" for none."""
    if not numbers:
        return "-"
    return str(numbers[0]) if min(numbers) == max(numbers) else f"{min(numbers)}-{max(numbers)}"


def _preempted(rules: PartitionRules | None) -> str:
    """Return as text how jobs of the partition are preempted, such as `never` or `requeue after 60 s`; `?` if it is
    unknown.
    """
    if rules is None or not rules.preempt_mode:
        return "?"
    if rules.preempt_mode == "OFF":
        return "never"
    after = f" after {rules.grace_s:g} s" if rules.grace_s else ""
    return f"{rules.preempt_mode.lower()}{after}"


def start_finding(starts_at: float | None, words: str, now: float) -> Finding:
    """Return the finding about when a job of one node could start, `now` being the current Unix time: ok with the time
    `starts_at`, however late, or a problem if that is None, because Slurm would refuse the job for the reason `words`.
    """
    if starts_at is None:
        hint = "--partition, --account and --qos here, and those of slurm in a spec, ask for others"
        return problem("start", f"Slurm would refuse a job of one node: {words}", hint)
    if starts_at <= now + 1:
        return ok("start", "a job of one node could start now")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(starts_at))
    return ok("start", f"a job of one node could start at {at}, as Slurm sees it now")


# What the settings of the controller mean for runs


def setting_findings(config: Config, rules: Iterable[PartitionRules], *, expedites: bool) -> Iterable[Finding]:
    """Yield findings about what the controller's configuration and the `rules` of its partitions mean for runs: for
    requeues, preemption, ends of jobs, lost nodes and arrays.

    `expedites` is True if runs use Slurm's expedited requeue, by which a job that loses a node is requeued at once and
    comes first.
    """
    yield requeue_finding(config.requeue, expedites=expedites)
    yield preemption_finding(config.preempt_type, config.preempt_mode, {rule.preempt_mode for rule in rules})
    yield kill_wait_finding(config.kill_wait_s)
    yield silent_node_finding(config.slurmd_timeout_s)
    yield array_finding(config.max_array_size)


def requeue_finding(default: bool | None, *, expedites: bool) -> Finding:
    """Return the finding whether Slurm requeues runs: ok, or a warning if `default` is None.

    `default` is Slurm's setting JobRequeue, or None if Slurm does not show it; False is no problem, because runs ask to
    be requeued. `expedites` is True if runs use Slurm's expedited requeue, by which a job that loses a node is requeued
    at once and comes first.
    """
    how = (
        "; after a lost node at once and first (enable_expedited_requeue), so its jobs end with exit code 0"
        if expedites
        else "; after a lost node in turn: no expedited requeue here (Slurm 25.11, enable_expedited_requeue)"
    )
    if default is None:
        return warning("requeue", "Slurm does not say whether it requeues jobs", "--try asks for a job that may be")
    if default:
        return ok("requeue", f"on (JobRequeue=1){how}")
    return ok("requeue", f"off unless asked for (JobRequeue=0), and runs ask for it{how}")


def accounting_finding(kept: bool | None, said: str, min_job_age_s: float | None) -> Finding:
    """Return the finding about accounting: a warning if it is off or sacct fails, else that it works. `kept` is whether
    Slurm's configuration has accounting on (None if not shown), `said` sacct's error or "" if it answers.

    `min_job_age_s` is for how long Slurm itself shows ended jobs (None: not known); the warning names that time.
    """
    known = "" if min_job_age_s is None else f" for {time_words(min_job_age_s)} (MinJobAge)"
    lost = f"how a job ended that left no word in its run's folder is known{known} only"
    if kept is False:
        hint = "after that such a run is called lost, and `launch resume` continues it; all else works without"
        return warning("accounting", f"off: {lost}", hint)
    if said:
        return warning("accounting", f"on, but {said}: {lost}", "`sacct` shows when it answers again")
    return ok("accounting", "on, and sacct answers")


def memory_finding(min_job_age_s: float | None, accounting: bool) -> Finding:
    """Return the finding about MinJobAge, for how long Slurm shows jobs that have ended (None: Slurm does not show it).
    It is a warning if that is less than a minute and sacct does not show them longer either (`accounting` is False), or
    if it is None; 0 means that Slurm shows them forever.
    """
    if min_job_age_s is None:
        return warning("MinJobAge", "Slurm does not say how long it knows of ended jobs", _ASK)
    text = f"{time_words(min_job_age_s)}: so long Slurm knows of a job that has ended"
    if 0 < min_job_age_s < _SHORT_MEMORY_S and not accounting:
        hint = f"ask for accounting, or for MinJobAge={_SHORT_MEMORY_S:.0f} or more"
        return warning("MinJobAge", f"{text}, and there is no accounting", hint)
    return ok("MinJobAge", "0: Slurm never forgets a job" if min_job_age_s == 0 else text)


def preemption_finding(kind: str | None, mode: str | None, of_partitions: set[str]) -> Finding:
    """Return the finding about preemption: a warning if it is on and one of its modes suspends jobs, or else fine.

    `kind` is Slurm's PreemptType and `mode` its PreemptMode for the cluster; None: Slurm shows none. Preemption is off
    without a type or with the mode OFF. `of_partitions` are the modes that partitions have set for themselves.
    """
    if kind in (None, "preempt/none", "(null)") or mode == "OFF":
        return ok("preemption", "off: no job makes way for another")
    suspends = [one for one in ({mode or ""} | of_partitions) if any(word in one.upper() for word in _SUSPENDS)]
    by = (kind or "").removeprefix("preempt/").replace("_prio", "")
    text = f"by {by}, PreemptMode={mode}"
    if suspends:
        hint = "a frozen run continues where it was once it is released, and `launch status` shows that meanwhile"
        return warning("preemption", f"{text}: jobs may be frozen where they are", hint)
    if by == "qos":
        return ok("preemption", f"{text}; `sacctmgr show qos format=name,preemptmode,gracetime` shows the grace")
    return ok("preemption", f"{text}; the table shows each partition's")


def kill_wait_finding(kill_wait_s: float | None) -> Finding:
    """Return the finding about KillWait, the seconds that Slurm leaves between SIGTERM and SIGKILL: a warning if they
    are fewer than the default of `recovery.grace`, or None, as Slurm does not show them.
    """
    grace_s = _RULES.grace_s
    if kill_wait_s is None:
        return warning("KillWait", "Slurm does not say", _ASK)
    if kill_wait_s >= grace_s:
        return ok(
            "KillWait", f"{kill_wait_s:g} s, and ranks need no more than recovery.grace, by default {grace_s:g} s"
        )
    return warning(
        "KillWait",
        f"ranks get {kill_wait_s:g} s after scancel or a preemption, not the {grace_s:g} s of recovery.grace",
        "a save that takes longer is lost then; `launch cancel` and the time limit leave them their grace",
    )


def silent_node_finding(timeout_s: float | None) -> Finding:
    """Return the finding about SlurmdTimeout, after which Slurm gives up a node that does not answer. `timeout_s` is
    None if Slurm does not show it.

    It is a warning if the time is unknown, 0 (never), shorter than the default lease or longer than ten minutes.
    """
    lease_s = _RULES.lease_s
    if timeout_s is None:
        return warning("SlurmdTimeout", "Slurm does not say", _ASK)
    if timeout_s == 0:
        text = "0: Slurm never gives a silent node up, so a run that has lost its first node is not started again"
        return warning("SlurmdTimeout", text, "`launch cancel` and `launch resume` do it by hand")
    text = f"{time_words(timeout_s)} until Slurm gives a silent node up"
    if timeout_s < lease_s:
        return warning(
            "SlurmdTimeout",
            f"{text}, before launch does ({lease_s:g} s, recovery.lease)",
            "two copies of a run may overlap, and the fence keeps the older from writing; "
            f"recovery.lease: {timeout_s:g}s in a spec ends it in time",
        )
    if timeout_s > _LONG_SILENCE_S:
        hint = "recovery.spares or a range of nodes lets a run continue without it; losing its first node costs so long"
        return warning("SlurmdTimeout", text, hint)
    return ok("SlurmdTimeout", f"{text}; launch itself notices after {lease_s:g} s (recovery.lease)")


def array_finding(most: int | None) -> Finding:
    """Return the finding about `most`, the largest array that Slurm allows: a warning if it allows none, or does not
    show it (None), because each run is then submitted as a job of its own.
    """
    if most is None:
        return warning("MaxArraySize", "Slurm does not say", "`launch submit --repeat` submits one job each")
    if most < 2:
        return warning("MaxArraySize", f"{most}: no arrays", "`launch submit --repeat` submits one job each")
    return ok("MaxArraySize", f"{most}: more runs than that at once become several arrays")
