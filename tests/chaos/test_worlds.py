"""The faults of which it cannot be seen in a run that they came at all."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.chaos import worlds
from tests.lab.fixtures import hosts, lab_possible, shared_hosts
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import data_name, folder_name

__all__ = ["hosts", "lab_possible", "shared_hosts"]

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


def test_all_that_a_run_has_on_a_host_has_the_clock_of_that_host(hosts, tmp_path):
    with worlds.pool_world(tmp_path, hosts) as pool:
        with worlds.wrong_clock(pool, 1):
            asked = [float(hosts.ssh(index, f"{sys.executable} -c '{ASK}'")) for index in (0, 1)]
            assert [abs(clock - time.time()) > 3_000.0 for clock in asked] == [False, True]
        pool.submit(steps=1_000_000, every=5, pause_s=0.05)
        pool.desk.until("ranks at work", lambda: len(pool.newest_ranks()) == pool.nodes)
        for kind, words in pool.own.items():  # ranks are forked of zygotes
            found = [pid for pid in pool.processes() if words in worlds.command(pid)]
            assert len(found) >= pool.nodes, words
            if kind != "supervisor":  # a fork of a server that SSH started: /proc shows little of its environment
                assert all(str(pool.clocks) in python_path(pid) for pid in found), words


def test_what_is_damaged_on_a_host_is_passed_over_by_all_ranks(hosts, tmp_path):
    with worlds.pool_world(tmp_path, hosts) as pool:
        pool.submit(steps=1_000_000, every=5, pause_s=0.05)
        pool.desk.until("two checkpoints", lambda: any(deed.what == "save" and deed.step > 5 for deed in pool.deeds()))
        rank = pool.newest_ranks()[1]
        with worlds.damaged_file(pool, 1) as hit:
            assert hit
        (step,) = pool.damaged
        later = pool.desk.until(
            "a start", lambda: [deed for deed in pool.deeds() if deed.incarnation > rank.incarnation]
        )
        assert later[0].step == step - 5
        # The checkpoint, or the one file, where the node that was to have a copy of it has told of it first; beside it
        # may lie what came of its other files meanwhile.
        aside = [path.name for path in catalog.set_aside(pool.checkpoints(rank.host))]
        assert any(folder_name(step) in name or data_name(rank.rank) in name for name in aside), aside


def python_path(pid):
    """Return the folders in PYTHONPATH of this process; empty if it has none."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((word.decode()[11:].split(":") for word in words if word.startswith(b"PYTHONPATH=")), [])


def test_a_zygote_was_there_before_its_standby(monkeypatch):
    started = {11: 100, 12: 300, 13: 200, 14: 250}
    monkeypatch.setattr(worlds, "process_id", lambda pid: SimpleNamespace(start_ticks=started[pid]))
    monkeypatch.setattr(worlds, "parent", lambda pid: {11: 1, 12: 1, 13: 2, 14: 2}[pid])
    assert worlds.eldest([11, 12, 13, 14]) == [11, 13]
