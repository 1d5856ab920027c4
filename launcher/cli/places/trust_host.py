"""`launch nodes trust`: add keys of SSH hosts to the known ones, once the user has confirmed them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.errors import BadInput

EXAMPLES = """
  launch nodes trust gpu01                       show the host's key and ask whether to trust it
  launch nodes trust mypool                      every host of this pool
  launch nodes trust gpu01 --yes SHA256:...      trust this key without asking
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch nodes trust`."""
    arguments.add_argument("hosts", metavar="HOST", nargs="+", help="hosts, or pools of the clusters file")
    arguments.add_argument("--clusters", metavar="FILE", type=Path, help="another clusters file")
    arguments.add_argument(
        "--yes", metavar="FINGERPRINT", action="append", default=[],
        help="trust the key with this fingerprint without asking",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run `launch nodes trust` and return its exit code."""
    return trust(options.hosts, options.yes)


def trust(names: Sequence[str], fingerprints: Sequence[str]) -> int:
    """Trust the SSH keys of the hosts in `names`, and of all hosts of the pools in `names`; a name that the clusters
    file lacks is taken for a host. Return OK, or the exit code of the first host whose key was not stored. Raise
    BadInput if `names` is empty.

    The user confirms each key on the terminal, unless its fingerprint is in `fingerprints`.
    """
    from launcher.cli.places.trust import trust_hosts  # late: paramiko costs 0.3 s
    from launcher.places.clusters_file import named_pools, pool_of  # late: it reads YAML
    from launcher.places.ssh.pool import hosts_of  # late: paramiko costs 0.3 s
    from launcher.remote.target import target_of  # late: paramiko costs 0.3 s
    from launcher.spec.model import SshHost  # late: other commands do without

    if not names:
        raise BadInput("trust: which host?", "hint: launch nodes trust HOST")
    pools = {name: pool_of(pool) for name, pool in named_pools().items()}
    known = {host.name: (host, pool.agent) for pool in pools.values() for host in hosts_of(pool)}
    wanted: list[tuple[SshHost, bool]] = []
    for name in names:
        whole = [known[host.name] for host in hosts_of(pools[name])] if name in pools else []
        wanted += whole or [known.get(name, (SshHost(name), False))]
    return trust_hosts([target_of(host, agent=agent) for host, agent in wanted], fingerprints)
