"""The progress of an open run: its place in the queue and, once it is on a device, how long it still takes."""

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
from service.dashboard.progress_events import SentStep
from service.dashboard.tables import Column, Row, Table, table
from service.work.runs.why import Waiting

NEWEST = 50
"""Number of newest steps that tell how long the others will take."""
COLUMNS = (
    Column("step", "Step", "number", primary=True),
    Column("loss", "Loss", "number", "", 6),
    Column("step_ms", "Step time", "number", "ms", fits=True),
)


def progress_facts(run: RunFacts, waiting: Waiting | None, steps: Sequence[SentStep]) -> tuple[Fact, ...]:
    """Returns the place of a queued run; of one on a device what has passed and what is to come."""
    since = Fact("Queued for", fmt.duration(max(0.0, time.time() - run.created_at)))
    if waiting is not None:
        return (since, *waiting_facts(waiting))
    if run.started_at is None:
        return (since,)
    facts = [Fact("Elapsed", fmt.duration(max(0.0, time.time() - run.started_at)))]
    left_s = _left_s(run, steps)
    if left_s is not None:
        facts.append(
            Fact("Steps end in about", fmt.duration(left_s), hint="By the newest steps; what follows is not in it")
        )
    times = _times(steps)
    if times:
        facts.append(Fact("Step time now", fmt.latency(statistics.median(times)), hint="Median of the newest steps"))
    losses = [step.loss for step in steps if step.loss is not None]
    if losses:
        facts.append(Fact("Loss now", fmt.loss(losses[-1])))
    return tuple(facts)


def sent_figure(steps: Sequence[SentStep], here: str) -> Figure | None:
    """Draws the times of the steps so far; None before the first."""
    times = [step.ms for step in steps if step.ms is not None]
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
    """Returns a table of every step that was sent."""
    rows = [Row({"step": step.step, "loss": step.loss, "step_ms": step.ms}) for step in steps]
    return table("sent", "Steps as they were sent", COLUMNS, rows)


def _left_s(run: RunFacts, steps: Sequence[SentStep]) -> float | None:
    """Estimates the remaining seconds from the wall time between the newest steps, which includes what happens between
    them.
    """
    newest = steps[-NEWEST:]
    if len(newest) < 2 or not run.steps or newest[-1].step <= newest[0].step:
        return None
    each_s = (newest[-1].at - newest[0].at) / (newest[-1].step - newest[0].step)
    return max(0.0, each_s * (run.steps - newest[-1].step))


def _times(steps: Sequence[SentStep]) -> list[float]:
    return [step.ms for step in steps[-NEWEST:] if step.ms is not None]
