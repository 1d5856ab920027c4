"""Test the pictures of a sweep: as a page, as a single picture, and in the terminal."""

import re
import sys

import pytest

from launcher.apps.sweeps.folder import SweepDir, SweepRecord
from launcher.apps.sweeps.pictures import KINDS, draw, importances
from launcher.apps.sweeps.trial_book import TrialBook
from launcher.errors import BadInput
from launcher.run.durable import make_dir, write_record
from launcher.spec.model import Dimension, SweepOptions
from trainer.extras import install_hint

SPACE = {"run.args.x": Dimension(low=0.0, high=1.0), "run.args.<b>n": Dimension(low=1, high=6, whole=True)}


@pytest.fixture
def swept(tmp_path):
    def of(count, value=lambda x, n: x + n / 1000):
        sweep = SweepDir(tmp_path / "x-abcd")
        make_dir(sweep.path)
        options = SweepOptions("loss", "min", "random", count, 1, SPACE)
        record = SweepRecord("x-abcd", "/p", "local", (), options, 7, (), None, 0.0)
        write_record(sweep.record, record)
        book = TrialBook(sweep, record)
        for number in range(count):
            assert book.ask() == number
            book.choose(number, f"x-abcd-t{number:04d}")
            book.tell(number, value(*book.entries()[number].params.values()), pruned=False, why="")
        return sweep

    return of


def test_a_page_has_all_pictures_in_it_and_asks_nobody(swept, tmp_path):
    assert draw(swept(20), tmp_path / "page.html") == []
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == len(KINDS)
    assert "<h2>Values in the order of trials</h2>" in page
    assert "<b>n" not in page
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", page)
    assert "<script" not in page


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_one_picture(swept, tmp_path, kind):
    assert draw(swept(20), tmp_path / "one.png", [kind]) == []
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_option_that_matters_is_told(swept):
    found = importances(swept(40))
    assert [*found] == [*SPACE]
    assert found["run.args.x"] > 0.8


def test_where_nothing_matters_that_is_said_and_the_rest_is_drawn(swept, tmp_path):
    sweep = swept(5, lambda x, n: 1.0)
    assert importances(sweep) == {}
    (line,) = draw(sweep, tmp_path / "page.html")
    assert line.startswith("importance: it takes more trials")
    with pytest.raises(BadInput, match="it takes more trials"):
        draw(sweep, tmp_path / "one.png", ["importance"])


def test_of_one_trial_there_is_nothing_to_see(swept, tmp_path):
    sweep = swept(1)
    with pytest.raises(BadInput, match="need 2 complete trials, and there are 1"):
        draw(sweep, tmp_path / "page.html")
    assert importances(sweep) == {}


def test_what_cannot_be_drawn_writes_nothing(swept, tmp_path, monkeypatch):
    sweep = swept(3)
    for name, kinds, said in (
        ("two.png", KINDS, "one picture is one of"),
        ("one.foo", ("history",), "not supported"),
        ("page.html", ("history", "unknown"), "expected one of history, parallel, slice, importance, got 'unknown'"),
        ("no/such/page.html", KINDS, "No such file"),
    ):
        with pytest.raises(BadInput, match=said):
            draw(sweep, tmp_path / name, kinds)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=re.escape(install_hint("plot"))):
        draw(sweep, tmp_path / "page.html")
    assert [one.name for one in tmp_path.iterdir()] == ["x-abcd"]
