"""`launch doctor --collectives` on this machine, which plays two nodes."""

import json


def test_two_nodes_of_two_ranks(lab, tmp_path):
    page = tmp_path / "page.html"
    words = ("--collectives", "--nodes", "2", "--ranks", "2,4", "--sizes", "1KB,64KB", "--json", "-o", str(page))
    report = json.loads(lab.launch("doctor", *words, timeout=280).stdout)
    assert (report["backend"], report["ranks"], report["nodes"], report["failed"]) == ("gloo", 4, 2, "")
    assert {(one["operation"], one["ranks"]) for one in report["lines"]} >= {("all-reduce", 2), ("all-reduce", 4)}
    assert len(report["lines"]) == 2 * (9 * 2 + 1)
    assert all(one["wrong"] == 0 and one["fastest_s"] <= one["usual_s"] <= one["slowest_s"] for one in report["lines"])
    [pair] = report["pairs"]
    assert pair["bytes_per_s"] > 0 and pair["plain_bytes_per_s"] > 0
    assert [one["size_bytes"] for one in report["copies"]] == [1024, 65536]
    assert page.read_text().count("<svg") == 2 * 2 + 1
    assert json.loads(lab.launch("status", "--json").stdout) == [], "its run is of no use any more"
