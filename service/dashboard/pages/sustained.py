"""The findings of a run of mode sustained: the curve of its step's time, when it slows down and by how much."""

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


def sustained_view(run: RunFacts) -> SustainedView | None:
    """Returns what the farm works out from the report; None for another mode."""
    report = run.report
    if report is None or report.sustained is None:
        return None
    return sustained.view(report.sustained, report.device_states)


def window_table(sustained: SustainedView) -> Table:
    """Returns a table with a row for each window."""
    rows = [Row(window.model_dump()) for window in sustained.windows]
    return table("windows", "Windows of the curve", COLUMNS, rows)


def sustained_figure(sustained: SustainedView, data_href: str) -> Figure:
    """Draws the curve."""
    half_s = sustained.window_s / 2
    windows = [(window.start_s + half_s, window) for window in sustained.windows]
    series = SustainedSeries(
        median_ms=tuple((at_s, window.median_us / 1000) for at_s, window in windows if window.median_us is not None),
        p90_ms=tuple((at_s, window.p90_us / 1000) for at_s, window in windows if window.p90_us is not None),
        lasted_s=sustained.lasted_s,
        onset_s=sustained.onset_s,
        throttled_s=sustained.throttled_s,
        message=sustained.message,
    )
    above = beyond(series)
    note = (
        f"{sustained.message}. {fmt.plural(len(sustained.windows), 'window')} of {fmt.number(sustained.window_s, 1)} s."
    )
    beyond_axis = f"The 90th percentile of {fmt.plural(above, 'window')} is above the axis" if above else ""
    return Figure(
        id="sustained-curve",
        title="Step time while it is sustained",
        note=note[0].upper() + note[1:],
        picture_note=f"{beyond_axis}." if above else "",
        live_note=f"{beyond_axis}: Show all has it too." if above else "",
        drawing=for_screens(lambda width: sustained_plot(series, width), FULL_WIDTH),
        table=thinned(window_table(sustained)),
        data_href=data_href,
        chart=_chart(series, f"{data_href}.json"),
    )


def _chart(series: SustainedSeries, source: str) -> Chart:
    """Returns the same as a chart that can be zoomed, in minutes. Its points are at the beginning of their windows, as
    in the files.
    """
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


def sustained_figures(sustained: SustainedView) -> tuple[KeyFigure, ...]:
    """Returns figures of the step time at first and over the last third, and of the onset."""
    low, high = sustained.ratio_low, sustained.ratio_high
    reach = (
        "too few windows for an interval"
        if low is None or high is None
        else (f"{low:.3f} to {high:.3f}\N{MULTIPLICATION SIGN} (99%)")
    )
    onset = "none found" if sustained.onset_s is None else format_duration(sustained.onset_s)
    return (
        KeyFigure("Step at first", *fmt.latency_parts(sustained.first_us / 1000)),
        KeyFigure("Step sustained", *fmt.latency_parts(sustained.sustained_us / 1000), under="over the last third"),
        KeyFigure("Slower by", f"{sustained.ratio:.3f}", "\N{MULTIPLICATION SIGN}", reach),
        KeyFigure("Slows down after", onset, "", sustained.board_message),
        KeyFigure("Steps", fmt.number(sustained.steps), "", f"in {format_duration(sustained.lasted_s)}"),
    )


def sustained_facts(sustained: SustainedView) -> tuple[Fact, ...]:
    """Returns the facts shown beside the other conditions."""
    return (
        Fact("Protocol", sustained.protocol),
        Fact("Ended", ENDS[sustained.ended]),
        Fact("Steps fill", fmt.percent(sustained.busy), hint="Of the time; the rest is between steps"),
        Fact("The board said", sustained.board_message or "nothing of throttling or of its clock"),
    )
