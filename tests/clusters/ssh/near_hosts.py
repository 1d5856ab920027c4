"""Hosts of a run in this process: a folder each, and what would answer over SSH answers at once."""

import io
from types import SimpleNamespace

from launcher.clusters.ssh import host_clients, pool
from launcher.clusters.ssh.host.server import HostServer
from launcher.clusters.ssh.host_client import Place
from launcher.clusters.ssh.messages import HELLO, TakeFile, read_request
from launcher.clusters.ssh.submit import look
from launcher.errors import Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.failures import Lost
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Handle
from launcher.spec.model import SshHost
from tests.run_folder import RunFolder, dead_process

RUN = "job-1a2b"


class _Process:
    """What `there` says to each request, with what follows it."""

    def __init__(self, name, line):
        self._name, self._line, self._said = name, line, io.BytesIO(HELLO)
        self._heard = b""

    def write(self, data, _limit_s=0.0):
        self._line.asked += 1
        if self._line.hangs or (self._line.hangs_at and data.startswith(self._line.hangs_at)):
            raise Lost(f"{self._name}: no answer in time")
        self._heard += data
        request = read_request(self._heard.partition(b"\n")[0])
        follows = request.manifest_size + request.size if isinstance(request, TakeFile) else 0
        if len(self._heard.partition(b"\n")[2]) < follows:
            return
        told = io.BytesIO()
        HostServer(io.BytesIO(self._heard), told).serve()
        self._heard = b""
        at = self._said.tell()
        self._said.seek(0, 2)
        self._said.write(told.getvalue())
        self._said.seek(at)

    def readline(self, limit_s):
        self._line.limits.add(limit_s)
        return self._said.readline()

    def read(self, size, _limit_s):
        return self._said.read(size)

    def close(self):
        pass


class _Line(Line):
    def __init__(self, name):
        self.target = SimpleNamespace(name=name)
        self.hangs, self.asked, self.limits = False, 0, set()
        self.hangs_at = None  # what a request begins with

    alive = True

    def start(self, argv):
        return _Process(self.target.name, self)

    def close(self):
        pass


class NearHosts:
    """A run on these hosts, submitted from here."""

    def __init__(self, folder, monkeypatch, names=("node0", "node1")):
        self.folder = folder
        self.lines = {name: _Line(name) for name in names}
        self.cut, self.dialled = set(), set()
        monkeypatch.setattr(pool, "lines_to", self._lines_to)
        monkeypatch.setattr(host_clients, "_clients", {})
        monkeypatch.setattr(host_clients, "_silent", {})
        self.mirror = RunFolder(folder / "here" / RUN).plan(len(names))
        self.hand_over(1, *names)

    def _lines_to(self, hosts, *, agent):
        self.dialled |= {host.name for host in hosts}
        gone = {host.name: Unreachable(f"{host.name} does not answer") for host in hosts if host.name in self.cut}
        return {host.name: gone.get(host.name, self.lines.get(host.name)) for host in hosts}

    @property
    def run(self):
        return self.mirror.run

    def hand_over(self, attempt, *names):
        """As the submitter leaves an attempt that is in these hosts' hands."""
        self.mirror.intent(attempt, by=dead_process(), kind="ssh")
        there = self.run.attempt(attempt)
        self.mirror.write(there.handle, Handle("ssh"))
        self.mirror.write(there.hosts, [self.place(name) for name in names])

    def place(self, name):
        return Place(SshHost(name), False, "python", str(self.folder / name), name)

    def on(self, name):
        """The run's folder on a host."""
        path = self.folder / name / "runs" / RUN
        if not path.exists():
            return RunFolder(path).plan(len(self.lines))
        folder = RunFolder.__new__(RunFolder)
        folder.run = RunDir(path)
        return folder

    def look(self):
        attempt = max(self.run.attempts.iterdir())
        return look.look([(self.run, self.run.attempt(int(attempt.name)))])[0]

    def asked(self):
        return {name for name, line in self.lines.items() if line.asked}
