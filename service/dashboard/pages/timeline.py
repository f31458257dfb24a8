"""A run over time: what its steps took, and below it what its device was like, all on one axis of time.

A report tells when the device was looked at, and what each step took, but not when each step was made. Of a sustained
run windows have their moments. Of another one the processes are taken to share its time evenly, and the steps of each
to be its end: loading and warming up come before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from device_agents.wire import DeviceState, Report
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.health import StateSeries, state_plot
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.parts import Figure
from service.dashboard.tables import Column, Row, Table, table

SYNC = "run-time"
"""Charts of a run that share their time."""
STRIP_HEIGHT = 140
MINUTE_S = 60.0
COLUMNS = (
    Column("second", "Time", "number", "s", 3, primary=True, hint="From the first look at the device"),
    Column("step", "Step", "number"),
    Column("step_ms", "Step time", "number", "ms", fits=True),
)


@dataclass(frozen=True, slots=True)
class Sensor:
    """A strip of the timeline: a field of the device's states, its column in the table of states, and what a unit of it
    is.
    """

    field: str
    column: str
    title: str
    unit: str
    factor: float
    ink: str


SENSORS = (
    Sensor("temperature_c", "temperature_c", "Temperature", "°C", 1.0, "series-2"),
    Sensor("frequency_hz", "frequency_mhz", "Clock", "MHz", 1e-6, "series-3"),
    Sensor("power_mw", "power_mw", "Power", "mW", 1.0, "series-4"),
    Sensor("load", "load_cores", "Other load", "cores", 1.0, "ink-2"),
)


def moments(report: Report) -> Iterator[tuple[float, float]]:
    """Yields (seconds since the first look at the device, ms) of every step whose moment can be determined."""
    measured, states = report.measurement, report.device_states
    if measured is None or not states:
        return
    blocks = [block.step_us for block in measured.blocks if block.step_us] or [measured.step_us]
    start = report.started_at + report.transfer_s - states[0].at
    each_s = report.run_s / len(blocks)
    at = start
    for number, step_us in enumerate(blocks, start=1):
        at = max(at, start + number * each_s - sum(step_us) / 1e6)
        for us in step_us:
            at += us / 1e6
            yield at, us / 1000


def moment_table(report: Report) -> Table:
    """Returns a table of every step with its moment."""
    rows = [Row({"second": at, "step": step, "step_ms": ms}) for step, (at, ms) in enumerate(moments(report), start=1)]
    return table("moments", "Steps over time", COLUMNS, rows)


def timeline(report: Report, here: str) -> tuple[Figure, ...]:
    """Returns the strips, steps first, then each sensor that gave at least two values; none without a look at the
    device.
    """
    states = report.device_states
    if len(states) < 2:
        return ()
    points = tuple(moments(report))
    lasted_s = max(states[-1].at - states[0].at, points[-1][0] if points else 0.0)
    sensors = [strip for sensor in SENSORS if (strip := _sensor(report, sensor, lasted_s, f"{here}/state.json"))]
    if not points:
        return tuple(sensors)
    series = StateSeries("Step time", "ms", points, kind="dots")
    line = Line("step time", "series-1", column="step_ms", kind="dots")
    return _strip("state-steps", series, lasted_s, _chart(line, series, lasted_s, f"{here}/moments.json")), *sensors


def _sensor(report: Report, sensor: Sensor, lasted_s: float, source: str) -> Figure | None:
    points = tuple(_values(report.device_states, sensor))
    if len(points) < 2:
        return None
    series = StateSeries(sensor.title, sensor.unit, points)
    chart = _chart(Line(sensor.title.lower(), sensor.ink, column=sensor.column), series, lasted_s, source)
    if report.sustained is None:
        return _strip(f"state-{sensor.field}", series, lasted_s, chart)
    return _strip(f"state-{sensor.field}", series, lasted_s, _in_minutes(chart, report))


def _values(states: tuple[DeviceState, ...], sensor: Sensor) -> Iterator[tuple[float, float]]:
    for state in states:
        value = getattr(state, sensor.field)
        if value is not None:
            yield state.at - states[0].at, value * sensor.factor


def _chart(line: Line, series: StateSeries, lasted_s: float, source: str) -> Chart:
    title = f"{series.title}, {series.unit}"
    return Chart(
        (line,),
        "seconds",
        title,
        source=source,
        x="second",
        sync=SYNC,
        height=STRIP_HEIGHT,
        has_tools=line.column == "step_ms",
        range_x=(0.0, lasted_s),
    )


def _in_minutes(chart: Chart, report: Report) -> Chart:
    """Returns the chart in minutes from the first step on, like the curve of the windows above it."""
    assert report.sustained is not None
    shift = report.device_states[0].at - report.sustained.began_at
    last = (report.device_states[-1].at - report.sustained.began_at) / MINUTE_S
    return Chart(
        chart.lines,
        "minutes",
        chart.y_title,
        source=chart.source,
        x=chart.x,
        x_factor=1 / MINUTE_S,
        x_shift=shift,
        sync=SYNC,
        height=STRIP_HEIGHT,
        has_tools=False,
        range_x=(0.0, last),
    )


def _strip(name: str, series: StateSeries, lasted_s: float, chart: Chart) -> Figure:
    drawing = for_screens(lambda width: state_plot(series, width, STRIP_HEIGHT, lasted_s=lasted_s), FULL_WIDTH)
    return Figure(name, f"{series.title}, {series.unit}", drawing, chart=chart)


def timeline_note(report: Report) -> str:
    """Explains the axis, and how steps came to stand on it."""
    states = report.device_states
    note = f"{fmt.plural(len(states), 'look')} at the device in {fmt.duration(states[-1].at - states[0].at)}."
    if report.measurement is None:
        return note
    return (
        f"{note} The report tells no moment of a step: each process's steps stand at the end of its share of the run."
    )
