"""Checks of a spec's options against each other. Each function gets a section as it is written and the values that
could be read from it, and yields a Problem for each contradiction; it yields none if all is well. A Mapping, Sequence
or Scalar is a node of the YAML tree.
"""

from collections.abc import Iterator
from collections.abc import Mapping as Values
from typing import Any

from launcher.spec.model import Notice, Recovery, Resources, Slurm
from launcher.spec.problems import Problem
from launcher.spec.tree import Mapping, Node, Scalar, Sequence

_ENTRIES = ("script", "module", "command")


def one_entry(run: Mapping, _: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem unless exactly one of script, module and command is written."""
    named = [run.entries[key] for key in _ENTRIES if key in run.entries]
    if not named:
        yield Problem(run.mark, "expected exactly one of script, module and command", "write script: train.py")
    for entry in named[1:]:
        first = named[0].key.text
        yield Problem(entry.key.mark, f"only one of script, module and command, got {first} too", key=(entry.key.text,))


def one_way_to_be_ready(ready: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem unless exactly one of port, path, log and file is written as the condition under which a role is
    ready.

    `path` may have the name of a port beside it.
    """
    ways = ready.entries.keys() - ({"port"} if isinstance(values.get("port"), str) and "path" in ready.entries else ())
    if len(ways) != 1:
        yield Problem(ready.mark, "expected exactly one of port, path, log and file", "write {port: true}")


def preload_needs_python(run: Mapping, _: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `preload` is set for a command: only scripts and modules are forked from a process with
    imports.
    """
    preload = run.entries.get("preload")
    if preload is not None and "command" in run.entries:
        key = ("preload",)
        yield Problem(preload.key.mark, "has no use for a command: only scripts and modules are forked", key=key)


def env_or_secret(job: Mapping, _: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each name that is both in `env` and in `secrets`."""
    env, secrets = job.find("env"), job.find("secrets")
    if env is None or secrets is None or not isinstance(env.value, Mapping):
        return
    if not isinstance(secrets.value, Sequence):
        return
    for index, item in enumerate(secrets.value.items):
        name = _secret_name(item)
        if name in env.value.entries:
            yield Problem(item.mark, "is set in env already", "a variable is in env or in secrets", ("secrets", index))


def _secret_name(item: Node) -> str | None:
    """Return the name of the secret that an item of `secrets` stands for: its text, or the first key of a mapping; None
    if the item is neither.
    """
    if isinstance(item, Scalar):
        return item.text
    return next(iter(item.entries), None) if isinstance(item, Mapping) else None


def spares_need_nodes(job: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if spares are asked for on a single node, because no spare can replace the node that
    coordinates.
    """
    spares, recovery, resources = job.find("recovery", "spares"), values.get("recovery"), _resources(job, values)
    if spares is None or not isinstance(recovery, Recovery) or resources is None:
        return
    if recovery.spares and resources.nodes.max < 2:
        reason = "a spare needs at least 2 nodes, got resources.nodes: 1"
        yield Problem(spares.value.mark, reason, key=("recovery", "spares"))


def reserve_needs_python(job: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `recovery.reserve` is set for a command.

    A reserve process must wait until it becomes a rank, which a command cannot.
    """
    reserve, recovery = job.find("recovery", "reserve"), values.get("recovery")
    if reserve is not None and isinstance(recovery, Recovery) and recovery.reserve and job.find("run", "command"):
        reason = "a command cannot wait to be a rank: only a training by Trainer, run by script or module, does"
        yield Problem(reserve.value.mark, reason, key=("recovery", "reserve"))


def buddy_needs_snapshots(checkpoint: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `buddy` is set without `memory_every`, which makes the snapshots that are copied."""
    buddy, every = checkpoint.find("buddy"), ("memory_every_steps", "memory_every_s")
    if buddy is None or not values.get("buddy") or any(values.get(name) is not None for name in every):
        return
    if "memory_every" not in checkpoint.entries or all(name in values for name in every):  # else that is the problem
        hint = "write memory_every: 20 steps"
        yield Problem(buddy.value.mark, "there is nothing in memory to copy without memory_every", hint, ("buddy",))


def copies_need_an_address(checkpoint: Mapping, _: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each option about copies in an object store if no store is named."""
    if "copy_to" in checkpoint.entries:
        return
    for name in ("copy_to_every", "copy_to_keep", "copy_to_limit"):
        if (entry := checkpoint.entries.get(name)) is not None:
            yield Problem(entry.value.mark, "has no use without copy_to", "write copy_to: s3://bucket/prefix", (name,))


def link_floor_needs_health(recovery: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `link_floor` is set without `health`, which measures links."""
    floor = recovery.find("link_floor")
    if floor is None or values.get("link_floor_bytes") is None or values.get("health"):
        return
    if "health" in recovery.entries and "health" not in values:
        return  # that is the problem
    yield Problem(floor.value.mark, "no link is measured without health", "write health: true", ("link_floor",))


def signal_before_time(job: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `slurm.signal_before` is not shorter than the time limit."""
    before, slurm, resources = job.find("slurm", "signal_before"), values.get("slurm"), _resources(job, values)
    if before is None or not isinstance(slurm, Slurm) or resources is None or resources.time_s is None:
        return
    if slurm.signal_before_s >= resources.time_s:
        yield Problem(before.value.mark, "expected less than resources.time", key=("slurm", "signal_before"))


def notice_needs_a_source(notice: Mapping, _: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `notice` sets a lead time but neither a file, a command nor a signal that gives the notice."""
    if "lead" in notice.entries and not {"file", "command", "signal"} & {*notice.entries}:
        hint = "write file: PATH, command: [...] or signal: PWR beside it"
        yield Problem(notice.mark, "nothing tells that a host is about to go", hint, ("lead",))


def lead_covers_grace(job: Mapping, values: Values[str, Any]) -> Iterator[Problem]:
    """Yield a problem if hosts give notice before they are taken away, and the time between notice and end
    (`notice.lead`) is shorter than the grace period in which ranks save (`recovery.grace`).
    """
    notice, recovery = values.get("notice"), values.get("recovery", Recovery())
    if not isinstance(notice, Notice) or not isinstance(recovery, Recovery) or not notice.is_given:
        return
    if notice.lead_s < recovery.grace_s and (written := job.find("notice")) is not None:
        reason = f"shorter than recovery.grace, {recovery.grace_s:g} s, in which ranks save"
        yield Problem(written.value.mark, reason, "set recovery.grace to less", ("notice", "lead"))


def _resources(job: Mapping, values: Values[str, Any]) -> Resources | None:
    """Return the job's resources, the defaults if none are written, or None if the written ones could not be read."""
    found = values.get("resources")
    if isinstance(found, Resources):
        return found
    return None if "resources" in job.entries else Resources()
