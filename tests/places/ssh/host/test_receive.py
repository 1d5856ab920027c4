"""A host that has the run already hears what has happened to it elsewhere."""

import io
import sys

import msgspec
import pytest

from launcher.errors import LaunchError
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.presence import HostIndex
from launcher.places.ssh.host.receive import bring_up_to_date, come_back, take_code
from launcher.places.ssh.host.server import HostServer
from launcher.places.ssh.messages import CodeTree, IncludeHosts, ListRuns, Peer, Request
from launcher.remote.rpc.server import Body, answer_all
from launcher.remote.rpc.wire import Incoming, Reply, encoded
from launcher.remote.shipping.tree import FileEntry, contents, digest_of, entries
from launcher.run.avoided import avoided
from launcher.run.code.listing import list_frozen
from launcher.run.durable import read_lines
from launcher.run.records import Event, Exclusion
from tests.run_folder import RunFolder

NOWHERE = "192.0.2.1"  # an address that this machine has not


def line(text, attempt=1):
    return msgspec.json.encode(Event(float(attempt), attempt, "resumed", text)) + b"\n"


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run").run


@pytest.mark.parametrize(
    ("here", "told", "after"),
    [
        ("a", "abr", "abr"),
        ("abr", "abr", "abr"),  # handed over for the second time
        ("abc", "abr", "abcr"),  # its last word did not get through
        ("abcr", "abr", "abcr"),
        ("ab", "", "ab"),
        ("", "abr", "abr"),
    ],
)
def test_the_history_here_is_continued(run, here, told, after):
    """`r` is what is told of the attempt that begins."""
    lines = {name: line(name, 2 if name == "r" else 1) for name in "abcr"}
    run.events.write_bytes(b"".join(map(lines.get, here)))
    bring_up_to_date(run, 2, {"events.jsonl": b"".join(map(lines.get, told))})
    assert [event.text for event in read_lines(run.events, Event)] == [*after]


def test_a_torn_line_is_not_continued(run):
    run.events.write_bytes(line("a") + b'{"at"')
    bring_up_to_date(run, 2, {"events.jsonl": line("b") + b"torn\n" + line("r", 2)})
    assert [event.text for event in read_lines(run.events, Event)] == ["a", "r"]


def test_what_a_person_forgave_is_not_held_against_anybody_there(run):
    exclusions = [Exclusion(name, "lost", 1, 1.0, 1e12) for name in ("node1", "node2")]
    RunFolder.write(None, run.avoided, exclusions)
    bring_up_to_date(run, 2, {})
    assert len(avoided(run)) == 2
    bring_up_to_date(run, 2, {"avoided.json": msgspec.json.encode(exclusions[1:])})
    assert [exclusion.host for exclusion in avoided(run)] == ["node2"]


def test_nobody_comes_back_in_the_place_of_a_host_that_calls_itself_the_same(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "job-1a2b").plan(2).attempt()
    attempt = folder.run.attempt(1)
    folder.write(attempt.supervisors, (Peer("host0", "127.0.0.1", 1), Peer("host1", NOWHERE, 1)))
    folder.write(presence.host_index_file(attempt, apart=False), HostIndex(1, (), sys.executable))
    assert "another host's" in come_back(folder.run)
    assert presence.is_here("127.0.0.1") and not presence.is_here(NOWHERE)


def sent(code):
    return b"".join(contents(list_frozen(code)))


def received(stream, workdir, digest, files):
    take_code(workdir, CodeTree(str(workdir), digest, files), Body(incoming(stream), len(stream)))


def incoming(stream):
    come = io.BytesIO(stream)
    return Incoming(lambda _deadline, most: come.read(most))


@pytest.fixture
def code(tmp_path):
    """A program, and a link to data that is on every host."""
    code = tmp_path / "project"
    (code / "net").mkdir(parents=True)
    (code / "train.py").write_bytes(b"print()\n" * 1000)
    (code / "net" / "empty.py").touch()
    (code / "run.sh").touch(mode=0o700)
    (code / "data").symlink_to("/scratch/data")
    return code


def test_code_arrives_as_it_was_sent(code, tmp_path):
    listed = list_frozen(code)
    digest = digest_of(listed)
    received(sent(code), tmp_path, digest, entries(listed))
    projects = tmp_path / "code"
    assert digest_of(list_frozen(projects / digest)) == digest
    assert (projects / digest / "data").readlink().as_posix() == "/scratch/data"
    assert [path.name for path in projects.iterdir()] == [digest]


def test_code_that_is_not_what_was_said_is_not_kept(code, tmp_path):
    workdir = tmp_path / "there"
    stream, listed = sent(code), list_frozen(code)
    cut = Body(incoming(stream[:-10]), len(stream))
    with pytest.raises(EOFError):
        take_code(workdir, CodeTree(str(workdir), digest_of(listed), entries(listed)), cut)
    with pytest.raises(LaunchError):
        received(stream, workdir, "0" * 64, entries(listed))
    assert list((workdir / "code").iterdir()) == []


def test_after_refused_code_its_contents_are_not_taken_for_requests(tmp_path):
    """They are passed over, and the next request is answered."""
    folder = RunFolder(tmp_path / "runs" / "job-1a2b")
    RunFolder.write(None, folder.run.avoided, [Exclusion("node1", "lost", 1, 1.0, 1e12)])
    pardon = encoded(IncludeHosts("job-1a2b", str(tmp_path), ()))
    code = CodeTree(str(tmp_path), "0" * 64, (FileEntry("../out", len(pardon), False),))
    told = io.BytesIO()
    heard = encoded(code) + pardon + encoded(ListRuns(str(tmp_path)))
    answer_all(incoming(heard), told.write, Request, HostServer().answer)
    refused, named = [msgspec.json.decode(line, type=Reply) for line in told.getvalue().splitlines()[1:]]
    assert "no name of a file" in refused.error[0]
    assert (bytes(named.value), len(avoided(folder.run))) == (b'["job-1a2b"]', 1)
