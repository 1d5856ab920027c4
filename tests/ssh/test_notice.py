"""`notice` of a pool in the clusters file: ranks leave hosts that are about to go, and no step is lost."""

import sys

import pytest

from tests.noticed import NoticedRun

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def noticed(desk):
    """`noticed(spares=1)` makes a spec for the pool, in which a file on a host's own disk tells that it goes."""
    hosts = desk.hosts
    hosts.clusters.write_text(hosts.clusters_yaml(notice={"file": "~/host-goes", "lead": "60s"}))
    yield lambda **given: NoticedRun(desk, lambda: desk.state_there(0, desk.run), PYTHON, **given)
    hosts.clusters.write_text(hosts.clusters_yaml())


PYTHON = f"ssh: {{python: {sys.executable}}}\n"


def goes(desk, index):
    return desk.hosts.home(index) / "host-goes"


@pytest.mark.parametrize("notices", [pytest.param(1, marks=pytest.mark.daily), 5])
def test_ranks_move_to_a_spare_and_back_at_each_notice(desk, noticed, notices):
    made = noticed(spares=1, notices=notices)
    desk.run = desk.submit(made.spec, "--on", "pool")
    generation, leaves, comes = made.trains_on(0, 1, after=0)["generation"], 1, 2
    for _ in range(notices):
        desk.until("a spare", lambda node=comes: desk.state_there(0, desk.run)["nodes"][node]["state"] == "spare")
        goes(desk, leaves).touch()
        generation = made.trains_on(0, comes, after=generation)["generation"]
        goes(desk, leaves).unlink()
        leaves, comes = comes, leaves
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run), again=notices)


@pytest.mark.parametrize("notices", [5])
def test_without_a_spare_all_save_and_go_on_from_there_once_the_host_stays(desk, noticed, notices):
    made = noticed(mode="warm", notices=notices)
    desk.run = desk.submit(made.spec, "--on", "pool")
    generation = made.trains_on(0, 1, after=0)["generation"]
    for _ in range(notices):
        goes(desk, 1).touch()
        made.waits_without(1)
        goes(desk, 1).unlink()
        generation = made.trains_on(0, 1, after=generation)["generation"]
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run))
