"""Clusters as a page shows them: one that is silent keeps its last word, and nobody waits for it."""

import threading
import time

import pytest

from launcher.board.clusters_view import Survey
from launcher.clusters.ssh import pool
from launcher.errors import LaunchError

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
    return next(one for one in survey.clusters([]) if one.name == "pool")


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


def test_what_it_said_last_is_shown_with_its_age(survey, hosts, monkeypatch):
    monkeypatch.setattr("launcher.board.clusters_view._FRESH_S", 0.0)
    hosts.may_answer.set()
    first = answered(survey, lambda one: one.at is not None)
    hosts.error = OSError("the network is down")
    later = answered(survey, lambda one: one.error)
    assert later.error == "the network is down"
    assert [host.host for host in later.hosts] == ["gpu01"]
    assert later.at >= first.at
