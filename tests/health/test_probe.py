"""A link is measured by two real ends; whatever the other one is, there is an answer in time."""

import asyncio
import socket
import time

import pytest

from launcher.copies.link import linked
from launcher.health import probe
from launcher.health.probe import Give, Prober, Take
from launcher.wire.frames import WireError
from launcher.wire.messages import LinkSeen, ReplicaAddress

KEY, OTHER = bytes(32), bytes([1] * 32)


def play(scene):
    asyncio.run(asyncio.wait_for(scene(), 60))


async def opened(*keys):
    ends = [Prober(node, f"127.0.0.{node + 1}", key) for node, key in enumerate(keys)]
    for one in ends:
        await one.open()
    return ends


def at(prober, node=1):
    return ReplicaAddress(node, f"127.0.0.{node + 1}", prober.port)


def test_both_ways_and_there_and_back():
    async def scene():
        one, other = await opened(KEY, KEY)
        seen = await one.measure(7, at(other))
        assert (seen.node, seen.number, seen.problem) == (0, 7, "")
        assert seen.bytes_per_s > 1e6 and 0 < seen.round_trip_s < 1
        await one.close()
        await other.close()

    play(scene)


@pytest.mark.parametrize("slow", ["_drop", "_give"])
def test_the_slower_way_counts(monkeypatch, slow):
    """Who gives, or takes, 1 MB a second, there and not here."""
    real = getattr(probe, slow, None) or getattr(Prober, slow)

    def slowly(*words, **more):
        time.sleep((more.get("size") or next(word for word in words if isinstance(word, int))) / 1e6)
        real(*words, **more)

    async def scene():
        one, other = await opened(KEY, KEY)
        monkeypatch.setattr(*((probe, slow) if slow == "_drop" else (Prober, slow)), slowly)
        seen = await one.measure(1, at(other))
        assert 0.5e6 < seen.bytes_per_s < 1.5e6
        await one.close()
        await other.close()

    play(scene)


def test_one_that_says_nothing_is_a_problem_within_seconds():
    async def scene():
        (one,) = await opened(KEY)
        with socket.create_server(("127.0.0.2", 0)) as deaf:
            began = time.monotonic()
            seen = await one.measure(1, ReplicaAddress(1, "127.0.0.2", deaf.getsockname()[1]))
            assert seen == LinkSeen(0, 1, problem="nothing came of it in time")
            assert time.monotonic() - began < 10
        seen = await one.measure(2, ReplicaAddress(1, "127.0.0.2", 1))
        assert "Connect call failed" in seen.problem
        await one.close()

    play(scene)


def test_a_stranger_is_none_of_ours():
    async def scene():
        one, other = await opened(KEY, OTHER)
        seen = await one.measure(1, at(other))
        assert "does not know this run's token" in seen.problem or "left" in seen.problem
        await one.close()
        await other.close()

    play(scene)


@pytest.mark.parametrize("word", [Give(1 << 40), Take(1 << 40)])
def test_nobody_gives_or_takes_without_bounds(word):
    async def scene():
        one, other = await opened(KEY, KEY)
        async with linked(at(other), "127.0.0.1", KEY, one._pool) as link:
            await link.send(word)
            with pytest.raises(WireError):
                await link.expect()
        assert not (await one.measure(1, at(other))).problem
        await one.close()
        await other.close()

    play(scene)
