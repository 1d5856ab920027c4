"""Test the findings about this machine, that checks really try what they claim, and that they leave nothing."""

import errno
import fcntl
import json
import os
import re
import resource
from pathlib import Path

import pytest

from launcher.errors import Exit
from launcher.health import checks, machine_there
from launcher.health.checks import files_finding, memory_finding, space_finding, torch_finding
from launcher.health.findings import Level, exit_code, ok, problem, warning
from launcher.health.machine_there import Torch, torch_of


@pytest.fixture
def python(tmp_path):
    """An interpreter that does what this shell script says."""

    def python(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return python


def folder_findings(about, path, variable):
    return checks.folder_findings(about, machine_there.folder(str(path)), variable)


def levels(findings):
    return [finding.level for finding in findings]


# Findings


def test_the_exit_code_is_that_of_the_worst():
    fine, odd, bad = ok("a", "fine"), warning("b", "odd", "look"), problem("c", "bad", "mend")
    assert exit_code([]) == exit_code([fine, odd]) == Exit.OK
    assert exit_code([fine, bad, odd]) == Exit.REFUSED
    assert exit_code([bad, problem("d", "silent", "wait", unreachable=True)]) == Exit.UNREACHABLE


# Folders


@pytest.mark.parametrize("below", ["", "not/there/yet"])
def test_a_good_folder(tmp_path, below):
    (finding,) = folder_findings("runs root", tmp_path / below, "LAUNCH_RUNS")
    assert finding.level is not Level.PROBLEM
    assert str(tmp_path / below) in finding.text
    assert ("not there yet" in finding.text) == bool(below)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_nobody_can_write():
    (finding,) = folder_findings("runs root", Path("/proc/self/runs"), "LAUNCH_RUNS")
    assert finding.level is Level.PROBLEM
    assert "cannot write there" in finding.text and "LAUNCH_RUNS" in finding.hint


def refuse(*_, **__):
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


@pytest.mark.parametrize(
    ("module", "call", "named"),
    [
        (os, "fsync", "fsync and rename (Operation not supported)"),
        (os, "rename", "fsync and rename (Operation not supported)"),
        (fcntl, "flock", "flock (Operation not supported)"),
        (os, "link", "hard links (Operation not supported)"),
        (os, "symlink", "symbolic links (Operation not supported)"),
        (os, "mkfifo", "FIFOs (Operation not supported)"),
        (os, "chmod", "private files (Operation not supported)"),
    ],
)
def test_what_a_file_system_refuses_is_named(tmp_path, monkeypatch, module, call, named):
    monkeypatch.setattr(module, call, refuse)
    (finding,) = folder_findings("runs root", tmp_path, "LAUNCH_RUNS")
    assert finding.level is Level.PROBLEM
    assert finding.text.endswith(f"does not offer {named}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "call", "named"),
    [
        (os, "rename", "fsync and rename (another content was read than was written)"),
        (fcntl, "flock", "flock (two get the same lock)"),
        (os, "link", "hard links (a name is given twice)"),
    ],
)
def test_what_a_file_system_only_pretends_is_noticed(tmp_path, monkeypatch, module, call, named):
    monkeypatch.setattr(module, call, lambda *_: None)
    (finding,) = folder_findings("runs root", tmp_path, "LAUNCH_RUNS")
    assert finding.level is Level.PROBLEM and named in finding.text


def test_modes_that_do_not_stay_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", lambda path, mode: os.chmod(path, 0o777))
    (finding,) = folder_findings("runs root", tmp_path, "LAUNCH_RUNS")
    assert finding.level is Level.PROBLEM and "private files (mode 777)" in finding.text


@pytest.mark.parametrize(("off_s", "said"), [(9000.0, "ahead of"), (-9000.0, "behind")])
def test_a_file_system_with_another_time(tmp_path, monkeypatch, off_s, said):
    clock_of = machine_there._clock_of
    monkeypatch.setattr(machine_there, "_clock_of", lambda folder: clock_of(folder) + off_s)
    *_, finding = folder_findings("runs root", tmp_path, "LAUNCH_RUNS")
    [told] = re.findall(rf"([\d.]+) s {said}", finding.text)
    assert finding.level is Level.WARNING and float(told) == pytest.approx(9000, abs=150)  # looked at one after another


@pytest.mark.parametrize(
    ("free", "files", "level"),
    [
        (10**12, None, Level.OK),
        (10**12, 10**6, Level.OK),
        (4 * 10**9, None, Level.WARNING),
        (10**12, 500, Level.WARNING),
        (10**7, None, Level.PROBLEM),
        (10**12, 0, Level.PROBLEM),
    ],
)
def test_room(free, files, level):
    finding = space_finding("runs root", "/runs, xfs", free, files, "go elsewhere")
    assert finding.level is level
    assert ("go elsewhere" in finding.hint) == (level is not Level.OK)


# The machine


def test_memory_of_a_container():
    assert memory_finding((64_000_000, 64_000_000)).level is Level.WARNING
    assert memory_finding((8 * 10**9, 16 * 10**9)) == ok("/dev/shm", "16 GB, 8 GB of it free")


@pytest.mark.parametrize(
    ("soft", "hard", "level", "said"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, Level.OK, "no limit"),
        (65536, 65536, Level.OK, "at most 65536"),
        (1024, 524288, Level.OK, "ulimit -n 524288"),
        (256, 256, Level.WARNING, "at most 256"),
    ],
)
def test_open_files(soft, hard, level, said):
    finding = files_finding(soft, hard)
    assert finding.level is level and said in finding.text


# torch


@pytest.mark.parametrize(
    ("torch", "gpus", "level", "said"),
    [
        (Torch("2.10.0", "CUDA 12.8", 4), 4, Level.OK, "2.10.0 (CUDA 12.8), sees 4 GPUs"),
        (Torch("2.10.0+cpu"), 0, Level.OK, "2.10.0+cpu (CPU only)"),
        (Torch("2.10.0+cpu"), 4, Level.WARNING, "but 4 there"),
        (Torch("2.10.0", "CUDA 12.8", 1), 4, Level.WARNING, "sees 1 GPU, but 4 there"),
        (Torch(error="not installed"), 0, Level.WARNING, "not installed in /python"),
        (Torch(error="ImportError: libcudart"), 0, Level.WARNING, "ImportError: libcudart"),
    ],
)
def test_what_is_said_of_torch(torch, gpus, level, said):
    finding = torch_finding(torch, "/python", gpus)
    assert finding.level is level and said in finding.text


def test_torch_is_asked_of_the_interpreter(python):
    answer = json.dumps(["2.10.0", "CUDA 12.8", 2])
    assert torch_of(python(f"echo hello from a site; echo '{answer}'"), {}) == Torch("2.10.0", "CUDA 12.8", 2)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", "not installed"),
        ("echo 'ImportError: libcudart.so.12' >&2; exit 1", "ImportError: libcudart.so.12"),
        ("kill -9 $$", "import torch ends with -9"),
        ("echo hello", "import torch prints unexpected output"),
        ("", "import torch prints unexpected output"),
        ("exec sleep 600", "import torch takes more than 0.3 s"),
    ],
)
def test_torch_that_does_not_work(python, script, error):
    limit_s = 0.3 if "0.3 s" in error else 150.0
    assert torch_of(python(script), {}, limit_s=limit_s) == Torch(error=error)


def test_an_interpreter_that_is_not_there(tmp_path):
    assert "cannot be started: No such file" in torch_of(str(tmp_path / "python"), {}).error


def test_every_finding_that_is_not_well_says_what_to_do():
    found = [*folder_findings("runs root", Path("/proc/self/runs"), "X"), memory_finding((1, 1)), files_finding(1, 1)]
    assert all(finding.hint for finding in found)
    assert levels(found) == [Level.PROBLEM, Level.WARNING, Level.WARNING]
