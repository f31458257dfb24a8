"""The farm's figures for Prometheus, read from the database: any process that is asked says the same.

They are read again at most every few seconds, and never more than a twentieth of the time; sums over everything ever
stored, a good deal less often. Labels come from fixed lists, or are cut to the commonest few: a board or a user that
invents names does not make new series.

Counters of what has ended: attempts by outcome and cause, compiles by outcome, and how long these took.

Rows that have ended do not change, so each is read once: at the first scrape of a process all of them, later what ended
since. All processes of a farm thus count the same. A row is read when it is `SETTLED_S` old, since a transaction may
commit a little after the time that it wrote.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.base.disk import written_folders
from service.devices.conditions import nearly_full
from service.store import signs_of_life as signs
from service.store.database.models import (
    DEVICE_STATES,
    JOB_STATES,
    LIVE_ATTEMPT_STATES,
    RUN_STATES,
    SIGN_KINDS,
    Attempt,
    Bundle,
    Dataset,
    Device,
    Holding,
    Job,
    Outbox,
    Run,
)
from service.store.farm import Farm

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
        """Returns the counters, up to a moment ago."""
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


SHARE = 20
"""Figures are read at most for one part in so many of the time."""
SLOW = 12
"""Factor by which sums over all that was ever stored are kept longer."""
MOST_LABELS = 20
HOUR_S = 3600.0
AGES_S = (60.0, 300.0, HOUR_S, float("inf"))
Reader = Callable[[Session], list[Metric]]


@dataclass(slots=True)
class CachedFigure:
    """Figures that were read, and when they may be read again."""

    read: Reader
    keep_s: float
    metrics: list[Metric] = field(default_factory=list)
    again_at: float = float("-inf")

    def get(self, farm: Farm) -> list[Metric]:
        """Returns the figures; read anew if they are old."""
        started = time.monotonic()
        if started >= self.again_at:
            with farm.database.read() as session:
                self.metrics = self.read(session)
            took_s = time.monotonic() - started
            self.again_at = started + max(self.keep_s, SHARE * took_s if self.keep_s else 0.0)
        return self.metrics


class FarmCollector(Collector):
    """A collector of all figures of one farm."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._lock = threading.Lock()
        keep_s = farm.settings.metrics_s
        self._kept = (
            CachedFigure(_queues, keep_s),
            CachedFigure(_leases, keep_s),
            CachedFigure(_devices, keep_s),
            CachedFigure(_parts, keep_s),
            CachedFigure(_states, keep_s * SLOW),
            CachedFigure(_stored, keep_s * SLOW),
            CachedFigure(Ended().read, keep_s),
        )

    def describe(self) -> Iterator[Metric]:
        """Yields nothing, since registering must not touch the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields the figures."""
        with self._lock:
            for figure in self._kept:
                yield from figure.get(self._farm)
        yield _room(self._farm)


def gauge(name: str, text: str, labels: Sequence[str], rows: Sequence[tuple[Sequence[str], float]]) -> Metric:
    """Returns a gauge with its samples."""
    metric = GaugeMetricFamily(f"pockfarm_{name}", text, labels=list(labels))
    for values, number in rows:
        metric.add_metric(list(values), number)
    return metric


def _queues(session: Session) -> list[Metric]:
    now = time.time()
    queued_jobs = select(Job.target, func.count(), func.min(Job.created_at)).where(Job.state == "queued")
    queue_rows = [
        ("compile", "", target, count, since)
        for target, count, since in session.execute(queued_jobs.group_by(Job.target))
    ]
    queued_runs = select(Run.wanted_device_class, Run.target, func.count(), func.min(Run.created_at)).where(
        Run.state == "queued"
    )
    queue_rows += [
        ("run", wanted_class or "any", target, count, since)
        for wanted_class, target, count, since in session.execute(
            queued_runs.group_by(Run.wanted_device_class, Run.target)
        )
    ]
    depth: dict[tuple[str, str, str], float] = {("compile", "", ""): 0, ("run", "any", ""): 0}
    oldest: dict[str, float] = {"compile": now, "run": now}
    for n, (kind, device_class, target, count, since) in enumerate(sorted(queue_rows, key=lambda row: -row[3])):
        where = (kind, device_class, target) if n < MOST_LABELS else (kind, "other", "other")
        depth[where] = depth.get(where, 0) + count
        oldest[kind] = min(oldest[kind], since)
    unsent = session.scalar(select(func.count()).select_from(Outbox)) or 0
    rows = [([kind], now - since) for kind, since in oldest.items()]
    return [
        gauge("queue_depth", "Jobs and runs that wait", ["kind", "device_class", "target"], list(depth.items())),
        gauge("queue_age_seconds", "Age of the oldest that waits", ["kind"], rows),
        gauge("outbox", "Doorbells not rung yet", [], [((), unsent)]),
    ]


def _leases(session: Session) -> list[Metric]:
    now = time.time()
    query = select(func.count(), func.min(Attempt.created_at), func.min(Attempt.lease_expires_at))
    count, oldest, expires = session.execute(query.where(Attempt.state.in_(LIVE_ATTEMPT_STATES))).one()
    age_s, overdue_s = (now - oldest, max(0.0, now - expires)) if count else (0.0, 0.0)
    return [
        gauge("leases", "Attempts that devices hold", [], [((), count)]),
        gauge("lease_age_seconds", "Age of the oldest lease", [], [((), age_s)]),
        gauge("lease_overdue_seconds", "How long the lease that ran out first has been over", [], [((), overdue_s)]),
    ]


def _devices(session: Session) -> list[Metric]:
    now = time.time()
    query = select(Device.device_class, Device.state, func.count(), func.max(Device.last_seen_at))
    rows = session.execute(query.group_by(Device.device_class, Device.state)).all()
    states: dict[str, float] = dict.fromkeys(DEVICE_STATES, 0)
    classes: dict[str, tuple[int, float]] = {}
    for device_class, state, count, seen_at in rows:
        states[state] += count
        if state == "active":
            classes[device_class] = (count, seen_at)
    commonest = sorted(classes, key=lambda name: -classes[name][0])[:MOST_LABELS]
    filled = sum(1 for condition in nearly_full(session) if condition.at > now - HOUR_S)
    within = [_seen_within(session, now - age_s) for age_s in AGES_S]
    return [
        gauge("devices", "Devices by state", ["state"], [([state], count) for state, count in states.items()]),
        gauge(
            "device_class_devices",
            "Active devices of a class",
            ["device_class"],
            [([name], classes[name][0]) for name in commonest],
        ),
        gauge(
            "device_class_silence_seconds",
            "Time since any active device of the class was seen",
            ["device_class"],
            [([name], now - classes[name][1]) for name in commonest],
        ),
        gauge(
            "devices_seen",
            "Active devices that were last seen within so many seconds",
            ["within_s"],
            [([_age(age_s)], count) for age_s, count in zip(AGES_S, within, strict=True)],
        ),
        gauge("devices_nearly_full", "Devices seen within an hour whose storage is nearly full", [], [((), filled)]),
    ]


def _age(age_s: float) -> str:
    return f"{age_s:g}".replace("inf", "+Inf")


def _seen_within(session: Session, since: float) -> int:
    query = select(func.count()).select_from(Device).where(Device.state == "active", Device.last_seen_at >= since)
    return session.scalar(query) or 0


def _parts(session: Session) -> list[Metric]:
    now = time.time()
    signs_at = {kind: signs.newest(session, kind) for kind in SIGN_KINDS}  # type: ignore[arg-type]
    alive = [([kind], signs.count_alive(session, kind)) for kind in SIGN_KINDS]  # type: ignore[arg-type]
    lag_s = now - signs_at["sweeper"] if signs_at["sweeper"] is not None else float("nan")
    return [
        gauge("processes", "Processes of the farm with a fresh sign of life", ["kind"], alive),
        gauge("sweeper_lag_seconds", "Time since a sweep was last done", [], [((), lag_s)]),
    ]


def _states(session: Session) -> list[Metric]:
    metrics = []
    for name, table, states in (("jobs", Job, JOB_STATES), ("runs", Run, RUN_STATES)):
        query = select(table.state, func.count()).group_by(table.state)
        counts: dict[str, int] = {state: count for state, count in session.execute(query)}  # noqa: C416
        rows = [([state], counts.get(state, 0)) for state in states]
        metrics.append(gauge(name, f"{name.capitalize()} by state", ["state"], rows))
    return metrics


def _stored(session: Session) -> list[Metric]:
    sums = {
        "bundles": select(func.sum(Bundle.size_bytes)),
        "datasets": select(func.sum(Dataset.size_bytes)),
        "models": select(func.sum(Job.model_bytes)),
        "weights": select(func.sum(Run.trained_weights_bytes)),
    }
    rows = [([kind], float(session.scalar(query) or 0)) for kind, query in sums.items()]
    removed = select(Holding.kind, func.count(), func.sum(Holding.size_bytes)).group_by(Holding.kind)
    counts = session.execute(removed.where(Holding.files_removed_at.is_not(None))).all()
    return [
        gauge("storage_bytes", "Bytes of what rows name (equal files count each time)", ["kind"], rows),
        gauge(
            "retention_files",
            "Files that retention has taken from who held them",
            ["kind"],
            [([kind], count) for kind, count, _ in counts],
        ),
        gauge("retention_bytes", "Their bytes", ["kind"], [([kind], float(size)) for kind, _, size in counts]),
    ]


def _room(farm: Farm) -> Metric:
    rows = []
    for folder in written_folders(farm.settings):
        room = os.statvfs(folder)
        rows.append(([str(folder)], float(room.f_bavail * room.f_frsize)))
    return gauge("disk_free_bytes", "Room on the disks that this process writes to", ["folder"], rows)
