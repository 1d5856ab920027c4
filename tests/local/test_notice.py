"""`notice`: ranks leave a host that is about to go, and no step is lost with a spare, nor without one."""

from functools import partial

import pytest

from launcher.errors import Exit
from tests.noticed import NoticedRun, goes, told_by_command

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def noticed(lab):
    """`noticed(spares=1)` makes a spec in which a command tells that the host of a node goes."""
    command = told_by_command(lab)

    def make(notice=command, **given):
        return NoticedRun(lab, lambda: lab.read_state(lab.run), notice, **given)

    return make


@pytest.mark.parametrize(
    ("mode", "notices"), [pytest.param("hot", 2, marks=pytest.mark.daily), ("hot", 20), ("warm", 4)]
)
def test_ranks_move_to_a_spare_and_back_at_each_notice(lab, noticed, mode, notices):
    made = noticed(mode=mode, spares=1, notices=notices)
    lab.run = lab.submit(made.spec)
    made.moves_at_each_notice(notices, partial(goes, lab))
    lab.brake.unlink()
    made.none_is_lost(lab.wait(lab.run), again=notices)
    assert lab.events(lab.run, "failure") == []
    told = [event["text"] for event in lab.events(lab.run, "drain_asked")]
    assert sum("about to go, within 60 s" in text for text in told) == notices
    assert [("hot" in event["text"]) for event in lab.events(lab.run, "regroup")] == [mode == "hot"] * notices


@pytest.mark.parametrize("notices", [pytest.param(1, marks=pytest.mark.daily), 20])
def test_without_a_spare_all_save_and_the_run_goes_on_from_there_once_a_host_is_there(lab, noticed, notices):
    made = noticed(mode="warm", notices=notices)
    lab.run = lab.submit(made.spec)
    made.waits_at_each_notice(notices, partial(goes, lab))
    lab.brake.unlink()
    made.none_is_lost(lab.wait(lab.run))
    assert lab.events(lab.run, "failure") == []


def test_the_run_waits_in_its_next_attempt_when_the_first_host_goes(lab, noticed):
    made = noticed(mode="warm")
    run = lab.run = lab.submit(made.spec)
    lab.until_step(run, 2)
    goes(lab, 0).touch()
    lab.until("the next attempt", lambda: lab.read_state(run)["attempt"] == 2)
    lab.until("why it waits", lambda: "node 0 is about to go" in lab.read_state(run)["message"])
    assert lab.read_state(run)["generation"] == 0
    goes(lab, 0).unlink()
    lab.until("training", lambda: lab.events(run, "training")[-1]["attempt"] == 2)
    lab.launch("cancel", run)
    steps = made.steps_of(0)
    assert steps == list(range(1, len(steps) + 1))


def test_a_command_that_cannot_be_run_is_told_of_and_no_notice(lab, noticed):
    run = lab.submit(noticed("notice: {command: [./not-there.sh]}\n").spec)
    lab.until_step(run, 2)
    [told, *_] = lab.until("the word of it", lambda: lab.events(run, "notice_failed"))
    assert "notice.command gives no answer whether the host of node" in told["text"]
    lab.launch("cancel", run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notice: {lead: 2m}\n", "hint: write file: PATH, command: [...] or signal: PWR beside it"),
        ("notice: {file: /x, lead: 10s}\n", "hint: set recovery.grace to less"),
        ("notice: {signal: USR1}\n", "expected one of HUP, PWR"),
        ("notice: {files: /x}\n", "did you mean file?"),
    ],
)
def test_a_notice_that_cannot_be_meant_is_refused(lab, noticed, text, said):
    assert said in lab.launch("submit", noticed(text).spec, check=Exit.BAD_INPUT).stderr
