"""The page in a real browser: what people see, and that nothing which ranks or names say is more than text."""

import asyncio
import threading
from pathlib import Path

import pytest
from axe_core_python import selenium
from browser import needs_browser

from launcher import api
from launcher.apps.board import server
from launcher.apps.board.export import export_page
from launcher.apps.board.live import feed
from launcher.states import Cause
from tests.apps.board.conftest import BOUND_S, opened
from tests.apps.board.page.conftest import EVIL, PICTURES, measure, picture

pytestmark = [needs_browser, pytest.mark.nightly]

AXE = Path(selenium.__file__).with_name("axe.min.js")


def look_at_run(page):
    page.until_text("job-abcd")
    page.run("location.hash = '#/run/job-abcd'")
    page.until_text("goodput")


@pytest.mark.daily
def test_a_run_is_there_and_is_seen_to_go_on(training, page):
    page.until_text("job-abcd")
    page.until_text("40")
    training.running(message=EVIL, step=77, metrics={"loss": 0.25})
    page.until_text("77")


def test_the_run_has_its_curve_and_its_strip(training, page):
    look_at_run(page)
    page.until_text("75 %")
    page.until("return document.querySelector('canvas') !== null")
    measure(training, {200: {"loss": 0.0625}})
    page.until_text("0.0625")


@pytest.mark.daily
def test_a_kill_appears_as_a_mark(training, page):
    look_at_run(page)
    training.event(
        "rank 1 on node 0 was killed by SIGKILL", "failure", cause=Cause.KILLED, rank=1, generation=1, step=199
    )
    page.until("return document.body.textContent.includes('killed by SIGKILL')")


@pytest.fixture
def late():
    """Hold back the board's first answer to a page."""
    released = threading.Event()
    yield released
    released.set()


def test_what_changed_before_the_table_was_told_of_it_is_seen(training, board, page, late, monkeypatch):
    told = feed.Feed.live

    async def live(self, run_id):
        await asyncio.to_thread(late.wait, BOUND_S)
        async for data in told(self, run_id):
            yield data

    monkeypatch.setattr(feed.Feed, "live", live)
    page.open(board.address)
    page.until_text("40")
    training.running(message=EVIL, step=77, metrics={"loss": 0.25})
    board.rows(lambda rows: [row["step"] for row in rows] == [77])
    late.set()
    page.until_text("77")


def test_what_is_told_while_the_table_is_on_its_way_stays(house, page, board, late, monkeypatch):
    encode = server.encode

    def encode_late(answer):
        written = encode(answer)
        late.wait(BOUND_S)
        return written

    monkeypatch.setattr(server, "encode", encode_late)
    page.open(board.address)
    page.until_text("Looking")
    house.run().succeeded()
    page.until_text("job-abcd")
    late.set()
    page.until("return performance.getEntriesByName(`${location.origin}/api/runs`).length >= 2")
    page.drawn()
    assert "job-abcd" in page.text()


def test_a_kill_before_the_run_was_watched_is_seen(training, page, late, monkeypatch):
    watched = feed.WatchedRun

    def watched_late(*args):
        late.wait(BOUND_S)
        return watched(*args)

    monkeypatch.setattr(feed, "WatchedRun", watched_late)
    look_at_run(page)
    training.event("rank 1 on node 0 was killed", "failure", cause=Cause.KILLED, rank=1, generation=1, step=199)
    measure(training, {200: {"loss": 0.0625}})
    late.set()
    page.until("return document.body.textContent.includes('rank 1 on node 0 was killed')")
    page.until_text("0.0625")


@pytest.mark.daily
def test_what_ranks_and_names_say_is_text(training, page):
    page.until_text("job-abcd")
    look_at_run(page)
    page.click("Logs")
    page.until_text(EVIL)
    page.until_text("red")
    assert page.run("return document.title.includes('evil')") is False
    assert page.run("return document.querySelectorAll('main script, main img').length") == 0


def all_can_read(page):
    page.run(AXE.read_text())
    found = page.run_later("axe.run().then(done)")
    assert found["passes"]
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert {one["id"]: [node["html"] for node in one["nodes"]] for one in serious} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["#/runs", "#/run/job-abcd", "#/compare/job-abcd,other-efgh", "#/clusters"])
def test_a_screen_reader_can_tell_what_is_there(training, house, page, view, theme):
    house.run("other-efgh").succeeded(metrics={"loss": 0.25})
    page.look(1280, 900, theme)
    look_at_run(page)
    page.run("location.hash = arguments[0]", view)
    page.drawn()
    all_can_read(page)


def test_it_can_tell_what_is_behind_each_tab(training, page):
    training.of_commit("x = 1\n", f"x = {EVIL}\n")
    look_at_run(page)
    for name in page.run("return [...document.querySelectorAll('[role=tab]')].map(one => one.textContent)"):
        page.click(name)
        page.until("return document.querySelector('[role=tab][aria-selected=true]').textContent === arguments[0]", name)
        page.drawn()
        all_can_read(page)


def test_it_can_tell_what_a_dialog_says(training, house, window):
    with opened(actions=True) as board:
        window.open(board.address)
        look_at_run(window)
        for name, said in {"note": "Note", "tags": "spaces between", "cancel": "its ranks get SIGTERM"}.items():
            window.click(name)
            window.until_text(said)
            all_can_read(window)
            window.press("Escape")
            window.until("return document.querySelector('dialog') === null")
        window.press("?")
        window.until_text("Words for searching runs")
        all_can_read(window)
        window.open("about:blank")


def test_an_exported_page_opens_from_disk(training, house, window, tmp_path):
    house.run("other-efgh").succeeded(metrics={"loss": 0.25})
    index = export_page([api.run("job-abcd"), api.run("other-efgh")], tmp_path / "page")
    window.errors()
    window.open(index.as_uri())
    try:
        window.until_text("other-efgh")
        look_at_run(window)
        window.until_text("75 %")
        window.until("return document.querySelector('.charts canvas') !== null")
        window.click("Logs")
        window.until_text(EVIL)
        window.click("Setup")
        window.until_text("Environment")
        window.run("location.hash = '#/compare'")
        window.until("return document.querySelectorAll('.charts canvas').length > 0")
        if PICTURES:
            picture(window, "exported")
        assert window.run("return document.title.includes('evil')") is False
        assert window.errors() == []
        assert window.hosts() <= {""}
    finally:
        window.open("about:blank")
