"""The time of a step by phase and by kernel: a bar for each phase and for the slowest kernels, each linked to its row
of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg

PHASES = ("forward", "backward", "update")
MOST_BARS = 20
ROW_HEIGHT = 21.0


@dataclass(frozen=True, slots=True)
class KernelBar:
    """A kernel's median time. `anchor` is the id of its table row."""

    name: str
    phase: str
    us: float
    anchor: str


def phase_totals(bars: Sequence[KernelBar]) -> dict[str, float]:
    """Returns the microseconds per phase, in the order of a step; phases without kernels are left out."""
    totals = {phase: sum(bar.us for bar in bars if bar.phase == phase) for phase in PHASES}
    return {phase: total for phase, total in totals.items() if total > 0}


def phase_bar(bars: Sequence[KernelBar], width: float) -> Markup:
    """Draws one stacked bar: each phase's share of the kernels' total time, labelled where there is room."""
    totals = phase_totals(bars)
    whole = sum(totals.values())
    parts: list[Markup] = []
    left = 0.0
    for phase, total in totals.items():
        extent = total / whole * width
        label = f"{phase} {fmt.percent(total / whole, 0)}"
        parts.append(svg.rectangle(left, 0, max(extent - 2, 0.5), 26, f"phase-{phase}", label))
        if extent > 8 * len(label):
            parts.append(svg.text(left + 9, 17.5, label, "on-bar"))
        left += extent
    shares = ", ".join(f"{phase} {fmt.percent(total / whole, 0)}" for phase, total in totals.items())
    return svg.picture(width, 26, f"Kernel time by phase: {shares}", "phase-bar", *parts)


def kernel_bars(bars: Sequence[KernelBar], width: float) -> Markup:
    """Draws the `MOST_BARS` slowest kernels, longest first; a bar is a link to the kernel's row."""
    slowest = sorted(bars, key=lambda bar: -bar.us)[:MOST_BARS]
    longest = slowest[0].us if slowest else 1.0
    label_width = min(230.0, width * 0.38)
    room = width - label_width - 74
    fits = int(label_width / 6.6)
    rows = [
        _bar_row(bar, 4 + i * ROW_HEIGHT, label_width, room * bar.us / longest, fits) for i, bar in enumerate(slowest)
    ]
    title = (
        f"The {fmt.plural(len(slowest), 'slowest kernel')}, median time of one call; each bar leads to its table row"
    )
    return svg.picture(width, 8 + ROW_HEIGHT * len(slowest), title, "kernel-bars", *rows, interactive=True)


def _bar_row(bar: KernelBar, top: float, label_width: float, extent: float, fits: int) -> Markup:
    short_name = bar.name if len(bar.name) <= fits else bar.name[: fits - 1] + "…"
    label = f"{bar.name}, {bar.phase}, {fmt.latency(bar.us / 1000)}"
    return svg.link(
        f"#{bar.anchor}",
        label,
        svg.rectangle(0, top, label_width + extent + 74, ROW_HEIGHT, "hit"),
        svg.text(label_width - 8, top + 14.5, short_name, "bar-label", "end"),
        svg.rectangle(label_width, top + 3.5, max(extent, 1.0), ROW_HEIGHT - 7, f"phase-{bar.phase}"),
        svg.text(label_width + extent + 6, top + 14.5, f"{fmt.latency(bar.us / 1000)}", "bar-value"),
    )
