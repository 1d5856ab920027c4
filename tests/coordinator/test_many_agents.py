"""Two thousand agents and the real coordinator, over real sockets: they join at once, one fails, all end."""

import asyncio
import resource

from msgspec.structs import replace
from run_folder import RunFolder, plan_of

from launcher.coordinator.server import CoordinatorServer
from launcher.errors import Exit
from launcher.run.durable import make_dir, read_lines, read_record
from launcher.run.identity import this_process
from launcher.run.records import Endpoint, Event, RankExit
from launcher.wire import messages
from launcher.wire.frames import dial, wire_key

MOST, BOUND_S, LEASE_S, TOKEN = 2000, 300.0, 600.0, "5e" * 32
OTHER_DESCRIPTORS = 500


async def agent(endpoint, key, node, victim):
    """Take part as the agent of this node until the end; the rank of node `victim` is killed once."""
    wire = await dial(endpoint.address, endpoint.port, "127.0.0.1", key, messages.TO_AGENT, patience=100)
    told = []
    wire.send(messages.Join(node, "127.0.0.1", this_process(), 20_000))
    wire.send(messages.Ready(node))
    while (message := await wire.receive()) is not None:
        told.append(type(message).__name__)
        match message:
            case messages.Start(generation=number, first_rank=rank):
                if rank == 0:
                    wire.send(messages.Leads(node, number))
                wire.send(messages.Started(node, number, (1,), 20_000))
                wire.send(messages.Heartbeat(node, 1, number, (messages.RankHeartbeat(rank, 0.0, False, False),)))
                wire.send(messages.Heartbeat(node, 2, number, same=True))
                if number == 1 and node == victim:
                    wire.send(messages.Exited(node, RankExit(number, rank, 0, node, 1, signal=9)))
                elif number == 2:
                    wire.send(messages.Exited(node, RankExit(number, rank, 0, node, 1, code=0)))
            case messages.Stop(generation=number):
                wire.send(messages.Stopped(node, number))
            case messages.End():
                wire.close()
    return told


def test_two_thousand_join_at_once_hear_of_a_failure_and_end(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    nodes = min(MOST, (min(hard, 65_536) - OTHER_DESCRIPTORS) // 2)
    folder = RunFolder(tmp_path / "run")
    run, attempt = folder.run, folder.run.attempt(1)
    make_dir(attempt.path)
    plan = plan_of(run.path, nodes=nodes, ranks=1)
    rules = replace(plan.spec.recovery, lease_s=LEASE_S, wait_s=LEASE_S)
    plan = replace(plan, spec=replace(plan.spec, recovery=rules))

    async def scene():
        server = CoordinatorServer(run, attempt, plan, "127.0.0.1", TOKEN)
        await server.start()
        try:
            async with asyncio.timeout(BOUND_S):
                endpoint, key = read_record(attempt.endpoint, Endpoint), wire_key(TOKEN, messages.WIRE, plan.run_id, 1)
                agents = (agent(endpoint, key, node, nodes // 2) for node in range(nodes))
                everything = await asyncio.gather(*agents)
                return await server.ended, everything
        finally:
            await server.close()

    try:
        end, told = asyncio.run(scene())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert end is Exit.OK
    for one in told:
        assert [name for name in one if name in ("Start", "Stop", "End")] == ["Start", "Stop", "Start", "End"]
        assert one.count("HeartbeatAck") == 4, "each heartbeat is answered"
    assert len(read_lines(attempt.exits, RankExit)) == nodes + 1
    kinds = [event.kind for event in read_lines(run.events, Event)]
    assert (kinds.count("agent_joined"), kinds.count("failure")) == (nodes, 1)
