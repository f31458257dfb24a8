"""Two to four runs beside each other: figures with intervals, and why some of them are not comparable.

Compared runs kernel by kernel: what each took, and the difference to the first run.

A kernel's time is the median of one profiling pass, without an interval: how noisy it is, is not known. So nothing here
says which kernel is faster, and no row is marked; and where the runs' times are not comparable, there is no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from device_agents.figures.digits import DIGITS, LOSS_DIGITS
from device_agents.figures.separate_runs import silence
from device_agents.wire import KernelTime
from service.base.problems import Invalid
from service.dashboard import addresses, queries
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH, for_screens
from service.dashboard.charts.curve import Curve, loss_plot
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.intervals import Interval, interval_plot
from service.dashboard.comparison import (
    Obstacle,
    Quantity,
    Variations,
    comparable,
    letter,
    obstacles,
    of_device,
    time_difference,
)
from service.dashboard.facts import RunFacts
from service.dashboard.measured import pickable
from service.dashboard.parts import Figure, Filter
from service.dashboard.tables import Column, Row, Table, Value, table
from service.work.runs.variation import variations

Key = tuple[str, str]
"""(name, phase): what a kernel of one run is known by in another."""
MOST_ROWS = 200
WORDS = (
    "Each time is the median of one profiling pass, whose noise is not known: a difference here is where to look, not "
    "a finding. Kernels that one plan has and another has not have no difference."
)


def kernel_differences(runs: Sequence[RunFacts]) -> Table | None:
    """Returns a table with a row for each kernel, the largest difference first; None unless two runs or more have times
    by kernel.
    """
    times = [_times(run.report.kernels if run.report else ()) for run in runs]
    if sum(1 for run_times in times if run_times) < 2:
        return None
    columns = [Column("kernel", "Kernel", primary=True), Column("phase", "Phase", sortable=True, wide_only=True)]
    for place, _ in enumerate(runs):
        columns.append(Column(f"{letter(place)}_us", letter(place), "number", "µs", fits=True, sortable=True))
        if place:
            hint = f"What it takes longer in {letter(place)} than in A; negative: shorter"
            columns.append(
                Column(
                    f"{letter(place)}_more_us",
                    f"{letter(place)} − A",
                    "number",
                    "µs",
                    fits=True,
                    is_difference=True,
                    sortable=True,
                    hint=hint,
                )
            )
    keys = list(dict.fromkeys(key for run_times in times for key in run_times))
    rows = sorted((_row(key, times) for key in keys), key=_size, reverse=True)
    return table("kernels", "Kernel by kernel", columns, rows)


def visible_table(table: Table | None) -> Table | None:
    """Returns the table as a page shows it, with the largest differences only."""
    if table is None or len(table.rows) <= MOST_ROWS:
        return table
    caption = f"{table.caption}: the {MOST_ROWS} largest differences of {len(table.rows):,} (the files have all)"
    return replace(table, caption=caption, rows=table.rows[:MOST_ROWS])


def _times(kernels: Sequence[KernelTime]) -> Mapping[Key, float]:
    """Returns the microseconds by kernel; calls of one name and phase together."""
    totals: dict[Key, float] = {}
    for kernel in kernels:
        key = (kernel.name, kernel.phase)
        totals[key] = totals.get(key, 0.0) + kernel.us
    return totals


def _row(key: Key, times: Sequence[Mapping[Key, float]]) -> Row:
    values: dict[str, Value] = {"kernel": key[0], "phase": key[1]}
    first = times[0].get(key)
    for place, run_times in enumerate(times):
        us = run_times.get(key)
        values[f"{letter(place)}_us"] = us
        if place:
            values[f"{letter(place)}_more_us"] = None if us is None or first is None else us - first
    return Row(values, mark=f"phase-{key[1]}")


def _size(row: Row) -> float:
    more = [abs(value) for key, value in row.values.items() if key.endswith("_more_us") and isinstance(value, float)]
    return max(more, default=-1.0)


LEAST, MOST = 2, 4
UNKNOWN_NOISE = ("p90_ms", "energy_mj", "peak_rss_mib")
"""Columns of which nobody knows how they vary from run to run: no difference in them is claimed, and none is marked."""
PICKABLE = 100


@dataclass(frozen=True, slots=True)
class Metric:
    """A line of the comparison. `lower_is_better` is None for a metric that is neither."""

    key: str
    title: str
    unit: str
    digits: int
    quantity: Quantity
    lower_is_better: bool | None
    significant: int = 0
    """Digits in all, instead of `digits` after the point; 0: not."""

    @property
    def fits(self) -> bool:
        """Whether the page writes each value in the unit that fits it."""
        return self.unit in ("ms", "MiB")


METRICS: tuple[Metric, ...] = (
    Metric("median_ms", "Step median", "ms", 0, "time", True),
    Metric("low_ms", "95% interval, low", "ms", 0, "time", None),
    Metric("high_ms", "95% interval, high", "ms", 0, "time", None),
    Metric("p90_ms", "Step p90", "ms", 0, "time", True),
    Metric("samples_per_second", "Throughput", "1/s", 1, "time", False, DIGITS),
    Metric("arena_mib", "Arena", "MiB", 2, "memory", True),
    Metric("peak_rss_mib", "Peak RSS", "MiB", 2, "memory", True),
    Metric("bundle_mib", "Bundle", "MiB", 2, "memory", True),
    Metric("energy_mj", "Energy per step", "mJ", 1, "energy", True),
    Metric("final_loss", "Final loss", "", 4, "loss", True, LOSS_DIGITS),
    Metric("accuracy_percent", "Accuracy after", "%", 1, "loss", False),
)
QUANTITY_TITLES: tuple[tuple[Quantity, str], ...] = (
    ("time", "Time"),
    ("memory", "Memory"),
    ("energy", "Energy"),
    ("loss", "Loss"),
)


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A metric over the runs: the text of each cell, and below it the difference to run A."""

    title: str
    unit: str
    cells: tuple[tuple[str, str, bool], ...]
    """(value, difference, whether it is the best of comparable ones)."""


@dataclass(frozen=True, slots=True)
class Section:
    """The metrics of one quantity, with the reasons against comparing it."""

    title: str
    reasons: tuple[str, ...]
    lines: tuple[MetricLine, ...]
    notes: tuple[str, ...] = ()
    """Why no more can be said of what is comparable."""


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The chosen runs, or what is needed to choose some."""

    runs: tuple[RunFacts, ...]
    letters: tuple[str, ...]
    sections: tuple[Section, ...]
    time: Figure | None
    loss: Figure | None
    steps: Figure | None
    kernels: Table | None
    kernel_words: str
    pickers: tuple[Filter, ...]
    unknown: tuple[str, ...]
    query: tuple[tuple[str, str], ...]


def compare_page(session: Session, run_ids: Sequence[str]) -> ComparePage:
    """Returns the page with the runs of these ids, in the given order, and with the ids that are unknown. Raises:
    Invalid for too many.
    """
    distinct = list(dict.fromkeys(run_id for run_id in run_ids if run_id))
    if len(distinct) > MOST:
        raise Invalid(
            "query.value",
            f"{len(distinct)} runs are too many to stand beside each other",
            where="run",
            hint=f"choose {LEAST} to {MOST}: two groups of them are two pages",
        )
    pairs = [(run_id, queries.run(session, run_id)) for run_id in distinct]
    runs = tuple(entry for _, entry in pairs if entry is not None)
    against = obstacles(runs) if len(runs) >= LEAST else ()
    is_timed = comparable("time", against) and sum(run.has_interval for run in runs) >= LEAST
    loss = _loss_figure(runs, HALF_WIDTH if is_timed else FULL_WIDTH)
    variability = variations(session, {run.device_id for run in runs if run.device_id}, judged=[run.id for run in runs])
    return ComparePage(
        runs=runs,
        letters=tuple(letter(index) for index in range(len(runs))),
        sections=_sections(runs, against, variability) if len(runs) >= LEAST else (),
        time=_time_figure(runs, HALF_WIDTH if loss else FULL_WIDTH) if is_timed else None,
        loss=loss,
        steps=_steps_figure(runs) if is_timed else None,
        kernels=visible_table(kernels_of(runs)),
        kernel_words=WORDS,
        pickers=_pickers(session, distinct),
        unknown=tuple(run_id for run_id, entry in pairs if entry is None),
        query=tuple(("run", entry.id) for entry in runs),
    )


def kernels_of(runs: Sequence[RunFacts]) -> Table | None:
    """Compares the runs kernel by kernel; None where their times are not comparable."""
    is_timed = len(runs) >= LEAST and comparable("time", obstacles(runs))
    return kernel_differences(runs) if is_timed else None


def compare_table(runs: Sequence[RunFacts]) -> Table:
    """Metrics as rows, runs as columns, raw values; a last column says whether they are comparable."""
    against = obstacles(runs) if len(runs) >= LEAST else ()
    columns = [Column("metric", "Metric", primary=True), Column("unit", "Unit")]
    columns += [Column(letter(i), f"{letter(i)}: {entry.title}", "number", "", 4) for i, entry in enumerate(runs)]
    columns.append(Column("not_comparable", "Not comparable because"))
    rows = [Row({"metric": "run", **{letter(i): entry.id for i, entry in enumerate(runs)}})]
    for metric in METRICS:
        reasons = [obstacle.reason for obstacle in against if obstacle.quantity == metric.quantity]
        values: dict[str, Value] = {"metric": metric.key, "unit": metric.unit}
        values |= {letter(i): metric_value(entry, metric.key) for i, entry in enumerate(runs)}
        rows.append(Row({**values, "not_comparable": "; ".join(reasons) or None}))
    return table("compare", "Comparison", columns, rows)


def metric_value(entry: RunFacts, key: str) -> float | None:
    """Returns a figure of a run in the metric's unit."""
    interval = entry.interval_ms
    values = {
        "median_ms": entry.median_ms,
        "low_ms": interval[0] if interval else None,
        "high_ms": interval[1] if interval else None,
        "p90_ms": entry.p90_ms,
        "samples_per_second": entry.samples_per_second,
        "arena_mib": fmt.mebibytes(entry.arena_bytes),
        "peak_rss_mib": fmt.mebibytes(entry.peak_rss_bytes),
        "bundle_mib": fmt.mebibytes(entry.bundle_bytes),
        "energy_mj": entry.energy_mj,
        "final_loss": entry.final_loss,
        "accuracy_percent": None if entry.accuracy_after is None else 100 * entry.accuracy_after,
    }
    return values[key]


def _sections(runs: Sequence[RunFacts], against: Sequence[Obstacle], variations: Variations) -> tuple[Section, ...]:
    sections = []
    for quantity, title in QUANTITY_TITLES:
        reasons = tuple(obstacle.reason for obstacle in against if obstacle.quantity == quantity)
        lines = tuple(_line(metric, runs, not reasons, variations) for metric in METRICS if metric.quantity == quantity)
        notes = _notes(runs, variations) if quantity == "time" and not reasons else ()
        sections.append(Section(title, reasons, tuple(line for line in lines if _has_value(line)), notes))
    return tuple(section for section in sections if section.lines)


def _notes(runs: Sequence[RunFacts], variations: Variations) -> tuple[str, ...]:
    """Why it cannot be told of some runs which is faster."""
    names: dict[str, list[str]] = {}
    for index, run in enumerate(runs):
        names.setdefault(silence(of_device(run, variations)), []).append(letter(index))
    return tuple(f"{', '.join(of)}: {reason}" for reason, of in names.items() if reason)


def _has_value(line: MetricLine) -> bool:
    return any(value != fmt.ABSENT for value, _, _ in line.cells)


def _line(metric: Metric, runs: Sequence[RunFacts], is_comparable: bool, variations: Variations) -> MetricLine:
    values = [metric_value(entry, metric.key) for entry in runs]
    best = _best(metric, runs, values, variations) if is_comparable else None
    cells = []
    for index, (entry, value) in enumerate(zip(runs, values, strict=True)):
        difference = (
            _difference(metric, (runs[0], entry), (values[0], value), variations) if index and is_comparable else ""
        )
        cells.append((_shown(metric, value), difference, value is not None and value == best))
    return MetricLine(metric.title, "" if metric.fits else metric.unit, tuple(cells))


def _shown(metric: Metric, value: float | None) -> str:
    if metric.unit == "MiB":
        return fmt.size(None if value is None else value * fmt.MIB)
    if metric.fits:
        return fmt.latency(value)
    return fmt.rounded(value, metric.significant) if metric.significant else fmt.number(value, metric.digits)


def _best(
    metric: Metric, runs: Sequence[RunFacts], values: Sequence[float | None], variations: Variations
) -> float | None:
    """Returns the value that is marked. Noise makes none the best: a time is marked if its run is likely faster than
    each of the others, and nothing is marked in the columns of `UNKNOWN_NOISE`.
    """
    present = [value for value in values if value is not None]
    if metric.lower_is_better is None or metric.key in UNKNOWN_NOISE or len(set(present)) < 2:
        return None
    best = min(present) if metric.lower_is_better else max(present)
    run = runs[values.index(best)]
    others = [time_difference(run, other, variations) for other in runs if other is not run]
    is_fastest = all(other is not None and other.is_likely and other.ratio > 1 for other in others)
    return best if metric.quantity != "time" or is_fastest else None


def _difference(
    metric: Metric, runs: tuple[RunFacts, RunFacts], values: tuple[float | None, float | None], variations: Variations
) -> str:
    """Describes the difference of the second run to the first."""
    (base, entry), (base_value, value) = runs, values
    if metric.lower_is_better is None or not base_value or value is None:
        return ""
    if metric.key == "median_ms":
        difference = time_difference(base, entry, variations)
        return difference.words if difference else ""
    if metric.quantity == "time" or metric.key in UNKNOWN_NOISE:
        return ""
    return "same" if value == base_value else fmt.signed_percent(value / base_value - 1)


def _time_figure(runs: Sequence[RunFacts], wide: float) -> Figure:
    intervals = [
        Interval(letter(index), entry.median_ms, entry.interval_ms[0], entry.interval_ms[1])
        for index, entry in enumerate(runs)
        if entry.median_ms is not None and entry.interval_ms is not None
    ]
    drawing = for_screens(lambda width: interval_plot(intervals, width), wide)
    return Figure("times", "Step time", drawing, "Median of block medians with its 95% interval.", _legend(runs))


def _loss_figure(runs: Sequence[RunFacts], wide: float) -> Figure | None:
    curves = [
        Curve(letter(index), entry.report.losses if entry.report and entry.mode == "train" else ())
        for index, entry in enumerate(runs)
    ]
    if sum(1 for curve in curves if any(loss is not None for loss in curve.losses)) < LEAST:
        return None
    drawing = for_screens(lambda width: loss_plot(curves, width), wide)
    lines = [
        Line(
            letter(place),
            f"series-{place + 1}",
            column="loss",
            source=f"{addresses.run(entry.id)}/losses.json",
            is_smoothed=True,
            is_dashed=place % 2 == 1,
        )
        for place, entry in enumerate(runs)
        if entry.mode == "train" and entry.report and entry.report.losses
    ]
    finite = [loss for curve in curves for loss in curve.losses if loss is not None]
    chart = Chart(tuple(lines), "step", "loss", x="step", can_be_log=min(finite) > 0)
    note = "Lines differ in colour and in dashes."
    return Figure("losses", "Loss", drawing, picture_note=note, legend=_legend(runs), chart=chart)


def _steps_figure(runs: Sequence[RunFacts]) -> Figure:
    """Draws every step of each run, for runs whose times are comparable."""
    measured = [(place, entry) for place, entry in enumerate(runs) if entry.report and entry.report.measurement]
    curves = [Curve(letter(place), _step_ms(entry)) for place, entry in measured]
    lines = [
        Line(
            letter(place),
            f"series-{place + 1}",
            column="step_us",
            factor=1e-3,
            kind="dots",
            source=f"{addresses.run(entry.id)}/steps.json",
        )
        for place, entry in measured
    ]
    chart = Chart(tuple(lines), "step", "ms per step", x="step", can_be_log=True)
    drawing = for_screens(lambda width: loss_plot(curves, width, what=("ms per step", "Step time")), FULL_WIDTH)
    note = "Every measured step. Whether one run is likely faster is said in the table above, by intervals."
    return Figure("step-times", "Step latency", drawing, note, _legend(runs), chart=chart)


def _step_ms(entry: RunFacts) -> tuple[float, ...]:
    measured = entry.report.measurement if entry.report else None
    return tuple(us / 1000 for us in measured.step_us) if measured else ()


def _legend(runs: Sequence[RunFacts]) -> tuple[tuple[str, str], ...]:
    return tuple((f"series-{index + 1}", letter(index)) for index, _ in enumerate(runs))


def _pickers(session: Session, run_ids: Sequence[str]) -> tuple[Filter, ...]:
    options = pickable(session, PICKABLE)
    listed = {value for value, _ in options}
    extra = tuple((run_id, run_id) for run_id in run_ids if run_id not in listed)
    chosen = [*run_ids, *[""] * MOST][:MOST]
    return tuple(Filter("run", f"Run {letter(i)}", run_id, (*options, *extra)) for i, run_id in enumerate(chosen))
