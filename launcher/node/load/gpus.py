"""Read the load of the node's GPUs from NVIDIA's own library, which comes with the driver: no package is needed."""

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.run.records import GpuLoad

_MOST_PROCESSES = 1024
_UNKNOWN = (1 << 64) - 1
_ID_BYTES = 96


class _Utilization(ctypes.Structure):
    """NVML's `nvmlUtilization_t`."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """A process that uses a GPU, and how much of the GPU's memory in bytes: NVML's `nvmlProcessInfo_t`. The last two
    fields tell the part of a divided GPU (MIG).
    """

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Gpu(NamedTuple):
    """The load of one GPU, and in `held` the bytes that each process holds on it, by pid."""

    load: GpuLoad
    held: Mapping[int, int]


class Gpus:
    """The GPUs of this node that `visible` names in the form of CUDA_VISIBLE_DEVICES, or all of them if it is None."""

    def __init__(self, visible: str | None, library: Any = None) -> None:  # what ctypes gives has no types
        self._visible = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
        self._library = _driver() if library is None and self._visible != [] else library

    def look(self) -> list[Gpu]:
        """Return the load of each GPU that the driver can read, or an empty list without a driver."""
        if self._library is None:
            return []
        return [gpu for index, device in self._devices() if (gpu := self._gpu(index, device)) is not None]

    def _devices(self) -> Iterator[tuple[int, ctypes.c_void_p]]:
        """Yield index and NVML handle of each of the node's GPUs."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            device = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0 and self._is_ours(
                index, device
            ):
                yield index, device

    def _is_ours(self, index: int, device: ctypes.c_void_p) -> bool:
        """Return whether `visible` names the GPU with this index and NVML handle (`device`), by its index or its UUID,
        or is None.
        """
        if self._visible is None or str(index) in self._visible:
            return True
        if all(name.isdigit() for name in self._visible):
            return False
        name = ctypes.create_string_buffer(_ID_BYTES)
        self._library.nvmlDeviceGetUUID(device, name, _ID_BYTES)
        return any(name.value.decode(errors="replace").startswith(one) for one in self._visible)

    def _gpu(self, index: int, device: ctypes.c_void_p) -> Gpu | None:
        """Return the load of the GPU with this index and NVML handle (`device`), or None if the driver cannot read
        it.
        """
        memory, busy = _Memory(), _Utilization()
        if self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
            return None
        told = self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy)) == 0  # not where it is divided
        load = GpuLoad(index, memory.used, memory.total, min(100, busy.gpu) if told else None)
        return Gpu(load, self._held(device))

    def _held(self, device: ctypes.c_void_p) -> dict[int, int]:
        """Return the bytes that each process holds on the GPU with the NVML handle `device`, by pid; empty if the
        driver does not report them.
        """
        found, count = (_Process * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
        ask = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)  # not of drivers before 510
        if ask is None or ask(device, ctypes.byref(count), found) != 0:
            return {}
        return {one.pid: 0 if one.memory == _UNKNOWN else one.memory for one in found[: count.value]}


def _driver() -> Any:
    """Return NVIDIA's management library, initialised, or None if it is not installed."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None
