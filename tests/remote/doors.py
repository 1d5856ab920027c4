"""Real sshds on loopback ports, each with a key of its own, and what they wrote down."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from launcher.node.ranks.ports import HeldPort
from launcher.remote.target import Target
from tests.lab.requirements import missing
from tests.waits import until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
MISSING = "needs root" if os.geteuid() != 0 else missing("sshd", "ssh", "ssh-keygen")
BOUND_S = 150.0
MARK = "LAUNCH_TEST_DOOR"
# sshd writes it when somebody has sent a name of a user or shown a key.
ATTEMPTS = ("publickey", "userauth-request", "Accepted", "Failed", "preauth] user", "authenticating user")


def keygen(path, *options, kind="ed25519", comment="test"):
    """A new key pair; the public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", path, *options], check=True)
    return Path(f"{path}.pub").read_text()


def attempts(door):
    return [line for line in door.log.splitlines() if any(word in line for word in ATTEMPTS)]


def listed(key):
    """Return the key as ssh-keygen lists it."""
    return subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout.split()[1]


class Door:
    """One sshd that lets root in with one key."""

    def __init__(self, root, name="door", settings="", host_kinds=("ed25519",)):
        self.root, self.name, self.settings = root, name, settings
        (root / "home").mkdir(parents=True)
        self._held = HeldPort("127.0.0.1")  # also while its sshd is down
        self.port = self._held.number
        self.key = root / "key"
        (root / "authorized_keys").write_text(keygen(self.key))
        self.host_keys = []
        for kind in host_kinds:
            path = root / f"host_{kind}"
            keygen(path, kind=kind)
            self.host_keys.append(path)
        self._sshd = None

    @property
    def host_line(self):
        """The first host key as a file of known hosts has it."""
        return f"[127.0.0.1]:{self.port} {' '.join(Path(f'{self.host_keys[0]}.pub').read_text().split()[:2])}\n"

    @property
    def log(self):
        return (self.root / "sshd.log").read_text()

    def up(self):
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self.root / "sshd_config"
        keys = "".join(f"HostKey {path}\n" for path in self.host_keys)
        config.write_text(
            f"{self.settings}\nPort {self.port}\nListenAddress 127.0.0.1\n{keys}PidFile none\nLogLevel VERBOSE\n"
            f"AuthorizedKeysFile {self.root}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            # A home of its own: bash reads ~/.bashrc for whoever comes over SSH, whatever that does.
            f"SetEnv {MARK}={self.root} HOME={self.root}/home\n"
        )
        with (self.root / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log, stdin=subprocess.DEVNULL)

        def answers():
            assert self._sshd.poll() is None, self.log
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                return probe.recv(4) == b"SSH-"

        until("sshd is up", answers)
        return self

    def serving(self):
        """The processes of sshd that serve somebody, the ones that have logged in too."""
        found, parents = [], [self._sshd.pid]
        while parents:
            children = [pid for parent in parents for pid in children_of(parent)]
            parents = [pid for pid in children if read(pid, "comm") == "sshd"]
            found += parents
        return found

    def cut(self):
        """End every connection at once; the commands are left to themselves."""
        for pid in reversed(self.serving()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def down(self):
        if self._sshd is not None:
            self.cut()
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self):
        self.down()
        self._held.release()

    def left(self):
        """Whatever was started through it and goes on."""
        mark = f"{MARK}={self.root}"
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if mark in read(pid, "environ").split("\0")]

    def target(self, **changes):
        known = self.root / "known_hosts"
        if not known.exists():
            known.write_text(self.host_line)
        fields = {
            "name": self.name,
            "hostname": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "keys": (self.key,),
            "agent": False,
            "jumps": (),
            "known_as": f"[127.0.0.1]:{self.port}",
            "known_hosts": (known,),
            "connect_timeout_s": BOUND_S,
        }
        return Target(**fields | changes)


def children_of(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").strip()
    except OSError:
        return ""
