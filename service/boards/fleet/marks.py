"""The marks of a device: what its newest results say together, where one alone says nothing: noisy, unlike its peers,
lying.

A mark is no judgement: it costs no work and no strike. It is computed when somebody looks, from a few rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import Report, from_json, impossible_energy
from service.base.schemas import View
from service.boards.canary.history import change_words, explained, is_open
from service.devices.conditions import storage_words
from service.devices.isolation import contradiction
from service.devices.machines import TWO_MACHINES, two_machines_words
from service.store.database.memory import lasting_of
from service.store.database.models import Attempt, CanaryChange, Device, DeviceCondition, Result, Run
from service.store.database.scope import EVERYONES
from service.work.runs.faults import NOT_RECEIVED

NEWEST, ENOUGH = 10, 5
"""Results that are looked at, and how many there must be."""
NEWEST_ATTEMPTS = 20
NEWEST_REPORTS = 3
UNLIKE, COMPARED, PEERS = 1.5, 3, 2
"""How many times the peers' median marks a device as unlike its peers, on at least how many bundles, and with how many
peers.
"""
REFUSED = "the device's report was refused: "
TIME_SLACK_S, CLOCK_RATE = 5.0, 1.05
SENSORS = {"temperature_c": (-60.0, 150.0), "frequency_hz": (0.0, 1e10), "power_mw": (0.0, 1e6), "load": (0.0, 1e4)}
"""Range of plausible values, by sensor: no board's sensor truly says others. The wire takes more, for a broken one is
shown and not judged.
"""


Attempts = list[tuple[str | None, str]]
"""Code and message."""
Looks = list[tuple[tuple[str, ...], str]]
"""Findings in reports: sensors with implausible values, and how the clock went wrong."""
LOOK_BYTES = 500
"""Approximate size of a look in memory."""


class DeviceMark(View):
    """Something that an operator should look at."""

    code: str
    """two-machines, always-noisy, unlike-peers, slower, impossible-reports, sensors, time, not-received, isolation,
    storage or condition."""
    message: str


def marks_of(session: Session, device: Device, condition: DeviceCondition | None) -> list[DeviceMark]:
    """Returns the device's marks. `condition`: what it reported last."""
    attempts, looks = _newest_attempts(session, device), _newest_looks(session, device)
    checks = (
        (TWO_MACHINES, two_machines_words(session, device)),
        ("always-noisy", _noisy(session, device)),
        ("unlike-peers", _unlike(session, device)),
        ("slower", _slower(session, device)),
        ("impossible-reports", _impossible(attempts)),
        ("sensors", _sensors(looks)),
        ("time", _time(looks)),
        ("not-received", _not_received(attempts)),
        ("isolation", contradiction(session, device)),
        ("storage", storage_words(condition)),
        ("condition", _untaken(condition)),
    )
    return [DeviceMark(code=code, message=message) for code, message in checks if message]


def _untaken(condition: DeviceCondition | None) -> str:
    if condition is None or not condition.problem:
        return ""
    return f"what it tells of its storage and temperature cannot be: {condition.problem}"


def _everyones(session: Session, statement: Any) -> Any:
    """Marks count the results of all runs on the device, whoever sent them: the owner is shown words, no results."""
    return session.execute(statement, execution_options=dict(EVERYONES))


def _noisy(session: Session, device: Device) -> str:
    query = select(Run.verdict).where(Run.device_id == device.id, Run.verdict.is_not(None), Run.state == "succeeded")
    verdicts = list(_everyones(session, query.order_by(Run.id.desc()).limit(NEWEST)).scalars())
    if len(verdicts) < ENOUGH or "valid" in verdicts:
        return ""
    return f"none of its newest {len(verdicts)} measurements was valid: {', '.join(sorted(set(map(str, verdicts))))}"


def _unlike(session: Session, device: Device) -> str:
    """Peers have the same class, and ran the same bundle in the same mode."""
    measured = (Run.median_us.is_not(None), Run.verdict == "valid", Run.state == "succeeded")
    own_query = select(Run.bundle_digest, Run.median_us).where(Run.device_id == device.id, *measured)
    rows = _everyones(session, own_query.order_by(Run.id.desc()).limit(NEWEST)).all()
    newest = {digest: us or 0.0 for digest, us in reversed(rows)}
    query = (
        select(Run.bundle_digest, Run.device_id, Run.median_us)
        .join(Device, Device.id == Run.device_id)
        .where(Run.bundle_digest.in_(newest), Device.device_class == device.device_class, Device.id != device.id)
        .where(*measured)
        .order_by(Run.id.desc())
        .limit(20 * NEWEST)
    )
    peer_times: dict[str, dict[str, float]] = {}
    for digest, peer, us in _everyones(session, query):
        peer_times.setdefault(digest, {}).setdefault(peer or "", us or 0.0)
    ratios = [
        newest[digest] / statistics.median(times.values())
        for digest, times in peer_times.items()
        if len(times) >= PEERS and all(times.values())
    ]
    if len(ratios) < COMPARED:
        return ""
    if min(ratios) > UNLIKE or max(ratios) < 1 / UNLIKE:
        word = "slower" if min(ratios) > 1 else "quicker"
        typical = statistics.median(ratios)
        times = typical if typical > 1 else 1 / typical
        return f"{times:.1f} times {word} than other devices of class {device.device_class}, on {len(ratios)} bundles"
    return ""


def _slower(session: Session, device: Device) -> str:
    conditions = (CanaryChange.device_id == device.id, *is_open())
    changes = session.scalars(select(CanaryChange).where(*conditions).order_by(CanaryChange.after_run_id)).all()
    descriptions = [
        f"{change.canary} on {change.target} {change_words(change)}, {explained(change.differences)}"
        for change in changes
    ]
    return f"slower than it was, by its canaries: {'; '.join(descriptions)}" if descriptions else ""


def _impossible(rows: Attempts) -> str:
    """Describes figures that cannot be, by their field only: the run may be somebody else's."""
    lies = [
        _field(message) if code == "report.impossible" else "a canary run's losses"
        for code, message in rows
        if code in ("report.impossible", "canary.wrong")
    ]
    if not lies:
        return ""
    return f"told figures that cannot be {len(lies)} times in its newest {len(rows)} attempts; the last: {lies[0]}"


def _field(message: str) -> str:
    """Returns the field that the message of a refused report names."""
    return message.removeprefix(REFUSED).split(":")[0][:100]


def _not_received(rows: Attempts) -> str:
    count = sum(code == NOT_RECEIVED for code, _ in rows)
    if count < ENOUGH:
        return ""
    return f"{count} of its newest {len(rows)} assignments did not reach it, or it never began: look at its network"


def _newest_attempts(session: Session, device: Device) -> Attempts:
    query = select(Attempt.code, Attempt.message).where(Attempt.device_id == device.id)
    rows = _everyones(session, query.order_by(Attempt.id.desc()).limit(NEWEST_ATTEMPTS))
    return [(code, message) for code, message in rows]


def _newest_looks(session: Session, device: Device) -> Looks:
    """Returns what was seen in the device's newest reports. Each report is read once, since it is long and never
    changes.
    """
    attempts = (
        select(Attempt.id).where(Attempt.device_id == device.id).order_by(Attempt.id.desc()).limit(NEWEST_REPORTS)
    )
    keys = _everyones(session, select(Result.attempt_id, Result.digest).where(Result.attempt_id.in_(attempts))).all()
    lasting, looks = lasting_of(session), Looks()
    for attempt_id, digest in keys:
        key = ("marks of a report", attempt_id, digest)
        look = partial(_look, session, attempt_id, device.device_class)
        looks.append(lasting.recall(key, look, lambda _: LOOK_BYTES))
    return looks


def _look(session: Session, attempt_id: str, device_class: str) -> tuple[tuple[str, ...], str]:
    report = _everyones(session, select(Result.report).where(Result.attempt_id == attempt_id)).scalar_one()
    return tuple(_out_of_range(report, device_class)), _backwards(report)


def _sensors(looks: Looks) -> str:
    sensors = sorted({name for names, _ in looks for name in names})
    return f"its sensors say what no board's do: {', '.join(sensors)}" if sensors else ""


def _out_of_range(report: dict[str, Any], device_class: str) -> Iterator[str]:
    for state in report.get("device_states") or ():
        for name, (least, most) in SENSORS.items():
            value = state.get(name)
            if isinstance(value, (int, float)) and not least <= value <= most:
                yield name
    if report.get("energy") and impossible_energy(from_json(Report, report), device_class):
        yield "energy"


def _time(looks: Looks) -> str:
    """Returns what is wrong with the clock. A clock that is set while a run goes on does this once; one that always
    does it is broken, or lies.
    """
    faults = [words for _, words in looks if words]
    return f"its clock went wrong during {len(faults)} of its newest {len(looks)} runs: {faults[0]}" if faults else ""


def _backwards(report: dict[str, Any]) -> str:
    took_s = report["finished_at"] - report["started_at"]
    if took_s < -TIME_SLACK_S:
        return "one ended before it began"
    if report["run_s"] > took_s * CLOCK_RATE + TIME_SLACK_S:
        return "its binary ran for longer than there was between begin and end"
    moments = [state["at"] for state in report.get("device_states") or ()]
    back_s = max((early - late for early, late in pairwise(moments)), default=0.0)
    return "a sensor was read before the reading that came first" if back_s > TIME_SLACK_S else ""
