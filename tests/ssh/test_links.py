"""recovery.health on hosts: one whose links are slow has no ranks, and fit ones start as ever."""

import re

import pytest

pytestmark = pytest.mark.nightly


def test_a_host_whose_links_are_slow_is_left_out_with_what_was_measured(desk):
    slow, *others = [desk.hosts.nodes[index] for index in (1, 0, 2, 3)]
    for peer in others:
        slow.slow_down(peer, mbytes_per_s=1)
    more = "recovery: {health: true, link_floor: 20MB, spares: 1}\n"
    run = desk.submit(desk.job(20, nodes="3", more=more), "--on", "pool")
    status = desk.wait(run)
    (unfit,) = desk.events(run, "node_unfit")
    assert unfit["text"].startswith("node 1 (node1) is left out: links: to node 0 ")
    assert unfit["evidence"].endswith("; 20 MB/s wanted (recovery.link_floor)")
    assert [node["state"] for node in status["nodes"]][1] == "unfit"
    assert (status["attempt"], status["generation"], status["restarts"]["total"]) == (1, 1, 0)
    assert not desk.events(run, "link_slow")
    (checked,) = desk.events(run, "links_checked")
    assert checked["text"].startswith("4 of 4 links between nodes measured")


def test_fit_ones_start_as_ever_and_what_it_costs_is_little(desk):
    run = desk.submit(desk.job(20, nodes="3", more="recovery: {health: true}\n"), "--on", "pool")
    status = desk.wait(run)
    (checked,) = desk.events(run, "links_checked")
    assert "3 of 3 links between nodes measured" in checked["text"]
    assert float(re.search(r"; ([\d.]+) s$", checked["text"])[1]) < 3
    assert not desk.events(run, "node_unfit") and not desk.events(run, "link_slow")
    assert (status["generation"], status["restarts"]["total"], status["world_size"]) == (1, 0, 6)
