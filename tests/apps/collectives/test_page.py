"""A page of collectives: whole, without a network, and whatever a cluster is called is text in it."""

import re
from xml.etree import ElementTree as ET

import pytest

from launcher.apps.collectives.findings import CollectiveLine, CollectivesReport, MemoryCopy, NodePair
from launcher.apps.collectives.measuring import with_slow
from launcher.apps.collectives.page import html_page, write_page
from launcher.errors import BadInput

HOSTILE = "<script>alert(1)</script>"


def line(operation, ranks, size, usual, wrong=0):
    rate = size / usual
    return CollectiveLine(operation, ranks, size, 20, usual, usual / 2, usual * 2, rate, rate, wrong)


LINES = tuple(
    line(name, ranks, size, 1e-4 + size / 1e9)
    for name in ("all-reduce", "broadcast")
    for ranks in (2, 4)
    for size in (1024, 65536, 2**22)
)
PAIRS = with_slow([NodePair(0, 1, 2**22, 1e9, 1e-4, 2e9), NodePair(0, 2, 2**22, 1e9, 1e-4, 2e9),
                   NodePair(1, 2, 2**22, 1e8, 9e-4, 2e8)])  # fmt: skip
WHOLE = CollectivesReport(
    "x-1", "pool", "gloo", "cpu", 4, 3, (*LINES, line("barrier", 4, 0, 1e-4)), (MemoryCopy(65536, 8e9),), PAIRS
)


def pictures(report):
    return [ET.fromstring(one) for one in re.findall(r"<svg.*?</svg>", html_page(report), re.DOTALL)]


def test_pictures_of_each_number_of_ranks_and_of_pairs():
    found = pictures(WHOLE)
    assert [one.attrib["aria-label"] for one in found] == [
        "Bus bandwidth over size, 2 ranks", "Time over size, 2 ranks", "Bus bandwidth over size, 4 ranks",
        "Time over size, 4 ranks", "Pairs of nodes by send and recv",
    ]  # fmt: skip
    texts = [{node.text for node in one.iter() if node.text} for one in found]
    assert {"all-reduce", "broadcast", "memory copy", "1 KB", "64 KB", "4 MB", "1 GB/s", "size"} <= texts[0]
    assert "barrier" not in texts[2], "it has no size"
    assert {"0 and 1", "1 GB/s, 100 µs", "1 and 2", "100 MB/s, 900 µs, slow"} <= texts[4]
    for one in found:
        _, _, width, height = map(float, one.attrib["viewBox"].split())
        for node in one.iter():
            assert -1 <= float(node.attrib.get("x", node.attrib.get("cx", 0))) <= width
            assert -1 <= float(node.attrib.get("cy", node.attrib.get("y", 0))) <= height
            for point in node.attrib.get("points", "").split():
                x, y = map(float, point.split(","))
                assert -1 <= x <= width and -1 <= y <= height


@pytest.mark.parametrize("usual", [1e-3, 1e-6, 3.0])
def test_one_size_alone_and_times_that_are_powers_of_ten(usual):
    report = CollectivesReport("x-1", "pool", "gloo", "cpu", 2, 1, (line("all-reduce", 2, 1024, usual),))
    assert len(pictures(report)) == 2


def test_nothing_is_loaded_and_nothing_is_markup():
    report = CollectivesReport(
        "x-1", HOSTILE, "gloo", "cpu", 2, 1, (line("all-reduce", 2, 1024, 1e-3, wrong=3),), failed=HOSTILE
    )
    page = html_page(report)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "3 numbers are not what they must be" in page


def test_the_page_is_written(tmp_path):
    assert write_page(WHOLE, tmp_path / "a" / "page.html").read_text() == html_page(WHOLE)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="-o"):
        write_page(WHOLE, tmp_path / "file" / "page.html")
