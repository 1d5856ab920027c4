"""Pages: whole, without a network, and whatever a name or a log says is text in them."""

import json
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest

from launcher.apps.scaling.accounts import accounted, advice
from launcher.apps.scaling.findings import KINDS, ScaledRun, ScalingReport, StepParts, StepVolume
from launcher.apps.scaling.measured import spread
from launcher.apps.scaling.model import foretold
from launcher.apps.scaling.page import html_page, markdown_page, write_pages
from launcher.apps.scaling.tables import volume_rows
from launcher.errors import BadInput

HOSTILE = "<script>alert(1)</script>|`x`.yaml"


def point(ranks, step_s, communication, strategy="ddp"):
    parts = dict.fromkeys(KINDS, 0.0) | {"compute": step_s - communication, "communication": communication}
    rates = tuple(32 / step_s * more for more in (0.98, 1.0, 1.02))
    return ScaledRun(
        strategy, "strong", ranks, rates=rates, samples_per_s=spread(rates), step_samples=32.0, step_s=step_s,
        memory_gb=0.5, parts=StepParts(**parts, hidden=0.0, bytes=11e6, messages=3.0),
    )  # fmt: skip


def report_of(*points, spec="job.yaml"):
    known = accounted(points)
    models, forecasts = foretold(known)
    return ScalingReport("x-7k3f", spec, "local", 30, 1, 12.0, tuple(known), models, forecasts, tuple(advice(known)))


WHOLE = report_of(point(1, 1.0, 0.0), point(2, 0.6, 0.1), point(4, 0.4, 0.15))


def test_pictures_are_whole_and_show_each_number_of_ranks():
    pictures = [ET.fromstring(one) for one in re.findall(r"<svg.*?</svg>", html_page(WHOLE), re.DOTALL)]
    assert len(pictures) == 2
    texts = [{node.text for node in picture.iter() if node.text} for picture in pictures]
    assert {"ddp, strong, 1", "ddp, strong, 2", "ddp, strong, 4", "1000 ms"} <= texts[0]
    assert {"1", "2", "4", "8", "16", "32", "ranks", "ddp, strong"} <= texts[1]
    for picture in pictures:
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        for node in picture.iter():
            assert -1 <= float(node.attrib.get("x", 0)) <= width
            assert -1 <= float(node.attrib.get("cy", node.attrib.get("y", 0))) <= height


def test_more_ranks_are_foretold():
    assert [one.ranks for one in WHOLE.forecasts] == [8, 16, 32]
    [model] = WHOLE.models
    assert model.fitted_to == (1, 2, 4)
    assert "## More ranks, by a model" in markdown_page(WHOLE)


def test_ranks_that_take_turns_foretell_nothing():
    crowded = msgspec.structs.replace(point(4, 0.9, 0.2), crowded="4 ranks take turns on 2 cores")
    models, forecasts = foretold([point(1, 1.0, 0.0), point(2, 0.6, 0.1), crowded])
    assert models[0].fitted_to == (1, 2)
    assert not models[0].latency_known
    assert [one.ranks for one in forecasts] == [4, 8, 16]
    assert foretold([point(1, 1.0, 0.0), crowded]) == ((), ())


def test_what_moves_stands_beside_what_was_seen_to():
    volume = StepVolume("each rank", "2 (n - 1) / n P", 11e6, 11e6)
    strong = msgspec.structs.replace(point(2, 0.6, 0.1), volume=volume)
    weak = msgspec.structs.replace(strong, scaling="weak")
    report = report_of(point(1, 1.0, 0.0), strong, weak)
    assert volume_rows(report.points) == [("ddp", "2", "each rank", "2 (n - 1) / n P", "11 MB", "11 MB")]
    assert "where n ranks train P = 11 MB of parameters" in html_page(report)
    assert "## What moves" in markdown_page(report)
    assert "What moves" not in html_page(WHOLE)


def test_baselines_foretell_nothing():
    points = [point(1, 1.0, 0.0, "master"), point(2, 0.6, 0.1, "master")]
    assert foretold(points) == ((), ())
    assert "strategy ddp" in advice(accounted(points))[0]


def test_nothing_is_loaded_and_nothing_of_a_run_is_markup():
    failed = ScaledRun("ddp", "strong", 8, why=f"it failed: {HOSTILE}")
    report = report_of(point(1, 1.0, 0.0), point(2, 0.6, 0.1, HOSTILE), failed, spec=HOSTILE)
    page = html_page(report)
    assert "<script" not in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "&lt;script&gt;" in page
    assert "&lt;script&gt;" in markdown_page(report)
    assert "<script" not in markdown_page(report)


def test_of_ranks_that_failed_there_is_a_page_too():
    report = report_of(ScaledRun("ddp", "strong", 1, why="out of memory"))
    assert "1 rank: out of memory" in html_page(report)
    assert "<svg" not in html_page(report)


def test_three_files_are_written(tmp_path):
    written = write_pages(WHOLE, tmp_path / "a" / "report")
    assert [path.name for path in written] == ["index.html", "scaling.md", "scaling.json"]
    assert msgspec.json.decode(written[2].read_bytes(), type=ScalingReport) == WHOLE
    assert len(json.loads(written[2].read_text())["points"]) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="-o"):
        write_pages(WHOLE, tmp_path / "file" / "report")
