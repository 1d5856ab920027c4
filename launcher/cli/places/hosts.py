"""`launch hosts`: what the hosts of a pool are like now; `launch hosts trust`: get to know one by its key."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import fitting, paint, safe, show_news, to_json, width_of
from launcher.errors import BadInput, Exit, LaunchError

if TYPE_CHECKING:
    from launcher.clusters.ssh.facts import Surveyed
    from launcher.spec.model import Ssh

EXAMPLES = """
  launch hosts                          every pool of the clusters file: reachable, free, taken and by which run
  launch hosts mypool                   of this one
  launch hosts trust gpu01              show a host's key and ask whether it is the right one
  launch hosts trust gpu01 --yes SHA256:...    take this key without asking
"""
_CLOCK_S = 5.0
_HEAD = ("HOST", "STATE", "GPUS", "CPUS", "TAKEN BY", "PYTHON", "TORCH", "DISK FREE", "CLOCK")
_LESS = ("CLOCK", "PYTHON", "TORCH", "DISK FREE", "CPUS")  # what goes first where a terminal is too narrow


def declare(arguments: Arguments) -> None:
    arguments.add_argument("names", metavar="POOL", nargs="*", help="pools; or `trust` and hosts or pools")
    arguments.add_argument(
        "--clusters", metavar="FILE", type=Path, help="the file that names clusters, where it is not the usual one"
    )
    arguments.add_argument(
        "--yes", metavar="FINGERPRINT", action="append", default=[],
        help="with trust: take this key without asking, if it is the one that the host shows",
    )  # fmt: skip
    arguments.add_argument("--json", action="store_true", help="one object a host, for programs")


_NAME_ONE = "hint: in ~/.config/launch/clusters.yaml (or $LAUNCH_CLUSTERS): `mypool: {kind: ssh, hosts: [gpu01]}`"


def run(options: argparse.Namespace) -> int:
    from launcher.clusters.clusters_file import named_pools  # late: it reads YAML

    pools = named_pools()
    if options.names[:1] == ["trust"]:
        return _trust(pools, options.names[1:], options.yes)
    unknown = [name for name in options.names if name not in pools]
    if unknown:
        known = f"there is {', '.join(pools)}" if pools else "the clusters file names none"
        raise BadInput(f"{safe(unknown[0])}: no such pool", f"hint: {known}")
    chosen = {name: pool for name, pool in pools.items() if not options.names or name in options.names}
    if not chosen:
        raise BadInput("no pool of SSH hosts is named", _NAME_ONE)
    show_news()
    return _show(chosen, as_json=options.json)


def _trust(pools: "dict[str, Ssh]", names: Sequence[str], fingerprints: Sequence[str]) -> int:
    """Hosts by their names, of a pool where one has them; a pool means all of its hosts."""
    from launcher.cli.places.trust import trust_hosts  # late: paramiko costs 0.3 s
    from launcher.clusters.ssh.pool import hosts_of  # late: paramiko costs 0.3 s
    from launcher.hostlink.target import target_of  # late: paramiko costs 0.3 s
    from launcher.spec.model import SshHost  # late: other commands do without

    if not names:
        raise BadInput("trust: which host?", "hint: launch hosts trust HOST")
    known = {host.name: (host, pool.agent) for pool in pools.values() for host in hosts_of(pool)}
    wanted: list[tuple[SshHost, bool]] = []
    for name in names:
        whole = [known[host.name] for host in hosts_of(pools[name])] if name in pools else []
        wanted += whole or [known.get(name, (SshHost(name), False))]
    return trust_hosts([target_of(host, agent=agent) for host, agent in wanted], fingerprints)


def _show(pools: "dict[str, Ssh]", *, as_json: bool) -> int:
    from launcher.clusters.ssh import pool as crew  # late: paramiko

    worst = Exit.OK
    for name, pool in pools.items():
        found, troubles = crew.surveyed(pool)
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
        for error in troubles.values():
            print("\n".join(f"  {safe(line)}" for line in error.lines), file=sys.stderr)
    return worst


def _silent(host: str, error: LaunchError) -> tuple[str, ...]:
    return (safe(host), "unreachable" if error.exit_code == Exit.UNREACHABLE else "problem", *["-"] * (len(_HEAD) - 2))


def _row(one: "Surveyed") -> tuple[str, ...]:
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
        "ok" if abs(one.clock_off_s) < _CLOCK_S else f"{one.clock_off_s:+.0f} s",
    )


def _takers(one: "Surveyed") -> str:
    """`vit-9x2d (ann): 4 GPUs`, and how many wait."""
    seen = one.occupancy
    held: Counter[tuple[str, str, str]] = Counter()
    for holder in seen.held:
        if holder.run:
            held[holder.run, holder.user, holder.kind] += int(holder.number) if holder.kind == "cpu" else 1
    words = [f"{run} ({user}): {figures.count(count, kind.upper())}" for (run, user, kind), count in held.items()]
    return ", ".join([*words, *([f"{len(seen.waiting)} waiting"] if seen.waiting else [])])


def _object(one: "Surveyed") -> dict[str, object]:
    """For programs."""
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
