"""The page in a real browser: what people see, and that nothing which ranks or names say is more than text."""

import asyncio
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from axe_core_python import selenium
from browser import PROGRAMS, browsing

from launcher import api
from launcher.board.export import export_page
from launcher.board.live import feed
from launcher.words import Cause
from tests.board.conftest import BOUND_S

pytestmark = pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS), reason="apt-get install chromium chromium-driver"
)
AXE = Path(selenium.__file__).with_name("axe.min.js")
PICTURES = os.environ.get("LAUNCH_TEST_PICTURES")  # a folder for people to look at
EVIL = "<script>document.title = 'evil'</script><img src=x onerror=\"document.title = 'evil'\">"


@pytest.fixture(scope="module")
def window():
    with browsing() as one:
        yield one


@pytest.fixture
def page(window, board, request):
    """The board in the browser; nothing is complained of, and nobody else is asked."""
    window.errors()
    window.open(board.address)
    yield window
    if PICTURES:
        window.picture(Path(PICTURES) / f"{request.node.name}.png")
    asked = window.hosts()
    window.open("about:blank")  # a board that ends while a page listens would wait for it
    assert window.errors() == []
    assert asked <= {f"127.0.0.1:{board.port}"}


@pytest.fixture
def training(house):
    """A run with a curve and a log, whose name, metric and log are hostile."""
    folder = house.run().trained(for_s=30_000, starting_s=10_000).running(message=EVIL, metrics={"loss": 0.5})
    measure(folder, {step: {"loss": 1 / step, EVIL: 1.0} for step in range(1, 200)})
    return folder.log(0, f"{EVIL}\n\033]0;evil\007\033[31mred\033[0m\n{'x' * 1_000_000}\n")


def measure(folder, values):
    folder.run.metrics.mkdir(exist_ok=True)
    path = folder.run.reported(1, 0)
    with path.open("a") as file:
        if path.stat().st_size == 0:
            file.write('{"generation":1,"at":1}\n')
        for step, row in values.items():
            file.write(json.dumps({"step": step, "at": time.time(), "rank": 0, "values": row}) + "\n")


def look_at_run(page):
    page.until_text("job-abcd")
    page.run("location.hash = '#/run/job-abcd'")
    page.until_text("goodput")


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


def test_a_kill_appears_as_a_mark(training, page):
    look_at_run(page)
    training.event(
        "rank 1 on node 0 was killed by SIGKILL", "failure", cause=Cause.KILLED, rank=1, generation=1, step=199
    )
    page.until("return document.body.textContent.includes('killed by SIGKILL')")


@pytest.fixture
def late():
    """What the board waits for before it tells a page anything."""
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


def test_what_ranks_and_names_say_is_text(training, page):
    page.until_text("job-abcd")
    look_at_run(page)
    page.click("Logs")
    page.until_text(EVIL)
    page.until_text("red")
    assert page.run("return document.title.includes('evil')") is False
    assert page.run("return document.querySelectorAll('main script, main img').length") == 0


@pytest.mark.parametrize("view", ["#/runs", "#/run/job-abcd", "#/compare", "#/clusters"])
def test_a_screen_reader_can_tell_what_is_there(training, page, view):
    look_at_run(page)
    page.run("location.hash = arguments[0]", view)
    page.run(AXE.read_text())
    found = page.run_later("axe.run().then(done)")
    assert found["passes"]
    assert [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")] == []


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
            window.picture(Path(PICTURES) / "exported.png")
        assert window.run("return document.title.includes('evil')") is False
        assert window.errors() == []
        assert window.hosts() <= {""}
    finally:
        window.open("about:blank")
