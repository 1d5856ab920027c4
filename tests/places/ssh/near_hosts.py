"""Hosts of a run in this process: a folder each, and what would answer over SSH answers at once."""

import io
import math
from types import SimpleNamespace

import msgspec

from launcher.errors import Unreachable
from launcher.places.ssh import host_clients, pool
from launcher.places.ssh.host.server import HostServer
from launcher.places.ssh.host_client import Place
from launcher.places.ssh.messages import Request
from launcher.places.ssh.submit import look
from launcher.plan.model import NodePlan
from launcher.remote.connect import Line
from launcher.remote.failures import Lost, SilentMachines
from launcher.remote.rpc.server import answer_all
from launcher.remote.rpc.wire import Incoming, decoded, greeting
from launcher.run.layout import RunDir
from launcher.run.records import Handle
from launcher.spec.model import SshHost
from tests.run_folder import RunFolder, dead_process, plan_of

REQUESTS = msgspec.json.Decoder(Request)
RUN = "job-1a2b"


class _Process:
    """A process on a host that answers each request by `there`, once all of it has arrived."""

    def __init__(self, name, line):
        self.who, self._line = name, line
        self._server, self._said, self._heard = HostServer(), greeting(), b""

    def feed(self, data, _limit_s):
        self._line.asked += 1
        if self._line.hangs or (self._line.hangs_at and self._line.hangs_at in data):
            raise Lost(f"{self.who}: no answer in time")
        self._heard += data
        request, _, rest = self._heard.partition(b"\n")
        if len(rest) >= getattr(decoded(request, REQUESTS), "follows", 0):
            heard = io.BytesIO(self._heard)
            told = io.BytesIO()
            answer_all(Incoming(lambda _deadline, most: heard.read(most)), told.write, Request, self._server.answer)
            self._heard = b""
            self._said += told.getvalue().removeprefix(greeting())
        return True

    def read(self, most, limit_s):
        self._line.limits.add(math.ceil(limit_s))
        data, self._said = self._said[:most], self._said[most:]
        return data

    def last_error_lines(self):
        return []

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


def on_hosts(plan, *names):
    """The plan with its nodes on these."""
    nodes = tuple(NodePlan(index, name, spare=False, gpus=None, host=name) for index, name in enumerate(names))
    return msgspec.structs.replace(plan, nodes=nodes)


class NearHosts:
    """A run on these hosts, submitted from here."""

    def __init__(self, folder, monkeypatch, names=("node0", "node1")):
        self.folder = folder
        self.lines = {name: _Line(name) for name in names}
        self.cut, self.dialled = set(), set()
        monkeypatch.setattr(pool, "lines_to", self._lines_to)
        monkeypatch.setattr(host_clients, "_clients", {})
        monkeypatch.setattr(host_clients, "_silent", SilentMachines())
        self.mirror = RunFolder(folder / "here" / RUN).plan(len(names))
        self.hand_over(1, *names)

    def _lines_to(self, hosts, *, agent):
        self.dialled |= {host.name for host in hosts}
        gone = {host.name: Unreachable(f"{host.name} does not answer") for host in hosts if host.name in self.cut}
        return {host.name: gone.get(host.name, self.lines.get(host.name)) for host in hosts}

    def let_back(self):
        """Make all hosts reachable again, and query those that were silent at once."""
        self.cut.clear()
        host_clients._silent._found.clear()

    @property
    def run(self):
        return self.mirror.run

    def hand_over(self, attempt, *names):
        """Leave an attempt to these hosts, as the submitter does."""
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
            folder = RunFolder(path)
            return folder.write(folder.run.plan, on_hosts(plan_of(path, len(self.lines)), *self.lines))
        folder = RunFolder.__new__(RunFolder)
        folder.run = RunDir(path)
        return folder

    def look(self):
        attempt = max(self.run.attempts.iterdir())
        return look.look([(self.run, self.run.attempt(int(attempt.name)))])[0]

    def asked(self):
        return {name for name, line in self.lines.items() if line.asked}
