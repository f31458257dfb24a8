"""Figures that a device cannot have measured, as they are beyond its physics. For agent and farm; standard library
only.

A binary that lies, or is broken, may report any number; one that no such device can reach is refused, and never ranks.
The bounds are generous: they catch the impossible, not the surprising.

| figure | bound |
|---|---|
| operations per second of a kernel, and of a step (all kernels) | cores x clock x operations per cycle x 4 |
| memory that the processes used (`peak_rss_bytes`) | the device's memory |
| memory that the plan wants (arena, weights, optimizer) | 4 x the device's memory: untouched pages cost nothing |
| time of all kernels of a step | 100 x the slowest step |
| statistics of the steps | those of their samples, and no longer than the binary ran (`consistency.py`) |
| energy (withheld and marked, not refused) | what the board draws when idle, and under load (`power.py`) |

The clock is what the device says (`max_frequency_hz` in its environment) plus a quarter, else 8 GHz. A core retires at
most two 512-bit (AVX-512, SVE), two 256-bit (x86) or four 128-bit (Arm) fused multiply-adds in a cycle: 64, 32 and 32
operations in float32; 64 where the features do not tell. The factor 4 is Winograd's: its products count as those of the
direct convolution, at most four times as many. Of an emulated or simulated device only the limits of `report.py` hold.
"""

import re
from collections.abc import Sequence
from typing import Any

from device_agents.wire.codec import ProtocolError
from device_agents.wire.consistency import check_consistent
from device_agents.wire.power import power_range
from device_agents.wire.report import REAL_CLASSES, KernelTime, Memory, Report

MAX_CLOCK_HZ = 8e9
CLOCK_MARGIN = 1.25
ALGORITHM_FACTOR = 4.0
PLANNED_MEMORY_FACTOR = 4
KERNELS_OVER_STEP = 100.0
CLOCK_TICK_US = 0.1
"""Clocks of boards tick at 19 MHz or more: a time may be read too short by this."""
POWER_SLACK_S = 1e-4


def check_plausible(report: Report, device: Any) -> None:
    """Refuses figures that `device` cannot have reached. Raises: `ProtocolError` naming the field.

    `device` has the fields of a `DeviceDescription` (the farm's row of it does too).
    """
    check_memory(report.memory, device)
    for number, kernel in enumerate(report.kernels):
        check_kernel(kernel, device, f"kernels[{number}]")
    steps_us = report.measurement.step_us if report.measurement else ()
    if steps_us and report.kernels:
        _check_step(report.kernels, steps_us, device)
    check_consistent(report)


def impossible_energy(report: Report, device_class: str) -> str:
    """Why the energy that a report tells cannot be; empty if it can. Not refused: such a figure counts for nothing."""
    energy = report.energy
    if energy is None:
        return ""
    bounds = power_range(device_class, report.measurement_class)
    if bounds is None:
        return f"energy of a device whose measurements are {report.measurement_class}"
    step_s = report.measurement.median_us * 1e-6 if report.measurement is not None else 0.0
    step_s = report.sustained.step_s if report.sustained is not None else step_s
    for what, mj, seconds in (("all", energy.total_mj, report.run_s), ("a step", energy.per_step_mj, step_s)):
        if mj > bounds.most_mw * (seconds + POWER_SLACK_S):
            return f"{mj:,.0f} mJ for {what} in {seconds:,.3g} s, above {bounds.most_mw / 1000:,.0f} W"
    if energy.per_step_mj < bounds.least_mw * (step_s - POWER_SLACK_S):
        return f"{energy.per_step_mj:,.3g} mJ for a step in {step_s:,.3g} s, below {bounds.least_mw / 1000:,.1f} W"
    return ""


def check_memory(memory: Memory, device: Any) -> None:
    """Raises: `ProtocolError`."""
    if device.measurement_class not in REAL_CLASSES:
        return
    for name in ("arena_bytes", "weights_bytes", "optimizer_bytes"):
        _check_bytes(f"memory.{name}", getattr(memory, name), PLANNED_MEMORY_FACTOR * device.memory_bytes)
    _check_bytes("memory.peak_rss_bytes", memory.peak_rss_bytes, device.memory_bytes)


def check_kernel(kernel: KernelTime, device: Any, where: str) -> None:
    """Raises: `ProtocolError`."""
    _check_rate(f"{where}.us", kernel.flops, kernel.us, device, f"kernel {kernel.name[:60]!r}")


def peak_flops(device: Any) -> float:
    """Operations per second that no such device reaches, whatever the algorithm."""
    return float(device.cores) * _clock_hz(device) * _flops_per_cycle(device) * ALGORITHM_FACTOR


def _check_step(kernels: Sequence[KernelTime], steps_us: Sequence[float], device: Any) -> None:
    _check_rate("measurement.step_us", sum(kernel.flops for kernel in kernels), min(steps_us), device, "a step")
    if device.measurement_class not in REAL_CLASSES:
        return
    kernels_us, most_us = sum(kernel.us for kernel in kernels), KERNELS_OVER_STEP * max(steps_us)
    if kernels_us > most_us:
        raise ProtocolError("kernels", f"take {kernels_us:,.1f} us together, the slowest step {max(steps_us):,.1f} us")


def _check_rate(where: str, flops: int, us: float, device: Any, what: str) -> None:
    if device.measurement_class not in REAL_CLASSES:
        return
    rate, peak = flops / (us + CLOCK_TICK_US) * 1e6, peak_flops(device)
    if rate > peak:
        message = f"{what}: {flops:,} operations in {us:g} us are {rate:.3g} a second; this device's peak is {peak:.3g}"
        raise ProtocolError(where, message)


def _check_bytes(where: str, count: "int | None", most: int) -> None:
    if count is not None and count > most:
        raise ProtocolError(where, f"{count:,} bytes; this device's memory allows {most:,}")


def _clock_hz(device: Any) -> float:
    text = str(device.environment.get("max_frequency_hz", ""))
    told_hz = float(text) if re.fullmatch(r"\d{7,12}", text) else MAX_CLOCK_HZ
    return min(MAX_CLOCK_HZ, told_hz * CLOCK_MARGIN)


def _flops_per_cycle(device: Any) -> int:
    features = frozenset(device.features)
    if features & {"avx512f", "sve"}:
        return 64
    return 32 if features & {"avx2", "avx", "asimd"} else 64
