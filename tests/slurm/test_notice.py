"""`notice` on Slurm: ranks leave nodes that are about to go, and no step is lost."""

import signal
from functools import partial

import pytest
from runs import own, strike

from tests.noticed import NoticedRun, goes, told_by_command

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def noticed(desk):
    """`noticed(spares=1)` makes a spec for Slurm, in which a command tells that a node goes."""
    command = told_by_command(desk)

    def make(notice=command, **given):
        return NoticedRun(desk, lambda: desk.read_state(desk.run), notice, **given)

    return make


@pytest.mark.parametrize("notices", [pytest.param(1, marks=pytest.mark.daily), 5])
def test_ranks_move_to_a_spare_and_back_at_each_notice(desk, noticed, notices):
    made = noticed(spares=1, notices=notices)
    desk.run = desk.submit(made.spec, "--on", "slurm")
    made.moves_at_each_notice(notices, partial(goes, desk))
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run), again=notices)


def test_ranks_move_to_a_spare_when_the_agent_of_their_node_gets_the_signal(desk, noticed):
    made = noticed("notice: {signal: PWR, lead: 60s}\n", spares=1)
    desk.run = desk.submit(made.spec, "--on", "slurm")
    made.trains_on(0, 1, after=0)
    desk.until("a spare", lambda: desk.read_state(desk.run)["nodes"][2]["state"] == "spare")
    strike(own(desk, desk.run, f"launcher.node\0{desk.run_dir(desk.run)}\0{1}\0{1}")[0], signal.SIGPWR)
    made.trains_on(0, 2, after=1)
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run), again=1)


@pytest.mark.parametrize("notices", [5])
def test_without_a_spare_all_save_and_go_on_from_there_once_the_node_stays(desk, noticed, notices):
    made = noticed(mode="warm", notices=notices)
    desk.run = desk.submit(made.spec, "--on", "slurm")
    made.waits_at_each_notice(notices, partial(goes, desk))
    desk.brake.unlink()
    made.none_is_lost(desk.wait(desk.run))
