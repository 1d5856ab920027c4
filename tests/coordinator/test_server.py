"""The coordinator's shell: records that a disk damages, time that it sleeps through, and when it writes its state."""

import asyncio
from math import inf

import msgspec
import pytest
from run_folder import RunFolder, plan_of

from launcher.clock import boottime
from launcher.coordinator import server as coordinator_server
from launcher.coordinator.history_copies import HistoryCopies
from launcher.coordinator.server import CoordinatorServer, state_due_at
from launcher.errors import Exit
from launcher.run.durable import make_dir, read_lines, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import DrainRequest, Endpoint, Event, RankExit, RunState
from launcher.wire import messages
from launcher.wire.frames import dial, wire_key
from tests.waits import eventually

BOUND_S, TOKEN = 20.0, "5e" * 32


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_bytes(path):
    path.write_bytes(path.read_bytes().replace(b":", b"\xba"))


def another_port(path):
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_record(path, Endpoint), port=1)))


def gone(path):
    path.unlink()


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator_server, "_KNOWN_S", 0.01)
    attempt = RunFolder(tmp_path / "run").run.attempt(1)
    make_dir(attempt.path)
    return attempt


def served(attempt, check, lease_s=15.0, **how):
    """A coordinator of three hosts that elect it, while `check` has it do something."""
    run = RunDir(attempt.path.parent.parent)
    plan = plan_of(run.path, nodes=3)
    spec = msgspec.structs.replace(plan.spec, recovery=msgspec.structs.replace(plan.spec.recovery, lease_s=lease_s))
    plan = msgspec.structs.replace(plan, spec=spec, disks_apart=True, elects=True)

    async def serve():
        server = CoordinatorServer(run, attempt, plan, "127.0.0.1", TOKEN, **how)
        await server.start()
        try:
            async with asyncio.timeout(BOUND_S):
                await check(server)
        finally:
            await server.close()

    asyncio.run(serve())


@pytest.mark.parametrize("damage", [zeros, cut, other_bytes, another_port, gone])
def test_where_it_is_found_is_written_again(attempt, damage):
    """An agent that came anew found nobody, and its node was lost to the run."""

    async def check(_server):
        right = attempt.endpoint.read_bytes()
        damage(attempt.endpoint)
        await eventually(lambda: attempt.endpoint.exists() and attempt.endpoint.read_bytes() == right)

    served(attempt, check)


def test_what_the_coordinator_slept_through_is_nobodys_silence(attempt):
    """Its machine was suspended for a day before any agent had come: it gave the attempt up."""
    slept_s = 0.0

    async def check(server):
        nonlocal slept_s
        slept_s = 86_400.0
        write_record(attempt.drain, DrainRequest(nodes=(1,)))  # something happens
        await eventually(lambda: server.ended.done() or events())
        assert not server.ended.done() and events() == ["coordinator_stalled"]

    def events():
        seen = read_lines(attempt.path.parent.parent / "events.jsonl", Event)
        return [one.kind for one in seen if one.kind == "coordinator_stalled"]

    served(attempt, check, clock=lambda: boottime() + slept_s)


def test_no_number_of_events_puts_the_state_off():
    """There is one every hundredth of a second: `launch status` showed what had been before them."""
    planned, now = inf, 100.0
    while now < min(planned, 102.0):
        planned = state_due_at(planned, now)
        now += 0.01
    assert planned < 100.2


async def agent(port, key, node, heard, *, finishes=False):
    """Take part as the agent of a node whose rank 0, if it has that, is killed once, or whose ranks finish; `heard` has
    all messages.
    """
    wire = await dial("127.0.0.1", port, "127.0.0.1", key, messages.TO_AGENT)
    try:
        wire.send(messages.Join(node, "127.0.0.1", this_process(), 20_000 + node))
        wire.send(messages.Ready(node))
        while (message := await wire.receive()) is not None:
            heard.append(message)
            match message:
                case messages.Start(generation=number, first_rank=rank):
                    wire.send(messages.Leads(node, number))
                    wire.send(messages.Started(node, number, (1, 2), 20_000 + node))
                    if finishes:
                        told = messages.RankHeartbeat(rank, 0.0, True, False, fingerprint="last")
                        wire.send(messages.Heartbeat(node, 1, number, (told,)))
                        wire.send(messages.Settled(node, number))
                        for one in range(2):
                            wire.send(messages.Exited(node, RankExit(number, rank + one, one, node, 1 + one, code=0)))
                    elif rank == 0 and number == 1:
                        wire.send(messages.Exited(node, RankExit(number, 0, 0, node, 1, signal=9)))
                case messages.Stop(generation=number):
                    wire.send(messages.Stopped(node, number))
    finally:
        wire.close()
        await wire.writer.wait_closed()


def starts(heard):
    return [message.generation for message in heard if isinstance(message, messages.Start)]


@pytest.mark.parametrize("copied", [True, False])
def test_an_end_is_written_once_its_announcement_is_copied_and_left_open_if_it_is_not(attempt, copied):
    copies, heard = HistoryCopies(), []
    copies.copied = 0.0
    events = attempt.path.parent.parent / "events.jsonl"

    async def check(server):
        port = read_record(attempt.endpoint, Endpoint).port
        key = wire_key(TOKEN, messages.WIRE, events.parent.name, 1)
        agents = [asyncio.create_task(agent(port, key, node, heard, finishes=True)) for node in range(3)]
        await eventually(lambda: "ending" in [one.kind for one in read_lines(events, Event)])
        assert read_record(events.with_name("state.json"), RunState).fingerprint == "last", "an older state"
        assert not attempt.end.exists() and not any(isinstance(message, messages.End) for message in heard)
        if copied:
            copies.copied = events.stat().st_size
        assert await server.ended == (Exit.OK if copied else Exit.LOST)
        for one in agents:
            one.cancel()
        await asyncio.wait(agents)

    served(attempt, check, lease_s=1.0, copies=copies)
    assert attempt.end.exists() == copied
    assert read_record(events.with_name("state.json"), RunState).state.ended == copied, "status showed an end too early"


@pytest.mark.parametrize("copied", [True, False])
def test_a_restart_waits_until_its_failure_is_copied_and_no_longer_than_a_moment(attempt, copied):
    copies, heard = HistoryCopies(), []
    copies.copied = 0.0
    events = attempt.path.parent.parent / "events.jsonl"

    def kinds():
        return [one.kind for one in read_lines(events, Event)]

    async def check(server):
        port = read_record(attempt.endpoint, Endpoint).port
        key = wire_key(TOKEN, messages.WIRE, events.parent.name, 1)
        agents = [asyncio.create_task(agent(port, key, node, heard)) for node in range(3)]
        await eventually(lambda: "failure" in kinds() or 2 in starts(heard))
        assert starts(heard) == [1, 1, 1]
        if copied:
            await eventually(lambda: "failure" in kinds())
            copies.copied = events.stat().st_size
        await eventually(lambda: starts(heard) == [1, 1, 1, 2, 2, 2])
        await eventually(lambda: copied or "history_behind" in kinds())
        for one in agents:
            one.cancel()
        await asyncio.wait(agents)

    served(attempt, check, copies=copies)
    assert ("history_behind" in kinds()) == (not copied)
