"""The memory plan's picture: each value of the arena as a box, from first to last use, at its planned bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale


@dataclass(frozen=True, slots=True)
class ArenaValue:
    """Bytes [offset, offset + size) held from kernel call `first` to `last`, both inclusive."""

    name: str
    offset_bytes: int
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """The arena of one training step. `phases` is the phase of each kernel call in order."""

    arena_bytes: int
    values: tuple[ArenaValue, ...]
    phases: tuple[str, ...]


def live_bytes(plan: ArenaPlan) -> tuple[int, ...]:
    """Returns the bytes in use at each kernel call: the sum of the values that live then."""
    calls = len(plan.phases)
    change = [0] * (calls + 1)
    for value in plan.values:
        change[min(max(value.first, 0), calls)] += value.size_bytes
        change[min(max(value.last + 1, 0), calls)] -= value.size_bytes
    live, total = [], 0
    for delta in change[:calls]:
        total += delta
        live.append(total)
    return tuple(live)


def arena_picture(plan: ArenaPlan, width: float, height: float = 340.0) -> Markup:
    """Draws kernel calls from left to right and bytes from bottom to top, with the phases marked above."""
    frame = Frame(width, height, top=42)
    unit, divisor = ("MiB", 1 << 20) if plan.arena_bytes >= 1 << 20 else ("KiB", 1 << 10)
    x = Scale(0, max(len(plan.phases), 1), *frame.x_range)
    y = nice_scale([0, plan.arena_bytes / divisor], *frame.y_range, from_zero=True)
    (left, right), (_, top) = frame.x_range, frame.y_range
    ceiling = y(plan.arena_bytes / divisor)
    parts = [axes(frame, x, y, "kernel call", unit)]
    parts.append(svg.group("values", *(_box(value, plan.phases, x, y, divisor) for value in plan.values)))
    parts.append(svg.line(left, ceiling, right, ceiling, "limit-line"))
    parts.append(svg.group("phase-strip", *_phase_strip(plan.phases, x, top)))
    title = f"Memory plan: {fmt.plural(len(plan.values), 'value')} in an arena of {fmt.size(plan.arena_bytes)} over \
{fmt.plural(len(plan.phases), 'kernel call')}"
    return svg.picture(width, height, title, "arena-picture", *parts)


def stretches(phases: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Returns stretches of equal phase as (phase, first call, call after the last)."""
    segments: list[tuple[str, int, int]] = []
    for index, phase in enumerate(phases):
        if segments and segments[-1][0] == phase:
            segments[-1] = (phase, segments[-1][1], index + 1)
        else:
            segments.append((phase, index, index + 1))
    return tuple(segments)


def _box(value: ArenaValue, phases: Sequence[str], x: Scale, y: Scale, divisor: int) -> Markup:
    upper = y((value.offset_bytes + value.size_bytes) / divisor)
    lower = y(value.offset_bytes / divisor)
    born = phases[value.first] if 0 <= value.first < len(phases) else "forward"
    title = f"{value.name}: {fmt.size(value.size_bytes)} at {value.offset_bytes:,}, calls {value.first} to {value.last}"
    width = x(value.last + 1) - x(value.first)
    return svg.rectangle(x(value.first), upper, max(width, 0.6), max(lower - upper, 0.4), f"value phase-{born}", title)


def _phase_strip(phases: Sequence[str], x: Scale, top: float) -> list[Markup]:
    parts = []
    for phase, first, after in stretches(phases):
        extent = x(after) - x(first)
        parts.append(svg.rectangle(x(first), top - 8, max(extent - 0.5, 0.5), 4, f"phase-{phase}"))
        if extent > 8 * len(phase):
            parts.append(svg.text(x(first) + 1, top - 12, phase, "tick"))
    return parts
