"""The website is made of all pages, without a broken link, and fetches nothing from anywhere."""

import re
import subprocess

import pytest

from tests.docs import site

pytest.importorskip("zensical")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder / "site"


def test_every_page_is_in_it(built):
    made = {path.parent.relative_to(built).as_posix() for path in built.rglob("index.html")}
    assert {"launcher/docs/install", "launcher/docs/commands", "launcher/node", "trainer", "."} <= made
    assert "<code>launch help" in (built / "index.html").read_text()


def test_a_reader_fetches_nothing_from_elsewhere(built):
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\" >]+)|<link[^>]+href=\"?(https?:[^\" >]+)")
    found = {match for path in built.rglob("*.html") for match in loads.findall(path.read_text())}
    assert found == set()


def test_a_broken_link_fails_the_build(tmp_path):
    lost = tmp_path / "lost.md"
    lost.write_text("# Lost\n\n[nowhere](nowhere.md)\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        site.build(tmp_path / "made", [lost], tmp_path)
    assert "page does not exist" in error.value.output
