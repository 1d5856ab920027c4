from launcher.run.avoided import avoid, avoided, include
from launcher.run.layout import RunDir
from launcher.run.records import Exclusion


def exclusion(host, until, evidence="no heartbeat for 15 s"):
    return Exclusion(host, evidence, 1, 1000.0, until)


def test_a_node_is_avoided_until_its_time_is_over(tmp_path):
    run = RunDir(tmp_path)
    assert avoided(run) == []
    avoid(run, [exclusion("gpu01", 5e9), exclusion("gpu02", 1001.0)])
    assert [one.host for one in avoided(run, 1000.5)] == ["gpu01", "gpu02"]
    assert [one.host for one in avoided(run)] == ["gpu01"]


def test_blamed_again_it_is_blamed_anew(tmp_path):
    run = RunDir(tmp_path)
    avoid(run, [exclusion("gpu01", 4e9), exclusion("gpu02", 4e9)])
    avoid(run, [exclusion("gpu01", 5e9, "its machine was started anew")])
    assert {one.host: one.evidence for one in avoided(run)} == {
        "gpu01": "its machine was started anew",
        "gpu02": "no heartbeat for 15 s",
    }


def test_pardoned_one_or_all_may_be_used_again(tmp_path):
    run = RunDir(tmp_path)
    avoid(run, [exclusion(host, 5e9) for host in ("gpu01", "gpu02", "gpu03")])
    assert [one.host for one in include(run, ["gpu02", "gpu09"])] == ["gpu02"]
    assert [one.host for one in avoided(run)] == ["gpu01", "gpu03"]
    assert [one.host for one in include(run)] == ["gpu01", "gpu03"]
    assert avoided(run) == include(run) == []


def test_a_damaged_list_is_none_and_is_written_anew(tmp_path):
    """A run ended for it, though it is a preference."""
    run = RunDir(tmp_path)
    run.avoided.write_bytes(b"\0" * 10)
    assert avoided(run) == [] == include(run)
    avoid(run, [exclusion("gpu01", 5e9)])
    assert [one.host for one in avoided(run)] == ["gpu01"]
