"""Checkpoints that several hosts have parts of come home, and who could not be asked is named."""

import dataclasses
import shutil

import msgspec
import pytest

from launcher.api import Run
from launcher.clusters import news
from launcher.clusters.ssh import adoption, stocks, supplies
from launcher.clusters.ssh.places import places_ever
from launcher.clusters.ssh.stocks import stocks_of
from launcher.errors import Refused
from launcher.plan.model import NodePlan
from launcher.rundir import registry
from launcher.rundir.layout import RunDir
from launcher.spec.model import Ssh, SshHost
from launcher.words import State
from tests.clusters.ssh.near_hosts import RUN, NearHosts
from tests.run_folder import dead_process, plan_of
from tests.saved_checkpoints import save_part
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import data_name, draft_name

FOLDER = "checkpoints"


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return NearHosts(tmp_path, monkeypatch)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(news, "_listeners", [lines.append])
    return lines


def committed_on_the_first_alone(hosts, tmp_path):
    """Each host has what its own rank wrote, and the second was killed before it gave that its name."""
    whole = save_part(tmp_path / "made", 5, range(2))
    (held,) = partial.inventory(whole.parent)
    for rank, (name, folder) in enumerate([("node0", whole.name), ("node1", draft_name(5, 1, held.nonce))]):
        place = hosts.on(name).path / FOLDER / folder
        shutil.copytree(whole, place)
        (place / data_name(1 - rank)).unlink()
    return held


def bring(hosts, held):
    there, letters, _ = stocks_of(hosts.run, places_ever(hosts.run), FOLDER)
    home = hosts.run.path / FOLDER
    wanted = supplies.newest_whole([*there.values()])
    assert wanted.digest == held.digest
    return supplies.bring_home(wanted, there, letters, RUN, FOLDER, home)


def test_a_file_that_only_a_draft_has_comes_home(hosts, tmp_path):
    held = committed_on_the_first_alone(hosts, tmp_path)
    assert bring(hosts, held) == 2
    (mine,) = partial.inventory(hosts.run.path / FOLDER)
    assert (mine.committed, mine.missing) == (True, ())


def test_where_nobody_has_the_manifest_that_is_said(hosts, tmp_path):
    held = committed_on_the_first_alone(hosts, tmp_path)
    there, letters, _ = stocks_of(hosts.run, places_ever(hosts.run), FOLDER)
    del there["node0"]
    with pytest.raises(Refused, match="nobody who can be reached"):
        supplies.bring_home(held, there, letters, RUN, FOLDER, hosts.run.path / FOLDER)


def test_who_could_not_be_asked_for_checkpoints_is_named(hosts, said, tmp_path):
    save_part(hosts.on("node0").path / FOLDER, 5, range(2))
    hosts.cut.add("node1")
    stocks.bring_newest(hosts.run)
    assert any(line.startswith("node1: may have a newer checkpoint") for line in said), said


def test_a_run_whose_folder_was_taken_away_is_found_again(hosts, tmp_path, monkeypatch):
    """On the host that knows most of it, not on the first."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    registry.register(RUN, tmp_path / "gone")
    hosts.on("node0").attempt().state(State.RUNNING)
    hosts.on("node1").attempt(2).state(State.RUNNING, 2)
    for name in ("node0", "node1"):
        hosts.on(name).run.spec.write_text("name: job\n")
    places = {name: hosts.place(name) for name in ("node0", "node1")}
    for _ in range(2):
        path = adoption._mirrored(RUN, places)
        assert (registry.find(RUN), (path / "attempts" / "0002" / "token.json").exists()) == (path, True)
        shutil.rmtree(path)


def test_a_host_that_was_silent_when_a_run_was_found_is_not_forgotten(hosts, tmp_path, monkeypatch):
    """It led the run, and may still: what the other says of it is not the last word."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    other = hosts.on("node1").attempt(keeper=dead_process()).state(State.RUNNING)
    plan = plan_of(other.path, 2)
    nodes = tuple(NodePlan(index, name, spare=False, gpus=None, host=name) for index, name in enumerate(hosts.lines))
    ssh = Ssh(hosts=tuple(SshHost(name) for name in hosts.lines))
    spec = dataclasses.replace(plan.spec, ssh=ssh)
    plan = msgspec.structs.replace(plan, spec=spec, nodes=nodes, nodes_min=1, disks_apart=True, cluster_kind="ssh")
    other.write(other.run.plan, plan).write(other.run.attempt(1).plan, plan)
    other.run.spec.write_text("name: job\n")
    hosts.cut.add("node0")
    path = adoption._mirrored(RUN, {"node1": hosts.place("node1")})
    assert set(places_ever(RunDir(path))) == {"node0", "node1"}
    assert Run(RUN, path).status().state is State.UNKNOWN
