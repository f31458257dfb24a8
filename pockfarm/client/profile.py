"""A device's measurements, in a form for Python users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pockfarm.errors import UsageError
from pockfarm.output.summary import report_text, warnings_text
from pockfarm.values import CompileWarning, Json, optional_number, part, parts, text

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

SHOWN = 20
"""Kernels of a plot: the slowest."""


@dataclass(frozen=True)
class Profile:
    """A run's report: times, memory, energy and kernels; `print(profile)` is it on one screen. Units are in names."""

    run_id: str
    url: str
    """Its page."""
    report: Json = field(repr=False)
    """All of it: the fields of `device_agents.wire.Report`."""
    provenance: Json = field(repr=False, default_factory=dict)
    """Digests of everything that took part, which explain the measurements."""
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings of the farm about the run's data."""

    def __str__(self) -> str:
        sections = (report_text(self.report, with_kernels=True), warnings_text(self.warnings))
        return "\n\n".join(filter(None, sections))

    @property
    def measurement_class(self) -> str:
        """`board`, `host` or `emulated`: only like is compared with like."""
        return text(self.report, "measurement_class")

    @property
    def median_us(self) -> float | None:
        """The median time of a step; None if nothing was timed."""
        return optional_number(part(self.report, "measurement"), "median_us")

    @property
    def p90_us(self) -> float | None:
        return optional_number(part(self.report, "measurement"), "p90_us")

    @property
    def peak_rss_bytes(self) -> int | None:
        """Memory that the process took at most, measured."""
        size = optional_number(part(self.report, "memory"), "peak_rss_bytes")
        return None if size is None else int(size)

    @property
    def arena_bytes(self) -> int | None:
        """Memory that the step was planned to work in."""
        size = optional_number(part(self.report, "memory"), "arena_bytes")
        return None if size is None else int(size)

    @property
    def energy_per_step_mj(self) -> float | None:
        """None where the device cannot measure it."""
        return optional_number(part(self.report, "energy"), "per_step_mj")

    @property
    def kernels(self) -> tuple[Mapping[str, Any], ...]:
        """Lists each kernel call with `name`, `phase`, `us`, `flops`, `bytes_read`, `bytes_written`, in the step's
        order.
        """
        return parts(self.report, "kernels")

    def to_frame(self) -> pandas.DataFrame:
        """The kernels as a table of pandas. Raises: UsageError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise missing("profile.to_frame()", "pandas") from None
        frame = pandas.DataFrame([dict(kernel) for kernel in self.kernels])
        if "us" in frame:
            frame["share"] = frame["us"] / frame["us"].sum()
        return frame

    def plot(self, axes: Axes | None = None) -> Axes:
        """The slowest kernels as bars, in a figure of its own or in `axes`. Raises: UsageError without matplotlib."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise missing("profile.plot()", "matplotlib") from None
        if axes is None:
            axes = pyplot.subplots(layout="constrained")[1]
        slowest = sorted(self.kernels, key=lambda kernel: optional_number(kernel, "us") or 0.0)[-SHOWN:]
        names = [f"{text(kernel, 'name')} ({text(kernel, 'phase')})" for kernel in slowest]
        axes.barh(range(len(slowest)), [optional_number(kernel, "us") or 0.0 for kernel in slowest])
        axes.set_yticks(range(len(slowest)), names)
        axes.set_xlabel("us of one call")
        median = "" if self.median_us is None else f", {self.median_us:.3g} us a step"
        axes.set_title(f"{self.run_id}{median} ({self.measurement_class})")
        return axes


def missing(call: str, package: str) -> UsageError:
    """The error of a call that needs a package which is not installed."""
    return UsageError(f"{call} needs {package}, which this Python does not have: pip install {package}")
