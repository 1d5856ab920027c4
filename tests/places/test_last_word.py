"""Test that a run has ended once its end record exists, and not before, whichever process dies between two writes."""

import asyncio

import msgspec
import pytest
from run_folder import dead_process, plan_of

from launcher.coordinator.server import CoordinatorServer
from launcher.run.attempts import new_attempt
from launcher.run.durable import append_line, make_dir, read_lines, read_record, write_record
from launcher.run.layout import RunDir
from launcher.run.record_writer import RecordWriter
from launcher.run.records import AttemptEnd, Event, Handle, RankExit, RunState
from launcher.states import State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.supervisor import allocation
from launcher.supervisor.allocation import Allocation
from launcher.supervisor.attempt_end import has_finished
from launcher.wire.messages import Exited, Heartbeat, Join, RankHeartbeat, Ready, Started

_LAST_WRITES = 4  # how it stood, how it ended, the event, the state


class KilledAgent:
    """An agent of node 0 that was killed by SIGKILL."""

    def __init__(self, *_, **__):
        pass

    def start(self):
        pass

    def watch(self, *_, **__):
        return 9

    def wait_for_others(self, *_):
        pass

    def end(self, standbys_of=()):
        pass


class NobodyAsks:
    def next_check(self):
        return None

    def to_end(self):
        return False


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "job-1a2b")
    run.path.mkdir()
    write_record(run.plan, plan_of(run.path, ranks=1))
    attempt, _ = new_attempt(run, "local", "submit", None)
    write_record(attempt.handle, Handle("local", supervisor=dead_process()))
    return run


def finished(run, writes, monkeypatch):
    """The coordinator's part of a run that has done all; all but so many of its last writes were made."""
    made = []
    put = RecordWriter._put

    def until_it_dies(self, entry):
        made.append(entry)
        if len(made) > most:
            raise OSError("it is dead")
        put(self, entry)

    async def coordinate():
        nonlocal most
        server = CoordinatorServer(run, run.attempt(1), plan_of(run.path, ranks=1), "127.0.0.1", "5e" * 32)
        for message in (
            Join(0, "127.0.0.1", dead_process(), 20_001),
            Ready(0),
            Started(0, 1, (17,), 20_002),
            Heartbeat(0, 1, 1, (RankHeartbeat(0, 0.0, True, False, step=7, fingerprint="f00d"),)),
        ):
            server._handle(message)
        await asyncio.to_thread(server._record_writer.close)
        server._record_writer = RecordWriter(run, run.attempt(1), lambda _: None, 15.0)
        most = len(made) + 1 + writes  # the exit of its rank comes first
        server._handle(Exited(0, RankExit(1, 0, 0, 0, 17, code=0, done=True)))
        await asyncio.to_thread(server._record_writer.close)

    most = 1 << 30
    monkeypatch.setattr(RecordWriter, "_put", until_it_dies)
    asyncio.run(coordinate())
    return most < len(made)


@pytest.mark.parametrize("writes", range(_LAST_WRITES + 1))
def test_a_finished_run_is_never_started_again(run, writes, monkeypatch):
    """The event that it had ended came before the end record, and so did the state."""
    assert finished(run, writes, monkeypatch) == (writes < _LAST_WRITES)
    shown = derive(read_facts(run.path))
    told = [event.kind for event in read_lines(run.events, Event)]
    monkeypatch.setattr(allocation, "AgentProcesses", KilledAgent)
    end = Allocation(run, run.attempt(1), plan_of(run.path, ranks=1), None, NobodyAsks(), []).carry_out()
    over = writes >= 2
    assert (shown.state, end.state) == (State.SUCCEEDED if over else State.LOST, State.SUCCEEDED)
    assert ("ended" in told) == (writes >= 3)
    kinds = [event.kind for event in read_lines(run.events, Event)]
    assert [kind for kind in kinds if kind in ("ended", "requeue")] == ["ended"]
    state = read_record(run.state, RunState)
    assert state.state is end.state and (not over or (state.step, state.fingerprint) == (7, "f00d"))
    assert read_record(run.attempt(1).end, AttemptEnd) == end


@pytest.mark.parametrize("ends", [{"code": 0}, {"signal": 9}, None])
def test_a_run_whose_agent_saw_all_ranks_finish_has_succeeded(run, ends, monkeypatch):
    """The coordinator was killed before it wrote a word of it."""
    attempt, plan = run.attempt(1), plan_of(run.path, ranks=2)
    append_line(run.events, Event(1.0, 1, "generation_opened", "generation 1", generation=1))
    append_line(attempt.exits, RankExit(1, 0, 0, 0, 17, code=0))
    make_dir(attempt.node(0))
    if ends is not None:
        append_line(attempt.node_exits(0), RankExit(1, 1, 1, 0, 18, **ends))
    monkeypatch.setattr(allocation, "AgentProcesses", KilledAgent)
    end = Allocation(run, attempt, plan, None, NobodyAsks(), []).carry_out()
    assert end.state is (State.SUCCEEDED if ends == {"code": 0} else State.QUEUED)


def test_disks_of_their_own_prove_no_end_without_the_coordinator(run):
    """The last checkpoint may lack its second copies."""
    attempt, plan = run.attempt(1), plan_of(run.path, ranks=1)
    append_line(run.events, Event(1.0, 1, "generation_opened", "generation 1", generation=1))
    append_line(attempt.exits, RankExit(1, 0, 0, 0, 17, code=0))
    assert has_finished(run, attempt, plan)
    assert not has_finished(run, attempt, msgspec.structs.replace(plan, disks_apart=True))


def test_nobody_hears_of_an_end_while_what_follows_from_it_is_being_written(run, monkeypatch):
    """Who hears that a run has ended reads its records, and does not ask again."""
    finished(run, 2, monkeypatch)
    write_record(run.attempt(1).handle, Handle("local", supervisor=allocation.this_process()))
    assert derive(read_facts(run.path)).state is State.RUNNING
