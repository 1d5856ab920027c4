"""A login node on this machine: a real sshd, and a user there whose home, programs and state are not those here."""

import base64
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lab import all_pids, environment, parent, read

from launcher.node.ranks.ports import HeldPort
from launcher.run.processes import TAG, end_all
from tests import documented
from tests.lab.requirements import missing

BOUND_S = 150.0
ROOT = Path(__file__).parents[2]
RELAY = Path(__file__).parent / "scripts" / "relay.py"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
MISSING = "needs root" if os.geteuid() != 0 else missing("sshd", "ssh", "ssh-keygen")


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


def programs():
    """Return PATH without the folders that have a `launch`."""
    folders = os.environ["PATH"].split(":")
    return ":".join(folder for folder in folders if not os.path.exists(f"{folder}/launch"))


class LoginNode:
    """sshd and the far user."""

    def __init__(self, root, name="hpc"):
        self.root, self.name = root, name
        self.home = root / "home"
        self.bin = root / "bin"
        self.home.mkdir(parents=True)
        self.bin.mkdir()
        self.commands = root / "commands"
        self._held = HeldPort("127.0.0.1")  # also while its sshd is down
        self.port = self._held.number
        self.key = root / "key"
        (root / "authorized_keys").write_text(keygen(self.key))
        self.host_key = " ".join(keygen(root / "host_key").split()[:2])
        self.program(f'exec {sys.executable} -P -m launcher.cli.main "$@"')
        self.shell()
        self._sshd = None

    def program(self, body):
        """Write the `launch` of the login node."""
        script(self.bin / "launch", f"export PYTHONPATH={ROOT}\n{body}")

    def shell(self, greeting=""):
        """The user's login shell: with nothing of the environment of the tests, and perhaps with something to say."""
        env = {
            "HOME": self.home,
            "PATH": f"{self.bin}:{programs()}",
            "USER": "far",
            "SHELL": "/bin/sh",
            "PYTHONPYCACHEPREFIX": self.root / "pycache",
        }
        words = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in env.items())
        script(
            self.root / "shell",
            f"cd {self.home}\n"
            f"printf '%s\\n' \"$SSH_ORIGINAL_COMMAND\" >> {self.commands}\n"
            f"{greeting}\n"
            f'exec env -i {words} SSH_CONNECTION="$SSH_CONNECTION" /bin/sh -c "$SSH_ORIGINAL_COMMAND"',
        )

    def up(self):
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self.root / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.root}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {self.root}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nAcceptEnv *\nPermitRootLogin yes\n"
            f"ForceCommand {self.root}/shell\n"
        )
        with (self.root / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + BOUND_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            assert self._sshd.poll() is None, (self.root / "sshd.log").read_text()
            assert time.monotonic() < deadline, "sshd never came up"
            time.sleep(0.02)

    def down(self):
        """Kill the ssh server, so that new connections fail; existing ones stay."""
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None

    def connections(self):
        """The processes of sshd that serve somebody."""
        port = f" {self.port}".encode()
        return [
            pid
            for pid in all_pids()
            if any(word.startswith(b"SSH_CONNECTION=") and word.endswith(port) for word in environment(pid))
        ]

    def cut(self):
        """End every connection, as a network does."""
        serving = [pid for pid in all_pids() if parent(pid) == self._sshd.pid]
        for pid in [
            *serving,
            *(pid for pid in all_pids() if parent(pid) in serving and read(pid, "comm") == b"sshd\n"),
        ]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def asked(self):
        """Every command line that came over ssh."""
        return self.commands.read_text().splitlines() if self.commands.exists() else []

    def processes(self):
        """Whatever of runs lives there."""
        prefix = f"{TAG}={self.root}".encode()
        return [pid for pid in all_pids() if any(word.startswith(prefix) for word in environment(pid))]

    def runs(self):
        """Ids of the runs that exist there."""
        runs = self.home / "launch" / "runs"
        return sorted(path.name for path in runs.iterdir() if not path.name.startswith(".")) if runs.is_dir() else []

    def trees(self):
        projects = self.home / "launch" / "projects"
        return sorted(path.name for path in projects.iterdir()) if projects.is_dir() else []

    def tidy(self):
        end_all(self.processes)
        self.down()
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._held.release()


class Laptop:
    """The near user: a project, a clusters file, an SSH configuration, and nothing of the login node's."""

    def __init__(self, root, *nodes):
        self.root = root
        self.nodes = nodes
        self.project = root / "project"
        self.project.mkdir(parents=True)
        (self.project / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
        self.bin = root / "bin"
        self.bin.mkdir()
        self.env = {
            **os.environ,
            "HOME": str(root / "home"),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "LAUNCH_SSH_CONFIG": str(root / "ssh_config"),
            "PYTHONPATH": str(ROOT),
        }
        self.env.pop("LAUNCH_RUNS", None)
        self.configure()
        self.clusters("".join(f"{node.name}: {{kind: slurm, login: {node.name}, cluster: local}}\n" for node in nodes))

    def configure(self, more="", known_hosts=None, hosts=None):
        """Write the SSH configuration, which knows the hosts unless something else is said."""
        hosts = hosts or {node.name: node for node in self.nodes}
        if known_hosts is None:
            known_hosts = "".join(f"[127.0.0.1]:{node.port} {node.host_key}\n" for node in self.nodes)
        (self.root / "known_hosts").write_text(known_hosts)
        blocks = "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {node.port}\n  User root\n  IdentityFile {node.key}\n"
            for name, node in hosts.items()
        )
        (self.root / "ssh_config").write_text(
            f"{more}\n{blocks}Host *\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.root}/known_hosts\n"
            "  GlobalKnownHostsFile /dev/null\n"
        )

    def clusters(self, text):
        path = self.root / "config" / "launch" / "clusters.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def relay(self, **cut):
        """Have ssh go through a relay that writes down what passes, and may cut the connection once."""
        (self.root / "cut").write_text(json.dumps(cut))
        (self.root / "passed").mkdir(exist_ok=True)
        script(self.bin / "ssh", f'exec {sys.executable} {RELAY} {shutil.which("ssh")} {self.root} "$@"')

    def passed(self):
        """Return for each call of ssh its argv, env and the bytes sent up and down."""
        return [self._call(path) for path in sorted((self.root / "passed").iterdir())]

    @staticmethod
    def _call(path):
        first, *parts = map(json.loads, path.read_text().splitlines())
        ways = {way: [base64.b64decode(data) for one, data in parts if one == way] for way in ("up", "down")}
        return {**first, **{way: b"".join(pieces) for way, pieces in ways.items()}}

    def script(self, name, text):
        (self.project / name).write_text(text)
        return name

    def spec(self, text, name="job.yaml"):
        return self.script(name, text)

    def launch(self, *words, check=0, env=None, timeout=BOUND_S, typed=None):
        done = subprocess.run(
            self.command(*words),
            input=typed,
            cwd=self.project,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check is not None:
            assert done.returncode == check, f"launch {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        documented.check(words, done.stdout)
        return done

    def command(self, *words):
        return [sys.executable, "-P", "-m", "launcher.cli.main", *words]

    def start(self, *words, **more):
        return subprocess.Popen(self.command(*words), cwd=self.project, env=self.env, **more)

    def submit(self, *words, spec="job.yaml", on=None, **more):
        return self.launch("submit", spec, "--on", on or self.nodes[0].name, *words, **more).stdout.strip()

    def status(self, run):
        return json.loads(self.launch("status", run, "--json").stdout)

    def statuses(self, *words):
        return {one["run"]: one for one in json.loads(self.launch("status", "--json", *words).stdout)}

    def forget_answers(self):
        """Forget all answers of the login node."""
        for run in self.runs():
            for name in ("state.json", "attempts/*/seen.json", "attempts/*/exit.json"):
                for path in self.folder(run).glob(name):
                    path.unlink()

    def runs(self):
        """Ids of the runs that are known here."""
        return sorted(path.name for path in (self.root / "state" / "launch" / "runs").glob("*"))

    def folder(self, run):
        return (self.root / "state" / "launch" / "runs" / run).resolve()

    def processes(self):
        """Whatever of runs lives here."""
        prefix = f"{TAG}={self.project}".encode()
        return [pid for pid in all_pids() if any(word.startswith(prefix) for word in environment(pid))]

    def unfinished(self):
        """Runs that were begun here, and of which nobody knows what came of them there."""
        folders = map(self.folder, self.runs())
        return [path.name for path in folders if not (path / "attempts" / "0001" / "handle.json").exists()]


def read_terminal(fd):
    try:
        return os.read(fd, 65536)
    except OSError:  # its other end has closed
        return b""


def script(path, body):
    draft = path.with_suffix(".new")
    draft.write_text(f"#!/bin/sh\n{body}\n")
    draft.chmod(0o755)
    draft.rename(path)
