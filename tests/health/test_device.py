"""The program that looks at a device: what is right it finds right, and one wrong bit anywhere it finds."""

import ctypes
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from launcher.health import device_there
from launcher.health.evidence import DEVICE_CHECK

LITTLE = device_there.GpuWork(rows=256, tensor_core_rows=512, kept_bytes=1 << 16, carried_bytes=1 << 16)
FREE, ALL = 70_000_000_000, 80_000_000_000


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gpu(monkeypatch):
    """A torch that takes the host's cores for a GPU of 80 GB."""

    class Event:
        def __init__(self, enable_timing=False):
            pass

        def record(self):
            pass

        synchronize = record

        def elapsed_time(self, _):
            return 4.0  # milliseconds

    class Gpu:
        def __init__(self):
            self.version = SimpleNamespace(cuda="13.0", hip=None)
            self.cuda = SimpleNamespace(
                Event=Event,
                device_count=lambda: 1,
                set_device=lambda _: None,
                get_device_capability=lambda _: (9, 0),
                mem_get_info=lambda _: (FREE, ALL),
                get_device_properties=lambda _: SimpleNamespace(name="Old GPU"),
            )
            self.device = lambda name: SimpleNamespace(index=int(name.partition(":")[2] or 0))

        def __getattr__(self, name):
            return getattr(torch, name)

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return Gpu()


def lines(said):
    return [json.loads(line) for line in said.out.splitlines()]


def spoilt(monkeypatch, name, spoil):
    """Make torch's function of this name return slightly wrong results."""
    right = getattr(torch, name)

    def wrong(*given, out=None, **more):
        found = right(*given, **more) if out is None else right(*given, out=out, **more)
        spoil(found)
        return found

    monkeypatch.setattr(torch, name, wrong)


def test_the_cores_of_this_machine_are_fit(capsys):
    before = os.sched_getaffinity(0)
    assert device_there.main("cpu") == 0
    first, *_, last = said = lines(capsys.readouterr())
    assert first == {"device": "cpu", "name": f"{len(before)} cores"}
    assert [line["part"] for line in said if "part" in line] == ["matmul float32", "memory"]
    assert f"exact on {len(before)} of {len(before)} cores" in [line.get("note") for line in said]
    assert last["done"] is True and 0 < last["seconds"] < 60
    assert os.sched_getaffinity(0) == before


def test_one_wrong_number_of_a_product_is_found(capsys, monkeypatch):
    spoilt(monkeypatch, "mm", lambda product: product[200, 7].add_(1.0))
    assert device_there.main("cpu") == 1
    *_, wrong, last = lines(capsys.readouterr())
    assert wrong["part"] == "matmul float32" and wrong["fit"] is False
    assert " at row 200, column 7 on core " in wrong["expected"]
    assert wrong["seen"].endswith("1 of 65536 numbers are wrong")
    assert float(wrong["seen"].split(";")[0]) == float(wrong["expected"].split()[0]) + 1
    assert last["done"] is False


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_one_wrong_bit_of_memory_is_found(monkeypatch, bit):
    def flip(tensor):
        tensor[1000] ^= (1 << bit) if bit < 63 else -(1 << 63)
        return tensor

    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda tensor: flip(clone(tensor)))
    with pytest.raises(device_there.WrongResult) as found:
        device_there._check_memory(torch, "cpu", 1 << 16)
    expected, seen = (int(word.split(" ")[0].rstrip(";"), 16) for word in (found.value.expected, found.value.seen))
    assert expected ^ seen == 1 << bit
    assert "in word 1000" in found.value.expected and "1 of 8192 words are wrong" in found.value.seen


def test_a_bit_that_is_always_set_is_found_by_the_opposite(monkeypatch):
    """What stands there first has it set by itself."""
    stuck = 1 << 5
    opposite = torch.Tensor.bitwise_not_
    monkeypatch.setattr(torch.Tensor, "bitwise_not_", lambda tensor: opposite(tensor).bitwise_or_(stuck))
    with pytest.raises(device_there.WrongResult):
        device_there._check_memory(torch, "cpu", 1 << 16)


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [(torch.float32, 2048, 1 << 24), (torch.bfloat16, 4096, 1 << 8), (torch.float16, 4096, 1 << 8)],
)
def test_products_are_exact_in_whatever_order_they_are_summed(kind, size, most):
    """No sum of parts of them leaves what the type counts exactly; and the one of floats is that of whole numbers."""
    product = device_there._Product(torch, "cpu", kind, size)
    some = slice(0, size, 97)
    left, right = product.left[some].to(torch.int64), product.right[:, some].to(torch.int64)
    assert int((left.abs().unsqueeze(2) * right.abs().unsqueeze(0)).sum(1).max()) <= most
    exact = (left.unsqueeze(2) * right.unsqueeze(0)).sum(1)
    assert torch.equal(exact.to(kind), product.expected[some, some])
    assert exact.unique().numel() > 20  # it is work of many kinds
    assert product.left.ne(0).any(0).all()  # each number of the other one is used


def test_a_gpu_has_all_its_parts(gpu, capsys):
    device = "cpu:0"  # where the tensors of this GPU are
    assert all(device_there._tried(part) for part in device_there._parts(gpu, device, LITTLE))
    said = lines(capsys.readouterr())
    assert {line["name"] for line in said if "name" in line} == {"", "Old GPU"}
    notes = {line["part"]: line["note"] for line in said if "part" in line}
    assert notes == {
        "start": "70.0 of 80.0 GB free",
        "matmul float32": f"exact, {4 * 2 * 256**3 / 4e9:.3g} TFLOP/s",
        "matmul bfloat16": f"exact, {4 * 2 * 512**3 / 4e9:.3g} TFLOP/s",
        "memory": "0 MB kept what was written",
        "copies": "0.0164 GB/s there, 0.0164 GB/s back",
        "memory errors": "not told",
    }


def test_tensor_cores_that_compute_wrongly_are_found(gpu, capsys, monkeypatch):
    def spoil(product):
        if product.dtype == torch.bfloat16:
            product[3, 4] += 1

    spoilt(monkeypatch, "mm", spoil)
    assert not all(device_there._tried(part) for part in device_there._parts(gpu, "cpu:0", LITTLE))
    last = lines(capsys.readouterr())[-1]
    assert (last["part"], last["fit"]) == ("matmul bfloat16", False)
    assert "at row 3, column 4" in last["expected"]


def test_a_gpu_without_bfloat16_is_asked_for_float16(gpu, capsys):
    gpu.cuda.get_device_capability = lambda _: (7, 0)
    names = [part.name for part in device_there._parts(gpu, "cuda:0")]
    assert names == ["start", "matmul float32", "matmul float16", "memory", "copies", "memory errors"]


def test_what_comes_back_as_another_is_found(gpu, monkeypatch):
    copy = torch.Tensor.copy_

    def lossy(tensor, source, non_blocking=False):
        copy(tensor, source)[5] = 0
        return tensor

    monkeypatch.setattr(torch.Tensor, "copy_", lossy)
    with pytest.raises(device_there.WrongResult, match="1 of 8192 words came back as others"):
        device_there._check_copying(gpu, "cpu", 1 << 16)


def test_a_gpu_that_is_not_seen_is_not_fit(gpu, capsys):
    assert not device_there._tried(next(iter(device_there._parts(gpu, "cuda:3"))))
    assert lines(capsys.readouterr())[-1]["seen"] == "torch sees 1 GPU"


def test_what_torch_says_of_a_failing_gpu_is_the_evidence(gpu, capsys):
    def fail(_):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be ...")

    gpu.cuda.set_device = fail
    assert not device_there._tried(next(iter(device_there._parts(gpu, "cuda:0"))))
    last = lines(capsys.readouterr())[-1]
    assert last["seen"] == "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_a_torch_for_cpus_says_nothing_of_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert device_there.main("cuda:0") == 0
    (line,) = lines(capsys.readouterr())
    assert "is built for CPUs alone" in line["unable"]


def test_without_torch_nobody_can_say():
    program = "import sys; sys.modules['torch'] = None; exec(compile(open(sys.argv[1]).read(), 'x', 'exec'))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program.replace('sys.argv[1]', repr(str(DEVICE_CHECK)))}", "cpu"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "torch cannot be imported" in json.loads(done.stdout)["unable"]


def driver(uncorrected=0, rows=(2, 0, 0, 0), known=True):
    """NVIDIA's library, with a GPU that has counted so much."""

    def errors(_, kind, time, count):
        assert (kind, time) == (1, 0)
        ctypes.cast(count, ctypes.POINTER(ctypes.c_ulonglong))[0] = uncorrected or 0
        return 0 if uncorrected is not None else 3  # NVML_ERROR_NOT_SUPPORTED

    def remapped(_, *found):
        for place, value in zip(found, rows, strict=True):
            ctypes.cast(place, ctypes.POINTER(ctypes.c_uint))[0] = value
        return 0

    return SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetHandleByUUID=lambda uuid, _: 0 if known and uuid == b"GPU-a-b" else 1,
        nvmlDeviceGetTotalEccErrors=errors,
        nvmlDeviceGetRemappedRows=remapped,
    )


@pytest.fixture
def nvml(gpu, monkeypatch):
    def nvml(library):
        monkeypatch.setattr(device_there.ctypes, "CDLL", lambda _: library)
        gpu.cuda.get_device_properties = lambda _: SimpleNamespace(name="H100", uuid="a-b")
        return gpu

    return nvml


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (driver(), "no uncorrected ones, 2 rows remapped"),
        (driver(rows=(1, 1, 1, 0)), "no uncorrected ones, 2 rows remapped, one waits for a reset"),
        (driver(uncorrected=None), "not told, 2 rows remapped"),
        (driver(known=False), "not told"),
        (SimpleNamespace(), "not told"),
    ],
)
def test_what_the_driver_has_counted(nvml, library, words):
    assert device_there._count_errors(nvml(library), "cuda:0") == words


@pytest.mark.parametrize(
    ("library", "seen"),
    [(driver(uncorrected=3), "3 of them"), (driver(rows=(512, 9, 1, 1)), "there was none for one of them")],
)
def test_memory_that_the_driver_gives_up_is_not_fit(nvml, library, seen):
    with pytest.raises(device_there.WrongResult) as found:
        device_there._count_errors(nvml(library), "cuda:0")
    assert found.value.seen == seen
