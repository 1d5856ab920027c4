"""Processes in reserve on one node, with a real zygote: who takes a rank's place, and what is heard of it then."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from one_node import Ears, home_of, play, processes_of_its_own

from launcher.node.ranks.group import RankGroup
from launcher.node.ranks.prepare import Preparation
from launcher.node.ranks.reaper import Reaper
from launcher.node.ranks.reports.oom import OomCounter
from launcher.run.processes import descendants, runs
from launcher.spec.model import Recovery, Resources
from launcher.wire.messages import Start
from tests.waits import eventually

__all__ = ["processes_of_its_own"]
pytestmark = pytest.mark.usefixtures("processes_of_its_own")

BOUND_S = 60.0
SCRIPT = """import os, sys, time
from trainer.recovery.control import await_rank
from trainer.wire import Launched
if os.environ.get("LAUNCH_RESERVE"):
    await_rank(Launched.from_environment())
    print("here")
    sys.excepthook = lambda *_: None  # the log says nothing
    raise RuntimeError(f"as rank {os.environ['RANK']}")
time.sleep(600)
"""


class Node:
    def __init__(self, folder, script=SCRIPT, reserve=1, **more):
        self.notes, self.size = [], 2
        home = home_of(
            folder, script, resources=Resources(ranks_per_node=2), recovery=Recovery(reserve=reserve, mode="hot")
        )
        self.home = replace(home, **more)
        self.preparation = Preparation(self.home, Reaper(asyncio.get_running_loop()), self._note)
        self.ears = Ears()

    def _note(self, kind, text):
        self.notes.append((kind, text))

    def start(self, generation):
        return Start(generation, 0, 2, self.size, 0, self.size // 2, "127.0.0.1", 20_000, 0)

    def group(self, generation):
        return RankGroup(self.home, self.start(generation), self.preparation.starter, self.ears)

    async def fill(self, generation=1):
        """Gives the processes that are there then."""
        self.notes.clear()
        await self.preparation.fill_reserve(self.start(generation))
        pids = self.preparation.reserve.pids
        await eventually(lambda: len(self.notes) == len(pids))
        assert {kind for kind, _ in self.notes} == {"in_reserve"}, self.notes
        return pids

    async def stop(self, group, grace_s=0.0):
        await group.stop(grace_s, (), self.preparation.own_pids, lambda: self.preparation.reserve.pids)

    def is_short(self, generation=1):
        return self.preparation.reserve.is_short(self.start(generation))


def test_it_outlives_a_generation_and_is_a_rank_of_the_next_whose_errors_are_heard(tmp_path):
    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        first = node.group(1)
        await first.begin()
        (ready,) = await node.fill()
        assert not node.is_short()
        await node.stop(first)
        first.close()
        second = node.group(2)
        pids = await second.begin()
        assert pids[0] == ready != pids[1] and node.is_short()
        await eventually(lambda: any(end.generation == 2 for end in node.ears.exits))
        (end,) = [end for end in node.ears.exits if end.generation == 2]
        assert (end.rank, end.pid, end.code) == (0, ready, 1)
        assert end.error == "RuntimeError: as rank 0" and end.where == "stay.py:8 in <module>"
        assert node.home.run.rank_log(1, 2, 0).read_text() == "here\n"
        await node.stop(second)
        await node.preparation.close()

    play(scene)


def test_where_nobody_is_ready_a_rank_that_is_started_anew_is_told_of_why(tmp_path):
    async def scene():
        node = Node(tmp_path, "import time\ntime.sleep(600)\n")
        await node.preparation.run()
        for generation, size in enumerate((2, 2, 2, 2, 4), start=1):
            node.size = size
            group = node.group(generation)
            await group.begin()
            await node.stop(group)
            if generation == 2:
                await node.preparation.fill_reserve(node.start(2))
                (stuck,) = node.preparation.reserve.pids
        begin = "node 0 has no process in reserve: "
        assert node.notes == [
            ("no_reserve", f"{begin}none is begun before each rank here has reported some steps"),
            ("no_reserve", f"{begin}process {stuck} has begun, and does not wait yet"),
            ("no_reserve", f"{begin}process {stuck} has begun, and does not wait yet"),
            ("no_reserve", f"{begin}process {stuck} was begun for another number of ranks"),
        ]
        await node.preparation.close()

    play(scene)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_does_not_run_takes_no_place(tmp_path, number):
    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        (ready,) = await node.fill()
        os.kill(ready, number)
        while runs(ready):  # nobody is to hear of its end meanwhile
            time.sleep(0.001)  # noqa: ASYNC251 - so nothing else goes on
        group = node.group(1)
        assert ready not in await group.begin()
        await node.stop(group)
        await node.preparation.close()
        assert len(node.notes) == 1

    play(scene)


def test_one_that_ends_by_itself_is_told_of_and_tried_again_in_the_next_generation(tmp_path):
    async def scene():
        node = Node(tmp_path, "import os, sys\nsys.exit('no use' if 'LAUNCH_RESERVE' in os.environ else 0)\n")
        await node.preparation.run()
        await node.preparation.fill_reserve(node.start(1))
        await eventually(lambda: node.notes)
        assert node.notes == [("no_reserve", "node 0 has no process in reserve: it ended with exit code 1: no use")]
        assert not node.is_short(1) and node.is_short(2)
        await node.preparation.close()

    play(scene)


def test_where_they_are_killed_again_and_again_no_more_are_begun(tmp_path):
    """As where there is no memory for one more."""

    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        reserve = node.preparation.reserve
        for generation in (1, 2, 2, 2):
            await eventually(lambda generation=generation: node.is_short(generation))
            await node.preparation.fill_reserve(node.start(generation))
            [pid] = reserve.pids
            os.kill(pid, signal.SIGKILL)
        await eventually(
            lambda: (
                (
                    "no_reserve",
                    "node 0 has no process in reserve: 3 were begun in one generation, the last was killed by signal 9",
                )
                in node.notes
            )
        )
        assert not node.is_short(2)
        await node.preparation.close()

    play(scene)


def test_where_memory_is_short_it_is_ended_before_any_rank_and_no_rank_is_taken_for_it(tmp_path):
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 0\n")

    def given_up(pid):
        return Path(f"/proc/{pid}/oom_score_adj").read_text()

    async def scene():
        node = Node(tmp_path, SCRIPT.replace("print", "time.sleep(600) or print"), oom=OomCounter([counter]))
        await node.preparation.run()
        (ready,) = await node.fill()
        assert given_up(ready) == "1000\n"
        group = node.group(1)
        pids = await group.begin()
        assert ready in pids
        assert {given_up(pid) for pid in pids} == {given_up("self")}
        (ready,) = await node.fill()
        counter.write_text("oom_kill 1\n")
        os.kill(ready, signal.SIGKILL)
        await eventually(lambda: not node.preparation.reserve.pids)
        os.kill(pids[0], signal.SIGKILL)
        await eventually(lambda: node.ears.exits)
        assert not node.ears.exits[0].oom
        await node.stop(group)
        await node.preparation.close()

    play(scene)


def test_one_that_was_begun_for_another_number_of_ranks_takes_no_place_and_is_replaced(tmp_path):
    """Its script may have divided something by their number, and it sums in as many threads as fitted that one."""

    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        (ready,) = await node.fill()
        node.size = 4
        group = node.group(2)
        assert ready not in await group.begin()
        assert await node.fill(2) != (ready,)
        await eventually(lambda: not runs(ready))
        await node.stop(group)
        await node.preparation.close()

    play(scene)


def test_those_that_are_killed_together_as_with_the_zygote_are_begun_again(tmp_path):
    async def scene():
        node = Node(tmp_path, reserve=3)
        await node.preparation.run()
        for pid in await node.fill():
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not node.preparation.reserve.pids)
        assert len(await node.fill(2)) == 3
        await node.preparation.close()

    play(scene)


BUSY = """import os, signal, subprocess
if "LAUNCH_RESERVE" in os.environ:
    subprocess.Popen(["sleep", "600"])
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf")
"""


def test_one_that_begins_while_ranks_are_being_stopped_stays_with_what_it_starts(tmp_path):
    async def scene():
        node = Node(tmp_path, BUSY + SCRIPT)
        await node.preparation.run()
        group = node.group(1)
        pids = await group.begin()
        logs = [node.home.run.rank_log(1, 1, rank) for rank in range(2)]
        await eventually(lambda: all(log.exists() and log.read_text() == "deaf\n" for log in logs))
        stop = asyncio.create_task(node.stop(group, BOUND_S))
        await asyncio.sleep(0)  # it looks who there is
        (ready,) = await node.fill()
        (below,) = descendants(ready)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await stop
        assert runs(ready) and runs(below)
        os.kill(below, signal.SIGKILL)
        await node.preparation.close()

    play(scene)
