"""What a run of mode sustained found: the curve of its step's time, when it slows down and by how much."""

from __future__ import annotations

from device_agents.figures.sustained import format_duration
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.sustained import SustainedSeries, beyond, sustained_plot, sustained_range
from service.dashboard.facts import RunFacts
from service.dashboard.parts import Fact, Figure, KeyFigure
from service.dashboard.tables import Column, Row, Table, table, thinned
from service.work.runs import sustained
from service.work.runs.sustained_views import SustainedView

COLUMNS = (
    Column("start_s", "From", "number", "s", 1, primary=True, hint="From the beginning of the first step"),
    Column("steps", "Steps", "number"),
    Column("median_us", "Median", "number", "\N{MICRO SIGN}s", 1),
    Column("p90_us", "p90", "number", "\N{MICRO SIGN}s", 1),
)
ENDS = {"time": "its time was over", "cut": "it was ended before"}


def found_in(found: RunFacts) -> SustainedView | None:
    """What the farm works out from the report; None of another mode."""
    report = found.report
    if report is None or report.sustained is None:
        return None
    return sustained.view(report.sustained, report.device_states)


def window_table(said: SustainedView) -> Table:
    """A row for each window."""
    rows = [Row(window.model_dump()) for window in said.windows]
    return table("windows", "Windows of the curve", COLUMNS, rows)


def sustained_figure(said: SustainedView, data_href: str) -> Figure:
    """The curve."""
    half_s = said.window_s / 2
    known = [(one.start_s + half_s, one) for one in said.windows]
    series = SustainedSeries(
        median_ms=tuple((at_s, one.median_us / 1000) for at_s, one in known if one.median_us is not None),
        p90_ms=tuple((at_s, one.p90_us / 1000) for at_s, one in known if one.p90_us is not None),
        lasted_s=said.lasted_s,
        onset_s=said.onset_s,
        throttled_s=said.throttled_s,
        says=said.says,
    )
    above = beyond(series)
    note = f"{said.says}. {fmt.plural(len(said.windows), 'window')} of {fmt.number(said.window_s, 1)} s."
    beyond_axis = f"The 90th percentile of {fmt.plural(above, 'window')} is above the axis" if above else ""
    return Figure(
        id="sustained-curve",
        title="Step time while it is sustained",
        note=note[0].upper() + note[1:],
        picture_note=f"{beyond_axis}." if above else "",
        live_note=f"{beyond_axis}: Show all has it too." if above else "",
        drawing=for_screens(lambda width: sustained_plot(series, width), FULL_WIDTH),
        table=thinned(window_table(said)),
        data_href=data_href,
        chart=_chart(series, f"{data_href}.json"),
    )


def _chart(series: SustainedSeries, source: str) -> Chart:
    """The same to zoom, in minutes; the files have a window's beginning, and so has this."""
    marks = ((series.onset_s, "slows down"), (series.throttled_s, "the board says throttled"))
    lines = (
        Line("p90", "ink-2", column="p90_us", factor=1e-3, is_dashed=True),
        Line("median", "series-1", column="median_us", factor=1e-3),
    )
    return Chart(
        lines,
        "minutes",
        "ms per step",
        source=source,
        x="start_s",
        x_factor=1 / 60,
        sync="run-time",
        marks=tuple((at_s / 60, label) for at_s, label in marks if at_s is not None),
        range_y=sustained_range(series),
    )


def sustained_figures(said: SustainedView) -> tuple[KeyFigure, ...]:
    """The step at first and over the last third, and the onset."""
    low, high = said.ratio_low, said.ratio_high
    reach = (
        "too few windows for an interval"
        if low is None or high is None
        else (f"{low:.3f} to {high:.3f}\N{MULTIPLICATION SIGN} (99%)")
    )
    onset = "none found" if said.onset_s is None else format_duration(said.onset_s)
    return (
        KeyFigure("Step at first", *fmt.latency_parts(said.first_us / 1000)),
        KeyFigure("Step sustained", *fmt.latency_parts(said.sustained_us / 1000), under="over the last third"),
        KeyFigure("Slower by", f"{said.ratio:.3f}", "\N{MULTIPLICATION SIGN}", reach),
        KeyFigure("Slows down after", onset, "", said.board_says),
        KeyFigure("Steps", fmt.number(said.steps), "", f"in {format_duration(said.lasted_s)}"),
    )


def sustained_facts(said: SustainedView) -> tuple[Fact, ...]:
    """Beside the other conditions."""
    return (
        Fact("Protocol", said.protocol),
        Fact("Ended", ENDS[said.ended]),
        Fact("Steps fill", fmt.percent(said.busy), hint="Of the time; the rest is between steps"),
        Fact("The board said", said.board_says or "nothing of throttling or of its clock"),
    )
