"""Plain hosts, as users have them: each with a real sshd and a disk of its own, and no scheduler."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.lab import claims
from tests.lab.nodes import BOUND_S, PATH, LabError, Node, Program, lay_bridge, power_on, until, write_hosts
from tests.lab.up_and_down import Lab

PORT = 22
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Who can log in, and the folder of the disk that is the home.
HOMES = {"root": "home", "ann": "ann", "ben": "ben"}
UIDS = {"root": 0, "ann": 20001, "ben": 20002}
LIBRARIES = Path(HOMES["root"]) / "launch" / "lib"  # by content: costly to bring again, and the same for every test
# What a sshd needs here; all else is as OpenSSH has it by default, MaxStartups and MaxSessions too.
SETTINGS = ("StrictModes no", "UsePAM no", "PidFile none", "LogLevel VERBOSE")


class HostNode(Node):
    """A host; from power on it has a sshd, and another boot id than before."""

    boot_id: Path
    wall: str = ""  # the address from which nothing comes in

    @property
    def log(self) -> Path:
        """Return the log of the host's sshd."""
        return self.programs["sshd"].log

    def begin(self) -> None:
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        super().begin()

    def boot(self) -> None:
        super().boot()
        if self.wall:
            rule = f"type filter hook input priority 0; ip saddr {self.wall} reject"
            self._nft(f"table inet wall {{ chain input {{ {rule}\n}}\n}}")

    def power_on(self) -> None:
        super().power_on()
        self.wait()

    def kill_sshd(self) -> None:
        """kill -9 of the one that listens: its connections live on."""
        self.kill_program("sshd")

    def start_sshd(self) -> None:
        self.start(self.programs["sshd"])
        self.wait()

    def wait(self) -> None:
        """Wait until the host's sshd listens."""
        until(f"sshd of {self.name}", self._came_up)

    def _came_up(self) -> bool:
        self.check()
        return self.listens(PORT)

    def revive(self) -> None:
        super().revive()
        self.wait()

    def connections(self) -> int:
        """Return how many connections the host's sshd has had so far."""
        return self.log.read_text().count("Connection from ")

    def memory(self) -> Path:
        """Return the host's /dev/shm, as seen from outside."""
        return Path(f"/proc/{self.pid}/root/dev/shm")


class HostLab(Lab):
    """Hosts called node0, node1, ...; `jump`: reached through one that is called jump, and not directly.

    `sshd` are lines of sshd_config for every host. Below FOLDER/disk each host has a disk of its own, one for all with
    `shared`, each in memory and this large with `disk_size` (as `mount -o size=` has it). ann and ben can only log in
    where they may pass through the folders above FOLDER.
    """

    def __init__(
        self,
        folder: Path,
        hosts: int = 4,
        *,
        shared: bool = False,
        jump: bool = False,
        sshd: Sequence[str] = (),
        stays: bool = False,
        disk_size: str = "",
    ):
        super().__init__(folder, stays=stays)
        self.disk_size = disk_size
        self.size = hosts
        self.shared = shared
        self.jump = jump
        self.sshd = sshd
        self.place = self.folder / "disk"  # where a host sees its disk
        self.files = self.folder / "etc"
        self.config = self.files / "ssh_config"
        self.known_hosts = self.files / "known_hosts"
        self.key = self.files / "key"
        self.clusters = self.files / "clusters.yaml"
        self.env = {"LAUNCH_SSH_CONFIG": str(self.config), "LAUNCH_CLUSTERS": str(self.clusters)}
        self.nodes: list[HostNode] = []
        self.gate: HostNode | None = None  # the jump host

    # -- up

    def come_up(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)  # as the package's service does
        for folder in (self.place, self.files):
            folder.mkdir(exist_ok=True)
        self.nodes = [self._node(index) for index in range(self.size)]
        if self.jump:
            self.gate = self._node(self.size, "jump")
            for node in self.nodes:
                node.wall = self.claim.address(1)
        self.parts = self._all()
        write_hosts(self.hosts, {node.name: node.address for node in self._all()})
        self._write_files()
        lay_bridge(self.claim)
        power_on(self._all())
        for node in self._all():
            node.wait()

    def down(self) -> None:
        super().down()
        for mount in claims.mounts(str(self.folder)):
            subprocess.run(["umount", mount], check=True)

    def _all(self) -> list[HostNode]:
        return [*self.nodes, *([self.gate] if self.gate else [])]

    def _node(self, index: int, name: str = "") -> HostNode:
        name = name or f"node{index}"
        program = shutil.which("sshd", path=PATH) or "sshd"  # it starts itself again by its whole path
        argv = [program, "-D", "-e", "-f", str(self.files / f"sshd_config-{name}")]
        disk, boot_id = self._disk(name), self.files / f"boot_id-{name}"
        mounts = [
            ["--bind", str(disk), str(self.place)],
            ["-t", "tmpfs", "-o", "mode=755,size=4k", "none", str(disk.parent)],  # no way round it to another's
            ["-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm"],
            ["--bind", str(boot_id), BOOT_ID],
        ]
        sshd = Program("sshd", argv, self.logs / f"sshd-{name}.log")
        node = HostNode(index, self.claim, self.own_etc, [sshd], name=name, mounts=mounts)
        node.boot_id = boot_id
        return node

    # -- files

    def _write_files(self) -> None:
        public = keygen(self.key)
        (self.files / "authorized_keys").write_text(public)
        known = []
        for node in self._all():
            kind, key = keygen(self.files / f"host_key-{node.name}").split()[:2]
            known.append(f"{node.name},{node.address} {kind} {key}\n")
            lines = (*self.sshd, *SETTINGS, f"ListenAddress {node.address}", f"Port {PORT}")
            lines += (f"HostKey {self.files}/host_key-{node.name}", f"AuthorizedKeysFile {self.files}/authorized_keys")
            (self.files / f"sshd_config-{node.name}").write_text("".join(f"{line}\n" for line in lines))
            self._make_homes(self._disk(node.name))
        self.known_hosts.write_text("".join(known))
        self.config.write_text(self._ssh_config())
        self.clusters.write_text(self.clusters_yaml())
        self.clusters.chmod(0o600)
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in HOMES]
        ours = [f"{user}:*:{uid}:{uid}::{self.place / HOMES[user]}:/bin/bash" for user, uid in UIDS.items()]
        (self.own_etc / "passwd").write_text("".join(f"{line}\n" for line in (*ours, *others)))

    def _ssh_config(self) -> str:
        lines = []
        for node in self._all():
            lines += [f"Host {node.name}", f"  HostName {node.address}"]
            lines += ["  ProxyJump jump"] * (self.jump and node is not self.gate)
        lines += ["Host *", "  User root", f"  IdentityFile {self.key}", "  IdentitiesOnly yes"]
        lines += [f"  UserKnownHostsFile {self.known_hosts}", "  GlobalKnownHostsFile /dev/null"]
        return "".join(f"{line}\n" for line in lines)

    def clusters_yaml(self, name: str = "pool", **options: object) -> str:
        """A clusters file with all hosts as one pool, and these options for it."""
        said = {"kind": "ssh", "hosts": [node.name for node in self.nodes], **({"shared": True} if self.shared else {})}
        return "\n".join(
            [f"{name}:", *(f"  {key}: {json.dumps(value)}" for key, value in (said | options).items()), ""]
        )

    # -- disks

    def disk(self, index: int) -> Path:
        """A host's disk as this machine sees it; the host has it at `place`."""
        return self._disk(f"node{index}")

    def home(self, index: int, user: str = "root") -> Path:
        """A user's home there as this machine sees it."""
        return self.disk(index) / HOMES[user]

    def _disk(self, name: str) -> Path:
        return self.folder / "disks" / ("shared" if self.shared else name)

    def _make_homes(self, disk: Path) -> None:
        disk.mkdir(parents=True, exist_ok=True)
        if self.disk_size and not disk.is_mount():
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.disk_size}", "none", disk], check=True)
        for user, home in HOMES.items():
            (disk / home).mkdir(mode=0o700, exist_ok=True)
            os.chown(disk / home, UIDS[user], UIDS[user])

    def empty(self, *, libraries: bool = True) -> None:
        """Empty every disk, the libraries of the hosts too, and every /dev/shm."""
        for node in self._all():
            disk = self._disk(node.name)
            empty(disk, None if libraries else disk / LIBRARIES)
            self._make_homes(disk)
            if node.up:
                empty(node.memory())

    # -- use

    def ssh(self, index: int, command: str, *, user: str = "root", timeout: float = BOUND_S) -> str:
        """Return the output of a command line on the host by OpenSSH's client; it must succeed."""
        words = ["-F", str(self.config), "-o", "BatchMode=yes", "-l", user, self.nodes[index].name, command]
        done = self.run("ssh", *words, timeout=timeout)
        if done.returncode:
            raise LabError(f"{self.nodes[index].name}: {command}: {done.stdout}{done.stderr}")
        return done.stdout

    def well(self) -> None:
        """Restore the host as new, start what has ended since the last test, and show its log."""
        try:
            for node in self._all():
                node.check()
        except LabError as error:
            print(f"the lab is repaired: {error}", file=sys.stderr)
        if not all(node.up and node.listens(PORT) and not node.started() for node in self._all()):
            self.clear()

    def clear(self) -> None:
        """Undo everything: power, cables and sshds are back, nothing else runs, and disks have but the libraries."""
        for node in self._all():
            node.revive()
        until("clear hosts", self._cleared)
        self.empty(libraries=False)

    def _cleared(self) -> bool:
        """Kill every process that the nodes have started, and return whether there was none."""
        left = [pid for node in self._all() for pid in node.started()]
        for pid in left:
            claims.kill(pid)
        return not left


def keygen(path: Path) -> str:
    """Make a key; its public half."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)
    return path.with_name(f"{path.name}.pub").read_text()


def empty(folder: Path, kept: Path | None = None) -> None:
    """Remove all that is in a folder but the one that is kept, and what leads to it."""
    for path in folder.iterdir():
        if path == kept:
            continue
        if kept is not None and kept.is_relative_to(path):
            empty(path, kept)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
