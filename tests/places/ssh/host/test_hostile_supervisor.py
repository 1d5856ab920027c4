"""A supervisor that knows the run's secret and lies to another, in every field of every question."""

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lying import lines

from launcher.errors import LaunchError
from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Ask,
    Declined,
    OpenAttempt,
    OpeningSaid,
    RecordsSaid,
    Replica,
    SupervisorQuestion,
    SupervisorReply,
    SupervisorStatus,
    Vote,
)
from launcher.run.fence import fence
from launcher.wire.frames import WireError, parsed
from tests.places.ssh.host.test_supervisors import Table
from tests.sizes import SCALE

QUESTIONS = msgspec.json.Decoder(SupervisorQuestion)
REPLIES = msgspec.json.Decoder(SupervisorReply)
NOTHING = RecordsSaid(1, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")  # an empty history


def outside(root):
    others = [path for path in root.rglob("*") if "host2" not in path.parts]
    return {path: path.read_bytes() if path.is_file() else None for path in others}


@settings(max_examples=60 * SCALE)
@given(st.lists(lines(SupervisorQuestion), max_size=8), st.integers(0, 3), st.booleans())
def test_whatever_it_says_nothing_falls_or_is_written_outside_the_run(said, asker, leaderless):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        table = Table(root)
        member = table.supervisors[2]
        member.ballot.leaderless = leaderless
        before = outside(root)
        answer = member.answering(table.wakeups[2])
        for line in said:
            try:
                question = parsed(line, QUESTIONS)
            except WireError:
                continue
            try:
                assert isinstance(answer(question, f"127.0.0.{asker + 1}"), SupervisorReply)
            except (LaunchError, OSError):
                continue  # whoever asked hears that, or is dropped
        assert outside(root) == before
        assert fence(member.run) <= 99_999
        assert isinstance(answer(Ask(), "127.0.0.2"), SupervisorStatus)
        assert REPLIES.decode(msgspec.json.encode(member.status())) == member.status()


@given(lines(SupervisorReply))
def test_any_answer_is_one_or_a_named_error(line):
    try:
        assert isinstance(parsed(line, REPLIES), SupervisorReply)
    except WireError as error:
        assert "no message" in str(error)


@pytest.mark.parametrize(
    "lie",
    [
        OpenAttempt(2, 0, ("host0", "../../x"), None, (), (), NOTHING),
        OpenAttempt(2, 0, (), None, (), (), NOTHING),
        OpenAttempt(2, 1, ("host0", "host2"), None, (), (), NOTHING),
        OpenAttempt(2, 7, ("host0", "host2"), None, (), (), NOTHING),
        OpenAttempt(2, 0, ("host0", "host2"), None, (), (OpeningSaid(1, 0, (0, 7)),), NOTHING),
        OpenAttempt(2, 0, ("host0", "host2"), None, (), (), RecordsSaid(1, 5, "another history")),
        Vote(2, 7, NOTHING),
        Replica(0, 1, "../../x", -1, ""),
        Replica(0, 1, "token.json", -1, ""),
        Replica(0, 1, "events", 1 << 50, "x"),
    ],
)
def test_not_even_the_leader_is_believed_in_this(tmp_path, lie):
    table = Table(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    try:
        answer = table.said(2, lie)
    except LaunchError as error:
        answer = Declined(str(error))
    assert isinstance(answer, Declined) and not isinstance(answer, Agreed)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {table.supervisors[2].run.events}
    assert table.supervisors[2].run.events.read_bytes() == b"" if table.supervisors[2].run.events.exists() else True
