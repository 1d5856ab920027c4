"""Check on a node itself whether a device (GPU or CPU) computes, stores and transfers correctly: `python
device_there.py cuda:0` (or `cpu`).

The program prints one JSON object a line: the device, each part that begins, and its result. Every computed number is
whole and small enough to be exact in its type, in whatever order it is summed, so that one wrong bit is a wrong result.
The program stops at the first wrong part with exit code 1. Only the standard library and torch are used, because it
runs in the interpreter of the ranks, which may be as old as Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SMALL = 256  # rows of a core's matrices
_TIMES = 4
_MOST_CORES_S = 0.4
_HOST_BYTES = 1 << 23
_PART_OF_FREE = 8  # of a device's memory that is free, at most one of so many
_ODD = -7046029254386353131  # a factor that makes of each address another pattern of bits
_UNCORRECTED, _SINCE_LOADED = 1, 0  # of NVML: the kind of error, and over which time it is counted
_MOST_LETTERS = 300


class WrongResult(Exception):
    """Raised when the device has computed something other than expected; `expected` and `seen` are texts."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(expected, seen)
        self.expected, self.seen = expected, seen


class Unable(Exception):
    """Raised with the reason when the device cannot be checked on this machine."""


class GpuWork(NamedTuple):
    """The amount of work that a GPU is given: rows of the float32 matrices and of those for tensor cores, bytes of
    memory to fill (`kept_bytes`), and bytes to copy (`carried_bytes`).
    """

    rows: int = 2048  # of float32 matrices
    tensor_core_rows: int = 4096
    kept_bytes: int = 1 << 27
    carried_bytes: int = 1 << 25


_GPU_WORK = GpuWork()


class DeviceTrial(NamedTuple):
    """A part of the check; `run` returns a short result, or raises WrongResult."""

    name: str
    run: Callable[[], str]


def main(device: str) -> int:
    """Check the device and print the results; return 1 if a part of the check fails, else 0, even if the device cannot
    be checked.
    """
    try:
        import torch  # late: its errors are reported
    except Exception as error:  # noqa: BLE001 - whatever a package of the user's raises as it is imported
        _print_line(unable=f"torch cannot be imported: {_words(error)}")
        return 0
    began = time.perf_counter()
    try:
        fit = all(_tried(part) for part in _parts(torch, device))
    except Unable as error:
        _print_line(unable=str(error))
        return 0
    _print_line(done=fit, seconds=round(time.perf_counter() - began, 3))
    return 0 if fit else 1


def _parts(torch: Any, device: str, work: GpuWork = _GPU_WORK) -> Iterator[DeviceTrial]:
    """Yield the parts of the check for this device in order: multiplications and memory; for a GPU also its start,
    copies and the count of memory errors. Raise Unable if this torch cannot use the device.

    `work` is how much a GPU has to do; a CPU's work is fixed.
    """
    if device == "cpu":
        _print_line(device=device, name=f"{len(os.sched_getaffinity(0))} cores")
        yield DeviceTrial("matmul float32", lambda: _multiply_on_each_core(torch))
        yield DeviceTrial("memory", lambda: _check_memory(torch, device, _HOST_BYTES))
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise Unable(f"this torch ({torch.__version__}) is built for CPUs alone")
    _print_line(device=device, name="")
    yield DeviceTrial("start", lambda: _start(torch, device))
    yield DeviceTrial("matmul float32", lambda: _multiply(torch, device, torch.float32, work.rows))
    half = _half(torch, device)
    half_name = str(half).partition(".")[2]
    yield DeviceTrial(f"matmul {half_name}", lambda: _multiply(torch, device, half, work.tensor_core_rows))
    yield DeviceTrial(
        "memory",
        lambda: _check_memory(
            torch, device, min(work.kept_bytes, int(torch.cuda.mem_get_info(device)[0]) // _PART_OF_FREE)
        ),
    )
    yield DeviceTrial("copies", lambda: _check_copying(torch, device, work.carried_bytes))
    yield DeviceTrial("memory errors", lambda: _count_errors(torch, device))


def _tried(part: DeviceTrial) -> bool:
    """Run one part of the check and print its result; return whether it passed: not if the result is wrong, or the
    device or torch raised an error.
    """
    _print_line(begins=part.name)
    began, wrong, note = time.perf_counter(), None, ""
    try:
        note = part.run()
    except WrongResult as error:
        wrong = error
    except (RuntimeError, MemoryError, OSError) as error:  # what torch raises where the device fails
        wrong = WrongResult("no error", _words(error))
    seconds = round(time.perf_counter() - began, 4)
    if wrong is None:
        _print_line(part=part.name, fit=True, note=note, seconds=seconds)
    else:
        _print_line(part=part.name, fit=False, expected=wrong.expected, seen=wrong.seen, seconds=seconds)
    return wrong is None


# Its parts


def _start(torch: Any, device: str) -> str:
    """Compute something small on the device, which starts its driver; return as text how much of its memory is free.
    Raise WrongResult if torch sees no GPU of that number.
    """
    number, there = torch.device(device).index or 0, torch.cuda.device_count()
    if number >= there:
        raise WrongResult(device, f"torch sees {there} GPU{'' if there == 1 else 's'}")
    torch.cuda.set_device(device)
    torch.zeros(1, device=device).add_(1).item()
    about = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    _print_line(device=device, name=str(about.name))
    return f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"


def _half(torch: Any, device: str) -> Any:
    """Return the half-precision type that the GPU's tensor cores support: bfloat16, or float16 on NVIDIA's GPUs before
    2020.
    """
    is_old = torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0)
    return torch.float16 if is_old else torch.bfloat16


def _multiply_on_each_core(torch: Any) -> str:
    """Multiply on each core in turn, because one core may compute wrongly while others do not; return as text how many
    cores were exact.

    After 0.4 seconds the other cores are left out. Raise WrongResult for the first core that is not exact.
    """
    torch.set_num_threads(1)
    product = _Product(torch, "cpu", torch.float32, _SMALL)
    cores, done, until = os.sched_getaffinity(0), 0, time.perf_counter() + _MOST_CORES_S
    try:
        for core in sorted(cores):
            if done and time.perf_counter() > until:
                break
            with contextlib.suppress(OSError):  # it was taken from us meanwhile
                os.sched_setaffinity(0, {core})
                product.check(f" on core {core}")
                done += 1
    finally:
        os.sched_setaffinity(0, cores)
    return f"exact on {done} of {len(cores)} cores"


def _multiply(torch: Any, device: str, kind: Any, size: int) -> str:
    """Multiply square matrices of `size` rows, of torch's number type `kind`, on the GPU `device` several times; return
    a text with the speed, or raise WrongResult if the product is not exact.
    """
    product = _Product(torch, device, kind, size)
    product.check()  # the first one also loads the library
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_TIMES):
        torch.mm(product.left, product.right, out=product.result)
    end.record()
    end.synchronize()
    product.compare()
    return f"exact, {_TIMES * 2 * size**3 / (begin.elapsed_time(end) * 1e9):.3g} TFLOP/s"


class _Product:
    """Two matrices of whole numbers, and their expected product, computed on a core with whole numbers.

    With vectors f and g of random numbers, `left[i, k] = f[(i + k) % size]` and `right[k, j] = g[(k + j) % size]`, so
    that each number of the product is one of `size` sums, `r[(i - j) % size]`, which a core computes quickly. To the
    device, though, every number of the product is different work.
    """

    def __init__(self, torch: Any, device: str, kind: Any, size: int) -> None:
        self._torch, self._device, self._size = torch, device, size
        f, g = self._whole_numbers(few=kind is not torch.float32)
        sums = (self._turned(f) * g).sum(1)  # r[d]: of f[(d + m) % size] * g[m] over all m
        self.left = self._turned(f.to(kind).to(device)).contiguous()
        self.right = self._turned(g.to(kind).to(device)).contiguous()
        self.expected = self._turned(sums.roll(-1).to(kind).to(device)).flip(1)
        self.result = torch.zeros(size, size, dtype=kind, device=device)

    def check(self, where: str = "") -> None:
        """Multiply on the device and compare the product; raise WrongResult, with `where` in its text, if it is not as
        expected.
        """
        self._torch.mm(self.left, self.right, out=self.result)
        self.compare(where)

    def compare(self, where: str = "") -> None:
        """Compare `result`, into which the device has multiplied the matrices, with the expected product; raise
        WrongResult, with `where` in its text, if they differ.
        """
        wrong = self.result != self.expected
        count = int(wrong.sum().item())
        if count:
            row, column = wrong.nonzero()[0].tolist()
            expected, seen = self.expected[row, column].item(), self.result[row, column].item()
            of_all = f"{count} of {self._size**2} numbers are wrong"
            raise WrongResult(f"{expected:g} at row {row}, column {column}{where}", f"{seen:g}; {of_all}")

    def _whole_numbers(self, *, few: bool) -> tuple[Any, Any]:
        """Return (f, g), two vectors of `size` random whole numbers, the same at each call; both matrices are made from
        them.

        No number in the matrices' product is above 2**24, up to which float32 is exact; with `few` none is above 128,
        because bfloat16 is exact to 256, and float16 to 2048.
        """
        torch, size = self._torch, self._size
        drawn = torch.randint(-8, 9, (2, size), generator=torch.Generator().manual_seed(1))
        if not few:
            return drawn[0], drawn[1]
        signs = drawn.remainder(2) * 2 - 1
        signs[0, torch.arange(size).remainder(size // 128) != 0] = 0
        return signs[0], signs[1]

    def _turned(self, values: Any) -> Any:
        """Return a square matrix whose row i is the values rotated left by i places, so that it begins with value i."""
        return self._torch.cat([values, values]).as_strided((self._size, self._size), (1, 1))


def _check_memory(torch: Any, device: str, size: int) -> str:
    """Write 64-bit words, and then their complements, into `size` bytes of memory, so that every bit is once 0 and once
    1; compare them and return a short text.

    Raise WrongResult if a word differs.
    """
    places = torch.arange(max(1, size // 8), dtype=torch.int64, device=device)
    wanted = places * _ODD
    kept = wanted.clone()
    for _ in range(2):
        wrong = kept != wanted
        count = int(wrong.sum().item())
        if count:
            at = int(wrong.nonzero()[0].item())
            expected, seen = (f"{int(one[at].item()) & (1 << 64) - 1:016x}" for one in (wanted, kept))
            raise WrongResult(f"{expected} in word {at}", f"{seen}; {count} of {len(kept)} words are wrong")
        wanted, kept = wanted.bitwise_not(), kept.bitwise_not_()
    return f"{8 * len(kept) / 1e6:.0f} MB kept what was written"


def _check_copying(torch: Any, device: str, size: int) -> str:
    """Copy `size` bytes from the host's memory to the device's and back; return the rates as text, or raise WrongResult
    if a byte differs.
    """
    words = torch.arange(size // 8, dtype=torch.int64).mul_(_ODD).pin_memory()
    back = torch.empty_like(words).pin_memory()
    there = torch.empty_like(words, device=device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    marks[0].record()
    there.copy_(words, non_blocking=True)
    marks[1].record()
    back.copy_(there, non_blocking=True)
    marks[2].record()
    marks[2].synchronize()
    if not torch.equal(words, back):
        count = int((words != back).sum().item())
        raise WrongResult("what was sent", f"{count} of {len(words)} words came back as others")
    there_ms, back_ms = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    gigabytes = size / 1e6  # a millisecond
    return f"{gigabytes / max(there_ms, 1e-3):.3g} GB/s there, {gigabytes / max(back_ms, 1e-3):.3g} GB/s back"


def _count_errors(torch: Any, device: str) -> str:
    """Return as text the memory errors that the driver has counted on this GPU; raise WrongResult if one was
    uncorrected, or if a failing row of memory could not be replaced by a spare one. Return "not told" without NVIDIA's
    library.
    """
    driver = _Driver.of(getattr(torch.cuda.get_device_properties(device), "uuid", None))
    if driver is None:
        return "not told"
    uncorrected, rows = driver.uncorrected(), driver.remapped_rows()
    if uncorrected:
        raise WrongResult("no uncorrected error of its memory since the driver was loaded", f"{uncorrected} of them")
    if rows is not None and rows.failed:
        raise WrongResult("spare rows for those of its memory that failed", "there was none for one of them")
    words = ["not told" if uncorrected is None else "no uncorrected ones"]
    if rows is not None:
        words.append(f"{rows.remapped} rows remapped{', one waits for a reset' if rows.pending else ''}")
    return ", ".join(words)


class RemappedRows(NamedTuple):
    """How many rows of a GPU's memory were replaced by spare ones, and whether a replacement is pending (until a reset)
    or has failed.
    """

    remapped: int
    pending: bool
    failed: bool


class _Driver:
    """The memory errors of one GPU, as NVIDIA's management library, which comes with the driver, reports them."""

    def __init__(self, library: Any, gpu: ctypes.c_void_p) -> None:
        self._library, self._gpu = library, gpu

    @classmethod
    def of(cls, uuid: object) -> _Driver | None:
        """Return the driver's handle for the GPU with this UUID, as torch's device properties give it, without `GPU-`.
        Return None if the UUID is None, or if the library or the GPU is not found.
        """
        try:
            library, gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
            known = (
                uuid is not None
                and library.nvmlInit_v2() == 0
                and library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(gpu)) == 0
            )
        except (OSError, AttributeError):  # no such library, or one that is older than the question
            return None
        return cls(library, gpu) if known else None

    def uncorrected(self) -> int | None:
        """Return the number of uncorrected memory errors, or None if the driver does not report them."""
        count = ctypes.c_ulonglong()
        asked = self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_LOADED, ctypes.byref(count))
        return count.value if asked else None

    def remapped_rows(self) -> RemappedRows | None:
        """Return the state of replaced memory rows, or None if the driver does not report it."""
        found = [ctypes.c_uint() for _ in range(4)]
        if not self._ask("nvmlDeviceGetRemappedRows", *map(ctypes.byref, found)):
            return None
        correctable, uncorrectable, pending, failed = (one.value for one in found)
        return RemappedRows(correctable + uncorrectable, bool(pending), bool(failed))

    def _ask(self, name: str, *words: Any) -> bool:
        """Call the library's function `name` with these arguments; return False if the library or the GPU does not
        support it.
        """
        function = getattr(self._library, name, None)
        return function is not None and function(self._gpu, *words) == 0


def _words(error: BaseException) -> str:
    """Return the text of an error on one line."""
    first = (str(error).strip().splitlines() or [""])[0][:_MOST_LETTERS]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _print_line(**words: Any) -> None:
    """Print the arguments, by name, as a line of JSON."""
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:2]))  # the output is flushed; a normal exit of torch and CUDA takes longer than the check
