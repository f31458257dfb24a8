"""How far an open run is: where it stands in the queue, and once it is on a device, how long it takes yet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.steps import StepSeries, step_plot
from service.dashboard.facts import RunFacts
from service.dashboard.pages.history import waiting_facts
from service.dashboard.parts import Fact, Figure
from service.dashboard.sent import SentStep
from service.dashboard.tables import Column, Row, Table, table
from service.work.runs.why import Waiting

NEWEST = 50
"""Of the steps that say how long the others will take."""
COLUMNS = (
    Column("step", "Step", "number", primary=True),
    Column("loss", "Loss", "number", "", 6),
    Column("step_ms", "Step time", "number", "ms", fits=True),
)


def progress_facts(found: RunFacts, waiting: Waiting | None, steps: Sequence[SentStep]) -> tuple[Fact, ...]:
    """Of a queued run its place; of one on a device what has passed and what is to come."""
    since = Fact("Queued for", fmt.duration(max(0.0, time.time() - found.created_at)))
    if waiting is not None:
        return (since, *waiting_facts(waiting))
    if found.started_at is None:
        return (since,)
    facts = [Fact("Elapsed", fmt.duration(max(0.0, time.time() - found.started_at)))]
    left_s = _left_s(found, steps)
    if left_s is not None:
        facts.append(
            Fact("Steps end in about", fmt.duration(left_s), hint="By the newest steps; what follows is not in it")
        )
    times = _times(steps)
    if times:
        facts.append(Fact("Step time now", fmt.latency(statistics.median(times)), hint="Median of the newest steps"))
    losses = [one.loss for one in steps if one.loss is not None]
    if losses:
        facts.append(Fact("Loss now", fmt.loss(losses[-1])))
    return tuple(facts)


def sent_figure(steps: Sequence[SentStep], here: str) -> Figure | None:
    """What steps took so far; None before the first."""
    times = [one.ms for one in steps if one.ms is not None]
    if not times:
        return None
    ordered = sorted(times)
    series = StepSeries(tuple(times), (len(times),), statistics.median(times), None, ordered[(9 * len(ordered)) // 10])
    drawing = for_screens(lambda width: step_plot(series, width), FULL_WIDTH)
    line = Line("step time", "series-1", column="step_ms", kind="dots")
    chart = Chart((line,), "step", "ms per step", source=f"{here}/sent.json", x="step", can_be_log=True)
    note = f"{fmt.plural(len(times), 'step')} so far, as the device sends them: no measurement yet."
    return Figure("step-latency", "Step latency", drawing, note, data_href=f"{here}/sent", chart=chart)


def sent_table(steps: Sequence[SentStep]) -> Table:
    """Every step that was sent."""
    rows = [Row({"step": one.step, "loss": one.loss, "step_ms": one.ms}) for one in steps]
    return table("sent", "Steps as they were sent", COLUMNS, rows)


def _left_s(found: RunFacts, steps: Sequence[SentStep]) -> float | None:
    """By wall time between the newest steps, which holds what is between them too."""
    newest = steps[-NEWEST:]
    if len(newest) < 2 or not found.steps or newest[-1].step <= newest[0].step:
        return None
    each_s = (newest[-1].at - newest[0].at) / (newest[-1].step - newest[0].step)
    return max(0.0, each_s * (found.steps - newest[-1].step))


def _times(steps: Sequence[SentStep]) -> list[float]:
    return [one.ms for one in steps[-NEWEST:] if one.ms is not None]
