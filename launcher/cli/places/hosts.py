"""`launch nodes list`: show the present state of the hosts of a pool."""

import argparse
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli import figures
from launcher.cli.answers import merged
from launcher.cli.arguments import Arguments
from launcher.cli.places.trust_host import trust
from launcher.cli.terminal import fitting, paint, safe, show_news, to_json, width_of
from launcher.errors import BadInput, Exit, LaunchError
from launcher.health.checks import CLOCK_S

if TYPE_CHECKING:
    from launcher.places.ssh.facts import Surveyed
    from launcher.spec.model import Ssh

EXAMPLES = """
  launch nodes list             every pool of the clusters file: reachable, free, taken and by which run
  launch nodes list mypool      of this one
"""
_HEAD = ("HOST", "STATE", "GPUS", "CPUS", "TAKEN BY", "PYTHON", "TORCH", "DISK FREE", "CLOCK")
_LESS = ("CLOCK", "PYTHON", "TORCH", "DISK FREE", "CPUS")  # what goes first where a terminal is too narrow


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch nodes list`."""
    arguments.add_argument("names", metavar="POOL", nargs="*", help="pools of the clusters file (default: all)")
    arguments.add_argument("--clusters", metavar="FILE", type=Path, help="another clusters file")
    arguments.add_argument("--yes", action="append", default=[], help=argparse.SUPPRESS)  # of `launch nodes trust`
    arguments.prints_json(_answers, "one object a line for each host, for programs", by_line=True)


def _answers() -> dict[str, object]:
    """Return the types of the JSON objects that `launch nodes list --json` prints: one for a host that answers, one for
    a host that does not. The keys are words for these two cases.
    """
    from launcher.supervisor.slots.table import SlotHolder, SlotWaiter  # late: only for the schema

    facts = {
        "gpus": list[str], "cpus": int, "held": list[SlotHolder], "waiting": list[SlotWaiter], "python": str,
        "version": str, "torch": str | None, "workdir": str, "disk_free": int, "inodes_free": int, "clock_off_s": float,
        "address": str,
    }  # fmt: skip
    return {
        "a host that answers": merged("PoolHost", pool=str, host=str, reachable=bool, **facts),
        "a host that does not": merged("SilentHost", pool=str, host=str, reachable=bool, why=str),
    }


_NAME_ONE = "hint: in ~/.config/launch/clusters.yaml (or $LAUNCH_CLUSTERS): `mypool: {kind: ssh, hosts: [gpu01]}`"


def run(options: argparse.Namespace) -> int:
    """Run `launch nodes list` and return its exit code."""
    from launcher.places.clusters_file import named_pools, pool_of  # late: it reads YAML

    if options.names[:1] == ["trust"]:
        return trust(options.names[1:], options.yes)
    pools = named_pools()
    unknown = [name for name in options.names if name not in pools]
    if unknown:
        known = f"there is {', '.join(pools)}" if pools else "the clusters file names none"
        raise BadInput(f"{safe(unknown[0])}: no such pool", f"hint: {known}")
    chosen = {name: pool_of(pool) for name, pool in pools.items() if not options.names or name in options.names}
    if not chosen:
        raise BadInput("no pool of SSH hosts is named", _NAME_ONE)
    show_news()
    return _show(chosen, as_json=options.json)


def _show(pools: "dict[str, Ssh]", *, as_json: bool) -> int:
    """Print the hosts of each pool, as JSON with `as_json`; return the exit code, not OK if no host of a pool
    answered.
    """
    from launcher.places.ssh import pool as ssh_pool  # late: paramiko

    worst, told = Exit.OK, set[str]()
    for name, pool in pools.items():
        found, troubles = ssh_pool.surveyed(pool)
        worst = worst if found or not troubles else Exit.UNREACHABLE
        order = [host.name for host in pool.hosts]
        if as_json:
            for host in order:
                said = _object(found[host]) if host in found else {"reachable": False, "why": str(troubles[host])}
                print(to_json({"pool": name, "host": host, **said}, indent=-1))
            continue
        print(paint(f"{safe(name)}:", "dim"))
        rows = [_row(found[host]) if host in found else _silent(host, troubles[host]) for host in order]
        for line, host in zip(fitting([_HEAD, *rows], _LESS, width_of(sys.stdout), "  "), ["", *order], strict=True):
            print(line if not host or host in found else paint(line, "red"))
        for line in dict.fromkeys(line for error in troubles.values() for line in error.lines):
            if line not in told:
                told.add(line)
                print(f"  {safe(line)}", file=sys.stderr)
    return worst


def _silent(host: str, error: LaunchError) -> tuple[str, ...]:
    """Return the table row of a host that could not be queried."""
    return (safe(host), "unreachable" if error.exit_code == Exit.UNREACHABLE else "problem", *["-"] * (len(_HEAD) - 2))


def _row(one: "Surveyed") -> tuple[str, ...]:
    """Return the table row, with a cell for each heading of _HEAD, of a host that answered; GPUs and CPUs are shown as
    `free of all`.
    """
    facts = one.facts
    disk = figures.size(facts.disk_free) if facts.writable else "not writable"
    return (
        safe(one.host.name),
        "ok",
        f"{len(one.gpus) - one.taken('gpu')} of {len(one.gpus)}" if one.gpus else "-",
        f"{max(0, facts.cpus - one.taken('cpu'))} of {facts.cpus}",
        safe(_takers(one)) or "-",
        ".".join(map(str, facts.version)),
        facts.torch or "-",
        disk,
        "ok" if abs(one.clock_off_s) < CLOCK_S else f"{one.clock_off_s:+.0f} s",
    )


def _takers(one: "Surveyed") -> str:
    """Return text that names the runs which use GPUs or CPUs of the host, such as `vit-9x2d (ann): 4 GPUs`, and how
    many wait.
    """
    seen = one.occupancy
    held: Counter[tuple[str, str, str]] = Counter()
    for holder in seen.held:
        if holder.run:
            held[holder.run, holder.user, holder.kind] += int(holder.number) if holder.kind == "cpu" else 1
    words = [f"{run} ({user}): {figures.count(count, kind.upper())}" for (run, user, kind), count in held.items()]
    return ", ".join([*words, *([f"{len(seen.waiting)} waiting"] if seen.waiting else [])])


def _object(one: "Surveyed") -> dict[str, object]:
    """Return the facts about a host that has answered, as `--json` prints them."""
    facts = one.facts
    return {
        "reachable": True,
        "gpus": list(one.gpus),
        "cpus": facts.cpus,
        "held": [asdict(holder) for holder in one.occupancy.held if holder.run],
        "waiting": [asdict(waiter) for waiter in one.occupancy.waiting],
        "python": facts.python,
        "version": ".".join(map(str, facts.version)),
        "torch": facts.torch,
        "workdir": facts.workdir,
        "disk_free": facts.disk_free,
        "inodes_free": facts.inodes_free,
        "clock_off_s": round(one.clock_off_s, 3),
        "address": one.address,
    }
