"""Test what is read from the kernel's log about failing devices."""

import os

import pytest

from launcher.health.kernel_log import KernelLog, device_error

UNCORRECTED = "an uncorrected memory error"


def record(words):
    return f"4,4188,16985190462,-;{words}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (double bit error)", UNCORRECTED),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "a GPU that is off the bus"),
        ("NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper Error", "a row of memory that cannot be replaced"),
        ("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained ECC error", UNCORRECTED),
        ("amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", UNCORRECTED),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Channel#1_DIMM#0", UNCORRECTED),
        ("Memory failure: 0x12a4f: recovery action for dirty LRU page: Recovered", UNCORRECTED),
        ("NVRM: Xid (PCI:0000:3b:00): 31, Ch 00000010, MMU Fault", ""),  # a program's own error
        ("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: new row marked for remapping", ""),  # mended
        ("amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block", ""),
        ("amdgpu 0000:c1:00.0: amdgpu: 3 correctable hardware errors detected in umc block", ""),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Channel#1_DIMM#0", ""),
        ("usb 1-1: new high-speed USB device", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_corrected_is_a_reason_to_leave(words, what):
    assert device_error(record(words), gpus=True) == (f"{what}: {words}" if what else "")


def test_gpus_that_are_no_affair_of_the_run_are_passed_over_and_memory_is_not():
    assert device_error(record("NVRM: Xid (PCI:0000:3b:00): 48, DBE"), gpus=False) == ""
    assert device_error(record("EDAC MC0: 1 UE read error on DIMM 0"), gpus=False).startswith(UNCORRECTED)


@pytest.mark.parametrize(
    "name", ["EDAC MC0: 1 UE ", "NVRM: Xid (PCI:", "Memory failure:", "amdgpu 0000:c1:", "EDAC x: 1 UE"]
)
def test_a_program_of_that_name_that_falls_drains_no_node(name):
    words = f"{name}[1234]: segfault at 0 ip 0 sp 0 error 4 in it[400000+1000] likely on CPU 0: 48, 1 uncorrectable"
    assert device_error(record(words), gpus=True) == ""


def test_what_a_program_writes_there_counts_for_nothing():
    words = "EDAC MC0: 1 UE memory read error on DIMM 0"
    assert device_error(f"2,1,1,-;{words}\n", gpus=False)
    assert device_error(f"12,1,1,-;{words}\n", gpus=False) == ""


@pytest.mark.parametrize("text", ["no record", "4,1,2,-", ";;;", "NVRM: Xid (PCI:1): 48", "x,1;EDAC MC0: 1 UE a on b"])
def test_what_is_no_record_says_nothing(text):
    assert device_error(text, gpus=True) == ""


def test_what_was_told_before_is_over(tmp_path):
    path = tmp_path / "kmsg"
    path.write_text(record("EDAC MC0: 1 UE yesterday on DIMM 0"))
    log = KernelLog(path)
    assert [*log.news()] == []
    with path.open("a") as kernel:
        kernel.write(record("EDAC MC0: 1 UE now on DIMM 0"))
    assert [device_error(one, gpus=False) for one in log.news()] == [f"{UNCORRECTED}: EDAC MC0: 1 UE now on DIMM 0"]
    assert [*log.news()] == []
    log.close()


def test_records_that_were_overwritten_are_passed_over(monkeypatch, tmp_path):
    (tmp_path / "kmsg").touch()
    log, told = KernelLog(tmp_path / "kmsg"), [BrokenPipeError(), b"6,1,2,-;left\n", BlockingIOError()]

    def read(*_):
        word = told.pop(0)
        if isinstance(word, OSError):
            raise word
        return word

    monkeypatch.setattr(os, "read", read)
    assert [*log.news()] == ["6,1,2,-;left\n"]
