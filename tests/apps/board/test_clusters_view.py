"""Clusters as a page shows them: one that is silent keeps its last word, and nobody waits for it."""

import threading
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from run_folder import plan_of

from launcher.apps.board.clusters_view import Survey
from launcher.errors import LaunchError
from launcher.health import last
from launcher.health.findings import ok, problem, warning
from launcher.node import machine
from launcher.places.local import cluster as local
from launcher.places.place import HostNow
from launcher.places.ssh import pool
from launcher.run.identity import this_process
from launcher.run.records import Handle
from launcher.run.registry import state_folder
from launcher.spec.model import Ssh, SshHost
from launcher.states import State
from launcher.supervisor.slots.take import Demand, Slots

BOUND_S = 60.0


class Hosts:
    """Stands in for what hosts say of themselves; answers when it is let."""

    def __init__(self):
        self.may_answer, self.error = threading.Event(), None

    def surveyed(self, _):
        assert self.may_answer.wait(BOUND_S)
        if self.error is not None:
            raise self.error
        return {}, {"gpu01": LaunchError("gpu01: no route")}


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text("pool:\n  kind: ssh\n  hosts: [gpu01]\n")
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(clusters))
    hosts = Hosts()
    monkeypatch.setattr(pool, "surveyed", hosts.surveyed)
    yield hosts
    hosts.may_answer.set()


@pytest.fixture
def survey(hosts):
    one = Survey()
    yield one
    one.close()


def of_pool(survey):
    return next(one for one in survey.clusters([]).clusters if one.name == "pool")


def answered(survey, such):
    bound = time.monotonic() + BOUND_S
    while not such(one := of_pool(survey)):
        assert time.monotonic() < bound, one
        time.sleep(0.05)
    return one


def test_a_silent_cluster_holds_up_nobody(survey, hosts):
    silent = of_pool(survey)
    assert not hosts.may_answer.is_set()  # it has not answered, and we have
    assert (silent.asking, silent.at, silent.hosts) == (True, None, [])
    hosts.may_answer.set()
    heard = answered(survey, lambda one: one.at is not None)
    assert [(host.host, host.state, host.text) for host in heard.hosts] == [("gpu01", "unknown", "gpu01: no route")]


@pytest.fixture
def eager(hosts):
    """Asks again at every look, and waits for no answer."""
    one = Survey(fresh_s=0.0, silent_s=0.0)
    yield one
    one.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(100, "Network is down"), "pool cannot be asked (Network is down): `launch doctor pool` looks into it"),
        (ValueError("not well-formed: line 1, column 0"), "pool answered what cannot be read: `launch doctor pool` "),
        (LaunchError("gpu01: no route", "hint: ask `x`"), "gpu01: no route; ask `x`"),
        (LaunchError("gpu01: no route"), "gpu01: no route; `launch doctor pool` looks into it"),
    ],
)
def test_what_it_said_last_is_shown_with_its_age(eager, hosts, error, said):
    hosts.may_answer.set()
    first = answered(eager, lambda one: one.at is not None)
    hosts.error = error
    later = answered(eager, lambda one: one.error and "not answered" not in one.error)
    assert later.error.startswith(said)
    assert [host.host for host in later.hosts] == ["gpu01"]
    assert later.at >= first.at


def test_asking_has_an_end(eager):
    silent = of_pool(eager)
    assert (silent.asking, silent.error) == (False, "pool has not answered for 0 s: `launch doctor pool` looks why")


def test_a_clusters_file_that_cannot_be_used_is_told_beside_this_machine(survey, hosts, tmp_path):
    (tmp_path / "clusters.yaml").write_text("pool: [\n")
    found = survey.clusters([])
    assert [one.name for one in found.clusters] == ["local"]
    assert found.error.startswith("the clusters file cannot be used, so that its clusters are missing here; mend it: ")
    assert "clusters.yaml:" in found.error


def test_a_pool_that_only_specs_name_is_there_while_runs_are_on_it(house, survey, hosts):
    hosts.may_answer.set()
    for name, host in (("one-aaaa", "gpu07"), ("two-bbbb", "gpu08")):
        folder = house.run(name).running()
        spec = replace(plan_of(folder.path).spec, ssh=Ssh((SshHost(host),)))
        folder.write(folder.run.plan, replace(plan_of(folder.path), cluster="ssh", cluster_kind="ssh", spec=spec))
    rows = [
        SimpleNamespace(id=name, ended=False, cluster="ssh", state=State.RUNNING, job=None)
        for name in ("one-aaaa", "two-bbbb")
    ]
    bound = time.monotonic() + BOUND_S
    while not (one := next(one for one in survey.clusters(rows).clusters if one.name == "ssh")).hosts:
        assert time.monotonic() < bound
        time.sleep(0.05)
    assert ([host.host for host in one.hosts], one.running) == (["gpu07", "gpu08"], ["one-aaaa", "two-bbbb"])
    assert "ssh" not in [one.name for one in survey.clusters([]).clusters]


def here(survey):
    bound = time.monotonic() + BOUND_S
    while not (one := next(one for one in survey.clusters([]).clusters if one.name == "local")).hosts:
        assert time.monotonic() < bound, one
        time.sleep(0.05)
    return one


def test_this_machine_has_its_gpus_and_who_has_some(survey, monkeypatch):
    gpus = tuple(f"of-a-test-{number}" for number in range(4))  # no other test holds these
    monkeypatch.setattr(local, "this_machine", lambda _: machine.Machine(cpus=8, gpus=gpus))
    slots = Slots("vit-9x2d", 1, Demand(3, 0), gpus, 8)
    slots.enqueue()
    try:
        while slots.try_take() is None:  # another test may be taking some
            time.sleep(0.05)
        one = here(survey)
    finally:
        slots.release()
    assert [(host.state, host.gpus, host.free_gpus) for host in one.hosts] == [("taken", 4, 1)]
    assert "vit-9x2d" in one.hosts[0].runs
    assert (one.sums.hosts, one.sums.gpus, one.sums.free_gpus) == (1, 4, 1)


def test_jobs_are_told_as_the_runs_that_they_are(board, house, survey, monkeypatch):
    nodes = [HostNow("n0", "free", 2, 2), *(HostNow(f"n{at}", "taken", 2, 1, jobs=("7", "9")) for at in range(1, 500))]
    monkeypatch.setattr(local.LocalCluster, "hosts_now", lambda *_: nodes)
    house.run().running()
    folder = house.run("other-bbbb").running()
    folder.write(folder.run.attempt(1).handle, Handle("local", supervisor=this_process(), job_id="9"))
    board.rows(lambda rows: {row["id"]: row["job"] for row in rows} == {"job-abcd": None, "other-bbbb": "9"})
    bound = time.monotonic() + BOUND_S
    while not (one := board.get("/api/clusters").json()["clusters"][0])["hosts"]:
        assert time.monotonic() < bound
        time.sleep(0.05)
    assert (one["hosts"][0]["host"], one["hosts"][0]["runs"]) == ("n1", ["other-bbbb"])
    assert one["sums"] == {"hosts": 500, "free_hosts": 1, "gpus": 1000, "free_gpus": 501}
    assert len(one["hosts"]) == 400


def test_what_doctor_found_last_is_kept_for_each_cluster(survey, hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert of_pool(survey).doctor is None
    found = [ok("python", "3.12", [("a", "b")]), warning("clock", "2 s ahead", "chrony"), problem("torch", "none", "x")]
    last.keep("pool", found, trial=True)
    kept = of_pool(survey).doctor
    assert (kept.trial, kept.findings) == (True, tuple(found))
    assert next(one for one in survey.clusters([]).clusters if one.name == "local").doctor is None
    hosts.may_answer.set()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"at": "x"}', '{"at":1,"trial":false,"findings":[{"level":"evil"}]}']
)
def test_what_is_no_check_up_is_none(tmp_path, monkeypatch, text):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    last.keep("../pool", [], trial=False)
    (file,) = (state_folder() / "check-ups").iterdir()
    assert file.parent == state_folder() / "check-ups"
    assert last.last_check_up("../pool").findings == ()
    file.write_text(text)
    assert last.last_check_up("../pool") is None


def test_what_others_could_have_written_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    last.keep("pool", [], trial=False)
    assert last.last_check_up("pool") is not None
    (state_folder() / "check-ups").chmod(0o777)
    assert last.last_check_up("pool") is None
