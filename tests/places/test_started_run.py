"""A run that has really started, each of whose records somebody then damages: where it ran, behind a login node, or on
a host of a pool. Whoever looks at it gets a value or one error of ours, soon, and nothing is written elsewhere."""

import json
import os
import random
import shutil
import subprocess
import sys
import time

import msgspec
import pytest
from hostile import Says

from launcher.api import Run
from launcher.apps import remote_api as far
from launcher.copies.mirror import logs
from launcher.errors import LaunchError
from launcher.places.login import records
from launcher.places.login.messages import LookAtRuns, RunNews
from launcher.places.ssh.results import fetch
from launcher.places.ssh.submit import look
from launcher.remote.rpc.client import RpcClient
from launcher.remote.rpc.wire import greeting
from launcher.run import registry
from launcher.run.durable import write_record
from launcher.run.layout import RunDir
from launcher.run.records import Handle
from launcher.states import State
from launcher.status.life import read_life
from tests.places.ssh.near_hosts import RUN, NearHosts, on_hosts
from tests.run_folder import RunFolder, plan_of
from tests.sizes import NIGHTLY, SCALE, SEED

MANY = 50 * SCALE if NIGHTLY else 8  # damages of each record, and of each answer
MOST_S = 20.0
RECORDS = [
    "plan.json", "state.json", "events.jsonl", "FENCE", "spec.yaml", "attempts/0001/token.json",
    "attempts/0001/exits.jsonl", "attempts/0001/started", "attempts/0001/exit.json", "attempts/0001/handle.json",
    "attempts/0001/coordinator.json", "attempts/0001/node-00/agent.json",
    "attempts/0001/node-00/rank-001.json", "logs/a0001.g0001/rank-00000.log", "logs/a0001.g0001/rank-00000.times",
    "metrics/environment.n000.a0001.jsonl",
]  # fmt: skip
SCRIPT = """
import os, pathlib, time
folder = pathlib.Path(os.environ["LAUNCH_RUN_DIR"]) / "attempts/0001/node-00"
record = folder / f"rank-{int(os.environ['RANK']):03}.json"
while not record.exists():
    time.sleep(0.01)
print("up", flush=True)
"""  # a rank that ends at once may have no record
LIES = [
    "../../canary", "/tmp/canary/x", "a/../../../canary", "canary\n", "\0", "", "local", "\x1b[2J\u202e", "x" * 70_000,
    -1, 0, 2, 256, 1 << 40, 1 << 70, 1e308, 0.5, True, None, [], {}, ["../canary"], {"canary": "canary"}, "running",
    "$(touch canary)", "succeeded", [[[[]]]], "\ud800",
]  # fmt: skip


# -- what is done to them


def places_in(value, at=()):
    """Yield each place of a record by the keys that lead to it."""
    yield at
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(one, (*at, key))


def with_lie(value, at, lie):
    if not at:
        return lie
    key, *rest = at
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = with_lie(copy[key], rest, lie)
    return copy


def lied(draw, data):
    """Return the record with wrong values in one line, or with random bytes added if that line is not JSON."""
    lines = data.splitlines(keepends=True)
    number = draw.randrange(len(lines)) if lines else 0
    try:
        value = json.loads(lines[number])
    except (ValueError, IndexError):
        return data + draw.randbytes(3)
    for _ in range(draw.choice((1, 1, 1, 3))):
        value = with_lie(value, draw.choice([*places_in(value)]), draw.choice(LIES))
    return b"".join((*lines[:number], json.dumps(value).encode() + b"\n", *lines[number + 1 :]))


def damaged(draw, data):
    at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    match draw.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + draw.randbytes(draw.randrange(1, 9)) + data[at:]
        case 3:
            return data[:at] + data[at:end] * 3 + data[end:]
        case _:
            return lied(draw, data)


def damages(name, data):
    print("seed", SEED)
    draw = random.Random(f"{SEED} {name}")
    for _ in range(MANY):
        yield damaged(draw, data)


# -- the run


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a run that two ranks have really carried out."""
    root = tmp_path_factory.mktemp("started")
    (root / "train.py").write_text(SCRIPT)
    (root / "job.yaml").write_text("name: job\nrun: {script: train.py, preload: []}\nresources: {ranks_per_node: 2}\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "launcher.cli.main", "submit", "job.yaml", "--follow"],
        env={**env, "XDG_STATE_HOME": str(root / "state"), "GIT_CEILING_DIRECTORIES": str(root.parent)},
        cwd=root, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in (root / ".launch" / "runs").glob("*/plan.json"))
    assert not [name for name in RECORDS if not (folder / name).stat().st_size]
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A machine of its own, with what is written outside of the folders that may be written to."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs, "_asked", set())
    return tmp_path


def copied(started, path):
    shutil.copytree(started, path, symlinks=True)
    return RunDir(path)


def in_time(work, told):
    """Return what it returns, or None where it raises what the command line says in one line."""
    began = time.monotonic()
    try:
        return work()
    except LaunchError as error:
        assert error.lines and error.lines[0].strip() and error.exit_code, told
        return None
    except OSError as error:
        assert error.strerror and error.filename, told
        return None
    finally:
        assert time.monotonic() - began < MOST_S, told


def no_canary(place, told):
    assert not list(place.rglob("*canary*")), told
    assert not os.path.lexists("/tmp/canary"), told


def everything_told(run):
    """Return everything that is printed about a run where it is."""
    one = Run(run.path.name, run.path)
    status = one.status()
    read_life(status, time.time())
    return status, list(one.checkpoints()), one.metrics()


@pytest.mark.parametrize("record", RECORDS)
def test_its_own_commands(started, place, record):
    run = copied(started, place / "runs" / started.name)
    assert in_time(lambda: everything_told(run), record)[0].state is State.SUCCEEDED
    for data in damages(record, whole := (started / record).read_bytes()):
        (run.path / record).write_bytes(data)
        in_time(lambda: everything_told(run), (record, data))
    no_canary(place, record)
    (run.path / record).write_bytes(whole)
    assert everything_told(run)[0].state is State.SUCCEEDED, "whatever was looked at is as it was"


# -- behind a login node


class BehindLogin:
    """The run as a login node has it, and its folder here."""

    def __init__(self, started, place):
        self.there = copied(started, place / "far" / started.name)
        registry.register(started.name, self.there.path, fsync=False)
        self.here = RunFolder(place / "here" / "job-aaaa").plan().intent(kind="login").run
        self.attempt = self.here.attempt(1)
        handle = Handle("login", submit_token="ab" * 8, run=started.name, path=str(self.there.path))
        write_record(self.attempt.handle, handle)

    def line(self):
        """Return the login node's answer as it is sent."""
        known = records.known_of(self.here, self.attempt, self.there.path.name)
        return msgspec.json.encode({"value": far.answer(LookAtRuns((known,)))}) + b"\n"

    def keep(self, line):
        client = RpcClient(Says(b"Welcome\n" + greeting() + line))
        news = client.ask({}, dict[str, RunNews], timeout_s=5.0).get(self.there.path.name)
        if news is not None:
            records.keep(self.here, self.attempt, news)
            records.answer_of(self.attempt, news)
        return news

    def restore(self):
        for path in self.here.path.iterdir():
            if path.name not in ("attempts", "plan.json"):
                path.unlink()
        for path in self.here.attempts.iterdir():
            if path.name != "0001":
                shutil.rmtree(path)
        self.attempt.end.unlink(missing_ok=True)
        self.attempt.seen.unlink(missing_ok=True)


@pytest.fixture
def behind_login(started, place):
    return BehindLogin(started, place)


@pytest.mark.parametrize("record", RECORDS)
def test_behind_a_login_node_with_a_damaged_record(started, place, behind_login, record):
    assert in_time(lambda: behind_login.keep(behind_login.line()), record).state is State.SUCCEEDED
    for data in damages(f"login {record}", (started / record).read_bytes()):
        behind_login.restore()
        (behind_login.there.path / record).write_bytes(data)
        in_time(lambda: behind_login.keep(behind_login.line()), (record, data))
        in_time(lambda: everything_told(behind_login.here), (record, data))
    no_canary(place, record)


def test_behind_a_login_node_that_lies_of_it(place, behind_login):
    whole, plan = behind_login.line(), behind_login.here.plan.read_bytes()
    for line in damages("login", whole):
        behind_login.restore()
        in_time(lambda line=line: behind_login.keep(line), line)
        in_time(lambda: everything_told(behind_login.here), line)
        assert behind_login.here.plan.read_bytes() == plan, line
    no_canary(place, "login")
    assert {path.name for path in (place / "here").iterdir()} == {"job-aaaa"}


# -- on a host of a pool


class OnHost:
    """A run as node0 of a pool has it, while node1 does not answer."""

    def __init__(self, started, place, monkeypatch):
        self.near = NearHosts(place, monkeypatch)
        self.near.cut.add("node1")
        plan = on_hosts(plan_of(self.near.run.path, 2), "node0", "node1")
        self.plan = msgspec.structs.replace(plan, cluster="pool", cluster_kind="ssh")
        self.near.mirror.write(self.near.run.plan, self.plan)
        self.there = copied(started, place / "node0" / "runs" / RUN)

    def look(self):
        run = self.near.run
        (word,) = look.look([(run, run.attempt(1))])
        return word

    def fetch(self):
        return fetch._bring(self.near.run, [self.near.place("node0")])

    def restore(self):
        run = self.near.run
        for name in ("state.json", "events.jsonl", "avoided.json"):
            (run.path / name).unlink(missing_ok=True)
        for path in (run.path / "logs", run.path / "metrics"):
            shutil.rmtree(path, ignore_errors=True)
        for path in run.attempts.iterdir():
            if path.name != "0001":
                shutil.rmtree(path)
        for path in (run.attempt(1).end, run.attempt(1).seen, run.attempt(1).supervisor_log):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("record", RECORDS)
def test_on_a_host_with_a_damaged_record(started, place, monkeypatch, record):
    host = OnHost(started, place, monkeypatch)
    assert host.look().word == "SUCCEEDED"
    assert not host.fetch() and (host.near.run.path / "logs").is_dir()
    plan = host.near.run.plan.read_bytes()
    for data in damages(f"host {record}", (started / record).read_bytes()):
        host.restore()
        (host.there.path / record).write_bytes(data)
        told = (record, data)
        in_time(host.look, told)
        in_time(host.fetch, told)
        in_time(lambda: everything_told(host.near.run), told)
        assert host.near.run.plan.read_bytes() == plan, told
    no_canary(place, record)
