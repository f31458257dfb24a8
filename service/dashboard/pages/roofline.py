"""The roofline of a run: what its kernels reached of what the best ones did, the roof that runs show of their device.

The roofs are measured, by runs: the highest rate of arithmetic, and the highest rate of bytes, of kernels that take at
least 0.1% of the time. Operands that stay in a cache can beat the second. Of which runs: `device_roof.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.wire import KernelTime
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.roofline import RoofPoint, roof_line, roofline_plot
from service.dashboard.parts import Figure

LEAST_SHARE = 0.001
PHASES = (("forward", "forward"), ("backward", "backward"), ("update", "update"))
LEGEND = tuple((f"phase-{phase}", label) for phase, label in PHASES)


@dataclass(frozen=True, slots=True)
class Roof:
    """The best that kernels of a run reached. Units: 10^9 per second."""

    gflop_per_s: float
    gb_per_s: float

    def at(self, intensity: float) -> float:
        """Returns the GFLOP/s that the roof allows at so many FLOP for each byte."""
        return min(self.gflop_per_s, intensity * self.gb_per_s)

    def percent(self, kernel: KernelTime) -> float | None:
        """Returns the percentage of the roof that a kernel reached; for a kernel without arithmetic, by its bytes.
        None: it took no time, or moved no bytes.
        """
        moved = kernel.bytes_read + kernel.bytes_written
        if kernel.us <= 0 or not moved:
            return None
        if not kernel.flops:
            return 100 * _gb_per_s(kernel) / self.gb_per_s
        return 100 * _gflop_per_s(kernel) / self.at(kernel.flops / moved)


@dataclass(frozen=True, slots=True)
class SeenRoof:
    """A roof, and what it is the best of."""

    roof: Roof
    words: str
    """`3 valid runs of this device with 4 threads`."""


def roof_of(kernels: Sequence[KernelTime]) -> Roof | None:
    """Returns the best rates that these kernels reached; None if there is no kernel that computes, or none that moves
    bytes.
    """
    whole_us = sum(kernel.us for kernel in kernels)
    counted = [kernel for kernel in kernels if kernel.us > 0 and kernel.us >= LEAST_SHARE * whole_us]
    rate = max((_gflop_per_s(kernel) for kernel in counted), default=0.0)
    traffic = max((_gb_per_s(kernel) for kernel in counted), default=0.0)
    return Roof(rate, traffic) if rate > 0 and traffic > 0 else None


def roofline_figure(kernels: Sequence[KernelTime], device_roof: SeenRoof, source: str) -> Figure:
    """Draws the roofline. `source`: the kernels' JSON table."""
    roof = device_roof.roof
    points = [
        RoofPoint(kernel.name, kernel.phase, kernel.flops / moved, _gflop_per_s(kernel), f"kernel-{kernel.index}")
        for kernel in kernels
        if kernel.flops and kernel.us > 0 and (moved := kernel.bytes_read + kernel.bytes_written)
    ]
    reached = f"{fmt.significant(roof.gflop_per_s)} GFLOP/s and {fmt.significant(roof.gb_per_s)} GB/s"
    note = (
        f"The roofs are the best that kernels of {device_roof.words} reached: {reached}, both measured. They are no "
        f"limits of the hardware, which may allow more. “Of roof” in the table is against them. Kernels that compute "
        f"nothing are not shown."
    )
    drawing = for_screens(lambda width: roofline_plot(points, roof.gflop_per_s, roof.gb_per_s, width), FULL_WIDTH)
    return Figure("roofline", "Roofline", drawing, note, LEGEND, chart=_chart(points, roof, source))


def _chart(points: Sequence[RoofPoint], roof: Roof, source: str) -> Chart:
    ends = [point.intensity for point in points] + [roof.gflop_per_s / roof.gb_per_s]
    line = roof_line(min(ends) / 1.3, max(ends) * 1.3, roof.gflop_per_s, roof.gb_per_s)
    dots = [
        Line(label, phase, column="gflop_per_s", kind="dots", only=("phase", phase), names="kernel")
        for phase, label in PHASES
        if any(point.phase == phase for point in points)
    ]
    return Chart(
        (*dots, Line("roof", "ink", points=line, is_dashed=True)),
        "FLOP per byte moved",
        "GFLOP/s",
        source=source,
        x="flop_per_byte",
        is_log=(True, True),
        height=320,
    )


def _gflop_per_s(kernel: KernelTime) -> float:
    return kernel.flops / 1e3 / kernel.us


def _gb_per_s(kernel: KernelTime) -> float:
    return (kernel.bytes_read + kernel.bytes_written) / 1e3 / kernel.us
