"""The charts of one run's page, each with its data as a table."""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.wire import DeviceState, KernelTime, Measurement
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH, for_screens
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.kernels import MOST_BARS, KernelBar, kernel_bars, phase_bar, phase_totals
from service.dashboard.charts.steps import StepSeries, outliers_above, step_plot, step_range
from service.dashboard.pages.roofline import Roof
from service.dashboard.parts import Figure
from service.dashboard.tables import Column, Row, Table, Value, table

PHASE_LEGEND = (("phase-forward", "forward"), ("phase-backward", "backward"), ("phase-update", "update"))
KERNEL_COLUMNS: tuple[Column, ...] = (
    Column("call", "Call", "number", sortable=True, hint="Position in the step"),
    Column("kernel", "Kernel", sortable=True, primary=True),
    Column("phase", "Phase", sortable=True),
    Column("time_us", "Median", "number", "µs", fits=True, sortable=True, hint="Median time of one call"),
    Column("share_percent", "Share", "number", "%", 1, sortable=True, hint="Of all kernels' time"),
    Column("mflop", "Work", "number", "MFLOP", 2, sortable=True),
    Column("gflop_per_s", "Rate", "number", "GFLOP/s", 2, sortable=True),
    Column("read_kib", "Read", "number", "KiB", 1, sortable=True),
    Column("written_kib", "Written", "number", "KiB", 1, sortable=True),
    Column("gib_per_s", "Traffic", "number", "GiB/s", 2, sortable=True, hint="Bytes read and written over time"),
    Column("flop_per_byte", "Intensity", "number", "FLOP/B", 3, files_only=True),
    Column(
        "roof_percent",
        "Of roof",
        "number",
        "%",
        0,
        sortable=True,
        hint="Of the roof that the roofline explains",
    ),
)
STEP_COLUMNS = (
    Column("step", "Step", "number", primary=True),
    Column("block", "Block", "number", hint="Which process of the measurement"),
    Column("step_us", "Time", "number", "µs", fits=True),
)
BLOCK_COLUMNS = (
    Column("block", "Block", "number", primary=True),
    Column("steps", "Steps", "number"),
    Column("median_ms", "Median", "number", "ms", fits=True),
    Column("fastest_ms", "Fastest", "number", "ms", fits=True),
    Column("slowest_ms", "Slowest", "number", "ms", fits=True),
    Column("load_ms", "Load", "number", "ms", fits=True, hint="From the start of the process until it was ready"),
)
STATE_COLUMNS = (
    Column("second", "Time", "number", "s", 2, primary=True),
    Column("temperature_c", "Temperature", "number", "°C", 1),
    Column("frequency_mhz", "Frequency", "number", "MHz", 0),
    Column("throttled", "Throttled"),
    Column("power_mw", "Power", "number", "mW", 0),
    Column("load_cores", "Other load", "number", "cores", 2),
)


def kernel_table(kernels: Sequence[KernelTime], roof: Roof | None, sort: str = "") -> Table:
    """Returns a table of every kernel call of a step, in order or sorted. Each row has an id to which the bars link."""
    whole = sum(kernel.us for kernel in kernels) or 1.0
    rows = [_kernel_row(kernel, whole, roof) for kernel in kernels]
    return table("kernels", "Kernels of one step", KERNEL_COLUMNS, rows).sorted_by(sort)


def kernel_figures(kernels: Sequence[KernelTime]) -> tuple[Figure, ...]:
    """Returns one figure with the time by phase and the slowest kernels; none without per-kernel times."""
    if not kernels:
        return ()
    bars = [KernelBar(kernel.name, kernel.phase, kernel.us, _anchor(kernel)) for kernel in kernels]
    totals = phase_totals(bars)
    spent = ", ".join(f"{phase} {fmt.latency(total / 1000)}" for phase, total in totals.items())
    drawing = for_screens(lambda width: phase_bar(bars, width), FULL_WIDTH) + for_screens(
        lambda width: kernel_bars(bars, width), FULL_WIDTH
    )
    count = f"the {MOST_BARS} slowest of {len(bars):,} calls" if len(bars) > MOST_BARS else "every call"
    note = f"{spent}. Below, {count}; a bar leads to its row of the table."
    return (Figure("kernel-times", "Time by kernel", drawing, note, PHASE_LEGEND),)


def step_table(measured: Measurement) -> Table:
    """Returns a table of every measured step."""
    rows, number = [], 0
    sizes = [len(block.step_us) for block in measured.blocks] or [len(measured.step_us)]
    samples = iter(measured.step_us)
    for block, size in enumerate(sizes, start=1):
        for value, _ in zip(samples, range(size), strict=False):
            number += 1
            rows.append(Row({"step": number, "block": block, "step_us": value}))
    return table("steps", "Measured steps", STEP_COLUMNS, rows)


def block_table(measured: Measurement) -> Table:
    """Makes one row per process of the measurement."""
    rows = [
        Row(
            {
                "block": index,
                "steps": len(block.step_us),
                "median_ms": fmt.milliseconds(_median(block.step_us)),
                "fastest_ms": fmt.milliseconds(min(block.step_us, default=None)),
                "slowest_ms": fmt.milliseconds(max(block.step_us, default=None)),
                "load_ms": fmt.milliseconds(block.load_us),
            }
        )
        for index, block in enumerate(measured.blocks, start=1)
    ]
    return table("blocks", "Blocks of the measurement", BLOCK_COLUMNS, rows)


def step_figure(
    measured: Measurement, interval_ms: tuple[float, float] | None, data_href: str, width: float = HALF_WIDTH
) -> Figure:
    """Draws the latency of every step, in order. `width` is that of a wide screen's column."""
    series = StepSeries(
        step_ms=tuple(value / 1000 for value in measured.step_us),
        block_sizes=tuple(len(block.step_us) for block in measured.blocks),
        median_ms=measured.median_us / 1000,
        interval_ms=interval_ms,
        p90_ms=measured.p90_us / 1000,
    )
    above = outliers_above(series)
    note = f"{fmt.plural(len(series.step_ms), 'step')} in {fmt.plural(len(measured.blocks), 'block')}."
    beyond = f"{fmt.plural(above, 'step')} above the axis" if above else ""
    in_picture = ["Every other block is shaded."] if len(measured.blocks) > 1 else []
    in_picture += [f"{beyond}, hollow at its upper edge."] if above else []
    return Figure(
        id="step-latency",
        title="Step latency",
        note=note,
        picture_note=" ".join(in_picture),
        live_note=f"{beyond}: Show all has them too." if above else "",
        drawing=for_screens(lambda width: step_plot(series, width), width),
        table=block_table(measured),
        data_href=data_href,
        chart=_step_chart(series, f"{data_href}.json"),
    )


def _step_chart(series: StepSeries, source: str) -> Chart:
    """Returns the chart of every step, with the median and its interval, and with the 90th percentile."""
    last = float(max(len(series.step_ms), 1))
    levels = [("median", "ink", series.median_ms, False), ("p90", "ink-2", series.p90_ms, True)]
    if series.interval_ms:
        low, high = series.interval_ms
        levels += [("interval, upper end", "accent", high, True), ("interval, lower end", "accent", low, True)]
    steps = Line("step time", "series-1", column="step_us", factor=1e-3, kind="dots")
    lines = [Line(label, ink, points=((1.0, ms), (last, ms)), is_dashed=dashed) for label, ink, ms, dashed in levels]
    return Chart(
        (steps, *lines),
        "step",
        "ms per step",
        source=source,
        x="step",
        can_be_log=True,
        band=(3, 4) if series.interval_ms else None,
        range_y=step_range(series),
    )


def state_table(states: Sequence[DeviceState]) -> Table:
    """Returns a table of every sample of the board's state."""
    start = states[0].at if states else 0.0
    rows = [
        Row(
            {
                "second": state.at - start,
                "temperature_c": state.temperature_c,
                "frequency_mhz": None if state.frequency_hz is None else state.frequency_hz / 1e6,
                "throttled": None if state.throttled is None else ("yes" if state.throttled else "no"),
                "power_mw": state.power_mw,
                "load_cores": state.load,
            }
        )
        for state in states
    ]
    return table("state", "State of the device during the run", STATE_COLUMNS, rows)


def _kernel_row(kernel: KernelTime, whole_us: float, roof: Roof | None) -> Row:
    seconds = kernel.us / 1e6
    moved = kernel.bytes_read + kernel.bytes_written
    values: dict[str, Value] = {
        "call": kernel.index,
        "kernel": kernel.name,
        "phase": kernel.phase,
        "time_us": kernel.us,
        "share_percent": 100 * kernel.us / whole_us,
        "mflop": kernel.flops / 1e6,
        "gflop_per_s": kernel.flops / 1e9 / seconds if seconds > 0 else None,
        "read_kib": kernel.bytes_read / 1024,
        "written_kib": kernel.bytes_written / 1024,
        "gib_per_s": moved / (1 << 30) / seconds if seconds > 0 else None,
        "flop_per_byte": kernel.flops / moved if moved else None,
        "roof_percent": roof.percent(kernel) if roof else None,
    }
    return Row(values, anchor=_anchor(kernel), mark=f"phase-{kernel.phase}")


def _anchor(kernel: KernelTime) -> str:
    return f"kernel-{kernel.index}"


def _median(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
