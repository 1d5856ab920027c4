"""Test what a notebook shows; nothing that comes from a run is markup there."""

from html.parser import HTMLParser

import msgspec
import pytest
from run_folder import RunFolder

from launcher.run.records import Failure, NotFinite
from launcher.states import Cause
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.status.html import run_html, table_html

EVIL = "<script>alert('x')</script>&\x1b[31m\"'"


class Page(HTMLParser):
    """A parsed page: its tags, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f"{data}|"


@pytest.fixture
def running(folder):
    folder.running(metrics={"loss": 0.123456789}, not_finite={"ppl": NotFinite("NaN")}, checkpoint=30)
    return derive(read_facts(folder.path))


def test_progress_and_numbers_of_one(running):
    page = Page(run_html(running, running.started_at + 65))
    assert ("progress", {"value": "40", "max": "100"}) in page.tags
    for words in (
        "job-abcd",
        "running",
        "40/100",
        "loss 0.12346, ppl NaN",
        "step 30",
        "0:01:05",
        "launch logs job-abcd -f",
    ):
        assert words in page.text


def test_why_it_failed(folder):
    failure = Failure(Cause.USER_ERROR, "ValueError: no", 1, 1, rank=0, tail=("Traceback", "  ValueError: no"))
    folder.failed(failure)
    page = Page(run_html(derive(read_facts(folder.path)), 0.0))
    assert "failed (user_error)" in page.text
    assert "Traceback\n  ValueError: no" in page.text


def test_a_table_with_the_newest_first(tmp_path):
    folders = [
        RunFolder(tmp_path / name).succeeded(submitted_at=at) for name, at in (("job-old1", 1.0), ("job-new1", 2.0))
    ]
    page = Page(table_html([derive(read_facts(folder.path)) for folder in folders], 10.0))
    assert page.text.index("job-new1") < page.text.index("job-old1")
    assert [tag for tag, _ in page.tags].count("tr") == 3
    assert Page(table_html([], 10.0)).text == "no runs|"


@pytest.mark.parametrize("shown", [lambda status: run_html(status, 0.0), lambda status: table_html([status], 0.0)])
def test_nothing_of_a_run_is_markup(folder, shown):
    folder.failed(Failure(Cause.USER_ERROR, EVIL, 1, 1, tail=(EVIL,)), metrics={EVIL: 1.0}, total_steps=5, step=3)
    status = msgspec.structs.replace(derive(read_facts(folder.path)), run=EVIL, cluster=EVIL, run_dir=EVIL, next=EVIL)
    page = shown(status)
    assert {tag for tag, _ in Page(page).tags} <= {
        "div", "b", "span", "table", "tr", "th", "td", "pre", "code", "progress"
    }  # fmt: skip
    assert "\x1b" not in page
    assert all(name in ("style", "value", "max") for _, given in Page(page).tags for name in given)
