"""Count the floating-point operations of a sample, and their share of the devices' peak (MFU)."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.loop.settings import Settings
from trainer.loop.sums import gathered
from trainer.strategies import Strategy, reporting_repetitions

# Of 10**12 a second, without sparsity, as the makers' data sheets have them: 16 bits, tf32, fp32. The first name that
# is in the device's.
_PEAKS = (
    ("H200", 989.0, 494.0, 67.0),
    ("H100 PCIe", 756.0, 378.0, 51.0),
    ("H100 NVL", 835.0, 417.0, 60.0),
    ("H100", 989.0, 494.0, 67.0),
    ("A100", 312.0, 156.0, 19.5),
    ("L40S", 362.0, 183.0, 91.6),
    ("V100-SXM2", 125.0, 15.7, 15.7),
    ("T4", 65.0, 8.1, 8.1),
)


def peak_tflops(device: str, precision: str) -> float | None:
    """Return a device's peak in 10**12 operations per second, or None if it is not in the table.

    `device` is the name of the device, such as `NVIDIA H100 80GB HBM3`, and `precision` is fp32, tf32, bf16 or fp16.
    """
    column = {"fp16": 1, "bf16": 1, "tf32": 2, "fp32": 3}[precision]
    parts = device.split()
    return next((float(row[column]) for row in _PEAKS if _is_in(row[0], device, parts)), None)


def _is_in(name: str, device: str, parts: list[str]) -> bool:
    """Return whether a device's name, `device`, contains the table's `name` as whole words or before a hyphen.

    `parts` are the words of `device`. `A100` is in `A100-SXM4-80GB`, but `T4` is not in `T400`.
    """
    return any(part == name or part.startswith(f"{name}-") for part in parts) or f" {name} " in f" {device} "


@dataclass(frozen=True, slots=True)
class Flops:
    """The floating-point operations that one sample takes, and how many all devices together can do in a second."""

    per_sample: float  # of its forward and backward pass, without recomputation
    peak_per_s: float | None = None  # of all devices together; None: unknown

    def in_line(self, samples_per_s: float) -> dict[str, float]:
        """Return `flops_per_s`, and `mfu` if the peak is known, for a line of metrics.

        `samples_per_s` is the number of samples per second of all ranks together.
        """
        done = self.per_sample * samples_per_s
        return {"flops_per_s": done, **({} if self.peak_per_s is None else {"mfu": done / self.peak_per_s})}


def count(strategy: Strategy, run_micro_batch: Callable[[], Tensor]) -> int:
    """Run the forward and backward pass of one micro-batch, and return how many operations they took on this rank.

    Operations that are recomputed in the backward pass are counted once. `run_micro_batch` runs the forward pass and
    returns the loss.
    """
    from torch.utils.flop_counter import FlopCounterMode  # late: only where asked for

    eager: AbstractContextManager[None] = nullcontext()
    if strategy.settings.compile:
        eager = torch.compiler.set_stance("force_eager")  # compiled code is not counted
    counter, before, repeated = FlopCounterMode(display=False), 0, 0

    def report(begins: bool) -> None:
        """Note the operations of a recomputation, which begins or ends."""
        nonlocal before, repeated
        now = counter.get_total_flops()
        before, repeated = (now, repeated) if begins else (before, repeated + now - before)

    with eager, reporting_repetitions(report), counter:
        # With shards as in a step without accumulation, which needs the least memory; else no other rank is met.
        strategy.rehearse(run_micro_batch, sync=strategy.is_sharded)
    return counter.get_total_flops() - repeated


def counted(
    strategy: Strategy, settings: Settings, samples: Callable[[], int], run: Callable[[], Tensor]
) -> tuple[Flops, str]:
    """Return the floating-point operations of one sample, averaged over all ranks, and a text about them for the log.

    All ranks call it. `run` runs the forward pass of a micro-batch and returns its loss; `samples`, called afterwards,
    returns how many samples it had. The first result also has the peak of all devices, if it is known.
    """
    began = time.perf_counter()
    of_ranks = gathered((count(strategy, run), samples()), strategy.world)
    per_sample = sum(flops for flops, _ in of_ranks) / max(1, sum(some for _, some in of_ranks))
    message = f"a sample takes {per_sample:.4g} FLOPs, counted in {time.perf_counter() - began:.1f} s"
    device, peak = strategy.world.device, settings.peak_tflops
    if peak is None and device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        peak = peak_tflops(name, settings.precision)
        message += "" if peak is not None else f"\nhint: the peak of {name} is not known; set peak_tflops to get mfu"
    return Flops(per_sample, None if peak is None else peak * 1e12 * strategy.world.size), message
