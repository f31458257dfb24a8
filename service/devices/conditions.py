"""The devices' conditions, which agents report with each request for work and heartbeat. Each process remembers them in
memory.

Its sweeper writes it: the newest of each device, and the hottest of each quarter of an hour. A board may say anything:
what cannot be is not taken, and told among the device's marks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from device_agents.wire import MOST_CONDITION_CHARACTERS, Condition, ProtocolError, loads
from service.base.identifiers import clean_text
from service.store.database.engine import Database
from service.store.database.insert import keep_higher
from service.store.database.models import ENOUGH_FREE_BYTES, QUARTER_S, Base, DeviceCondition, DeviceTemperature

AT_ONCE = 500
KEPT_QUARTERS = 7 * 86_400 // QUARTER_S
"""Quarters of an hour for which temperatures are stored: a week."""


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """The condition that a device reported, and when; or why the report was not accepted."""

    at: float
    condition: Condition = field(default_factory=Condition)
    problem: str = ""


def read(header: str, at: float) -> ConditionReport:
    """Reads a header."""
    if len(header) > MOST_CONDITION_CHARACTERS:
        return ConditionReport(at, problem=f"{len(header)} characters, {MOST_CONDITION_CHARACTERS} at most")
    try:
        return ConditionReport(at, loads(Condition, header))
    except ProtocolError as error:
        return ConditionReport(at, problem=clean_text(str(error), 200))


@dataclass(slots=True)
class Conditions:
    """Conditions of devices that have not been written to the database yet."""

    _new: dict[str, ConditionReport] = field(default_factory=dict)
    _hottest_c: dict[tuple[str, int], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, device_id: str, header: str | None) -> None:
        """Notes the condition that the device reports; an older agent reports none."""
        if header is None:
            return
        report = read(header, time.time())
        heat_c = report.condition.temperature_c
        with self._lock:
            self._new[device_id] = report
            if heat_c is not None:
                key = (device_id, int(report.at // QUARTER_S))
                self._hottest_c[key] = max(heat_c, self._hottest_c.get(key, heat_c))

    def write(self, database: Database) -> None:
        """Writes the conditions to the database; what fails now is written the next time, unless something newer has
        come.
        """
        with self._lock:
            new, self._new = self._new, {}
            hottest, self._hottest_c = self._hottest_c, {}
        try:
            _write(
                database,
                DeviceCondition,
                ("device_id",),
                "at",
                [_row(device_id, new[device_id]) for device_id in sorted(new)],
            )
            heat = [
                {"device_id": device_id, "quarter": quarter, "hottest_c": hottest[device_id, quarter]}
                for device_id, quarter in sorted(hottest)
            ]
            _write(database, DeviceTemperature, ("device_id", "quarter"), "hottest_c", heat)
        except BaseException:
            with self._lock:
                self._new = new | self._new
                for key, heat_c in hottest.items():
                    self._hottest_c[key] = max(heat_c, self._hottest_c.get(key, heat_c))
            raise


def _write(
    database: Database, kind: type[Base], key: Sequence[str], higher: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the rows in the order of their keys, so that two processes do not wait for each other."""
    for first in range(0, len(rows), AT_ONCE):
        with database.transaction() as session:
            keep_higher(session, kind, rows[first : first + AT_ONCE], key=key, higher=higher)


def _row(device_id: str, report: ConditionReport) -> Mapping[str, Any]:
    condition = report.condition
    return {
        "device_id": device_id,
        "storage_total_bytes": condition.storage_total_bytes,
        "storage_free_bytes": condition.storage_free_bytes,
        "kept_bytes": condition.kept_bytes,
        "temperature_c": condition.temperature_c,
        "problem": report.problem,
        "at": report.at,
    }


def condition_of(session: Session, device_id: str) -> DeviceCondition | None:
    """Returns the condition that the device told last; None if it never did, or belongs to somebody else."""
    return session.scalar(select(DeviceCondition).where(DeviceCondition.device_id == device_id))


def nearly_full(session: Session) -> list[DeviceCondition]:
    """Returns the newest conditions of devices whose storage is nearly full, those with the least room first."""
    few = select(DeviceCondition).where(DeviceCondition.storage_free_bytes < ENOUGH_FREE_BYTES)
    conditions = session.scalars(few.order_by(DeviceCondition.storage_free_bytes, DeviceCondition.device_id))
    return [condition for condition in conditions if condition.storage_is_nearly_full]


def storage_words(condition: DeviceCondition | None) -> str:
    """Says that the storage is nearly full, and what to do; empty: it is not, or was not reported."""
    if condition is None or not condition.storage_is_nearly_full:
        return ""
    free, total = (
        (size_bytes or 0) / (1 << 30) for size_bytes in (condition.storage_free_bytes, condition.storage_total_bytes)
    )
    return (
        f"its storage is nearly full: {free:.1f} of {total:.1f} GiB are free where its agent keeps its work; "
        "make room there, or runs end as device.disk"
    )


def temperatures(session: Session, device_id: str) -> list[tuple[float, float]]:
    """Returns (middle of a quarter of an hour, the hottest in it) of the last week, the oldest first."""
    query = select(DeviceTemperature.quarter, DeviceTemperature.hottest_c)
    rows = session.execute(query.where(DeviceTemperature.device_id == device_id).order_by(DeviceTemperature.quarter))
    return [((quarter + 0.5) * QUARTER_S, heat_c) for quarter, heat_c in rows]


def is_to_be_forgotten(session: Session) -> bool:
    """Whether `forget` has something to do: a look that blocks nobody."""
    return session.scalar(select(DeviceTemperature.quarter).where(_is_old()).limit(1)) is not None


def forget(session: Session) -> None:
    """Deletes temperatures that are older than a week."""
    session.execute(delete(DeviceTemperature).where(_is_old()))


def _is_old() -> ColumnElement[bool]:
    return DeviceTemperature.quarter < int(time.time() // QUARTER_S) - KEPT_QUARTERS
