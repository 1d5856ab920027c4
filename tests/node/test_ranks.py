"""Ranks of one node, with a real zygote and real processes: whatever the moment of a stop, nothing is left."""

import asyncio
import os
import signal
import socket
import time
from dataclasses import replace

import msgspec
import pytest
from lab import command, parent
from one_node import Ears, home_of, play, processes_of_its_own

from launcher.node.ranks import group as ranks
from launcher.node.ranks.group import RankGroup
from launcher.node.ranks.looking import ANSWER_S
from launcher.node.ranks.prepare import PortTaken, Preparation
from launcher.node.ranks.reaper import Reaper
from launcher.run.durable import read_lines
from launcher.run.processes import descendants, end_all
from launcher.run.records import RankExit
from launcher.spec.model import Recovery, Resources
from launcher.wire.messages import Start
from tests.waits import eventually

__all__ = ["processes_of_its_own"]
pytestmark = pytest.mark.usefixtures("processes_of_its_own")

RANKS = 8
BOUND_S = 150.0


@pytest.fixture
def home(tmp_path):
    return home_of(
        tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n", resources=Resources(ranks_per_node=RANKS)
    )


def start(generation):
    return Start(generation, 0, RANKS, RANKS, 0, 1, "127.0.0.1", 20_000, 0)


async def prepared(home, **limits):
    preparation = Preparation(home, Reaper(asyncio.get_running_loop()), **limits)
    await preparation.run()
    return preparation


def test_a_node_whose_port_another_program_has_starts_no_ranks(home):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        spec = msgspec.structs.replace(home.plan.spec, recovery=Recovery(lease_s=0.1))
        words = {"role": "actors", "one_machine": False, "addresses": {"actors": (address,)}}
        theirs = replace(home, plan=msgspec.structs.replace(home.plan, spec=spec, **words))

        async def scene():
            with pytest.raises(PortTaken, match=f"another program has {address}"):
                await prepared(theirs)

        play(scene)


def left(preparation):
    return [pid for pid in ranks.orphans(os.getpid(), ()) if pid not in preparation.own_pids]


def test_all_are_started_and_all_are_ended(home):
    async def scene():
        preparation, ears = await prepared(home), Ears()
        group = RankGroup(home, start(1), preparation.starter, ears)
        pids = await group.begin()
        assert len(set(pids)) == RANKS
        assert ears.begun_ranks[0] == 0 and sorted(ears.begun_ranks) == list(range(RANKS))
        assert set(pids) <= set(descendants(os.getpid()))
        await group.stop(0.0, (), preparation.own_pids)
        assert left(preparation) == []
        assert sorted(end.rank for end in ears.exits) == list(range(RANKS))
        assert all(end.stopping and end.signal == 9 for end in ears.exits)
        await preparation.close()

    play(scene)


def test_each_agent_notes_which_of_its_ranks_have_finished(tmp_path):
    """Nobody may live to see the coordinator's note."""
    home = home_of(
        tmp_path, "import os, sys\nsys.exit(int(os.environ['RANK']) == 1)\n", resources=Resources(ranks_per_node=3)
    )

    async def scene():
        preparation, ears = await prepared(home), Ears()
        group = RankGroup(home, Start(1, 0, 3, 3, 0, 1, "127.0.0.1", 20_000, 0), preparation.starter, ears)
        await group.begin()
        assert await group.wait(BOUND_S)
        group.close()
        noted = read_lines(home.attempt.node_exits(0), RankExit)
        assert sorted(end.rank for end in noted) == [0, 2]
        assert all(end in ears.exits for end in noted)
        await preparation.close()

    play(scene)


def test_setup_has_the_umask_of_who_submitted(tmp_path):
    home = home_of(tmp_path, "")
    plan = msgspec.structs.replace(home.plan, setup=f"umask > {tmp_path}/mask", umask=0o027)

    async def scene():
        preparation = await prepared(replace(home, plan=plan))
        await preparation.close()

    play(scene)
    assert (tmp_path / "mask").read_text().strip() == "0027"


class CountingStarter:
    """One that counts the ranks that it was asked for."""

    dumps_stacks = True

    def __init__(self, starter):
        self._starter, self.asked = starter, 0

    async def start(self, *words):
        self.asked += 1
        return await self._starter.start(*words)


def test_a_stop_in_the_middle_of_a_start_leaves_no_late_fork(home):
    """The zygote is held still while it is asked to fork, and goes on only after the stop has begun."""

    async def scene():
        preparation, ears = await prepared(home), Ears()
        (zygote,) = preparation.own_pids
        os.kill(zygote, signal.SIGSTOP)
        starter = CountingStarter(preparation.starter)
        group = RankGroup(home, start(1), starter, ears)
        beginning = asyncio.create_task(group.begin())
        await eventually(lambda: starter.asked == RANKS)
        beginning.cancel()
        await asyncio.wait([beginning])
        asyncio.get_running_loop().call_soon(os.kill, zygote, signal.SIGCONT)  # once it is waited for
        await preparation.settle()
        await group.stop(0.0, (), preparation.own_pids)
        group.close()
        bound = time.monotonic() + 0.6
        while time.monotonic() < bound:  # nothing is to come: there is no condition to wait for
            assert left(preparation) == []
            await asyncio.sleep(0.02)
        await preparation.close()

    try:
        play(scene)
    finally:
        end_all(lambda: [pid for pid in descendants(os.getpid()) if b"zygote.py" in command(pid)])


@pytest.fixture
def counted(home, tmp_path):
    """A home whose zygote imports a module that counts its imports."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "counted.py").write_text(f"print('once', file=open({str(tmp_path / 'count')!r}, 'a'))\n")
    entry = msgspec.structs.replace(home.plan.entry, preload=("counted", "no_such_module"))
    environment = {**home.environment, "PYTHONPATH": str(tmp_path / "modules")}
    return replace(home, plan=msgspec.structs.replace(home.plan, entry=entry), environment=environment)


async def kill_and_renew(preparation, *pids):
    """Kill these standbys, or the first one if none is named, and wait for new ones."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        while set(pids) & set(preparation.own_pids) or len(preparation.own_pids) < 2:
            await asyncio.sleep(0.01)
            await preparation.renew()


def test_a_killed_zygote_is_replaced_without_an_import(counted, tmp_path):
    """As often as it is killed; its ranks go on, and their ends are seen."""

    async def scene():
        preparation, ears = await prepared(counted), Ears()
        await kill_and_renew(preparation)
        for generation in (1, 2, 3):
            zygote, standby = preparation.own_pids
            group = RankGroup(counted, start(generation), preparation.starter, ears)
            pids = await group.begin()
            await eventually(lambda pids=pids: {parent(pid) for pid in pids} == {os.getpid()})
            await eventually(
                lambda pids=pids: all(sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"] for pid in pids)
            )
            await kill_and_renew(preparation, zygote)
            assert len(ears.exits) == (generation - 1) * RANKS and set(pids) <= set(descendants(os.getpid()))
            await group.stop(0.0, (), preparation.own_pids)
            assert preparation.own_pids[0] == standby
            assert left(preparation) == []
        assert (tmp_path / "count").read_text() == "once\n"
        assert len(ears.exits) == 3 * RANKS
        await preparation.close()
        await eventually(lambda: left(preparation) == [])

    play(scene)


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.04])
def test_a_zygote_that_is_killed_while_it_forks_leaves_one_process_for_each_rank(home, after_s):
    """Those that it had not told of end with it, and others are started in their places."""

    async def scene():
        preparation, ears = await prepared(home), Ears()
        (zygote,), link = preparation.own_pids, preparation._zygote
        group = RankGroup(home, start(1), preparation.starter, ears)
        asyncio.get_running_loop().call_later(after_s, os.kill, zygote, signal.SIGKILL)
        pids = await group.begin()
        logs = [home.run.rank_log(1, 1, rank) for rank in range(RANKS)]
        await asyncio.wait_for(link.gone.wait(), BOUND_S)
        await eventually(lambda: len(ears.exits) or all(log.exists() and "up" in log.read_text() for log in logs))
        await eventually(lambda: len(left(preparation)) == RANKS - len(ears.exits))
        assert set(left(preparation)) <= set(pids)
        assert all(log.read_text().count("up") <= 1 for log in logs if log.exists())
        await group.stop(0.0, (), preparation.own_pids)
        assert left(preparation) == [] and len(ears.exits) == RANKS
        await preparation.close()

    play(scene)


def test_without_zygote_and_standby_there_is_a_new_one(counted, tmp_path):
    async def scene():
        told = []
        preparation = await prepared(counted, on_import=lambda: told.append(1))
        await kill_and_renew(preparation)
        before = preparation.own_pids
        await kill_and_renew(preparation, *reversed(before))
        assert (tmp_path / "count").read_text() == "once\n" * 2
        assert len(told) == 2, "the coordinator gives its ranks to a spare, if it is told when imports begin"
        assert not set(before) & set(preparation.own_pids)
        await preparation.close()

    play(scene)


def test_where_a_zygote_is_killed_while_it_is_asked_its_standby_forks_the_ranks(counted, tmp_path):
    """Its death may be seen later than that of the ranks that died with it."""

    async def scene():
        preparation, ears = await prepared(counted), Ears()
        await eventually(lambda: len(preparation.own_pids) == 2)
        zygote, standby = preparation.own_pids
        os.kill(zygote, signal.SIGSTOP)
        starter = CountingStarter(preparation.starter)
        group = RankGroup(counted, start(1), starter, ears)
        beginning = asyncio.create_task(group.begin())
        await eventually(lambda: starter.asked == RANKS)
        os.kill(zygote, signal.SIGKILL)
        await beginning
        assert preparation.own_pids[0] == standby
        await eventually(lambda: all(counted.run.rank_log(1, 1, rank).exists() for rank in range(RANKS)))
        assert not any("no fork" in counted.run.rank_log(1, 1, rank).read_text() for rank in range(RANKS))
        await group.stop(0.0, (), preparation.own_pids)
        group.close()
        assert (tmp_path / "count").read_text() == "once\n"
        await preparation.close()

    play(scene)


def test_a_standby_that_was_killed_is_none_of_the_processes_to_keep(counted):
    """Its number may be that of a rank one day, which would outlive its lease."""

    async def scene():
        preparation = await prepared(counted)
        await eventually(lambda: preparation.standby_pid)
        os.kill(preparation.standby_pid, signal.SIGKILL)
        await eventually(lambda: not preparation.standby_pid)
        assert len(preparation.own_pids) == 1
        await preparation.close()

    play(scene)


def test_a_zygote_that_is_gone_is_replaced_before_anybody_asks_for_it_and_once_if_many_do(counted, tmp_path):
    """A start that is cancelled, too, leaves its imports to the others."""

    async def scene():
        preparation = await prepared(counted)
        staying = asyncio.create_task(preparation.stay_warm(0.0))
        await eventually(lambda: len(preparation.own_pids) == 2)
        for imports in (2, 3):
            before = preparation.own_pids
            for pid in reversed(before):
                os.kill(pid, signal.SIGKILL)
            await eventually(preparation._zygote.gone.is_set)
            asks = [asyncio.create_task(preparation.renew()) for _ in range(3)]
            await asyncio.sleep(0)
            asks.pop().cancel()
            await asyncio.gather(*asks)
            assert (tmp_path / "count").read_text() == "once\n" * imports
            await eventually(lambda before=before: len({*preparation.own_pids} - {*before}) == 2)
        staying.cancel()
        await preparation.close()

    play(scene)


def test_ranks_that_die_with_all_that_was_warm_wait_for_one_import_and_do_none_beside_it(counted, tmp_path):
    """Their generation is ended while the new zygote imports, and the next one is started."""
    held, count = tmp_path / "held", tmp_path / "count"
    (tmp_path / "modules" / "counted.py").write_text(
        f"import os, time\nprint('once', file=open({str(count)!r}, 'a'))\n"
        f"while os.path.exists({str(held)!r}):\n    time.sleep(0.01)\n"
    )

    async def scene():
        preparation, ears = await prepared(counted), Ears()
        staying = asyncio.create_task(preparation.stay_warm())
        await eventually(lambda: len(preparation.own_pids) == 2)
        group = RankGroup(counted, start(1), preparation.starter, ears)
        pids = await group.begin()
        held.touch()
        for pid in (*reversed(preparation.own_pids), *pids):
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: count.read_text() == "once\n" * 2)
        await group.stop(0.0, (), preparation.own_pids)
        group.close()
        held.unlink()
        await preparation.renew()
        group = RankGroup(counted, start(2), preparation.starter, ears)
        await group.begin()
        await eventually(lambda: all(counted.run.rank_log(1, 2, rank).exists() for rank in range(RANKS)))
        await group.stop(0.0, (), preparation.own_pids)
        group.close()
        assert count.read_text() == "once\n" * 2
        assert not any("no fork" in counted.run.rank_log(1, 2, rank).read_text() for rank in range(RANKS))
        staying.cancel()
        await preparation.close()

    play(scene)


def test_a_zygote_that_was_killed_while_it_imported_is_tried_again(counted, tmp_path):
    (tmp_path / "modules" / "counted.py").write_text(
        f"import os\nprint('once', file=open({str(tmp_path / 'count')!r}, 'a'))\n"
        f"if not os.path.exists({str(tmp_path / 'killed')!r}):\n"
        f"    open({str(tmp_path / 'killed')!r}, 'w').close()\n    os.kill(os.getpid(), 9)\n"
    )

    async def scene():
        preparation = await prepared(counted)
        await preparation.renew()
        assert preparation.own_pids[0] in descendants(os.getpid())
        assert (tmp_path / "count").read_text() == "once\n" * 2
        await preparation.close()

    play(scene)


def test_a_frozen_standby_is_not_waited_for(counted, tmp_path):
    async def scene():
        preparation = await prepared(counted, take_over_s=0.1)
        await kill_and_renew(preparation)
        zygote, standby = preparation.own_pids
        os.kill(standby, signal.SIGSTOP)
        await kill_and_renew(preparation, zygote)
        assert (tmp_path / "count").read_text() == "once\n" * 2
        os.kill(standby, signal.SIGCONT)
        await preparation.close()
        async with asyncio.timeout(BOUND_S):
            while left(preparation):
                await asyncio.sleep(0.01)

    play(scene)


def test_stacks_of_hung_ranks_are_waited_for_no_longer_than_they_take(home):
    """However often somebody else looks whether the logs have grown; and one that ends instead writes none."""

    async def scene():
        preparation = await prepared(home)
        group = RankGroup(home, start(1), preparation.starter, Ears(), dump_bound_s=600.0)
        pids = await group.begin()
        logs = [home.run.rank_log(1, 1, rank) for rank in range(RANKS)]
        await eventually(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
        looking = asyncio.create_task(look(group))
        os.kill(pids[0], signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            await group.stop(0.0, range(RANKS), preparation.own_pids)
        looking.cancel()
        assert all("most recent call first" in log.read_text() for log in logs[1:])
        await preparation.close()

    play(scene)


def test_a_rank_whose_own_thread_cannot_answer_is_looked_at_by_what_faulthandler_writes(home):
    """That it writes, because it was asked to, is no sign of life."""

    async def scene():
        preparation = await prepared(home)
        group = RankGroup(home, start(1), preparation.starter, Ears())
        await group.begin()
        logs = [home.run.rank_log(1, 1, rank) for rank in range(RANKS)]
        await eventually(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
        question = home.attempt.progress(0, 0).with_suffix(".look")
        os.mkfifo(question)
        deaf = os.open(question, os.O_RDWR)
        group.heartbeats()
        looks = await group.look()
        assert "stay.py" in looks[0].stack[-1].file
        assert [one.problem for one in looks] == ["did not answer"] + ["has no process group of torch's"] * (RANKS - 1)
        assert "most recent call first" in logs[0].read_text()
        assert "most recent call first" not in logs[1].read_text()
        assert group.heartbeats()[0].idle_s >= ANSWER_S / 2
        os.close(deaf)
        await group.stop(0.0, (), preparation.own_pids)
        await preparation.close()
        await eventually(lambda: left(preparation) == [])

    play(scene)


async def look(group):
    while True:
        group.heartbeats()
        await asyncio.sleep(0.01)
