"""`launch doctor POOL --collectives`: of three hosts, the two between which the way is slow are named."""

import json
import sys

import pytest

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(400)
def test_a_slow_pair_of_hosts_is_named(desk, tmp_path):
    pool = desk.project / "pools.yaml"
    pool.write_text(desk.hosts.clusters_yaml(python=sys.executable))
    pool.chmod(0o600)
    desk.env["LAUNCH_CLUSTERS"] = str(pool)
    desk.hosts.nodes[1].slow_down(desk.hosts.nodes[2], mbytes_per_s=10)
    words = ("--collectives", "--nodes", "3", "--ranks", "3", "--sizes", "1KB", "-o", str(tmp_path / "page.html"))
    report = json.loads(desk.launch("doctor", "pool", *words, "--json", timeout=380).stdout)
    assert (report["nodes"], report["failed"]) == (3, "")
    pairs = {(one["one"], one["other"]): one["slow"] for one in report["pairs"]}
    assert sorted(pairs) == [(0, 1), (0, 2), (1, 2)]
    assert "times as slow by send and recv" in pairs[1, 2]
    assert "times as slow by a plain connection" in pairs[1, 2]
    # The round trip alone may be longer on a busy machine.
    assert not [slow for pair, slow in pairs.items() if pair != (1, 2) and "times as slow" in slow]
    assert ", slow</text>" in (tmp_path / "page.html").read_text()
