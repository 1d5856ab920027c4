"""What a person wants of hosts, where some of them are gone for good."""

import msgspec
import pytest

from launcher.api import Run
from launcher.clusters import news
from launcher.clusters.ssh import orders
from launcher.clusters.ssh.places import gone, places_ever, places_of
from launcher.clusters.ssh.stocks import say_what_is_lost
from launcher.errors import Refused, Unreachable
from launcher.words import State
from tests.clusters.ssh.near_hosts import RUN, NearHosts
from tests.run_folder import RunFolder, dead_process, plan_of


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return NearHosts(tmp_path, monkeypatch)


@pytest.fixture
def run(hosts):
    plan = msgspec.structs.replace(plan_of(hosts.run.path, 2), cluster="pool", cluster_kind="ssh")
    hosts.mirror.write(hosts.run.plan, plan)
    return Run(RUN, hosts.run.path)


def test_a_run_whose_hosts_are_all_gone_ends_by_a_person_s_word(hosts, run):
    hosts.mirror.state(State.RUNNING)
    hosts.cut |= {"node0", "node1"}
    assert run.status().state is State.UNKNOWN
    with pytest.raises(Refused) as refused:
        run.resume()
    assert f"launch cancel {RUN} --gone HOST" in refused.value.lines[1]
    with pytest.raises(Unreachable, match="could not ask node1"):
        run.cancel(gone=["node0"])
    assert run.status().state is State.UNKNOWN
    report = run.cancel(gone=["node1"])
    assert (report.ended, report.already) == ((), False)
    status = run.status()
    assert (status.state, status.message) == (State.CANCELLED, "cancelled, without node0, node1")
    assert run.cancel().already


def test_what_the_others_say_counts(hosts, run):
    hosts.on("node1").attempt(keeper=dead_process()).end(State.SUCCEEDED)
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    assert run.status().state is State.SUCCEEDED


def test_nobody_waits_for_it_any_more(hosts, run):
    hosts.on("node1").attempt(keeper=dead_process()).log(0, "a line\n")
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    assert set(places_ever(hosts.run)) == {"node1"} == {place.host.name for place in places_of(hosts.run)}
    hosts.dialled.clear()
    run.fetch("none")
    assert hosts.dialled == {"node1"}


def test_with_a_new_disk_it_may_be_used_again(hosts):
    orders.give_up(hosts.run, ["node0"])
    hosts.hand_over(2, "node0", "node1")
    assert [place.host.name for place in places_of(hosts.run)] == ["node0", "node1"]


def test_one_that_answers_is_not_gone(hosts, run):
    hosts.on("node0").attempt(keeper=dead_process())
    hosts.on("node1").attempt(keeper=dead_process())
    run.cancel(gone=["node0"])
    assert gone(hosts.run) == set() and set(places_ever(hosts.run)) == {"node0", "node1"}


def test_a_host_that_it_was_never_on_is_named(hosts, run):
    with pytest.raises(Refused) as refused:
        run.cancel(gone=["node0", "nodo1"])
    assert refused.value.lines == (f"{RUN} was never on nodo1", "hint: it was on node0, node1")
    assert gone(hosts.run) == set()


def test_only_a_pool_has_hosts_that_nobody_else_watches(tmp_path):
    folder = RunFolder(tmp_path / "here" / RUN).plan(1)
    folder.attempt()
    with pytest.raises(Refused, match="only the hosts of a pool"):
        Run(RUN, folder.run.path).cancel(gone=["node0"])


def test_what_is_lost_is_said(hosts, monkeypatch):
    said = []
    monkeypatch.setattr(news, "say", said.append)
    say_what_is_lost(hosts.run, None)
    hosts.mirror.state(State.RUNNING, checkpoint=40)
    say_what_is_lost(hosts.run, None)
    assert said == ["of the checkpoint of step 40 no whole copy is left: it begins anew"]
