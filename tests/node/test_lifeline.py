"""What an agent's heartbeats say to its coordinator, over a real connection."""

import asyncio
from types import SimpleNamespace

import pytest
from run_folder import plan_of

from launcher.clock import boottime
from launcher.node.lifeline import Lifeline, RankNews
from launcher.node.ranks.lease import Lease
from launcher.run.durable import write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import Endpoint
from launcher.wire import messages
from launcher.wire.frames import WireServer, wire_key
from tests.waits import eventually

TOKEN = "5e" * 32
STILL = messages.RankHeartbeat(0, 0.0, True, False, step=7)


def told(generation, *ranks):
    return messages.Heartbeat(1, 0, generation, ranks)


def of_rank(**changed):
    return messages.RankHeartbeat(**{**{name: getattr(STILL, name) for name in STILL.__struct_fields__}, **changed})


@pytest.mark.parametrize(
    ("before", "after", "repeats"),
    [
        (told(1, STILL), told(1, of_rank(idle_s=2.0)), True),
        (told(1, STILL), told(1, of_rank(idle_s=1.0)), False),
        (told(1, STILL), told(1, of_rank(idle_s=2.0, step=8)), False),
        (told(1, STILL), told(1, of_rank(idle_s=2.0, frozen=True)), False),
        (told(1, STILL), told(2, of_rank(idle_s=2.0)), False),
        (told(1, STILL, of_rank(rank=1)), told(1, of_rank(idle_s=2.0)), False),
        (told(1), told(1), False),
        (told(1, of_rank(breakpoint="x.py:3")), told(1, of_rank(idle_s=2.0, breakpoint="x.py:3")), False),
    ],
    ids=["did nothing", "was active", "a step", "frozen", "generation", "one ended", "no ranks", "breakpoint"],
)
def test_ranks_repeat_what_is_known_of_them_only_where_they_did_nothing(before, after, repeats):
    """The second heartbeat is sent two seconds after the first."""
    assert RankNews.of(after, 102.0).repeats(RankNews.of(before, 100.0)) == repeats
    assert not RankNews.of(after, 102.0).repeats(None)


@pytest.mark.parametrize("brief", [True, False])
def test_they_are_told_of_once_on_each_connection_and_always_to_a_coordinator_of_an_older_version(tmp_path, brief):
    plan, attempt = plan_of(tmp_path / "run", nodes=2), RunDir(tmp_path / "run").attempt(1)
    attempt.path.mkdir(parents=True)
    heard, welcomed, active_at = [], asyncio.Event(), boottime()

    async def serve(wire):
        while (message := await wire.receive()) is not None:
            if isinstance(message, messages.Join):
                wire.send(messages.Welcome(15.0, brief=brief))
                continue
            heard.append(message.same)
            if len(heard) == 3:
                return

    async def scene():
        server = WireServer(wire_key(TOKEN, messages.WIRE, plan.run_id, 1), messages.TO_COORDINATOR, serve, 10)
        write_record(attempt.endpoint, Endpoint("127.0.0.1", await server.start("127.0.0.1"), this_process()))
        line = Lifeline(SimpleNamespace(plan=plan, attempt=attempt, node=plan.nodes[1]), TOKEN, Lease())

        def obey(message):
            line.welcomed(message.lease_s, brief=message.brief)
            welcomed.set()

        join = messages.Join(1, "127.0.0.2", this_process(), 20_000)
        keeping = asyncio.create_task(line.keep(lambda: line.join(join), obey))
        for count in range(1, 6):
            await welcomed.wait()
            line.heartbeat(told(1, of_rank(idle_s=boottime() - active_at)))
            if count == 3:
                welcomed.clear()  # the connection breaks
            await eventually(lambda count=count: len(heard) == count)
        keeping.cancel()
        await asyncio.wait([keeping])
        line.close()
        await server.close()

    asyncio.run(scene())
    assert heard == ([False, True, True, False, True] if brief else [False] * 5)
