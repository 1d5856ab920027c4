"""A host that has the run already hears what has happened to it elsewhere."""

import io

import msgspec
import pytest

from launcher.clusters.ssh.host.receive import AttemptReceiver, bring_up_to_date
from launcher.clusters.ssh.host.server import HostServer
from launcher.clusters.ssh.messages import CodeTree, Open, Opened, Pardon, read_answer
from launcher.errors import LaunchError
from launcher.hostlink.rpc.wire import encoded
from launcher.hostlink.shipping.tree import FileEntry, contents, digest_of, entries
from launcher.rundir.avoided import avoided
from launcher.rundir.code_list import list_frozen
from launcher.rundir.events import read_events
from launcher.rundir.records import Blame, Event, Intent
from tests.run_folder import RunFolder, dead_process, plan_of


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
    assert [event.text for event in read_events(run)] == [*after]


def test_a_torn_line_is_not_continued(run):
    run.events.write_bytes(line("a") + b'{"at"')
    bring_up_to_date(run, 2, {"events.jsonl": line("b") + b"torn\n" + line("r", 2)})
    assert [event.text for event in read_events(run)] == ["a", "r"]


def test_what_a_person_forgave_is_not_held_against_anybody_there(run):
    blames = [Blame(name, "lost", 1, 1.0, 1e12) for name in ("node1", "node2")]
    RunFolder.write(None, run.avoided, blames)
    bring_up_to_date(run, 2, {})
    assert len(avoided(run)) == 2
    bring_up_to_date(run, 2, {"avoided.json": msgspec.json.encode(blames[1:])})
    assert [blame.host for blame in avoided(run)] == ["node2"]


def sent(code):
    listed = list_frozen(code)
    return encoded(CodeTree(entries(listed))) + b"".join(contents(listed))


def received(stream, projects, digest):
    AttemptReceiver(io.BytesIO(stream), print)._take_code(projects / digest)


@pytest.fixture
def code(tmp_path):
    """A program, and a link to data that is on every host."""
    code = tmp_path / "code"
    (code / "net").mkdir(parents=True)
    (code / "train.py").write_bytes(b"print()\n" * 1000)
    (code / "net" / "empty.py").touch()
    (code / "run.sh").touch(mode=0o700)
    (code / "data").symlink_to("/scratch/data")
    return code


def test_code_arrives_as_it_was_sent(code, tmp_path):
    digest = digest_of(list_frozen(code))
    projects = tmp_path / "there"
    projects.mkdir()
    received(sent(code), projects, digest)
    assert digest_of(list_frozen(projects / digest)) == digest
    assert (projects / digest / "data").readlink().as_posix() == "/scratch/data"
    assert [path.name for path in projects.iterdir()] == [digest]


def test_code_that_is_not_what_was_said_is_not_kept(code, tmp_path):
    projects = tmp_path / "there"
    projects.mkdir()
    stream, digest = sent(code), digest_of(list_frozen(code))
    with pytest.raises(EOFError):
        received(stream[:-10], projects, digest)
    with pytest.raises(LaunchError):
        received(stream, projects, "0" * 64)
    assert list(projects.iterdir()) == []


def test_after_refused_code_its_contents_are_not_taken_for_requests(tmp_path):
    """The host hangs up instead."""
    plan = msgspec.Raw(msgspec.json.encode(plan_of(tmp_path, 1)))
    intent = Intent(1, "0" * 64, "pool", "submit", None, 1.0, dead_process())
    opening = Open("job-1a2b", str(tmp_path), 0, plan, "0" * 64, intent, (), ())
    pardon = encoded(Pardon("job-1a2b", str(tmp_path), ()))
    code = CodeTree((FileEntry("../out", len(pardon), False),))
    told = io.BytesIO()
    HostServer(io.BytesIO(encoded(opening) + encoded(code) + pardon), told).serve()
    opened, refused = told.getvalue().splitlines()
    assert read_answer(opened) == Opened(needs_code=True)
    with pytest.raises(LaunchError, match="no name of a file"):
        read_answer(refused)
