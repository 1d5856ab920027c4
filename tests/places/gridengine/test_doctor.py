"""Test the findings about a Grid Engine site from its settings."""

import sys
from pathlib import Path

from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Level
from launcher.places.batch.answers import read_settings
from launcher.places.gridengine.doctor import check_up, pe_findings, settings_findings

RECORDED = Path(__file__).parent / "recorded"


def settings(name):
    return read_settings((RECORDED / f"{name}.txt").read_text())


def test_parallel_environments():
    environments = {name: settings(f"pe-{name}") for name in ("launch", "packed", "single")}
    [found] = pe_findings(environments)
    assert (found.level, found.text) == (Level.OK, "for several nodes: launch")
    [found] = pe_findings({"launch": {**environments["launch"], "control_slaves": "FALSE"}})
    assert found.level is Level.WARNING and "control_slaves is FALSE" in found.text
    [found] = pe_findings({"packed": environments["packed"]})
    assert found.level is Level.WARNING and "fixed number of slots" in found.text


def test_settings():
    assert list(settings_findings(settings("sconf"), {"schedd_job_info": "true"})) == []
    poor = {"reschedule_unknown": "00:00:00", "qmaster_params": "FORBID_RESCHEDULE=1"}
    about = [one.about for one in settings_findings(poor, {"schedd_job_info": "false"})]
    assert about == ["lost hosts", "requeue", "reasons"]


def test_without_a_qmaster_the_folders_are_looked_at_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    first, *others = check_up(DoctorRequest(tmp_path / "runs", sys.executable, cluster="gridengine"), print)
    assert (first.level, first.about, first.unreachable) == (Level.PROBLEM, "qmaster", True)
    assert first.hint and [one.about for one in others] == ["runs root", "programs"]
