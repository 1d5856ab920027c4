"""Agents and coordinators that know the token and lie to each other, in every field of every message."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lying import lines
from replication_lab import TOKEN
from separate_hosts import Hosts
from simulated_cluster import Cluster, plan_of

from launcher.clock import boottime, lease_of_ranks
from launcher.coordinator.effects import Now, RecordExit
from launcher.errors import Exit
from launcher.node.lifeline import Lifeline, check_peer, check_start
from launcher.node.ranks.lease import Lease
from launcher.run.durable import write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import Endpoint
from launcher.states import State
from launcher.wire import messages
from launcher.wire.frames import WireError, WireServer, parsed, wire_key
from launcher.wire.messages import ReplicaAddress, Start

BOUND_S = 20.0
TOO_MANY = {"local_world_size": 10**9, "world_size": 10**9}
LIES = st.lists(lines(messages.ToCoordinator), max_size=12)


@given(LIES, st.booleans())
def test_it_makes_the_coordinator_neither_fall_nor_hang_nor_grow(said, apart):
    cluster = Cluster(msgspec.structs.replace(plan_of(2), disks_apart=apart))
    cluster.boot()
    cluster.advance(3)
    coordinator, mono = cluster.coordinator, cluster.mono
    for line in said:
        try:
            message = parsed(line, messages.TO_COORDINATOR)
        except WireError:
            continue
        if message.node not in (0, 1):
            continue  # the server lets nobody speak for another node
        mono += 0.01
        for effect in coordinator.handle(message, Now(mono, mono)):
            assert len(msgspec.json.encode(effect)) < 100_000
            if isinstance(effect, RecordExit):
                assert effect.exit.log == "" or ".." not in effect.exit.log.split("/")
        assert len(msgspec.json.encode(coordinator.snapshot(Now(mono, mono)))) < 100_000
        deadline = coordinator.next_deadline()
        assert deadline is None or deadline < mono + 1e6, "no lie puts off the next look for ever"
    coordinator.handle(messages.StopAsked(0, "cancel"), Now(mono, mono))
    for _ in range(200):
        if coordinator.snapshot(Now(mono, mono)).state is not State.RUNNING and coordinator.next_deadline() is None:
            break
        mono = coordinator.next_deadline() or mono + 1.0
        coordinator.handle(messages.TO_COORDINATOR.decode(b'{"t":"ready","node":0}'), Now(mono, mono))
    assert coordinator.snapshot(Now(mono, mono)).state.ended, "whatever one says, a person can cancel"


@pytest.mark.parametrize(
    "log", ["/etc/passwd", "../x", "logs/../../x", "logs/..", "logs/a/.hidden", "logs//x", "logs/a\0b", "x"]
)
def test_a_log_is_in_the_folder_of_logs_or_no_message(log):
    exited = {"t": "exited", "node": 0, "exit": {"generation": 1, "rank": 0, "local_rank": 0, "node": 0, "pid": 1}}
    fault = {"t": "fault", "node": 0, "setup": True, "text": "", "log": log}
    for words in (exited | {"exit": exited["exit"] | {"log": log}}, fault):
        with pytest.raises(WireError, match="folder of logs"):
            parsed(msgspec.json.encode(words), messages.TO_COORDINATOR)
    assert parsed(msgspec.json.encode(fault | {"log": "logs/a0001.setup/node-00.log"}), messages.TO_COORDINATOR)


# -- a coordinator that lies to an agent


def starts():
    whole = plan_of(3)
    good = Start(1, 2, 2, 4, 1, 2, "127.0.0.1", 20_000, 0)
    return whole, good


def test_a_start_of_the_plan_is_one():
    plan, good = starts()
    check_start(good, plan)
    check_start(msgspec.structs.replace(good, replicas=(ReplicaAddress(2, "127.0.0.3", 5),)), plan)


@pytest.mark.parametrize(
    "lie",
    [
        {"generation": 0}, {"generation": 2**63 - 1}, {"first_rank": 1}, TOO_MANY, {"world_size": 10**9},
        {"group_rank": 2}, {"group_rank": -1}, {"group_world_size": 4}, {"master_addr": "10.9.9.9"}, {"master_port": 0},
        {"master_port": 70_000}, {"restarts": -1}, {"replicas": (ReplicaAddress(2, "10.9.9.9", 5),)},
        {"replicas": (ReplicaAddress(7, "127.0.0.3", 5),)}, {"replicas": (ReplicaAddress(-1, "127.0.0.3", 5),)},
    ],
)  # fmt: skip
def test_a_start_that_the_plan_does_not_know_is_refused(lie):
    plan, good = starts()
    with pytest.raises(WireError, match="plan"):
        check_start(msgspec.structs.replace(good, **lie), plan)


@pytest.mark.parametrize(("node", "address"), [(2, "10.9.9.9"), (7, "127.0.0.3"), (-1, "127.0.0.3")])
def test_no_link_is_measured_to_who_has_no_part_in_the_run(node, address):
    check_peer(ReplicaAddress(2, "127.0.0.3", 5), plan_of(3))
    with pytest.raises(WireError, match="plan"):
        check_peer(ReplicaAddress(node, address, 5), plan_of(3))


@given(lines(messages.ToAgent))
def test_any_word_to_an_agent_is_one_that_it_can_carry_out_or_refused(line):
    try:
        message = parsed(line, messages.TO_AGENT)
        if isinstance(message, Start):
            check_start(message, plan_of(3))
            assert message.local_world_size == 2 and message.master_addr.startswith("127.0.0.")
    except WireError:
        pass


def test_why_there_is_no_line_to_the_coordinator_is_said_and_once(tmp_path, capsys):
    """One of another version let nobody in, and no log said so."""
    plan, attempt = plan_of(2), RunDir(tmp_path / "run").attempt(1)
    attempt.path.mkdir(parents=True)

    async def scene():
        async def other(_, writer):
            writer.write(b'{"v":99,"nonce":"%s"}\n' % (b"0" * 32))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        write_record(attempt.endpoint, Endpoint("127.0.0.1", port, this_process()))
        line = Lifeline(SimpleNamespace(plan=plan, attempt=attempt, node=plan.nodes[1]), TOKEN, Lease())
        for _ in range(3):
            assert await line._reach() is None
        server.close()
        await server.wait_closed()
        return port

    port = asyncio.run(scene())
    said = f"it speaks version 99 of the wire, not {messages.WIRE_VERSION}"
    assert capsys.readouterr().err == f"launch: no line to the coordinator: 127.0.0.1:{port}: {said}\n"


def line_of(plan, lease):
    return Lifeline(SimpleNamespace(plan=plan, attempt=SimpleNamespace(number=1), node=plan.nodes[1]), TOKEN, lease)


@pytest.mark.parametrize("elects", [True, False])
def test_a_heartbeat_renews_no_lease_that_has_run_out_where_another_host_may_lead(elects):
    """A leader that woke from a suspend renewed its own, and its ranks ran beside those of the new leader."""
    plan, lease = msgspec.structs.replace(plan_of(3), disks_apart=True, elects=elects), Lease()
    line = line_of(plan, lease)
    line._wire = SimpleNamespace(send=lambda _: None)
    line.join(messages.Join(1, "127.0.0.2", this_process(), 20_000))
    line.welcomed(30.0)
    for number in (1, 2):
        lease.until = ran_out = boottime() + (1.0 if number == 1 else -1.0)
        line.heartbeat(messages.Heartbeat(1, 0, 1))
        line.answered(number)
        assert (lease.until == ran_out) == (elects and number == 2)


def test_a_welcome_renews_no_lease_that_has_run_out():
    plan, lease = plan_of(2), Lease()
    line = line_of(plan, lease)
    line.join(messages.Join(1, "127.0.0.2", this_process(), 20_000))
    joined_by = boottime()
    line.welcomed(30.0)
    assert lease.until > boottime(), "the first one ends the wait for it"
    assert lease.until <= joined_by + lease_of_ranks(plan.spec.recovery.lease_s), "it counts from when it joined"
    lease.until = ran_out = boottime() - 1
    line.welcomed(30.0)
    assert lease.until == ran_out


def test_ranks_start_under_a_lease_alone():
    """A machine that woke from a suspend obeyed a start of before, beside the ranks that had replaced its own."""
    lease = Lease()
    line = line_of(plan_of(2), lease)

    async def scene():
        lease.until = boottime() - 1
        waiting = asyncio.create_task(line.wait_until_leased())
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        lease.until = boottime() + 60
        await asyncio.wait_for(waiting, BOUND_S)

    asyncio.run(scene())


def test_what_was_sent_into_a_cut_is_sent_again_once_the_agent_has_joined_again(tmp_path):
    """A rank that had ended, and a node that had stopped, were waited for."""
    plan, attempt = plan_of(2), RunDir(tmp_path / "run").attempt(1)
    attempt.path.mkdir(parents=True)
    join, stopped = messages.Join(1, "127.0.0.2", this_process(), 20_000), messages.Stopped(1, 1)
    heard = []

    async def scene():
        twice = asyncio.Event()

        async def serve(agent):
            heard.append(await agent.receive())
            if len(heard) > 1:
                heard.append(await agent.receive())
                twice.set()
                await agent.receive()

        server = WireServer(wire_key(TOKEN, messages.WIRE, plan.run_id, 1), messages.TO_COORDINATOR, serve, 10)
        port = await server.start("127.0.0.1")
        write_record(attempt.endpoint, Endpoint("127.0.0.1", port, this_process()))
        line = Lifeline(SimpleNamespace(plan=plan, attempt=attempt, node=plan.nodes[1]), TOKEN, Lease())
        line.send_reliably(stopped)
        keeping = asyncio.create_task(line.keep(lambda: line.join(join), lambda message: None))
        async with asyncio.timeout(BOUND_S):
            await twice.wait()
            attempt.endpoint.unlink()
            await server.close()
            while line.is_up:
                await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.wait([keeping])

    asyncio.run(scene())
    assert heard == [join, join, stopped]


@pytest.mark.parametrize(
    ("nodes", "lease_s", "ends_s", "heartbeat_s", "turn_s"),
    [
        (2, 15.0, 14.0, 1.0, 0.002),
        (2, 2.0, 1.6, 0.4, 0.002),
        (2000, 15.0, 14.0, 2.0, 2.0),
        (9000, 15.0, 14.0, 14 / 3, 14 / 3),
    ],
)
def test_a_node_ends_its_ranks_before_its_lease_is_over_and_heartbeats_often_enough_to_renew_it(
    nodes, lease_s, ends_s, heartbeat_s, turn_s
):
    lease = Lease()
    line = line_of(plan_of(nodes), lease)
    line.join(messages.Join(1, "127.0.0.2", this_process(), 20_000))
    line.welcomed(lease_s)
    assert lease.until == pytest.approx(boottime() + ends_s, abs=0.2)
    assert line.heartbeat_s == pytest.approx(heartbeat_s)
    assert line.heartbeat_turn_s == pytest.approx(turn_s)


def test_an_agent_leaves_a_coordinator_that_lies_and_says_so(tmp_path):
    """The agent is a real one: it starts nothing, ends with its lease, and its log names who lied."""
    hosts = Hosts(tmp_path, Path(__file__).parent / "scripts/project/idles.py", nodes=2)
    before = {path for path in tmp_path.rglob("*") if "host-1" not in path.parts}

    async def lie():
        heard = []

        async def serve(agent):
            heard.append(await agent.receive())
            if len(heard) == 1:
                agent.send(messages.Welcome(1e308))
            for lying in (
                {"local_world_size": 10**9, "world_size": 10**9},
                {"generation": -7},
                {"master_addr": "10.9.9.9"},
            ):
                agent.send(msgspec.structs.replace(Start(1, 1, 1, 2, 1, 2, "127.0.0.1", 20_000, 0), **lying))
            while await agent.receive() is not None:
                pass

        attempt = RunDir(hosts.run_dir(0)).attempt(1)
        key = wire_key(TOKEN, messages.WIRE, hosts.run_dir(1).name, 1)
        server = WireServer(key, messages.TO_COORDINATOR, serve, 10)
        port = await server.start("127.0.0.1")
        write_record(attempt.endpoint, Endpoint("127.0.0.1", port, this_process()))
        await asyncio.to_thread(hosts.start, 1)
        codes = await asyncio.to_thread(hosts.end)
        await server.close()
        return heard, codes

    try:
        heard, codes = asyncio.run(lie())
        assert isinstance(heard[0], messages.Join)
        assert codes == {1: Exit.LOST}
        log = (RunDir(hosts.run_dir(1)).attempt(1).path / "agent-1.log").read_text()
        assert "127.0.0.1:" in log and "not of this plan" in log and "Traceback" not in log
        written = {path for path in tmp_path.rglob("*") if "host-1" not in path.parts} - before
        assert {path.name for path in written} == {"coordinator.json"}
        assert not list(hosts.run_dir(1).glob("logs/*/rank-*"))
    finally:
        hosts.tidy()
