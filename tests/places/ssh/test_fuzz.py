"""Whatever comes over the wire between a submitter and a host is a value of a declared type or an error of ours, in
bounded time, and writes nothing but where it belongs."""

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hostile import Says
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.copies.mirror import tails
from launcher.errors import LaunchError
from launcher.places.place import CancelReport
from launcher.places.ssh.host.server import HostServer
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.messages import Opened, OpenedByHosts, Request, RunReport, Submitted, Tails
from launcher.places.ssh.submit import report
from launcher.remote.rpc.client import RpcClient
from launcher.remote.rpc.server import answer_all
from launcher.remote.rpc.wire import Incoming, Reply, decoded, greeting
from launcher.run.identity import this_process
from launcher.run.records import AttemptEnd, Exclusion, StopRequest
from launcher.spec.model import SshHost
from launcher.states import State
from tests.places.ssh.near_hosts import on_hosts
from tests.run_folder import RunFolder, dead_process, plan_of, state_of
from tests.sizes import SCALE
from trainer.checkpoint_files.partial import Held

MOST_S = 30.0
RUN = "job-1a2b"
NAMES = ["../../x", "/x", "a\0b", "a\nb", "", ".", "..", "x" * 300, "logs/a", "logs", "metrics/m", "node-00/agent.log"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from([*NAMES, RUN]),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=10), below, max_size=4),
    max_leaves=8,
)
KINDS = [RunReport, Tails, Submitted, Opened, CancelReport, tuple[Held, ...], list[str], type(None)]
STATE = state_of(RUN, State.RUNNING, 2)
REPORT = RunReport(
    State.RUNNING, "text", None, 2, True, OpenedByHosts(("node0",), None, 1.0), STATE,
    (Exclusion("h", "e", 1, 1.0, 2.0),),
    StopRequest("cancel", 1.0, this_process()), AttemptEnd(State.FAILED, None, 1, 1.0),
    (), (tails.Part("events.jsonl", 0, 3), tails.Part("keeper.log", 0, 2)),
)  # fmt: skip


def changed(whole, changes):
    """Return a message with other values in some of its fields."""
    for way, value in changes:
        place = whole
        for step in way:
            keys = sorted(place) if isinstance(place, dict) else range(len(place)) if isinstance(place, list) else ()
            if not keys:
                break
            key = keys[step % len(keys)]
            if way[-1] is step or not isinstance(place[key], dict | list):
                place[key] = value
                break
            place = place[key]
    return whole


REPLIES = st.fixed_dictionaries({"value": JSON, "error": JSON, "exit_code": JSON, "follows": JSON})
PARTS = st.tuples(st.sampled_from(NAMES) | st.text(max_size=30), st.integers(0, 1 << 62), st.integers(0, 20))
CHANGES = st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), JSON), max_size=3)


def in_time(work):
    began = time.monotonic()
    try:
        return work()
    except LaunchError as error:
        assert error.lines and error.exit_code
        return None
    finally:
        assert time.monotonic() - began < MOST_S


@settings(max_examples=200 * SCALE)
@given(
    st.binary(max_size=400) | JSON | st.builds(dict, value=JSON, error=JSON, exit_code=JSON, follows=JSON),
    st.sampled_from(KINDS),
)
@example({"follows": 1 << 62}, type(None))
@example({"follows": -1}, type(None))
@example({"error": ["\x1b[2J" * 100_000] * 1000, "exit_code": 0}, type(None))
@example(b"[" * 100_000 + b"\n", RunReport)
def test_any_answer(said, kind):
    line = said if isinstance(said, bytes) else json.dumps(said).encode() + b"\n"
    client = RpcClient(Says(b"Welcome\n" + greeting() + line))

    def ask():
        answer, content = client.ask_with_bytes({}, kind, 1000, timeout_s=1.0)
        assert len(content) <= 1000
        return answer

    try:
        in_time(ask)
    except LaunchError as error:
        assert error.exit_code != 0


@pytest.fixture(scope="module")
def mirror():
    with tempfile.TemporaryDirectory() as folder:
        made = RunFolder(Path(folder) / "runs" / RUN)
        plan = msgspec.structs.replace(on_hosts(plan_of(made.path, 2), "node0", "node1"), cluster_kind="ssh")
        place = Place(SshHost("node0"), False, "python", "/w", "node0")
        made.write(made.run.plan, plan).intent(1, by=dead_process(), kind="ssh")
        made.write(made.run.attempt(1).hosts, [place])
        yield made


@settings(max_examples=200 * SCALE)
@given(CHANGES, st.binary(max_size=10))
def test_any_report(mirror, changes, content):
    """What of it is kept is inside the folder of the run."""
    run, outside = mirror.run, mirror.path.parent.parent
    said = changed(msgspec.to_builtins(REPORT), changes)
    reply = {"value": said, "follows": len(content)}
    before = run.plan.read_bytes()
    client = HostClient(None, Place(SshHost("node0"), False, "python", "/w", "node0"))
    client._line = SaysAgain(greeting() + json.dumps(reply).encode() + b"\n" + content)
    in_time(lambda: report.keep(run, report.ask_report(run, client)))
    assert {path.name for path in outside.iterdir()} == {"runs"}
    assert [path.name for path in (outside / "runs").iterdir()] == [RUN]
    assert {path.name for path in run.path.iterdir()} <= KEPT and run.plan.read_bytes() == before


KEPT = {"attempts", "plan.json", "state.json", "events.jsonl", "avoided.json"}


class SaysAgain:
    def __init__(self, said):
        self._said = said

    def start(self, _words):
        return Says(self._said)


@settings(max_examples=200 * SCALE)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES) | st.text(max_size=30), st.integers(0, 1 << 62), st.integers(0, 20)),
        max_size=4,
    ),
    st.binary(max_size=40),
)
def test_any_tails(parts, content):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        root.mkdir()

        def put():
            with contextlib.suppress(ValueError):
                for tail in tails.parted([tails.Part(*part) for part in parts], content):
                    tails.put(root, ("logs", "metrics"), tail._replace(at=tail.at % 1000))

        in_time(put)
        assert [path.name for path in Path(folder).iterdir()] == ["run"]
        assert {path.name for path in root.iterdir()} <= {"logs", "metrics"}


REQUESTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["open", "code", "roster", "go", "runs", "look", "submitted", "logs", "pardon", "inventory", "give", "put"]
        ),
        "run_id": st.sampled_from([RUN, "last", *NAMES]) | JSON,
        "folder": st.sampled_from(["checkpoints", *NAMES]),
        "folders": st.lists(st.sampled_from(["logs", *NAMES]), max_size=2) | JSON,
        "digest": st.sampled_from(["0" * 64, *NAMES]),
        "files": st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-1, 5), st.booleans()), max_size=2) | JSON,
        "known": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2) | JSON,
        "name": st.sampled_from(NAMES),
        "events_from": st.integers(-5, 1 << 70),
        "step": st.integers(-1, 1 << 70),
        "manifest_size": st.integers(-1, 20),
        "size": st.integers(-1, 20),
        "hosts": st.lists(st.text(max_size=5), max_size=2) | JSON,
        "peers": JSON,
    }
)

UNKNOWN_RUN = {
    "type": "put", "run_id": "logs", "folder": "checkpoints", "name": "x", "step": 0, "manifest_size": 0, "size": 0,
}  # fmt: skip


@settings(max_examples=150 * SCALE)
@given(st.lists(REQUESTS | JSON | st.binary(max_size=50), max_size=3), st.binary(max_size=60))
@example([UNKNOWN_RUN], b"")  # whose folder was made, although the manifest was empty
def test_any_request(requests, behind):
    """Whoever is connected is the user of the host; still every request has an answer, or ends the connection."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "launch"
        RunFolder(workdir / "runs" / RUN).plan().attempt(supervisor=dead_process()).state()
        lines = []
        for one in requests:
            whole = one | {"workdir": str(workdir)} if isinstance(one, dict) and "type" in one else one
            lines.append(whole if isinstance(whole, bytes) else json.dumps(whole).encode() + b"\n")
        heard, told = io.BytesIO(b"".join(lines) + behind), io.BytesIO()
        began = time.monotonic()
        answer_all(Incoming(lambda _deadline, most: heard.read(most)), told.write, Request, HostServer().answer)
        assert time.monotonic() - began < MOST_S * max(1, len(requests))
        assert told.getvalue().startswith(greeting())
        if len(answers := told.getvalue().splitlines()) > 1:
            decoded(answers[1], Reply)
        assert [path.name for path in Path(folder).iterdir()] == ["launch"]
        assert {path.name for path in workdir.iterdir()} <= {"runs", "code"}
        assert [one.name for one in (workdir / "runs").iterdir()] == [RUN]
