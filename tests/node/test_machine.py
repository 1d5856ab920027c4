"""Test what is found of a machine, without torch and without starting a process."""

import os
import sys
from importlib.metadata import version

import pytest

from launcher.node.machine import environment_of, note_environment, this_machine
from launcher.run.durable import readable
from launcher.run.records import Environment


@pytest.fixture
def devices(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ("0", "1", "2")),
        ("0,2", ("0", "2")),
        (" 1 , 0 ", ("1", "0")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("GPU-8932f937,MIG-1", ("GPU-8932f937", "MIG-1")),
    ],
)
def test_gpus_are_what_cuda_would_see(devices, visible, gpus):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert this_machine(environ, devices).gpus == gpus


def test_a_machine_without_gpus_has_none_whatever_the_environment_says(tmp_path):
    assert this_machine({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path).gpus == ()


def test_cores_are_those_that_we_may_use(tmp_path):
    assert this_machine({}, tmp_path).cpus >= 1


def test_what_ranks_find_is_told_by_files(tmp_path):
    for number, model in enumerate(("NVIDIA H200", "NVIDIA H200")):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
        (tmp_path / "gpus" / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan\n")
    found = environment_of(sys.executable, {}, tmp_path)
    assert (found.gpus, found.driver) == (("NVIDIA H200", "NVIDIA H200"), "570.86.15")
    assert (found.host, found.python) == (os.uname().nodename, sys.executable)
    assert found.packages["msgspec"] == version("msgspec")
    assert ".".join(found.version.split(".")[:2]) == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_what_ranks_find_is_noted_once_and_a_bad_disk_is_no_reason_to_stop(tmp_path):
    file = tmp_path / "environment.jsonl"
    note_environment(file, sys.executable, {})
    noted = file.read_bytes()
    assert readable(file, Environment).cpus == len(os.sched_getaffinity(0))
    note_environment(file, "/other/python", {})
    note_environment(tmp_path / "none" / "environment.jsonl", sys.executable, {})
    assert file.read_bytes() == noted
