"""How a device says that it isolates jobs: what it enrolled with, promises as it asks for work, and then reports."""

from __future__ import annotations

from sqlalchemy.orm import Session

from device_agents.wire import ISOLATION_LEVELS, Report
from service.database.models import Attempt, Device
from service.devices.blame import note


def _bounded(level: int) -> int:
    return max(0, min(len(ISOLATION_LEVELS) - 1, level))


def promises_the_same(device: Device, level: int) -> bool:
    """Whether the level is the one that the device has said before."""
    return _bounded(level) == device.isolation_level


def judge_promise(session: Session, device: Device, level: int) -> None:
    """Take what the device promises for the work that it asks for; its history tells when that is another level."""
    if promises_the_same(device, level):
        return
    level = _bounded(level)
    said = f"asks for work at isolation level {level}, and said {device.isolation_level} before"
    note(session, device.id, "isolation", said)
    device.isolation_level = level


def fell_short(attempt: Attempt, report: Report) -> str:
    """Why the result does not count: the job was isolated less than the device had promised. Empty: it was not."""
    promised = attempt.isolation_level
    if promised is None or report.isolation_level >= promised:
        return ""
    return f"the job ran at isolation level {report.isolation_level}, and the device had promised {promised}"
