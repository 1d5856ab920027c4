"""Getting to know a host: its key is fetched and shown, and somebody says that it is the right one."""

from pathlib import Path

from launcher.clusters.ssh import known_hosts
from launcher.clusters.ssh.config import Target
from launcher.clusters.ssh.connect import host_key
from launcher.clusters.ssh.known_hosts import BadKey, ChangedKey, HostKey, RevokedKey, UnknownKey, fingerprint

__all__ = [
    "BadKey", "ChangedKey", "HostKey", "RevokedKey", "UnknownKey", "accept", "fetch_key", "fingerprint",
]  # fmt: skip


def fetch_key(target: Target) -> HostKey:
    """The key that the host shows now; nothing that proves who we are is sent to it."""
    return host_key(target)


def accept(target: Target, key: HostKey) -> Path:
    """Have this key be the host's from now on; gives the file that says so. Raises Refused."""
    return known_hosts.add(target, key)
