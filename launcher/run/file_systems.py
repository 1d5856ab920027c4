"""Find the file system that a path is on, and whether other machines may see it."""

import os
import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OF_NETWORKS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "daos", "fhgfs", "gfs2", "glusterfs", "gpfs", "juicefs", "lustre", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "sshfs", "virtiofs", "wekafs",
})  # fmt: skip
_OF_ONE_MACHINE = frozenset({
    "aufs", "bcachefs", "btrfs", "devtmpfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs",
    "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs",
})  # fmt: skip


class Reach(Enum):
    """Which machines may see the files of a file system: several by a network file system, this machine (others still
    may by an NFS export of it), or unknown.
    """

    NETWORK = auto()
    THIS_MACHINE = auto()  # other machines may still reach it by an NFS export
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A mounted file system, by its kind and its mount point."""

    kind: str  # as in /proc/self/mountinfo: nfs4, ext4; "": not found
    mount: str  # the path of the mount point

    @property
    def reach(self) -> Reach:
        """Return which machines may see the file system: several if its kind is a network file system such as nfs or
        lustre, this one if it is a local kind such as ext4, else unknown.
        """
        names = {self.kind, self.kind.removeprefix("fuse.").partition("-")[0]}
        if not names.isdisjoint(_OF_NETWORKS):
            return Reach.NETWORK
        return Reach.UNKNOWN if names.isdisjoint(_OF_ONE_MACHINE) else Reach.THIS_MACHINE


def file_system_of(path: Path) -> FileSystem:
    """Return the file system of a path, or if the path does not exist, that of its nearest existing folder."""
    there = nearest_folder(path)
    real = os.path.realpath(there)
    os.stat(real)  # an automounter mounts it now
    return find_mount(real, _MOUNTS.read_text(errors="surrogateescape"))


def nearest_folder(path: Path) -> Path:
    """Return `path` if it exists, else the innermost of the folders above it that does."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def find_mount(path: str, mounts: str) -> FileSystem:
    """Return the file system that contains an absolute path without links; `mounts` is the text of
    /proc/self/mountinfo.
    """
    found = FileSystem("", "")
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), head.split()[4])
        # A later mount hides an earlier one of the same place.
        if len(mount) >= len(found.mount) and (path == mount or path.startswith(mount.rstrip("/") + "/")):
            found = FileSystem(tail.split()[0], mount)
    return found
