"""Counters of what has ended: attempts by outcome and cause, compiles by outcome, and how long these took.

Rows that have ended do not change, so each is read once: at the first scrape of a process all of them, later what ended
since. All processes of a farm thus count the same. A row is read when it is `SETTLED_S` old, since a transaction may
commit a little after the time that it wrote.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.database.models import Attempt, Job

SETTLED_S = 5.0
BUCKETS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)
CAUSES = frozenset({"model", "compiler", "limits", "device", "infra", "service", "user", "policy"})


class Ended:
    """The work that has ended so far."""

    def __init__(self, *, settled_s: float = SETTLED_S) -> None:
        self._settled_s = settled_s
        self._until = float("-inf")
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._seconds = 0.0

    def read(self, session: Session) -> list[Metric]:
        """The counters, up to a moment ago."""
        until = time.time() - self._settled_s
        self._attempts.update(_by_outcome(session, Attempt, self._until, until))
        self._jobs.update(_by_outcome(session, Job, self._until, until))
        for seconds in _compiles(session, self._until, until):
            self._buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1
            self._seconds += seconds
        self._until = until
        return [
            _counter("attempts", "Attempts that ended", self._attempts),
            _counter("compiles", "Jobs that ended", self._jobs),
            self._histogram(),
        ]

    def _histogram(self) -> Metric:
        metric = HistogramMetricFamily("pockfarm_compile_seconds", "Time from a job's claim to its bundle", labels=[])
        total, rows = 0, []
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], self._buckets, strict=True):
            total += count
            rows.append((bound, float(total)))
        metric.add_metric([], rows, self._seconds)
        return metric


def _counter(name: str, text: str, counts: Counter[tuple[str, str]]) -> Metric:
    metric = CounterMetricFamily(f"pockfarm_{name}", text, labels=["outcome", "cause"])
    for (outcome, cause), count in sorted(counts.items()):
        metric.add_metric([outcome, cause], count)
    return metric


def _by_outcome(session: Session, table: type[Attempt | Job], since: float, until: float) -> Counter[tuple[str, str]]:
    query = select(table.state, table.cause, func.count()).group_by(table.state, table.cause)
    counts: Counter[tuple[str, str]] = Counter()
    for state, cause, count in session.execute(_between(query, table, since, until)):
        counts[state, "" if cause is None else cause if cause in CAUSES else "other"] += count
    return counts


def _compiles(session: Session, since: float, until: float) -> list[float]:
    query = select(Job.finished_at - Job.started_at).where(Job.state == "succeeded", Job.started_at.is_not(None))
    return [float(seconds) for seconds in session.scalars(_between(query, Job, since, until))]


def _between(query, table, since: float, until: float):  # type: ignore[no-untyped-def]
    statement = query.where(table.finished_at <= until)
    return statement if since == float("-inf") else statement.where(table.finished_at > since)
