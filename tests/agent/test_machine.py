"""What a machine offers, without torch and without a process."""

import pytest

from launcher.agent.machine import this_machine


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
