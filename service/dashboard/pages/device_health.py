"""A device's health: what its isolation enforces, what its sensors reported, and what its canaries took last."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from device_agents.wire import ISOLATION_LEVELS, ISOLATION_PARTS
from device_agents.wire.isolation import IN_FORCE, LACKING
from service.dashboard import addresses, queries
from service.dashboard import format as fmt
from service.dashboard.facts import DeviceFacts, RunFacts
from service.dashboard.tables import Column, Row, Table, Value, table
from service.store.database.models import CanaryTime, Result
from service.work.runs.filter import RunFilter

SENSORS = ("temperature_c", "frequency_hz", "throttled", "load")
"""Fields of a sample of the board's state."""
NEWEST = 5
"""Measured runs whose reports are read for what the sensors said."""
COLUMNS = (
    Column("run", "Run", primary=True),
    Column("hottest_c", "Hottest", "number", "\N{DEGREE SIGN}C", 1),
    Column("coolest_c", "Coolest", "number", "\N{DEGREE SIGN}C", 1),
    Column("mhz", "Mean clock", "number", "MHz", wide_only=True),
    Column("throttled", "Held its speed back"),
    Column("load", "Others' load", "number", "cores", 2, wide_only=True, hint="Processor time of other processes"),
    Column("at", "When", "time", "UTC", wide_only=True),
)
WORDS = (
    "nothing: what runs there may do what its user may",
    "a session of its own with limits of memory, time and files; no privileges",
    "only the system calls that training needs, and one process",
    "it sees no network, no other process and no file but its own",
    "the kernel bounds the memory and the processes of the job as a whole",
)
"""Protection that each level adds, for those who do not read docs/isolation.md."""


@dataclass(frozen=True, slots=True)
class IsolationPart:
    """The isolation that a device enforces around a job."""

    level: int
    levels: tuple[tuple[str, bool], ...]
    """(what each level adds, whether it is in force), from 1 on."""
    parts: str
    """Protections that were tried and are in force, as the agent tells."""
    lacks: str
    """Protections that are not in force, and why."""
    next_level: str
    """Needs of the next level; empty at the highest."""


def isolation_part(device: DeviceFacts) -> IsolationPart:
    """Explains the device's isolation for people."""
    level = max(0, min(device.isolation_level, len(ISOLATION_LEVELS) - 1))
    more = ISOLATION_PARTS[level + 1 : level + 2]
    return IsolationPart(
        level=level,
        levels=tuple((words, at <= level) for at, words in enumerate(WORDS) if at),
        parts=device.environment.get(IN_FORCE, ""),
        lacks=device.environment.get(LACKING, ""),
        next_level=", ".join(more[0]) if more else "",
    )


def newest_times(session: Session, device_ids: Collection[str]) -> dict[str, float]:
    """Returns the time of each device's newest timed canary, in microseconds: of any series, if it was valid."""
    if not device_ids:
        return {}
    conditions = (CanaryTime.device_id.in_(device_ids), CanaryTime.verdict == "valid")
    last = select(func.max(CanaryTime.run_id)).where(*conditions).group_by(CanaryTime.device_id)
    rows = session.execute(select(CanaryTime.device_id, CanaryTime.median_us).where(CanaryTime.run_id.in_(last)))
    return dict(rows.all())


def sensor_table(session: Session, device_id: str) -> Table:
    """Tabulates the board's reports about itself while its newest runs were measured; empty without a device or a
    sensor.
    """
    runs = queries.measured_runs(session, RunFilter(device=device_id), NEWEST) if device_id else []
    states = _states(session, [run.id for run in runs])
    rows = [row for run in runs if (row := _row(run, states.get(run.id, ()))) is not None]
    return table("sensors", "What its sensors said in its newest runs", COLUMNS, rows)


def _states(session: Session, run_ids: Collection[str]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Returns the samples of the board's state by run. Nothing else leaves the database: a report has thousands of
    times.
    """
    query = select(Result.run_id, Result.report["device_states"]).where(Result.run_id.in_(run_ids))
    rows = session.execute(query.where(Result.state == "recorded")) if run_ids else ()
    return {run_id: states for run_id, states in rows if isinstance(states, list)}


def _row(run: RunFacts, states: Sequence[Mapping[str, Any]]) -> Row | None:
    readings = {
        name: [float(state[name]) for state in states if isinstance(state.get(name), int | float)] for name in SENSORS
    }
    heat, clocks, throttled, loads = (readings[name] for name in SENSORS)
    if not any(readings.values()):
        return None
    values: dict[str, Value] = {
        "run": run.title,
        "hottest_c": max(heat, default=None),
        "coolest_c": min(heat, default=None),
        "mhz": sum(clocks) / len(clocks) / 1e6 if clocks else None,
        "throttled": fmt.percent(sum(throttled) / len(throttled), 0) + " of the time"
        if any(throttled)
        else "no"
        if throttled
        else None,
        "load": max(loads, default=None),
        "at": fmt.iso(run.created_at),
    }
    return Row(values, {"run": addresses.run(run.id)}, {"run": run.verdict or ""})
