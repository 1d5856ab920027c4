"""The faults of which it cannot be seen in a run that they came at all."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.chaos import worlds

ASK = "import time; print(time.time())"


@pytest.fixture
def world(tmp_path):
    return SimpleNamespace(clocks=tmp_path / "clocks", desk=SimpleNamespace(env={**os.environ}), clock_names=["0"])


def shown(world, **env):
    env = {**world.desk.env, **env}
    return float(subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("target", [1, 2, 3])
def test_a_clock_is_wrong_on_one_node_as_long_as_the_fault_lasts(world, target):
    worlds.lay_clocks(world, worlds.BY_NODE)
    with worlds.wrong_clock(world, target):
        assert abs(shown(world, LAUNCH_NODE="0") - time.time()) > 7_000.0
        assert abs(shown(world, LAUNCH_NODE="1") - time.time()) < 600.0
        assert abs(shown(world) - time.time()) < 600.0, "who looks from elsewhere"
    assert abs(shown(world, LAUNCH_NODE="0") - time.time()) < 600.0


def test_a_clock_is_wrong_on_one_host(world):
    worlds.lay_clocks(world, worlds.BY_HOST)
    world.clock_names = [os.uname().nodename]
    with worlds.wrong_clock(world, 1):
        assert abs(shown(world) - time.time()) > 7_000.0


def test_a_zygote_was_there_before_its_standby(monkeypatch):
    started = {11: 100, 12: 300, 13: 200, 14: 250}
    monkeypatch.setattr(worlds, "process_id", lambda pid: SimpleNamespace(start_ticks=started[pid]))
    monkeypatch.setattr(worlds, "parent", lambda pid: {11: 1, 12: 1, 13: 2, 14: 2}[pid])
    assert worlds.eldest([11, 12, 13, 14]) == [11, 13]
