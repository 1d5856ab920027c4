"""`notice` of a pool in the clusters file: ranks leave hosts that are about to go, and no step is lost."""

import sys
from functools import partial

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
    made.moves_at_each_notice(notices, partial(goes, desk))
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run), again=notices)


@pytest.mark.parametrize("notices", [5])
def test_without_a_spare_all_save_and_go_on_from_there_once_the_host_stays(desk, noticed, notices):
    made = noticed(mode="warm", notices=notices)
    desk.run = desk.submit(made.spec, "--on", "pool")
    made.waits_at_each_notice(notices, partial(goes, desk))
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run))
