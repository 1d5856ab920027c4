"""Records as anybody might have left them: each is a value of its type or damage, and nothing waits or grows."""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.run import records
from launcher.run.code.hashes import CodeIndex
from launcher.run.durable import Damaged, read_record, scan_lines
from launcher.run.fence import fence
from launcher.run.layout import RunDir
from launcher.states import Cause, State
from tests.sizes import SCALE

ME = records.ProcessId("host", "boot", 7, 8)
WHOLE = [
    records.Intent(1, "ab" * 32, "local", "submit", Cause.HANG, 1.5, ME),
    records.Handle("slurm", ME, "77"),
    records.ClusterAnswer("queued", "PENDING", 1.0),
    records.Exclusion("node1", "lost", 1, 1.0, 2.0),
    records.AgentRecord(0, "127.0.0.1", ME),
    records.RankExit(1, 0, 0, 0, 7, code=1, raised=(records.Raised("ValueError: x"),)),
    records.RunState("job-2345", "job", "local", State.RUNNING, 1, 1, 0.0, metrics={"loss": 1.0}),
    records.AttemptEnd(State.FAILED, Cause.KILLED, 12, 1.0),
    records.StopRequest("cancel", 1.0, ME),
    records.Event(1.0, 1, "failure", "rank 0 died"),
]
TEXTS = [msgspec.json.encode(record) for record in WHOLE]
_ODD = st.sampled_from([b"null", b"1e999", b"[]", b"{}", b'"\\ud800"', b"-1", b"9" * 400, b"[" * 2000, b"\xff", b"\n"])


@st.composite
def _damaged(draw):
    """Draw a record, with some of its bytes moved to another place."""
    text = draw(st.sampled_from(TEXTS))
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.one_of(_ODD, st.binary(max_size=8))) + text[at + draw(st.integers(0, 20)) :]


@pytest.fixture(scope="module")
def file():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "record"


@settings(max_examples=300 * SCALE, deadline=None)
@given(data=st.one_of(_damaged(), st.binary(max_size=100)), kind=st.sampled_from([type(one) for one in WHOLE]))
def test_any_bytes_are_a_record_or_damage(file, data, kind):
    file.write_bytes(data)
    with contextlib.suppress(Damaged):
        assert isinstance(read_record(file, kind), kind)


@settings(max_examples=200 * SCALE, deadline=None)
@given(st.lists(st.one_of(_damaged(), st.sampled_from(TEXTS[-1:])), max_size=8))
def test_of_any_lines_those_that_are_events_are_read(file, lines):
    file.write_bytes(b"\n".join(lines))
    found = scan_lines(file, records.Event)
    assert lines[:-1].count(TEXTS[-1]) <= len(found.records) <= file.read_bytes().count(b"\n") + 1


@settings(max_examples=200 * SCALE, deadline=None)
@example(b"1" * 5000)
@given(st.one_of(st.binary(max_size=30), st.text("0123456789 \n²٣", max_size=30).map(str.encode)))
def test_any_fence_is_a_number_or_damage(data):
    with tempfile.TemporaryDirectory() as folder:
        (run := RunDir(Path(folder))).fence.write_bytes(data)
        with contextlib.suppress(Damaged):
            assert fence(run) >= 0


@settings(max_examples=100 * SCALE, deadline=None)
@given(st.one_of(st.binary(max_size=60), _ODD, st.just(b'{"a":[1,2,3,4,"x"]}')))
def test_any_index_of_code_costs_time_only(data):
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        (store / "a").write_bytes(b"text")
        index = CodeIndex(store, store, 0)
        index._file.write_bytes(data)
        path = store / "a"
        real = CodeIndex(store, store, 0).digest("a", path, path.stat())
        assert real == "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"


def test_a_record_that_is_a_hole_of_a_terabyte_is_damage(tmp_path):
    (tmp_path / "record").touch()
    os.truncate(tmp_path / "record", 1 << 40)
    for read in (read_record, scan_lines):
        with pytest.raises(Damaged, match="expected at most 512 MiB, got 1048576"):
            read(tmp_path / "record", records.Event)


def test_a_handle_of_the_version_before_is_read(tmp_path):
    text = b'{"cluster_kind":"slurm","keeper":null,"job_id":"77","ticket":"ab","run":"","path":""}'
    (tmp_path / "handle.json").write_bytes(text)
    handle = read_record(tmp_path / "handle.json", records.Handle)
    assert (handle.job_id, handle.submit_token, handle.run_there()) == ("77", "ab", None)


def test_a_fifo_in_a_records_place_holds_nobody(tmp_path):
    os.mkfifo(tmp_path / "record")
    with pytest.raises(Damaged):
        read_record(tmp_path / "record", records.Event)
