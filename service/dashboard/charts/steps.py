"""The step-latency plot: every measured step, its blocks, the median with its interval, and the 90th percentile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

MAX_POINTS = 700


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Step times in order. `block_sizes` says how many steps each process contributed. Units: ms."""

    step_ms: tuple[float, ...]
    block_sizes: tuple[int, ...]
    median_ms: float
    interval_ms: tuple[float, float] | None
    """Around the median; None of too few blocks."""
    p90_ms: float


def step_plot(series: StepSeries, width: float, height: float = 260.0) -> Markup:
    """Draws points over step number. Runs of more than `MAX_POINTS` steps show each stretch's fastest and slowest
    step.
    """
    frame = Frame(width, height, right=width * 0.09 + 34)
    x = Scale(0, max(len(series.step_ms), 1), *frame.x_range)
    y = Scale(*step_range(series), *frame.y_range)
    (left, right), (bottom, top) = frame.x_range, frame.y_range
    parts = [*_block_bands(series, x, top, bottom), axes(frame, x, y, "step", "ms per step")]
    if series.interval_ms:
        band_bottom, band_top = map(y, series.interval_ms)
        parts.append(svg.rectangle(left, band_top, right - left, max(band_bottom - band_top, 1.5), "interval-band"))
    parts.append(svg.group("points", *_points(series, x, y)))
    median_y, p90_y = y(series.median_ms), y(min(series.p90_ms, y.high))
    parts.append(svg.line(left, median_y, right, median_y, "median-line"))
    if p90_y < median_y - 1:
        parts.append(svg.line(left, p90_y, right, p90_y, "p90-line"))
    parts.append(svg.text(right + 6, max(median_y + 4, p90_y + 16), "median", "direct-label"))
    parts.append(svg.text(right + 6, p90_y + 4, "p90", "direct-label quiet"))
    title = (
        f"Step latency over {fmt.plural(len(series.step_ms), 'step')}: median "
        f"{fmt.latency(series.median_ms)}, "
        f"90th percentile {fmt.latency(series.p90_ms)}"
    )
    return svg.picture(width, height, title, "step-plot", *parts)


def step_range(series: StepSeries) -> tuple[float, float]:
    """Returns where the axis of times begins and ends, in ms, so that a few slow steps do not flatten all others."""
    top_ms = _ceiling(series)
    times = [value for value in series.step_ms if value <= top_ms]
    scale = nice_scale([*times, *(series.interval_ms or ())], 0, 1)
    return scale.low, scale.high


def outliers_above(series: StepSeries) -> int:
    """Returns how many steps lie above the plot's upper end (they are drawn on its edge)."""
    top_ms = _ceiling(series)
    return sum(1 for value in series.step_ms if value > top_ms)


def _ceiling(series: StepSeries) -> float:
    # One hiccup would flatten everything else: the axis ends a few spreads above the 90th percentile.
    high_ms = series.interval_ms[1] if series.interval_ms else 0.0
    return max(series.p90_ms + 4 * (series.p90_ms - series.median_ms), 1.05 * series.median_ms, high_ms)


def _block_bands(series: StepSeries, x: Scale, top: float, bottom: float) -> list[Markup]:
    if len(series.block_sizes) < 2:
        return []
    bands, start = [], 0
    for index, size in enumerate(series.block_sizes):
        if index % 2:
            bands.append(svg.rectangle(x(start), top, x(start + size) - x(start), bottom - top, "block-band"))
        start += size
    return bands


def _points(series: StepSeries, x: Scale, y: Scale) -> list[Markup]:
    ceiling = _ceiling(series)
    marks = []
    for index, value in _sampled(series.step_ms):
        beyond = value > ceiling
        title = f"step {index + 1}: {fmt.latency(value)}"
        marks.append(
            svg.circle(x(index + 0.5), y(y.high if beyond else value), 2.4, "beyond" if beyond else "point", title)
        )
    return marks


def _sampled(values: Sequence[float]) -> list[tuple[int, float]]:
    if len(values) <= MAX_POINTS:
        return list(enumerate(values))
    stretch = -(-2 * len(values) // MAX_POINTS)
    extremes: set[int] = set()
    for start in range(0, len(values), stretch):
        indices = range(start, min(start + stretch, len(values)))
        extremes.update((min(indices, key=values.__getitem__), max(indices, key=values.__getitem__)))
    return [(index, values[index]) for index in sorted(extremes)]
