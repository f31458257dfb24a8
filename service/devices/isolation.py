"""The isolation of jobs on a device, as it states it: when it enrols, when it asks for work, and in its reports.

A level is believed as far as the device's own facts bear it out (`device_agents/wire/isolation.py`). What an agent
finds of its sandbox it finds once, at its start: facts of a report that contradict it hold until it starts again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import ISOLATION_FACTS, ISOLATION_LEVELS, Report, borne_out, missing_parts
from service.base.identifiers import clean_text
from service.devices.blame import RESTARTED, note
from service.store.database.models import Attempt, Device, DeviceEvent

CONTRADICTED = "isolation-contradicted"
"""A line of the history."""


def _bounded(level: int) -> int:
    return max(0, min(len(ISOLATION_LEVELS) - 1, level))


def _believed(device: Device, level: int) -> int:
    return borne_out(_bounded(level), device.environment)


def promises_the_same(device: Device, level: int) -> bool:
    """Whether the level is the one that the device has said before, as far as it is believed."""
    return _believed(device, level) == device.isolation_level


def judge_promise(session: Session, device: Device, level: int) -> None:
    """Accepts the level that the device promises for the work that it asks for; its history records when that is
    another level.
    """
    if promises_the_same(device, level):
        return
    message = f"asks for work at isolation level {_bounded(level)}, and said {device.isolation_level} before"
    note(session, device.id, "isolation", message)
    judge_description(session, device, level)


def judge_description(session: Session, device: Device, level: int) -> None:
    """Accepts the level that the device states, or the lower one that the facts it has sent support."""
    level = _bounded(level)
    believed = _believed(device, level)
    if believed < level:
        _note_contradiction(session, device, level, device.environment)
    device.isolation_level = believed


def judge_report(session: Session, device: Device, report: Report) -> None:
    """Lowers the device's level if the facts in its report contradict it. From that report on, those facts are the
    device's.
    """
    believed = borne_out(report.isolation_level, report.environment)
    if believed == report.isolation_level:
        return
    _note_contradiction(session, device, report.isolation_level, report.environment)
    device.environment = with_facts(device.environment, report.environment)
    device.isolation_level = min(device.isolation_level, believed)


def with_facts(environment: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with the observed facts of the sandbox, if there are any, in place of the stated ones."""
    observed = {name: clean_text(facts[name], 500) for name in ISOLATION_FACTS if name in facts}
    return {
        name: value for name, value in environment.items() if not observed or name not in ISOLATION_FACTS
    } | observed


def contradiction(session: Session, device: Device) -> str:
    """Returns what contradicts the level that the device has stated since its newest start; empty: nothing does."""
    query = select(DeviceEvent.kind, DeviceEvent.message).where(
        DeviceEvent.device_id == device.id, DeviceEvent.kind.in_((CONTRADICTED, RESTARTED))
    )
    event = session.execute(query.order_by(DeviceEvent.id.desc()).limit(1)).one_or_none()
    return event.message if event is not None and event.kind == CONTRADICTED else ""


def _note_contradiction(session: Session, device: Device, level: int, environment: Mapping[str, str]) -> None:
    """Adds a line to the history: once for each start, and again when the contradiction is worse."""
    believed, missing = borne_out(level, environment), missing_parts(level, environment)
    if contradiction(session, device) and believed >= device.isolation_level:
        return
    message = (
        f"says isolation level {level}, and by its own facts these parts are not in force: {', '.join(missing)}; level "
        f"{believed} counts until its agent starts again: see what it finds (--probe), and mend that"
    )
    note(session, device.id, CONTRADICTED, message)


def fell_short(attempt: Attempt, report: Report) -> str:
    """Why the result does not count: the job was isolated less than the device had promised. Empty: it was not."""
    promised, believed = attempt.isolation_level, borne_out(report.isolation_level, report.environment)
    if promised is None or believed >= promised:
        return ""
    return f"the job ran at isolation level {believed}, and the device had promised {promised}"
