"""A device's condition as its agent reports it: free space, and the temperature over the last week."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.heat import heat_plot, stretches
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.facts import DeviceFacts
from service.dashboard.parts import Fact, Figure
from service.dashboard.tables import Column, Row, Table, table
from service.devices.conditions import temperatures
from service.store.database.memory import lasting_of
from service.store.database.models import QUARTER_S, DeviceCondition

COLUMNS = (
    Column("day", "Day", "number", digits=3, files_only=True, hint="Days since the first row"),
    Column("at", "When", "time", "UTC", primary=True, hint="The middle of a quarter of an hour"),
    Column("hottest_c", "Hottest", "number", "\N{DEGREE SIGN}C", 1),
)
DAY_S = 86_400.0
LEAST_POINTS = 2
SHOWN = 96
"""Number of rows in the table below the chart: a day."""
UNTOLD = "not told: its agent is older than that"


@dataclass(frozen=True, slots=True)
class HeatPart:
    """A chart; or why there is none."""

    figure: Figure | None
    why: str = ""


def condition_facts(condition: DeviceCondition | None, now: float) -> tuple[Fact, ...]:
    """Returns the condition that its agent told last, and when."""
    if condition is None:
        return (Fact("Storage", UNTOLD), Fact("Temperature", UNTOLD))
    moment = fmt.moment(now)
    when = f", {fmt.ago(condition.at, moment)}" if moment else ""
    room, heat = "not told", "not told: no sensor that its agent knows"
    if condition.storage_total_bytes is not None:
        room = f"{fmt.size(condition.storage_free_bytes)} of {fmt.size(condition.storage_total_bytes)} free{when}"
    if condition.temperature_c is not None:
        heat = f"{condition.temperature_c:.0f} \N{DEGREE SIGN}C{when}"
    facts = (Fact("Storage", room, hint="Of the file system where its agent keeps its work"), Fact("Temperature", heat))
    storage = Fact("Its agent keeps", fmt.size(condition.kept_bytes), hint="Results to be sent, checkpoints, programs")
    return (*facts, storage) if condition.kept_bytes is not None else facts


def heat_table(points: list[tuple[float, float]]) -> Table:
    """Returns a table of the hottest value in each quarter of an hour, the oldest first; an empty row where nothing was
    reported for longer.
    """
    rows: list[Row] = []
    for stretch in stretches(points):
        readings = [_row(points[0][0], at, heat_c) for at, heat_c in stretch]
        rows += [*readings, _row(points[0][0], stretch[-1][0] + QUARTER_S, None)]
    return table("temperatures", "How hot it was, by quarters of an hour", COLUMNS, rows[:-1])


def _row(first: float, at: float, heat_c: float | None) -> Row:
    return Row({"day": (at - first) / DAY_S, "at": fmt.iso(at), "hottest_c": heat_c})


def heat_part(session: Session, device: DeviceFacts, condition: DeviceCondition | None) -> HeatPart:
    """Returns the part with the device's temperature over the last week, between runs too."""
    points = temperatures(session, device.id)
    if len(points) < LEAST_POINTS:
        return HeatPart(None, _why_none(device, condition, len(points)))
    key = ("device heat", device.id, tuple(points))
    return HeatPart(lasting_of(session).recall(key, lambda: _figure(device, points), lambda figure: figure.size_bytes))


def _why_none(device: DeviceFacts, condition: DeviceCondition | None, count: int) -> str:
    if count:
        return "One quarter of an hour has been told so far: the chart begins with the second."
    if condition is None:
        return "Its agent has told no temperature: it is older than that, or has not asked for work yet. Its line of \
enrolment, run again, updates it."
    if condition.temperature_c is None:
        return f"Its agent finds no temperature sensor{_emulated(device)}."
    return "It has told no temperature in the last week."


def _emulated(device: DeviceFacts) -> str:
    return ": an emulated board has none" if device.measurement_class in ("emulated", "simulated") else ""


def _figure(device: DeviceFacts, points: list[tuple[float, float]]) -> Figure:
    whole, first = heat_table(points), points[0][0]
    days = (points[-1][0] - first) / DAY_S
    line = Line("hottest", "series-2", column="hottest_c")
    title = f"days since {fmt.clock(first)} UTC"
    source = f"{addresses.device(device.id)}/temperatures"
    chart = Chart((line,), title, "\N{DEGREE SIGN}C", source=f"{source}.json", x="day", range_x=(0.0, days), height=190)
    hottest_at, hottest_c = max(points, key=lambda point: point[1])
    note = f"The hottest that its agent told in each quarter of an hour, in runs and between them, of the last week. \
The hottest of all: {hottest_c:.1f} \N{DEGREE SIGN}C at {fmt.clock(hottest_at)} UTC."
    drawing = for_screens(lambda width: heat_plot(points, width), FULL_WIDTH)
    newest = table("temperatures", "Newest quarters of an hour", COLUMNS, list(whole.rows[: -SHOWN - 1 : -1]))
    return Figure("temperatures", "Temperature", drawing, note, table=newest, data_href=source, chart=chart)
