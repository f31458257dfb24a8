"""A device's timed canaries: a chart for each, and where the times changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.boards.canary.schemas import CanarySeriesView, CanaryTimeView, ChangeView
from service.boards.canary.service import history_of
from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.history import HistoryChange, HistoryPoint, history_plot
from service.dashboard.parts import Figure
from service.dashboard.tables import Column, Row, Table, table
from service.store.database.lasting import Lasting
from service.store.database.memory import lasting_of

COLUMNS = (
    Column("at", "When", "time", "UTC", primary=True),
    Column("run", "Run", "code"),
    Column("median_ms", "Median", "number", "ms", 3),
    Column("verdict", "Verdict", "verdict"),
    Column("compiler", "Compiler", "code"),
    Column("commit", "Commit", "code"),
)
CHANGE_COLUMNS = (
    Column("found_at", "Found", "time", "UTC"),
    Column("canary", "Canary", primary=True),
    Column("change", "Change", wrap=True),
    Column("state", "Standing"),
    Column("explains", "What else changed there", wrap=True),
    Column("from_run", "First run after it", "code", files_only=True),
    Column("change_id", "Its name", "code"),
    Column("acknowledgement", "Acknowledged", wrap=True),
)
SHOWN_RUNS = 15
"""Most runs in the table below a chart; the chart has all of them, and so has the API."""
LEGEND = (("history-dot", "valid"), ("history-hollow", "not judged"), ("change-line", "its times changed"))


@dataclass(frozen=True, slots=True)
class CanaryPart:
    """The canaries on a device's page."""

    figures: tuple[Figure, ...]
    """Figures, one for each canary, the newest first."""
    changes: Table
    """Changes of the times."""


def canary_part(session: Session, device_id: str) -> CanaryPart:
    """Makes the part of a device's page that shows its owner the timed canaries."""
    series = history_of(session, device_id).series
    changes = sorted(
        (change for canary_series in series for change in canary_series.changes),
        key=lambda change: change.found_at,
        reverse=True,
    )
    return CanaryPart(
        tuple(_figure(canary_series, lasting_of(session)) for canary_series in series), _changes_table(changes)
    )


def _changes_table(changes: Sequence[ChangeView]) -> Table:
    rows = [
        Row(
            {
                "found_at": fmt.iso(change.found_at),
                "canary": f"{change.canary} on {change.target}",
                "change": change.message,
                "state": change.state,
                "explains": change.explains,
                "from_run": change.after_run_id,
                "change_id": change.id,
                "acknowledgement": change.acknowledgement or None,
            },
            {"found_at": addresses.run(change.after_run_id)},
        )
        for change in changes
    ]
    return table("canary-changes", "Where its times changed, newest first", CHANGE_COLUMNS, rows)


def _figure(series: CanarySeriesView, drawn: Lasting) -> Figure:
    points = tuple(_point(run) for run in series.runs)
    began = {run.run_id: run.at for run in series.runs}
    changes = tuple(
        HistoryChange(began[change.after_run_id], f"{change.message}: {change.explains}")
        for change in series.changes
        if change.after_run_id in began
    )
    noise = (
        "how it varies is not known yet"
        if series.deviation is None
        else (f"one run lies {fmt.percent(series.deviation)} from the next")
    )
    return Figure(
        f"canary-{series.canary}-{series.target}",
        f"Canary {series.canary} on {series.target}",
        drawn.recall(
            ("canary history", points, changes),
            lambda: for_screens(lambda width: history_plot(points, changes, width), FULL_WIDTH),
            len,
        ),
        f"The same training step of the farm's own, measured again and again; {noise}.",
        legend=LEGEND,
        table=table(
            "canary-runs",
            f"{series.canary}, newest first",
            COLUMNS,
            [_row(run) for run in series.runs[: -SHOWN_RUNS - 1 : -1]],
        ),
    )


def _point(run: CanaryTimeView) -> HistoryPoint:
    label = f"{fmt.clock(run.at)} UTC: {run.median_us / 1000:.3g} ms, {run.verdict}"
    return HistoryPoint(run.at, run.median_us / 1000, run.verdict == "valid", label)


def _row(run: CanaryTimeView) -> Row:
    values = {
        "at": fmt.iso(run.at),
        "run": run.run_id,
        "median_ms": run.median_us / 1000,
        "verdict": run.verdict,
        "compiler": fmt.short_digest(run.compiler),
        "commit": run.commit[:12] or None,
    }
    return Row(values, {"run": addresses.run(run.run_id)})
