"""Checkpoints that several hosts have parts of come home, and who could not be asked is named."""

import os
import shutil
from pathlib import Path

import pytest

from launcher.api import Run
from launcher.copies import news
from launcher.copies.mirror import logs, tails
from launcher.copies.mirror.holders import NotTransferred
from launcher.errors import Exit, LaunchError, NotStarted, Refused
from launcher.places.ssh import host_clients
from launcher.places.ssh.cluster import SshCluster
from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.messages import SendFile
from launcher.places.ssh.results import fetch
from launcher.places.ssh.results.checkpoints import holders_of
from launcher.places.ssh.run_hosts import places_ever
from launcher.places.ssh.submit import discovery
from launcher.places.ssh.submit.handover import PoolHandover
from launcher.run import registry
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.spec.model import Ssh, SshHost
from launcher.states import State
from tests.places.ssh.near_hosts import RUN, NearHosts, on_hosts
from tests.run_folder import dead_process, plan_of
from tests.saved_checkpoints import flip, keep_best, save_part
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.catalog import set_aside
from trainer.checkpoint_files.layout import data_name, draft_name

FOLDER = "checkpoints"
POOL = Ssh(hosts=(SshHost("node0"), SshHost("node1")))
SPEC = "name: job\nrun: {command: [train]}\nresources: {nodes: 1..2}\n"


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_asked", set())
    return NearHosts(tmp_path, monkeypatch)


@pytest.fixture
def messages(monkeypatch):
    lines = []
    monkeypatch.setattr(news, "_listeners", [lines.append])
    return lines


def committed_on_the_first_alone(hosts, tmp_path):
    """Put each rank's part of a save on its host, on the second host as an uncommitted draft; return the save."""
    whole = save_part(tmp_path / "made", 5, range(2))
    (held,) = partial.inventory(whole.parent)
    for rank, (name, folder) in enumerate([("node0", whole.name), ("node1", draft_name(5, 1, held.nonce))]):
        place = hosts.on(name).path / FOLDER / folder
        shutil.copytree(whole, place)
        (place / data_name(1 - rank)).unlink()
    return held


def bring(hosts, held):
    there = holders_of(hosts.run)
    (wanted,) = there.newest_first()
    assert wanted.digest == held.digest
    return there.bring_home(wanted)


def test_a_file_that_only_a_draft_has_comes_home(hosts, tmp_path):
    held = committed_on_the_first_alone(hosts, tmp_path)
    assert bring(hosts, held) == 2
    (mine,) = partial.inventory(hosts.run.path / FOLDER)
    assert (mine.committed, mine.missing) == (True, ())


def test_where_nobody_has_the_manifest_that_is_said(hosts, tmp_path):
    held = committed_on_the_first_alone(hosts, tmp_path)
    hosts.cut.add("node0")
    with pytest.raises(NotTransferred, match="no machine that answers has"):
        holders_of(hosts.run).bring_home(held)


def both_have(hosts, tmp_path, step):
    """A checkpoint of which both hosts have all files; gives its folders."""
    whole = save_part(tmp_path / "made", step, range(2))
    return [Path(shutil.copytree(whole, hosts.on(name).path / FOLDER / whole.name)) for name in ("node0", "node1")]


def at_home(hosts):
    return [(one.kind, one.step) for one in partial.inventory(hosts.run.path / FOLDER) if not one.missing]


@pytest.mark.parametrize("damaged", [0, 1])
def test_where_one_copy_is_damaged_the_other_comes(hosts, tmp_path, damaged):
    flip(both_have(hosts, tmp_path, 5)[damaged] / data_name(0))
    fetch.fetch(hosts.run, "newest")
    assert at_home(hosts) == [("step", 5)]


def test_a_checkpoint_that_is_damaged_everywhere_is_passed_over(hosts, messages, tmp_path):
    both_have(hosts, tmp_path, 5)
    for folder in both_have(hosts, tmp_path, 10):
        flip(folder / data_name(1))
    with pytest.raises(LaunchError, match=r"node1: rank-00001\.data of step 10 is damaged there") as raised:
        fetch.fetch(hosts.run, "newest")
    assert raised.value.exit_code is Exit.DAMAGED and "here now: checkpoint of step 5" in str(raised.value)
    fetch.bring_newest(hosts.run)
    assert at_home(hosts) == [("step", 5)] and not (hosts.run.path / FOLDER / "step-00000010").exists()
    assert any("rank-00001.data" in line and line.endswith("the one before it is taken") for line in messages), messages


def moves_on(hosts, tmp_path, kind, times):
    """A run that lets its checkpoint go for a newer one as soon as somebody begins to fetch it, so often."""
    left = iter(range(times))

    def newer(line):
        folder = hosts.on("node0").path / FOLDER
        for old in [path for path in folder.glob(f"{kind}-*") if f"step {int(path.name[-8:])}," in line]:
            if (number := next(left, None)) is not None:
                put(folder, kind, 20 + number)
                shutil.rmtree(old)

    put(hosts.on("node0").path / FOLDER, kind, 5)
    return newer


def put(folder, kind, step):
    saved = save_part(folder, step, range(2))
    if kind == "best":
        saved.rename(folder / f"best-{step:08d}")


@pytest.mark.parametrize("kind", ["step", "best"])
@pytest.mark.parametrize(("times", "came"), [(1, [20]), (3, [22]), (4, [])])
def test_what_a_run_lets_go_meanwhile_is_looked_for_anew(hosts, monkeypatch, tmp_path, kind, times, came):
    monkeypatch.setattr(news, "_listeners", [moves_on(hosts, tmp_path, kind, times)])
    if came:
        fetch.fetch(hosts.run, "newest")
    else:
        with pytest.raises(NotTransferred, match="no machine that answers has"):
            fetch.fetch(hosts.run, "newest")
    assert at_home(hosts) == [(kind, step) for step in came]


def test_a_host_that_refuses_is_named(hosts):
    place = hosts.place("node1")
    wish = SendFile(RUN, place.workdir, "checkpoints", 7, "")
    with pytest.raises(LaunchError) as raised:
        host_clients.client_to(place).ask(wish, type(None))
    assert str(raised.value).startswith("node1: ")


def test_where_all_are_damaged_nothing_begins_anew(hosts, tmp_path):
    for folder in both_have(hosts, tmp_path, 5):
        flip(folder / data_name(0))
    with pytest.raises(NotTransferred) as raised:
        fetch.bring_newest(hosts.run)
    assert (raised.value.exit_code, at_home(hosts)) == (Exit.DAMAGED, [])


def test_another_checkpoint_of_the_same_step_makes_room(hosts, tmp_path):
    """The run had to go back before it, and saved that step again."""
    before, _ = both_have(hosts, tmp_path, 5)
    fetch.fetch(hosts.run, "newest")
    for name in ("node0", "node1"):
        shutil.rmtree(hosts.on(name).path / FOLDER)
    shutil.copytree(save_part(tmp_path / "again", 5, range(2), attempt=2), before)
    fetch.fetch(hosts.run, "newest")
    assert [one.attempt for one in partial.inventory(hosts.run.path / FOLDER)] == [2]
    assert len(set_aside(hosts.run.path / FOLDER)) == 1


def supplied(hosts, *names):
    """Return what a hand-over reports about these hosts once they have the files that they lacked."""
    handover = PoolHandover.__new__(PoolHandover)
    handover._run = hosts.run
    clients = {name: HostClient(hosts.lines[name], hosts.place(name)) for name in names}
    return handover._supply(on_hosts(plan_of(hosts.run.path, 1), *names), clients)


def on(hosts, name):
    return [(one.kind, one.step) for one in partial.inventory(hosts.on(name).path / FOLDER) if not one.missing]


def test_a_host_that_has_another_checkpoint_of_that_step_takes_the_newer(hosts, tmp_path):
    for name, attempt in (("node0", 1), ("node1", 2)):
        made = save_part(tmp_path / name, 5, range(2), attempt=attempt)
        shutil.copytree(made, hosts.on(name).path / FOLDER / made.name)
    assert supplied(hosts, "node0") == {}
    (held,) = partial.inventory(hosts.on("node0").path / FOLDER)
    assert (held.attempt, held.missing) == (2, ())


def test_a_host_that_stands_still_while_it_gives_a_file_is_the_one_that_is_blamed(hosts, tmp_path):
    committed_on_the_first_alone(hosts, tmp_path)
    assert supplied(hosts, "node1", "node0") == {}  # they have it all
    hosts.lines["node0"].hangs_at = b'{"type":"give"'
    assert set(supplied(hosts, "node0")) == {"node0"}


def test_new_hosts_go_on_from_the_checkpoint_before_a_damaged_one(hosts, tmp_path):
    hosts.hand_over(1, "node0")
    for step in (5, 10):
        made = save_part(hosts.on("node0").path / FOLDER, step, range(2))
    flip(made / data_name(0))
    assert supplied(hosts, "node1") == {}
    assert ("step", 5) in on(hosts, "node1") and ("step", 10) not in on(hosts, "node1")
    shutil.rmtree(made.parent / "step-00000005")
    shutil.rmtree(hosts.on("node1").path / FOLDER)
    shutil.rmtree(hosts.run.path / FOLDER)
    with pytest.raises(NotStarted, match="is damaged there") as raised:
        supplied(hosts, "node1")
    assert raised.value.exit_code is Exit.DAMAGED


def test_who_could_not_be_asked_for_checkpoints_is_named(hosts, messages, tmp_path):
    save_part(hosts.on("node0").path / FOLDER, 5, range(2))
    hosts.cut.add("node1")
    fetch.bring_newest(hosts.run)
    assert any(line.startswith("node1: may have a newer checkpoint") for line in messages), messages


def test_a_run_whose_folder_was_taken_away_is_found_again(hosts, tmp_path, monkeypatch):
    """On the host that knows most of it, not on the first."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    registry.register(RUN, tmp_path / "gone")
    hosts.on("node0").attempt().state(State.RUNNING)
    hosts.on("node1").attempt(2).state(State.RUNNING, 2)
    for name in ("node0", "node1"):
        hosts.on(name).run.spec.write_text(SPEC)
    places = {name: hosts.place(name) for name in ("node0", "node1")}
    for _ in range(2):
        path = discovery._mirrored(discovery.FoundRun(RUN, "pool", POOL, places))
        assert (registry.find(RUN)[1], (path / "attempts" / "0002" / "token.json").exists()) == (path, True)
        shutil.rmtree(path)


def test_a_host_that_was_silent_when_a_run_was_found_is_not_forgotten(hosts, tmp_path, monkeypatch):
    """It led the run, and may still: what the other says of it is not the last word."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    other = hosts.on("node1").attempt(supervisor=dead_process()).state(State.RUNNING)
    other.run.spec.write_text(SPEC)
    hosts.cut.add("node0")
    path = discovery._mirrored(discovery.FoundRun(RUN, "pool", POOL, {"node1": hosts.place("node1")}))
    assert set(places_ever(RunDir(path))) == {"node0", "node1"}
    assert Run(RUN, path).status().state is State.UNKNOWN


def keeps_the_best_alone(folder):
    """Keep only the best checkpoint, of step 5, which retention has deleted since."""
    for step in (5, 10):
        save_part(folder, step, range(2))
    keep_best(folder, 5)
    shutil.rmtree(folder / "step-00000005")


def test_the_best_comes_along_and_stands_for_its_step(hosts):
    keeps_the_best_alone(hosts.on("node0").path / FOLDER)
    assert fetch.fetch(hosts.run, "5")[1].startswith("best checkpoint, of step 5, 2 files: ")
    assert at_home(hosts) == [("best", 5)]
    assert [line[:23] for line in fetch.fetch(hosts.run, "newest")[1:]] == [
        "checkpoint of step 10, ",
        "best checkpoint, of ste",
    ]
    assert at_home(hosts) == [("step", 10), ("best", 5)]


def test_the_best_moves_along_and_nobody_waits_for_it(hosts, messages):
    hosts.hand_over(1, "node0")
    there = hosts.on("node0").path / FOLDER
    keeps_the_best_alone(there)
    assert supplied(hosts, "node1") == {}
    assert on(hosts, "node1") == [("step", 10), ("best", 5)]
    shutil.rmtree(hosts.run.path / FOLDER)
    flip(there / "best-00000005" / data_name(0))
    fetch.bring_newest(hosts.run)
    assert partial.inventory(hosts.run.path / FOLDER)[0].step == 10 and at_home(hosts) == [("step", 10)]
    assert any(line.startswith("the best, step 5") and line.endswith("continues without it") for line in messages), (
        messages
    )


@pytest.fixture
def moved(hosts, tmp_path, monkeypatch):
    """A run that went on here before anybody had looked at what its hosts have."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for rank, name in enumerate(hosts.lines):
        hosts.on(name).attempt().log(rank, "there\n")
    there = hosts.on("node0").path
    save_part(there / FOLDER, 10, range(2))
    (there / "metrics").mkdir()
    (there / "metrics" / "own.txt").write_text("of the hosts, and longer\n")
    (there / "metrics" / "metrics.a0001.jsonl").write_text("1\n2\n3\n")
    hosts.mirror.intent(2, by=this_process(), kind="local").log(0, "here\n", attempt=2)
    (hosts.run.path / "metrics").mkdir()
    (hosts.run.path / "metrics" / "own.txt").write_text("here\n")
    (hosts.run.path / "metrics" / "metrics.a0001.jsonl").write_text("1\n")
    return Run(RUN, hosts.run.path)


def texts(run):
    return sorted(line.text for line in run.logs())


def test_what_hosts_wrote_is_fetched_after_the_run_has_moved_on(hosts, moved):
    hosts.on("node1").log(0, "nobody's business\n", attempt=2)
    assert moved.fetch()[1:] == [f"checkpoints are written here: {hosts.run.path / FOLDER}"]
    assert texts(moved) == ["here", "there", "there"] and at_home(hosts) == []
    metrics = hosts.run.path / "metrics"
    assert (metrics / "own.txt").read_text() == "here\n"
    assert (metrics / "metrics.a0001.jsonl").read_text() == "1\n2\n3\n"
    with pytest.raises(Refused, match="no other is put among them"):
        moved.fetch("10")
    hosts.mirror.end(State.SUCCEEDED, attempt=2).state(State.SUCCEEDED, 2)
    moved.fetch("10")
    assert at_home(hosts) == [("step", 10)]


def test_logs_of_hosts_are_asked_for_once_by_who_follows_a_run_that_has_moved_on(hosts, moved):
    hosts.cut.add("node1")
    assert texts(moved) == ["here", "there"]
    hosts.dialled.clear()
    assert texts(moved) == ["here", "there"] and hosts.dialled == set()


def test_logs_come_home_before_a_run_goes_on_elsewhere(hosts):
    for rank, name in enumerate(hosts.lines):
        hosts.on(name).attempt().log(rank, "there\n")
    SshCluster().bring_newest(hosts.run)
    assert texts(Run(RUN, hosts.run.path)) == ["there", "there"]


def test_more_logs_than_one_answer_holds_all_come(hosts):
    """What came first was marked as all there is, and the rest was never asked for."""
    there = hosts.on("node0").path / "logs" / "a0001.0"
    there.mkdir(parents=True)
    for number in range(5):
        (there / f"rank-{number:05d}.log").write_text(f"{number}\n")
    os.truncate(there / "rank-00000.log", tails.LIMITS.answer_bytes)
    assert fetch._bring(hosts.run, [hosts.place("node0")]) == {}
    assert len([*hosts.run.logs.rglob("*.log")]) == 5
