"""Bandit on our code, pip-audit on what we stand on."""

import json

import pytest


@pytest.mark.nightly  # every day ruff looks by the same rules
def test_bandit_finds_nothing_of_medium_severity_or_above(tool):
    code, said = tool("bandit", "-q", "-c", "pyproject.toml", "-ll", "-r", "launcher", "trainer", "jobs")
    assert code == 0, said


def test_bandit_bites(tool, tmp_path):
    (tmp_path / "open_door.py").write_text("import pickle\npickle.loads(b'')\n")
    code, said = tool("bandit", "-q", "-ll", "-r", ".", cwd=tmp_path)
    assert code == 1, said
    assert "B301" in said


def test_no_dependency_has_a_known_vulnerability(tool, tmp_path):
    report = tmp_path / "audit.json"
    words = ("--skip-editable", "--progress-spinner", "off", "--timeout", "15", "--format", "json")
    _, said = tool("pip-audit", *words, "--output", str(report), cwd=tmp_path)
    if not report.exists():
        pytest.skip(f"NOT AUDITED: pip-audit got no answer: {said.strip().splitlines()[-1][:200]}")
    found = json.loads(report.read_text())["dependencies"]
    audited = [one for one in found if "vulns" in one]
    if not audited:
        pytest.skip("NOT AUDITED: the package index in use gives no vulnerability data")
    hurt = [f"{one['name']} {one['version']}: {flaw['id']}" for one in audited for flaw in one["vulns"]]
    assert not hurt, "\n".join(hurt)
