"""Which file system a path is on, from recorded mounts, and who may see it."""

from pathlib import Path

import pytest

from launcher.run.file_systems import FileSystem, Reach, file_system_of, find_mount, nearest_folder

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /home rw shared:9 master:3 - nfs4 server:/export/home rw,vers=4.2
31 22 0:41 / /home/me/disk rw - xfs /dev/sdb rw
32 22 0:42 / /my\040data\134x rw - lustre 10.0.0.1@o2ib:/scratch rw
33 22 0:43 / /over rw - tmpfs tmpfs rw
34 22 0:44 / /over rw - fuse.sshfs me@there: rw
35 22 0:45 / /ceph rw - fuse.ceph-fuse ceph rw
36 22 0:46 / /odd rw - fuse.something something rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount", "reach"),
    [
        ("/", "ext4", "/", Reach.THIS_MACHINE),
        ("/homes", "ext4", "/", Reach.THIS_MACHINE),
        ("/home", "nfs4", "/home", Reach.NETWORK),
        ("/home/you/project", "nfs4", "/home", Reach.NETWORK),
        ("/home/me/disk/project", "xfs", "/home/me/disk", Reach.THIS_MACHINE),
        ("/my data\\x/project", "lustre", "/my data\\x", Reach.NETWORK),
        ("/over/project", "fuse.sshfs", "/over", Reach.NETWORK),
        ("/ceph", "fuse.ceph-fuse", "/ceph", Reach.NETWORK),
        ("/odd", "fuse.something", "/odd", Reach.UNKNOWN),
    ],
)
def test_the_mount_of_a_path(path, kind, mount, reach):
    found = find_mount(path, MOUNTS)
    assert found == FileSystem(kind, mount)
    assert found.reach is reach


def test_without_a_mount_nothing_is_known():
    assert find_mount("/anywhere", "").reach is Reach.UNKNOWN


def test_this_machines_own():
    assert file_system_of(Path("/proc/self/fd")).kind == "proc"


def test_a_path_that_is_not_there_yet_is_where_its_nearest_folder_is(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/proc/self")
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
    assert file_system_of(link / "fd" / "none").kind == "proc"
