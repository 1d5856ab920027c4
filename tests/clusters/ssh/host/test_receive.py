"""A host that has the run already hears what has happened to it elsewhere."""

import msgspec
import pytest

from launcher.clusters.ssh.host.receive import bring_up_to_date
from launcher.rundir.avoided import avoided
from launcher.rundir.events import read_events
from launcher.rundir.records import Blame, Event
from tests.run_folder import RunFolder


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
