"""A host that lies in every field that it can set, in turn: nothing runs and nothing is written outside the run's
folder, nobody waits longer than is said, memory is bounded, and the message names the host."""

import json
import os
import random
import resource
import shutil
import sys
import time
from contextlib import suppress

import msgspec
import pytest
from hostile import fields_of

from launcher.api import Run
from launcher.copies.mirror import logs
from launcher.errors import LaunchError
from launcher.places.ssh import host_clients
from launcher.places.ssh.host_client import HostLimits
from launcher.places.ssh.results import fetch
from launcher.places.ssh.run_hosts import everywhere
from launcher.places.ssh.submit import cancel, discovery, look
from launcher.remote.connect import Line
from launcher.remote.openssh import SshProcess
from launcher.remote.running import Running
from launcher.run.attempts import read_plan
from launcher.run.durable import read_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import ClusterAnswer, Exclusion, Intent, RunState
from launcher.spec.model import Recovery, Ssh, SshHost
from launcher.states import State
from tests.places.ssh.near_hosts import RUN, NearHosts, on_hosts
from tests.run_folder import dead_process, plan_of, state_of
from tests.saved_checkpoints import save_part
from tests.sizes import SCALE, SEED

pytestmark = pytest.mark.nightly

PROGRAM = os.path.join(os.path.dirname(__file__), "scripts", "hostile_host.py")
SPEC = "name: job\nrun: {command: [train]}\nresources: {nodes: 1..2}\n"
MOST_MEMORY_KIB = 600 << 10
LIMITS = HostLimits(soon_s=2.0, answer_s=2.0, ends_s=2.0 - Recovery().grace_s)
CANARY = ["run.command=[touch, canary]"]
LIES = [
    "../../canary", "/tmp/canary/x", "a/../../../canary", "canary\n", "\0", "", "local", "\x1b[2J\u202e", "x" * 100_000,
    -1, 0, 1 << 40, 1 << 70, 1e308, True, None, [], {}, ["../canary"], CANARY, [["run.command", "[touch, canary]"]],
    {"canary": "canary"}, "$(touch canary)", "node9",
]  # fmt: skip


class HostileLine(Line):
    """A connection to the program, in the place of the server that is to be started."""

    alive = True

    def __init__(self, heard):
        self._heard = heard

    def start(self, _words):
        argv = [sys.executable, PROGRAM, str(self._heard)]
        return Running("node0", SshProcess(argv, (), lambda: False))

    def close(self):
        pass


class HostileHost:
    """A run on one host, node0, which lies, and on node1, which is never there."""

    def __init__(self, folder, monkeypatch):
        self.near = NearHosts(folder, monkeypatch)
        self.heard, self._lie = folder / "heard", folder / "lie.json"
        self.near.lines["node0"] = HostileLine(self.heard)
        self.near.cut.add("node1")
        self.folder, self.run = folder, self.near.run
        plan = on_hosts(plan_of(self.run.path, 2), "node0", "node1")
        self.near.mirror.write(self.run.plan, msgspec.structs.replace(plan, cluster="pool", cluster_kind="ssh"))
        there = self.near.on("node0").attempt(2, supervisor=dead_process()).state(State.RUNNING, 2, step=7)
        there.event("begun").log(0, "a line\n", attempt=2).end(State.FAILED, attempt=2, exit_code=10)
        there.write(there.run.avoided, [Exclusion("node1", "lost", 2, 1.0, 1e12)]).stop(attempt=2)
        there.run.attempt(2).supervisor_log.write_text("kept\n")
        there.run.spec.write_text(SPEC)
        save_part(there.path / "checkpoints", 5, range(2))
        self.there = folder / "node0"

    def lies(self, **lie):
        self._lie.write_text(json.dumps(lie))

    def verbs(self):
        """Yield every request that is sent to a host."""
        ssh = Ssh(hosts=(SshHost("node0"), SshHost("node1")))
        place = self.near.place("node0")
        newest = self.run.attempt(max(int(path.name) for path in self.run.attempts.iterdir()))
        return [
            lambda: look.look([(self.run, newest)])[0].silent,
            lambda: "; ".join(one.lines[0] for one in fetch._bring(self.run, [place]).values()),
            lambda: fetch.fetch(self.run, "newest") and "",
            lambda: cancel.include_hosts(self.run, ()),
            lambda: cancel.cancel(self.run, newest) and "",
            lambda: discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, {"node0": place})) and "",
        ]

    def try_all(self):
        """Make every request, and return the errors."""
        said = []
        for verb in self.verbs():
            try:
                said.append(verb() or "")
            except LaunchError as error:
                said.append("; ".join(error.lines))
        return [one for one in said if one]

    def outside(self):
        """Return all names and contents except of the run here and of the host itself."""
        own = (self.run.path, self.there, self.folder / "state" / "launch" / "adopted" / RUN, self.heard, self._lie)
        return {
            path: path.read_bytes() if path.is_file() and not path.is_symlink() else None
            for path in self.folder.rglob("*")
            if not any(path == one or one in path.parents for one in own)
        }


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_asked", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    hostile = HostileHost(tmp_path, monkeypatch)
    yield hostile
    for one in [*host_clients._clients.values()]:
        one.close()


def test_every_field(host, tmp_path):
    print("seed", SEED)
    host.try_all()  # honestly, for what there is to lie about
    fields = {at for line in host.heard.read_text().splitlines() for at in fields_of(json.loads(line))}
    assert {("value", "begun", "hosts", 0), ("value", "last", "attempt"), ("value", "overrides")} <= fields
    pairs = [(at, lie) for at in sorted(fields, key=str) for lie in LIES]
    first = [pair for pair in pairs if pair[0][1:2] in (("begun",), ("overrides",), ("spec",), ("hosts",), ("files",))]
    draw = random.Random(SEED)
    drawn = draw.sample(first, min(len(first), 12 * SCALE)) + draw.sample(pairs, min(len(pairs), 12 * SCALE))
    before = host.outside()
    for at, lie in drawn:
        for path in (host.run.path / "checkpoints", host.run.attempt(2).path, tmp_path / "state"):
            shutil.rmtree(path, ignore_errors=True)
        host.lies(at=at, **{"is": lie})
        began = time.monotonic()
        said = host.try_all()
        assert time.monotonic() - began < 60, (at, lie)
        own = {path: one for path, one in host.outside().items() if "state" not in path.parts}
        assert own == {path: one for path, one in before.items() if "state" not in path.parts}, (at, lie)
        assert not [path for path in (tmp_path / "state").rglob("*") if "canary" in path.name], (at, lie)
        assert read_plan(host.run, 2).cluster_kind == "ssh" and read_plan(host.run, 2).overrides == (), (at, lie)
        assert all("node0" in one or "node1" in one for one in said), (at, lie, said)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "lie",
    [{"floods": "greeting"}, {"floods": "line"}, {"floods": "bytes"}, {"floods": "noise"}, {"floods": "stderr"}],
    ids=lambda lie: lie["floods"],
)
def test_who_says_too_much_is_not_heard_to_the_end(host, lie):
    host_clients.client_to(host.near.place("node0"), LIMITS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    host.lies(**lie)
    began = time.monotonic()
    said = host.try_all()
    assert said and all("node0" in one or "node1" in one for one in said), said
    assert time.monotonic() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY_KIB


@pytest.mark.parametrize("lie", ["hangs", "hangs_up", "drips"])
def test_who_says_too_little_is_not_waited_for(host, lie):
    host_clients.client_to(host.near.place("node0"), LIMITS)
    host.lies(**{lie: True})
    began = time.monotonic()
    said = host.try_all()
    assert said and all("node0" in one or "node1" in one for one in said), said
    assert time.monotonic() - began < 40


# -- the exploits, each by itself


@pytest.mark.daily
def test_a_resume_runs_what_was_submitted_here_and_where_it_was(host, monkeypatch, tmp_path):
    """A host's `cluster_kind: local` and `overrides` were believed: its command ran here, as whoever resumed."""
    there = host.near.on("node0").run.attempt(2)
    plan = on_hosts(plan_of(there.path.parent.parent, 2), "node0", "node1")
    lies = msgspec.structs.replace(
        plan, cluster="local", cluster_kind="local", overrides=("run.command=[touch, canary]",)
    )
    host.near.mirror.write(there.plan, lies)
    host.near.mirror.write(there.intent, Intent(2, "0" * 64, "local", "requeue", None, 1.0, this_process(), "local"))
    host.verbs()[0]()
    ours = read_plan(host.run, 2)
    assert (ours.cluster, ours.cluster_kind, ours.overrides) == ("pool", "ssh", ())
    assert [node.host for node in ours.nodes] == ["node0", "node1"]
    assert msgspec.json.decode(host.run.attempt(2).intent.read_bytes(), type=Intent).cluster_kind == "ssh"


@pytest.mark.parametrize("names", [["node0", "gpu9"], ["gpu9"], ["node0", "node0"], []])
def test_a_run_goes_on_with_nobody_that_it_was_not_handed_to(host, names):
    """Whom a host names is asked next, with what proves who we are."""
    there = host.near.on("node0").run
    host.near.mirror.write(there.attempt(2).plan, on_hosts(plan_of(there.path, 2), *names))
    assert host.verbs()[0]().startswith(f"node0: says of {RUN} that it goes on with ")
    assert not host.run.attempt(2).intent.exists()


@pytest.mark.daily
def test_what_a_run_is_called_our_own_plan_says(host):
    there = host.near.on("node0")
    lies = {"run": "other-1a2b", "name": "other", "cluster": "elsewhere", "submitted_at": 5.0}
    there.write(there.run.state, msgspec.structs.replace(state_of(there.run, attempt=2), **lies))
    host.verbs()[0]()
    ours, plan = read_record(host.run.state, RunState), read_plan(host.run, 1)
    assert (ours.run, ours.name, ours.cluster, ours.submitted_at) == (RUN, plan.name, "pool", plan.submitted_at)


@pytest.mark.daily
def test_a_fetch_writes_into_the_folder_that_our_own_plan_names(host, tmp_path):
    """`checkpoint.dir: ../../X` of a host's plan led it out of the run."""
    there = host.near.on("node0").run
    plan = on_hosts(plan_of(there.path, 2), "node0", "node1")
    dictated = msgspec.to_builtins(plan)
    dictated["spec"]["checkpoint"]["dir"] = "../../X"
    there.attempt(2).plan.write_bytes(msgspec.json.encode(dictated))
    host.verbs()[0]()
    with suppress(LaunchError):
        fetch.fetch(host.run, "newest")
    assert read_plan(host.run, 2).spec.checkpoint.dir == "checkpoints"
    assert not (tmp_path / "X").exists() and (host.run.path / "checkpoints" / "step-00000005").is_dir()


def test_a_found_run_is_watched_where_our_own_pool_is_and_is_never_resumed_here(host, monkeypatch):
    """Its hosts, its kind of cluster and its command were those that a host named."""
    there = host.near.on("node0").run
    there.spec.write_text(f"{SPEC}ssh: {{hosts: [evil]}}\ncheckpoint: {{dir: ours}}\nrecovery: {{grace: 3000d}}\n")
    ssh = Ssh(hosts=(SshHost("node0"), SshHost("node1")))
    path = discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, {"node0": host.near.place("node0")}))
    plan = read_plan(RunDir(path), 2)
    assert (plan.cluster, plan.cluster_kind, plan.spec.ssh, plan.overrides) == ("pool", "ssh", ssh, ())
    assert plan.spec.checkpoint.dir == "ours" and plan.spec.recovery.grace_s <= 3600
    monkeypatch.setattr(look, "judge", lambda *_: ClusterAnswer("ended", "LOST", 0.0, ended_as=State.LOST))
    with pytest.raises(LaunchError, match="was submitted from another machine"):
        Run(RUN, path).resume()


@pytest.mark.parametrize("names", [("node0",), ("node0", "node1")], ids=["fewer than it is on", "all that it is on"])
def test_a_found_run_is_on_those_of_its_hosts_that_our_pool_has(host, names):
    """One host of it that the clusters file here has not, and it could neither be watched nor ended from here."""
    ssh = Ssh(hosts=tuple(map(SshHost, names)))
    path = discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, {"node0": host.near.place("node0")}))
    assert [node.host for node in read_plan(RunDir(path), 2).nodes] == list(names)
    assert everywhere(RunDir(path)).keys() == set(names)


def test_a_found_run_that_cannot_be_kept_leaves_no_folder(host, monkeypatch):
    """The next try met the folder, and failed for what had been wrong with the clusters file."""

    def fail(*_):
        raise LaunchError("no")

    found = discovery.FoundRun(RUN, "pool", Ssh(hosts=(SshHost("node0"),)), {"node0": host.near.place("node0")})
    with monkeypatch.context() as failing:
        failing.setattr(discovery, "begin", fail)
        with pytest.raises(LaunchError, match="no"):
            discovery._mirrored(found)
    assert not discovery.registry.adopted(RUN).exists()
    assert discovery._mirrored(found).is_dir()


def test_a_found_run_whose_checkpoints_would_lie_elsewhere_is_refused(host, tmp_path):
    there = host.near.on("node0").run
    there.spec.write_text(f"{SPEC}checkpoint: {{dir: ../../X}}\n")
    ssh = Ssh(hosts=(SshHost("node0"),))
    with pytest.raises(LaunchError, match=r"node0: spec.yaml:\d+:\d+: checkpoint.dir"):
        discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, {"node0": host.near.place("node0")}))
    assert not (tmp_path / "state" / "launch" / "adopted" / RUN).exists()


def test_a_host_that_was_silent_is_looked_for_where_our_pool_says(host):
    """What another host says of its own folder is no place of a program on this one."""
    ssh = Ssh(hosts=(SshHost("node0"), SshHost("node1")), workdir="/ours")
    path = discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, {"node0": host.near.place("node0")}))
    silent = everywhere(RunDir(path))["node1"]
    assert silent.python.startswith("/ours/lib/") and silent.workdir == "/ours"
