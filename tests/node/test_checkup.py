"""The check of a node's devices by real processes: whatever becomes of them, there is an answer and nothing is left."""

import asyncio
import os
import signal
import subprocess
import time

import pytest
from msgspec.structs import replace
from one_node import home_of, play, processes_of_its_own

from launcher.health.evidence import Fitness
from launcher.node.ranks.checkup import Checkup, NodeUnfit
from launcher.node.ranks.group import Home
from launcher.node.ranks.prepare import Preparation
from launcher.node.ranks.reaper import Reaper
from launcher.run.identity import process_id
from launcher.spec.model import Recovery
from tests.waits import eventually

__all__ = ["processes_of_its_own"]
pytestmark = pytest.mark.usefixtures("processes_of_its_own")

BOUND_S = 120.0
FIT = """
print('{"device": "%s", "name": "old one"}' % sys.argv[1])
print('{"begins": "memory"}', flush=True)
print('{"part": "memory", "fit": true, "note": "kept", "seconds": 0.1}')
print('{"done": true, "seconds": 0.1}')
"""
BEGINS = """
print('{"begins": "memory"}', flush=True)
"""
WRONG = """
print('{"part": "memory", "fit": false, "expected": "1", "seen": "2"}')
"""


@pytest.fixture
def home(tmp_path):
    return home_of(tmp_path, "import time\ntime.sleep(600)\n", recovery=Recovery(health=True))


@pytest.fixture
def check(tmp_path):
    """The program that looks at a device, as a test wants it."""

    def check(text):
        (tmp_path / "check.py").write_text(
            f"import os, signal, sys, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{text}"
        )

    return check


def program_of(home):
    """Return what `check` has written."""
    return home.run.path.parent / "check.py"


def preparation_of(home):
    return Preparation(home, Reaper(asyncio.get_running_loop()), device_check=program_of(home))


def is_written(path):
    return path.exists() and path.read_text() != ""


def is_gone(tmp_path):
    return not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text()}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FIT, ""),
        (WRONG, "expected 1, got 2"),
        (BEGINS + "os.kill(os.getpid(), signal.SIGSEGV)", "cpu: memory: its process was ended by SIGSEGV"),
    ],
)  # fmt: skip
def test_what_it_shows_decides_whether_ranks_can_start(home, check, tmp_path, text, words):
    check(text)

    async def scene():
        preparation = preparation_of(home)
        if words:
            with pytest.raises(NodeUnfit, match=words):
                await preparation.run()
            assert words in str(preparation.failure) and not preparation.done
        else:
            await preparation.run()
            assert preparation.done
            assert [one.text for one in preparation.health] == ["cpu (old one): memory kept in 0.1 s; 0.10 s"]
        assert is_gone(tmp_path) and preparation.own_pids
        await preparation.close()

    play(scene)


def test_one_that_hangs_is_ended_and_that_is_the_evidence(home, check, tmp_path):
    check(BEGINS + "time.sleep(600)")

    async def scene():
        preparation = preparation_of(replaced(home, health=False))
        await preparation.run()
        checks = Checkup(home, preparation._reaper, program_of(home))
        with pytest.raises(NodeUnfit, match="cpu: memory: nothing came of it within 3 s"):
            await checks.look(preparation._zygote, ["cpu"], 3.0)
        assert is_gone(tmp_path)
        await preparation.close()

    play(scene)


def test_who_asks_may_leave_and_takes_it_along(home, check, tmp_path):
    check(BEGINS + "time.sleep(600)")

    async def scene():
        preparation = preparation_of(replaced(home, health=False))
        await preparation.run()
        checks = Checkup(home, preparation._reaper, program_of(home))
        looks = asyncio.create_task(checks.look(preparation._zygote, ["cpu"], BOUND_S))
        until = time.monotonic() + BOUND_S
        while not is_written(tmp_path / "pid") and time.monotonic() < until:
            await asyncio.sleep(0.01)
        looks.cancel()
        await asyncio.wait([looks])
        while not is_gone(tmp_path) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert is_gone(tmp_path)
        await preparation.close()

    play(scene)


def a_check():
    return subprocess.Popen(["sleep", "600"])


class SlowZygote:
    """A zygote that has forked the check, and answers only later."""

    def __init__(self):
        self.forked, self.answers = asyncio.Event(), asyncio.Event()

    async def fork(self, order, tell):
        self.child = a_check()
        self.forked.set()
        await self.answers.wait()
        return self.child.pid


def test_a_check_whose_start_nobody_awaits_any_more_is_ended_once_it_is_known(home):
    async def scene():
        zygote, reaper = SlowZygote(), Reaper(asyncio.get_running_loop())
        looks = asyncio.create_task(Checkup(home, reaper).look(zygote, ["cpu"], BOUND_S))
        await zygote.forked.wait()
        looks.cancel()
        await asyncio.wait([looks])
        zygote.answers.set()
        await eventually(lambda: process_id(zygote.child.pid) is None)
        zygote.child.wait()

    play(scene)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sys.exit(9)", "cpu: the check: its process left with exit code 9"),
        ('print(\'{"unable": "torch is ill"}\')', "cpu: torch is ill"),
        (BEGINS + "os.kill(os.getpid(), signal.SIGKILL)", "cpu: memory: its process was ended by SIGKILL"),
    ],
)
def test_what_says_nothing_of_the_device_keeps_nobody_from_it(home, check, text, why):
    check(text)

    async def scene():
        preparation = preparation_of(home)
        await preparation.run()
        assert preparation.done
        assert [(one.fitness, one.text) for one in preparation.health] == [(Fitness.UNKNOWN, why)]
        await preparation.close()

    play(scene)


def test_a_log_that_cannot_be_made_is_no_evidence(home, check):
    check(FIT)
    home.attempt.health_log(0, "cpu").mkdir()

    async def scene():
        preparation = preparation_of(home)
        await preparation.run()
        (found,) = preparation.health
        assert found.fitness is Fitness.UNKNOWN and "its check" in found.text
        await preparation.close()

    play(scene)


def test_after_a_failure_the_device_of_that_rank_is_looked_at_again(home, check):
    check(FIT)

    async def scene():
        preparation = preparation_of(home)
        await preparation.run()
        check(BEGINS + "os.kill(os.getpid(), signal.SIGBUS)")
        await preparation.check_again([])
        assert preparation.done and preparation.health == []
        with pytest.raises(NodeUnfit, match="SIGBUS"):
            await preparation.check_again([0])
        assert not preparation.done
        await preparation.close()

    play(scene)


def test_a_device_is_looked_at_again_where_the_zygote_is_gone_too(home, check):
    """Ranks do not end with it: what ended them may be the device."""
    check(FIT)

    async def scene():
        preparation = preparation_of(home)
        await preparation.run()
        check(BEGINS + "os.kill(os.getpid(), signal.SIGBUS)")
        os.kill(preparation.own_pids[0], signal.SIGKILL)
        await asyncio.wait_for(preparation._zygote.gone.wait(), BOUND_S)
        with pytest.raises(NodeUnfit, match="SIGBUS"):
            await preparation.check_again([0])
        await preparation.close()

    play(scene)


def test_without_a_zygote_it_is_an_interpreter_of_its_own(home, check):
    check(FIT)

    async def scene():
        checks = Checkup(home, Reaper(asyncio.get_running_loop()), program_of(home))
        (found,) = await checks.look(None, ["cuda:0"], BOUND_S)
        assert found.text == "cuda:0 (old one): memory kept in 0.1 s; 0.10 s"

    play(scene)


def test_where_ranks_compute(home):
    async def scene():
        reaper = Reaper(asyncio.get_running_loop())
        assert Checkup(home, reaper).devices == ("cpu",)
        assert Checkup(home, reaper).devices_of_ranks([1, 3]) == ("cpu",)
        two = Home(home.plan, home.run, home.attempt, replace(home.node, gpus=("4", "5")), home.environment)
        assert Checkup(two, reaper).devices == ("cpu", "cuda:0", "cuda:1")
        assert Checkup(two, reaper).devices_of_ranks([1, 3]) == ("cuda:1",)
        assert Checkup(two, reaper).devices_of_ranks([]) == ()

    play(scene)


def replaced(home, *, health):
    spec = replace(home.plan.spec, recovery=replace(home.plan.spec.recovery, health=health))
    return Home(replace(home.plan, spec=spec), home.run, home.attempt, home.node, home.environment)
