"""One run in a real browser: its curves under hand, its failure, what can be done to it, a rank that really dies."""

import time

import pytest
import saved_checkpoints
from browser import again_if_cut_off, needs_browser
from lab import kill

from launcher import api
from launcher.apps.board import server
from launcher.apps.board.live.feed import Feed
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.measured.reading import ReadingLimits
from launcher.run.records import Failure
from launcher.states import Cause
from tests.apps.board.conftest import opened
from tests.apps.board.page.conftest import EVIL, look_at, measure

pytestmark = [needs_browser, pytest.mark.nightly]
FIRST_PLOT = "document.querySelector('.charts .plot')"
SMOOTHED = """
const one = document.querySelector('input[type=range]');
one.value = 0.9;
one.dispatchEvent(new Event('input'));
"""


@pytest.fixture
def measured(house, page):
    """A run of 400 steps."""
    folder = house.run().trained(for_s=300, starting_s=100).running(step=400, metrics={"loss": 0.5})
    measure(folder, {step: {"loss": 1 / step} for step in range(1, 401)})
    page.until_text("job-abcd")
    return page


def begin(page):
    page.run("location.hash = '#/run/job-abcd'")
    page.reload()
    page.until(f"return {FIRST_PLOT}?.getAttribute('aria-label')?.includes('0.0025')")
    page.drawn()


def shows_the_end(page, does=True):
    page.until(f"return {FIRST_PLOT}.getAttribute('aria-label').includes('0.0025') === arguments[0]", does)


@again_if_cut_off
def test_a_part_of_a_curve_is_looked_at_closely(measured):
    begin(measured)
    measured.drag(".charts .u-over", 0.25, 0.75)
    shows_the_end(measured, False)
    measured.click("show all", "button:not([hidden])")
    shows_the_end(measured)
    measured.run(f"{FIRST_PLOT}.focus()")
    measured.press("+")
    shows_the_end(measured, False)
    measured.press("0")
    shows_the_end(measured)


@pytest.mark.daily
def test_a_page_begins_with_the_run_that_was_named(house, window):
    measure(house.run().running(), {step: {"loss": 1 / step} for step in range(1, 401)})
    with opened(first=(api.run("job-abcd"),)) as board:
        window.open(f"{board.address}#/run/job-abcd")
        window.until(f"return {FIRST_PLOT}?.getAttribute('aria-label')?.includes('0.0025')")
        window.open("about:blank")


def test_who_comes_by_a_file_that_leads_here_gets_in_and_the_token_goes_out_of_the_address(house, window, tmp_path):
    """As `launch board` opens a browser; one that came by a redirect would be kept its cookie back."""
    house.run().succeeded()
    with opened() as board:
        way = tmp_path / "way.html"
        way.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={board.address}#/runs">')
        window.open(way.as_uri())
        window.until_text("job-abcd")
        assert window.run("return location.href") == f"http://127.0.0.1:{board.port}/#/runs"
        window.reload()
        window.until_text("job-abcd")
        window.open("about:blank")


@pytest.mark.parametrize(
    "board", [{"measured": MeasuredRuns(ReadingLimits(long_bytes=1, row_bytes=0))}], indirect=True, ids=["short limits"]
)
def test_a_long_run_is_drawn_in_outline_until_all_is_read(house, page, monkeypatch):
    monkeypatch.setattr(Feed, "_messages_about", lambda *_: iter(()))  # nobody else reads it
    asked, drawn = [], server.curves
    monkeypatch.setattr(server, "curves", lambda *a, **more: asked.append(more) or drawn(*a, **more))
    measure(house.run().succeeded(step=20_000), {step: {"loss": 50 / step} for step in range(1, 20_001)})
    page.until_text("job-abcd")
    look_at(page, "run/job-abcd", "by step")
    page.until(f"return {FIRST_PLOT}?.getAttribute('aria-label')?.includes('0.0025')")
    page.until("return [...document.querySelectorAll('p[role=status]')].every((one) => one.hidden)")
    assert asked[:2] == [{"glimpse": True}, {}]


PIXELS_OF = """
const canvas = document.querySelector('.charts canvas'), {width, height} = canvas;
const other = Object.assign(document.createElement('canvas'), {width, height});
const copy = other.getContext('2d', {willReadFrequently: true});
copy.drawImage(canvas, 0, 0);
const {data} = copy.getImageData(0, 0, width, height);
const wanted = arguments[0];
let found = 0;
for (let at = 0; at < data.length; at += 4)
  if (data[at + 3] === 255 && wanted.every((value, part) => data[at + part] === value)) found += 1;
return found
"""
ON_LIGHT, ON_DARK = [0x00, 0x72, 0xB2], [0x56, 0xB4, 0xE9]


@again_if_cut_off
def test_curves_have_the_colours_of_the_theme_that_is_turned_to(measured):
    measured.look(1280, 900, "light")
    begin(measured)
    for before, now in ((ON_DARK, ON_LIGHT), (ON_LIGHT, ON_DARK), (ON_DARK, ON_LIGHT)):
        measured.until(f"return (function () {{{PIXELS_OF}}})(...arguments) > 20", now)
        assert measured.run(PIXELS_OF, before) == 0
        measured.press("t")
    measured.run("localStorage.clear()")


@again_if_cut_off
def test_curves_are_smoothed_and_have_logarithmic_axes(measured):
    begin(measured)
    for name in ("log y", "log x", "by time"):
        measured.click(name)
    measured.run(SMOOTHED)
    measured.until("return document.querySelector('.smooth output').textContent === '0.9'")
    measured.until(f"return {FIRST_PLOT}.getAttribute('aria-label').includes('by time')")
    begin(measured)  # what was chosen is kept
    assert measured.run("return document.querySelectorAll('.bar [aria-pressed=true]').length") == 3
    measured.run("localStorage.clear()")


@again_if_cut_off
def test_tabs_go_by_keys(measured):
    begin(measured)
    measured.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    for name in ("System", "Nodes and ranks", "Logs", "Artifacts", "Checkpoints"):
        measured.press("ArrowRight")
        measured.until("return document.activeElement.textContent === arguments[0]", name)
    measured.press("/")
    measured.until("return document.activeElement.id === 'search'")


def test_a_link_shows_the_lines_that_were_searched_for(house, page):
    house.run().running().log(0, "loss 0.5\nwarning: slow disk\n")
    page.run("location.hash = '#/run/job-abcd/logs'")
    page.until("return document.querySelector('.lines')?.childElementCount === 2")
    page.run("const one = document.getElementById('search'); one.value = 'slow'; one.dispatchEvent(new Event('input'))")
    page.until("return location.hash.includes('log=%22slow%22')")
    page.reload()
    page.until("return document.querySelectorAll('.lines mark').length === 1")
    assert page.run("return document.querySelector('.lines').childElementCount") == 1
    assert page.run("return document.getElementById('search').value") == "slow"


def test_checkpoints_and_validations_are_marks(house, page):
    run = house.run().trained(for_s=300, starting_s=100).running(step=400, metrics={"loss": 0.5})
    measure(run, {step: {"loss": 1 / step, "val_loss": 1 / step} for step in (100, 200)})
    saved_checkpoints.save(run.path / "checkpoints", 200, size=12_345_678, val_loss=0.25)
    page.until_text("job-abcd")
    look_at(page, "run/job-abcd", "goodput")
    page.until("return document.querySelector('.sign-checkpoint[title*=\"val_loss 0.25, step 200\"]') !== null")
    page.until("return document.querySelectorAll('.signs .sign-validation').length === 2")
    page.until_text("1 checkpoint and 2 validations")
    page.click("Checkpoints")
    page.until_text("24.7 MB")


def test_what_was_not_committed(house, page):
    house.run().trained(for_s=300, starting_s=100).running(step=3).of_commit("x = 1\n", f"x = {EVIL}\n")
    page.until_text("job-abcd")
    look_at(page, "run/job-abcd", "goodput")
    page.click("Setup")
    page.click("show what was not committed")
    page.until("return document.querySelector('.diff .added')?.textContent.includes(arguments[0])", f"+x = {EVIL}")
    page.until_text("train.py (changed)")


@pytest.mark.daily
def test_from_a_failure_to_its_line(house, page):
    said = f"ValueError: {EVIL}"
    failure = Failure(Cause.USER_ERROR, said, 1, 1, rank=1, node=0, tail=("Traceback", said), at=time.time())
    run = house.run().trained(for_s=300, starting_s=100).failed(failure, step=3)
    lines = [*(f"before {number}" for number in range(300)), said, *(f"after {number}" for number in range(300))]
    run.log(1, "\n".join([*lines, ""]), times=[(time.time() - 30, 0)]).log(0, "something else\n")
    page.until_text("job-abcd")
    look_at(page, "run/job-abcd", "last failure")
    top = page.until("return document.querySelector('.found') && document.querySelector('.failure[open]')")
    assert top, "a failed run opens on its failure, and on the line in the log"
    assert page.run("return document.querySelector('main').scrollTop") == 0
    page.click("to the end")
    page.until("return document.querySelector('.found') === null")
    page.click("show in the log")
    page.until("return document.querySelector('.found .text')?.textContent === arguments[0]", said)
    page.drawn()
    inside = "const [a, b] = ['.found', '.lines'].map(one => document.querySelector(one).getBoundingClientRect());"
    assert page.run(f"{inside} return a.top >= b.top && a.bottom <= b.bottom")


@pytest.fixture
def acting(house, window):
    """A board that may act, and what it may act upon."""
    folder = house.run().trained(for_s=300, starting_s=100).running(step=3)
    with opened(actions=True) as board:
        window.errors()
        window.open(board.address)
        window.until_text("job-abcd")
        look_at(window, "run/job-abcd", "goodput")
        yield folder, window
        window.open("about:blank")
        assert window.errors() == []


def test_a_note_is_written_once_one_has_said_so(acting):
    _, page = acting
    page.click("note")
    page.until("return document.activeElement.matches('dialog input')")
    page.press(*"worth a look")
    page.press("Enter")
    page.until_text("write this note at job-abcd")
    assert not api.run("job-abcd").about().note
    page.click("note job-abcd")
    page.until("return [...document.querySelectorAll('.note')].some(one => one.textContent === 'worth a look')")
    assert api.run("job-abcd").about().note == "worth a look"


def test_a_cancel_says_what_it_does_and_asks(acting):
    folder, page = acting
    page.click("cancel")
    page.until_text("its ranks get SIGTERM")
    page.press("Escape")
    page.until("return document.querySelector('dialog') === null")
    assert not folder.run.attempt(1).stop.exists()


def test_a_kill_of_a_rank_of_a_real_run_is_a_mark(lab, house, page):
    """The time from the kill to the mark is told, not judged: other tests run beside it."""
    run = lab.submit(lab.chain(args="steps: 300", hold=299))
    lab.until_step(run, 2)
    page.until_text(run)
    look_at(page, f"run/{run}", "goodput")
    page.until("return document.querySelectorAll('.charts canvas').length > 0")
    rank = next(rank for rank in lab.status(run)["ranks"] if rank["rank"] == 1)
    struck = time.monotonic()
    assert kill(rank["pid"])
    page.until("return document.querySelector('.marks .mark-failure') !== null")
    print(f"a kill was a mark after {time.monotonic() - struck:.2f} s")
    lab.let_go()
    page.until_text("succeeded")
    lab.wait(run)
