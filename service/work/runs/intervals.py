"""The intervals of the medians of a page's runs, computed from the raw times of their reports, as for a report's
page.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.figures.intervals import Interval
from device_agents.figures.one_run import run_interval
from service.store.database.models import Result, Run

MOST_STEPS = 1_000
"""Most steps of a run whose times are read for a list; of a longer one its report tells."""


def intervals(session: Session, runs: Iterable[Run]) -> Mapping[str, Interval]:
    """Returns the intervals by the run's id. A run without a median, with too few blocks or with more steps than
    `MOST_STEPS` has none.
    """
    run_ids = [run.id for run in runs if run.median_us is not None and run.settings.steps <= MOST_STEPS]
    if not run_ids:
        return {}
    blocks = Result.report["measurement"]["blocks"]
    rows = session.execute(select(Result.run_id, blocks).where(Result.run_id.in_(run_ids), Result.state == "recorded"))
    pairs = ((run_id, run_interval(_medians(block_rows or ()))) for run_id, block_rows in rows)
    return {run_id: interval for run_id, interval in pairs if interval is not None}


def _medians(blocks: Sequence[Mapping[str, Any]]) -> list[float]:
    return [statistics.median(block["step_us"]) for block in blocks if block["step_us"]]
