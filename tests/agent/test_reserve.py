"""Processes in reserve on one node, with a real zygote: who takes a rank's place, and what is heard of it then."""

import asyncio
import os
import signal

import pytest
from one_node import Ears, home_of, play, processes_of_its_own

from launcher.agent.messages import Start
from launcher.agent.processes import is_stopped
from launcher.agent.ranks.group import RankGroup
from launcher.agent.ranks.prepare import Preparation
from launcher.agent.ranks.reaper import Reaper
from launcher.spec.model import Recovery, Resources

__all__ = ["processes_of_its_own"]
pytestmark = pytest.mark.usefixtures("processes_of_its_own")

BOUND_S = 60.0
SCRIPT = """import os, sys, time
from trainer.staying.reserve import become_a_rank
from trainer.wire import Launched
if os.environ.get("LAUNCH_RESERVE"):
    become_a_rank(Launched.from_environment())
    print("here")
    sys.excepthook = lambda *_: None  # the log says nothing
    raise RuntimeError(f"as rank {os.environ['RANK']}")
time.sleep(600)
"""


class Node:
    def __init__(self, folder, script=SCRIPT):
        self.notes = []
        self.home = home_of(
            folder, script, resources=Resources(ranks_per_node=2), recovery=Recovery(reserve=1, mode="hot")
        )
        self.preparation = Preparation(self.home, Reaper(asyncio.get_running_loop()), self._note)
        self.ears = Ears()

    def _note(self, kind, text):
        self.notes.append((kind, text))

    def start(self, generation):
        return Start(generation, 0, 2, 2, 0, 1, "127.0.0.1", 20_000, 0)

    def group(self, generation):
        return RankGroup(self.home, self.start(generation), self.preparation.starter, self.ears)

    async def fill(self):
        """Gives the process that is there then."""
        await self.preparation.fill_reserve(self.start(1))
        await until(lambda: self.notes)
        [(kind, text)] = self.notes
        assert kind == "in_reserve", text
        return self.preparation.reserve.pids[0]


async def until(holds):
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_it_outlives_a_generation_and_is_a_rank_of_the_next_whose_errors_are_heard(tmp_path):
    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        first = node.group(1)
        await first.begin()
        ready = await node.fill()
        assert not node.preparation.reserve.is_short
        await first.stop(0.0, (), node.preparation.own_pids)
        first.close()
        second = node.group(2)
        pids = await second.begin()
        assert pids[0] == ready != pids[1] and node.preparation.reserve.is_short
        await until(lambda: any(end.generation == 2 for end in node.ears.exits))
        (end,) = [end for end in node.ears.exits if end.generation == 2]
        assert (end.rank, end.pid, end.code) == (0, ready, 1)
        assert end.error == "RuntimeError: as rank 0" and end.where == "stay.py:8 in <module>"
        assert node.home.run.rank_log(1, 2, 0).read_text() == "here\n"
        await second.stop(0.0, (), node.preparation.own_pids)
        await node.preparation.close()

    play(scene)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_does_not_run_takes_no_place(tmp_path, number):
    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        ready = await node.fill()
        os.kill(ready, number)
        if number == signal.SIGSTOP:
            await until(lambda: is_stopped(ready))
        else:
            await until(lambda: node.preparation.reserve.is_short)  # and another one will be there
        group = node.group(1)
        assert ready not in await group.begin()
        await group.stop(0.0, (), node.preparation.own_pids)
        await node.preparation.close()
        assert len(node.notes) == 1

    play(scene)


def test_one_that_ends_by_itself_is_told_of_and_not_tried_again(tmp_path):
    async def scene():
        node = Node(tmp_path, "import os, sys\nsys.exit('no use' if 'LAUNCH_RESERVE' in os.environ else 0)\n")
        await node.preparation.run()
        await node.preparation.fill_reserve(node.start(1))
        await until(lambda: node.notes)
        assert node.notes == [("no_reserve", "node 0 has no process in reserve: it ended with exit code 1: no use")]
        assert not node.preparation.reserve.is_short
        await node.preparation.close()

    play(scene)


def test_where_they_are_killed_again_and_again_no_more_are_begun(tmp_path):
    """As where there is no memory for one more."""

    async def scene():
        node = Node(tmp_path)
        await node.preparation.run()
        reserve = node.preparation.reserve
        for generation in (1, 2, 2, 2):
            await until(lambda: reserve.is_short)
            await node.preparation.fill_reserve(node.start(generation))
            [pid] = reserve.pids
            os.kill(pid, signal.SIGKILL)
        await until(
            lambda: (
                (
                    "no_reserve",
                    "node 0 has no process in reserve: 3 were killed in one generation, the last by signal 9",
                )
                in node.notes
            )
        )
        assert not reserve.is_short
        await node.preparation.close()

    play(scene)
